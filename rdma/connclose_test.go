package rdma_test

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/rdma"
)

// loopPair connects a Host with itself.
func loopPair(t testing.TB, opts ...rdma.ConnOption) *pair {
	t.Helper()
	at := loopAddr()
	h := host(t, at)
	return connect(t, h, h, at, opts...)
}

// What was sent before Close arrives, then comes the end; whether the receiver looks before
// or after it.
func TestCase88_SentBeforeClose(t *testing.T) {
	for name, early := range map[string]bool{"receiver waits": true, "receiver comes later": false} {
		t.Run(name, func(t *testing.T) {
			p := loopPair(t)
			ctx := limited(t)
			const n = 10
			done := make(chan error, 1)
			receive := func() error {
				for i := range n {
					m, err := p.b.Recv(ctx)
					if err != nil || string(m) != string(message(i, 100)) {
						t.Errorf("message %d: %q, %v", i, m, err)
						return err
					}
				}
				for range 2 { // the end stays
					if m, err := p.b.Recv(ctx); err != io.EOF || m != nil {
						t.Errorf("after the last: %q, %v", m, err)
					}
				}
				return nil
			}
			if early {
				go func() { done <- receive() }()
			}
			for i := range n {
				if err := p.a.Send(ctx, message(i, 100)); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.a.Close(); err != nil {
				t.Fatal(err)
			}
			if !early {
				done <- receive()
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if err := p.b.Send(ctx, []byte("late")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("send to a peer that has gone: %v", err)
			}
			if err := p.b.Flush(ctx); err != nil {
				t.Errorf("nothing was sent, nothing was lost: %v", err)
			}
			if err := p.b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Calls that wait end with Close, and all others fail after it.
func TestCloseWakes(t *testing.T) {
	p := loopPair(t, rdma.WithQueueDepth(2))
	ctx := context.Background()
	errs := make(chan error, 2)
	go func() {
		_, err := p.a.Recv(ctx)
		errs <- err
	}()
	go func() { // nobody receives: it waits after some messages
		for {
			if err := p.a.Send(ctx, []byte("x")); err != nil {
				errs <- err
				return
			}
		}
	}()
	short, cancel := context.WithCancel(ctx)
	cancel()
	// The peer never takes what was sent: messages are lost, if Send was that far.
	if err := p.a.CloseContext(short); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	for name, err := range map[string]error{
		"send": p.a.Send(ctx, nil), "flush": p.a.Flush(ctx), "close": p.a.Close(),
		"recv":  func() error { _, err := p.a.Recv(ctx); return err }(),
		"write": p.a.RemoteWrite(ctx, rdma.Remote{}, nil, nil),
		"reg":   func() error { _, err := p.a.Register(make([]byte, 1)); return err }(),
	} {
		var op *net.OpError
		if !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) || op.Net != "rdma" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Both ends close at once, again and again: nothing hangs, nobody is told of an error.
func TestBothClose(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	for range 50 {
		p := connect(t, h, h, at)
		errs := make(chan error, 2)
		for _, d := range []struct{ from, to *rdma.Conn }{{p.a, p.b}, {p.b, p.a}} {
			go func() {
				if err := d.from.Send(ctx, []byte("bye")); err != nil {
					errs <- err
					return
				}
				if _, err := d.from.Recv(ctx); err != nil {
					errs <- err
					return
				}
				errs <- d.from.Close()
			}()
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		p.l.Close()
	}
}

// A Host that is used cannot be closed.
func TestHostBusy(t *testing.T) {
	p := loopPair(t)
	h, err := rdma.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil { // it has opened nothing
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if _, err := h.Dial(limited(t), p.l.Addr().String()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := h.Listen(limited(t), "127.0.0.1:0"); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	busy := host(t, loopAddr())
	l, err := busy.Listen(limited(t), "127.0.0.1:0")
	if !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(l, err)
	}
	if l, err = busy.Listen(limited(t), ":0"); err != nil {
		t.Fatal(err)
	}
	if err := busy.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if _, err := l.Accept(limited(t)); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
