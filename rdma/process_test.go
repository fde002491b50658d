package rdma_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
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
	// Another Host shares the address, but not the port; one that shares nothing has no place there.
	if _, err := rdma.Listen(ctx, l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second listener on the port: %v", err)
	}
	if l2, err := rdma.Listen(ctx, mine.String()+":0"); err != nil {
		t.Errorf("a second Host on the address: %v", err)
	} else if err := l2.Close(); err != nil {
		t.Error(err)
	}
	alone, err := rdma.NewHost(rdma.WithoutSharing())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alone.Listen(ctx, mine.String()+":0"); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "this device does not share") {
		t.Errorf("a Host that does not share: %v", err)
	}
	if err := alone.Close(); err != nil {
		t.Error(err)
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

// A peer that is killed is noticed when something is sent to it, in bounded time, by those who
// send and by those who receive; Close does not wait for it. That is where nobody says goodbye for
// it: it shared its address with nobody.
func TestPeerKilled(t *testing.T) {
	if to := os.Getenv(dialEnv); to != "" {
		h, err := rdma.NewHost(rdma.WithoutSharing())
		if err != nil {
			t.Fatal(err)
		}
		c, err := h.Dial(limited(t), to)
		if err != nil {
			t.Fatal(err)
		}
		c.Send(limited(t), []byte("I am here"))
		c.Recv(limited(t)) // until it is killed
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the addresses of 127.0.0.0/8 have to be added first")
	}
	lo, mine, theirs := loopName(t), loopAddr(), loopAddr()
	h := host(t, mine)
	ctx := limited(t)
	l, err := h.Listen(ctx, mine.String()+":0", rdma.WithPeerTimeout(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPeerKilled$", "-test.count=1")
	cmd.Env = append(os.Environ(), dialEnv+"="+l.Addr().String(), rdma.AddrsEnv+"="+lo+"="+theirs.String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	attr, _, err := c.ID().QP().Query()
	if err != nil {
		t.Fatal(err)
	}
	// 300 ms / 8, rounded up to 4.096 us * 2^14.
	if attr.Timeout != 14 || attr.RetryCnt != 7 || attr.RNRRetry != 7 || attr.MinRNRTimer == 0 || ib.RNRTimer(attr.MinRNRTimer) > time.Millisecond {
		t.Errorf("%+v", attr)
	}
	if m, err := c.Recv(ctx); err != nil || string(m) != "I am here" {
		t.Fatal(m, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	received := make(chan error, 1)
	go func() {
		_, err := c.Recv(ctx)
		received <- err
	}()
	if err := c.Send(ctx, []byte("are you there?")); err != nil {
		t.Errorf("the first one only waits: %v", err)
	}
	for name, err := range map[string]error{"flush": c.Flush(ctx), "recv": <-received, "send": c.Send(ctx, nil), "close": c.Close()} {
		var n net.Error
		if !errors.Is(err, syscall.ETIMEDOUT) || !errors.As(err, &n) || !n.Timeout() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A peer on the same address that is killed: another process says goodbye for it, and who receives
// learns it at once, though nothing is sent and no timer runs.
func TestCase94_KilledOnOneAddress(t *testing.T) {
	if to := os.Getenv(dialEnv); to != "" {
		c, err := rdma.Dial(limited(t), to)
		if err != nil {
			t.Fatal(err)
		}
		c.Send(limited(t), []byte("I am here"))
		c.Recv(limited(t)) // until it is killed
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("addresses are not shared")
	}
	lo, mine := loopName(t), loopAddr()
	h := host(t, mine)
	ctx := limited(t)
	l, err := h.Listen(ctx, mine.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCase94_KilledOnOneAddress$", "-test.count=1")
	cmd.Env = append(os.Environ(), dialEnv+"="+l.Addr().String(), rdma.AddrsEnv+"="+lo+"="+mine.String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := c.Recv(ctx); err != nil || string(m) != "I am here" {
		t.Fatal(m, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if _, err := c.Recv(ctx); err != io.EOF {
		t.Errorf("%v, want the end", err)
	}
	c.Close()
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
