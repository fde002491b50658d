package main

import (
	"bufio"
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// The lines are those of ibv_asyncwatch (rdma-core 44), numbers those of enum
// ibv_event_type.
func TestAsyncwatch(t *testing.T) {
	t.Parallel()
	p, err := udp.Open(udp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var report func(soft.Netdev)
	dev, err := soft.NewDevice(soft.Config{
		Name: "soft_test", Port: p, Watch: func(r func(soft.Netdev)) (func(), error) { report = r; return func() {}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	c := verbs.NewContext(dev)
	report(soft.Netdev{MTU: 1500})
	report(soft.Netdev{Up: true, MTU: 1500})
	report(soft.Netdev{Up: true, MTU: 1500, Addrs: []netip.Addr{loopAddr()}})
	report(soft.Netdev{Gone: true})
	var out strings.Builder
	if err := asyncwatch(t.Context(), &out, c); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	const want = `soft_test: async events
  event_type IBV_EVENT_PORT_ERR (10), port 1
  event_type IBV_EVENT_PORT_ACTIVE (9), port 1
  event_type IBV_EVENT_GID_CHANGE (18), port 1
  event_type IBV_EVENT_DEVICE_FATAL (8), port 0
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// An interrupt is how it ends.
func TestAsyncwatchInterrupted(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("processes cannot be interrupted there")
	}
	lo, err := cli.Loopback()
	if err != nil {
		t.Skip(err)
	}
	cmd := command(t, "asyncwatch", lo)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "soft_"+lo+": async events\n" {
		t.Error(line, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	// With a context that is done it ends at once, in this process too.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := newRoot()
	root.SetArgs([]string{"asyncwatch", "-d", lo, lo})
	if err := root.ExecuteContext(ctx); cli.ExitCode(err) != cli.ExitUsage {
		t.Error(err)
	}
}
