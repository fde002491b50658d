package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// full is data filled up with zeros, as they arrive.
func full(s string, n int) []byte { return append([]byte(s), make([]byte, n-len(s))...) }

func TestPrivateData(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	longest, answer := bytes.Repeat([]byte("x"), rdmacm.MaxPrivateConnect), bytes.Repeat([]byte("y"), rdmacm.MaxPrivateAccept)
	l, err := h.Listen(ctx, at.String()+":0", rdma.WithPrivateData(answer))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *rdma.Conn, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	a, err := h.Dial(ctx, l.Addr().String(), rdma.WithPrivateData(longest))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b := <-accepted
	defer b.Close()
	if !bytes.Equal(a.PrivateData(), answer) || !bytes.Equal(b.PrivateData(), longest) {
		t.Errorf("%q %q", a.PrivateData(), b.PrivateData())
	}
	for name, err := range map[string]error{
		"dial": func() error {
			_, err := h.Dial(ctx, l.Addr().String(), rdma.WithPrivateData(append(longest, 1)))
			return err
		}(),
		"listen": func() error { _, err := h.Listen(ctx, ":0", rdma.WithPrivateData(append(answer, 1))); return err }(),
		"max":    func() error { _, err := h.Dial(ctx, l.Addr().String(), rdma.WithMaxMessage(0)); return err }(),
		"depth":  func() error { _, err := h.Dial(ctx, l.Addr().String(), rdma.WithQueueDepth(-1)); return err }(),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A listener may look at a request before it answers.
func TestAdmit(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	l, err := h.Listen(ctx, at.String()+":0", rdma.WithAdmit(func(peer netip.AddrPort, private []byte) ([]byte, bool) {
		if peer.Addr() != at || peer.Port() == 0 {
			t.Error(peer)
		}
		if bytes.HasPrefix(private, []byte("friend")) {
			return []byte("welcome"), true
		}
		return []byte("go away"), false
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *rdma.Conn, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	_, err = h.Dial(ctx, l.Addr().String(), rdma.WithPrivateData([]byte("foe")))
	var r *rdmacm.RejectError
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &r) || r.Reason != rdmacm.RejectConsumer || !bytes.Equal(r.PrivateData, full("go away", rdmacm.MaxPrivateReject)) {
		t.Errorf("%v %+v", err, r)
	}
	a, err := h.Dial(ctx, l.Addr().String(), rdma.WithPrivateData([]byte("friend")))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b := <-accepted
	defer b.Close()
	if !bytes.Equal(a.PrivateData(), full("welcome", rdmacm.MaxPrivateAccept)) || !bytes.Equal(b.PrivateData(), full("friend", rdmacm.MaxPrivateConnect)) {
		t.Errorf("%q %q", a.PrivateData(), b.PrivateData())
	}
}

func TestDialErrors(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	done, cancel := context.WithCancel(ctx)
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		addr string
		want error
	}{
		"nobody listens":   {ctx, at.String() + ":9", syscall.ECONNREFUSED},
		"no port":          {ctx, at.String(), syscall.EINVAL},
		"no such service":  {ctx, at.String() + ":nonsense", syscall.EADDRNOTAVAIL},
		"no zone":          {ctx, "[fe80::1]:9", syscall.EINVAL},
		"context":          {done, at.String() + ":9", context.Canceled},
		"no way there":     {ctx, "[::1]:9", syscall.ENODEV}, // the device has no IPv6 address
		"context and name": {done, "localhost:9", context.Canceled},
	} {
		got, err := h.Dial(c.ctx, c.addr)
		var op *net.OpError
		if got != nil || !errors.Is(err, c.want) || !errors.As(err, &op) || op.Op != "dial" {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	// A host that does not answer: the deadline counts.
	if _, err := h.Listen(ctx, at.String()); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err := h.Dial(ctx, at.String()+":9", rdma.WithLocalAddr(netip.MustParseAddrPort("192.0.2.1:0"))); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(err)
	}
}

// A deadline ends an attempt to which nobody answers, and nothing is left of it.
func TestDialDeadline(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	l, err := h.Listen(limited(t), at.String()+":0") // answers only in Accept
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 1e6)
	defer cancel()
	_, err = h.Dial(ctx, l.Addr().String())
	var n net.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &n) || !n.Timeout() {
		t.Error(err)
	}
	// A request that was given up is no connection.
	if _, err := l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Closing a listener ends connections that nobody has fetched, and Accept.
func TestListenerClose(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	l, err := h.Listen(ctx, at.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx)
		got <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := h.Dial(ctx, l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

// Many at once, over one listener.
func TestManyConnections(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	l, err := h.Listen(ctx, at.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	errs := make(chan error, 2*n)
	for range 3 {
		go func() {
			for {
				c, err := l.Accept(ctx)
				if err != nil {
					return
				}
				m, err := c.Recv(ctx)
				errs <- errors.Join(err, c.Send(ctx, m), c.Close())
			}
		}()
	}
	for i := range n {
		go func() {
			c, err := h.Dial(ctx, l.Addr().String())
			if err != nil {
				errs <- err
				return
			}
			want := message(i, 100)
			err = c.Send(ctx, want)
			m, e := c.Recv(ctx)
			if !bytes.Equal(m, want) {
				err = errors.Join(err, errors.New("other bytes"))
			}
			errs <- errors.Join(err, e, c.Close())
		}()
	}
	for range 2 * n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
