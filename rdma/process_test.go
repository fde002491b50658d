package rdma_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/rdma"
)

// dialEnv makes the test the second process, which dials the address.
const dialEnv = "VERBENA_TEST_DIAL"

// Two processes by Dial and Listen alone, each with an address of its own: messages there and back, a
// WRITE into the other one's memory, the end.
func TestTwoProcesses(t *testing.T) {
	if to := os.Getenv(dialEnv); to != "" {
		if err := second(limited(t), to); err != nil {
			t.Fatal(err)
		}
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the addresses of 127.0.0.0/8 have to be added first")
	}
	lo, mine, theirs := loopName(t), loopAddr(), loopAddr()
	t.Setenv(rdma.AddrsEnv, lo+"="+mine.String())
	ctx := limited(t)
	l, err := rdma.Listen(ctx, mine.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	// The address is in use now.
	if _, err := rdma.Listen(ctx, mine.String()+":0"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second Host on the address: %v", err)
	}
	if _, err := rdma.Dial(ctx, l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("dialing from it: %v", err)
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestTwoProcesses$", "-test.count=1")
	cmd.Env = append(os.Environ(), dialEnv+"="+l.Addr().String(), rdma.AddrsEnv+"="+lo+"="+theirs.String())
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil { // the connection stays
		t.Error(err)
	}
	if s := string(c.PrivateData()); !strings.HasPrefix(s, "hello") {
		t.Errorf("%q", s)
	}
	mem := make([]byte, 100_000)
	mr, err := c.RegisterWrite(mem)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := rdma.RemoteOf(mr).MarshalBinary()
	if err := c.Send(ctx, b); err != nil {
		t.Fatal(err)
	}
	m, err := c.Recv(ctx)
	if err != nil || string(m) != "written" || string(mem) != strings.Repeat("0123456789", 10_000) {
		t.Errorf("%q %v", m, err)
	}
	if _, err := c.Recv(ctx); err != io.EOF {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func second(ctx context.Context, to string) error {
	c, err := rdma.Dial(ctx, to, rdma.WithPrivateData([]byte("hello")))
	if err != nil {
		return err
	}
	m, err := c.Recv(ctx)
	if err != nil {
		return err
	}
	var r rdma.Remote
	return errors.Join(
		r.UnmarshalBinary(m),
		c.RemoteWrite(ctx, r, []byte(strings.Repeat("0123456789", 10_000)), nil),
		c.Send(ctx, []byte("written")),
		c.Close(),
	)
}
