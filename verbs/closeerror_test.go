package verbs_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// full is a disk that is full after the first write.
type full struct{ n int }

func (f *full) Write(b []byte) (int, error) {
	if f.n++; f.n > 1 {
		return 0, syscall.ENOSPC
	}
	return len(b), nil
}

// A device whose last words fail is closed all the same: an error of Close is not a
// refusal, unless it is EBUSY.
func TestCloseWithAnError(t *testing.T) {
	n := simnet.New(1)
	d := ok(soft.NewDevice(soft.Config{
		Name: "a", Port: n.NewPort(simnet.Config{}), Clock: n.Now, Manual: true,
		Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Capture: &soft.Capture{W: new(full)},
	}))(t)
	c := verbs.NewContext(d)
	if err := c.Close(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("close: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // does not wait
	if _, err := c.GetAsyncEvent(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("events after Close: %v", err)
	}
	if _, err := c.QueryDevice(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("query after Close: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}
