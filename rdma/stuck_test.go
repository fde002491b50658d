package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/rdma"
)

// connectUneven connects a Host with itself, with other options at either end: a has dialed.
func connectUneven(t *testing.T, dial, listen []rdma.ConnOption) (a, b *rdma.Conn) {
	t.Helper()
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	l, err := h.Listen(ctx, at.String()+":0", listen...)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan *rdma.Conn, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	if a, err = h.Dial(ctx, l.Addr().String(), dial...); err != nil {
		t.Fatal(err)
	}
	if b = <-accepted; b == nil {
		t.FailNow()
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
		l.Close()
	})
	return a, b
}

// stuck is a connection on which nothing of a's can complete any more: b has taken in one
// message, and has no room for the second one.
func stuck(t *testing.T) (a, b *rdma.Conn) {
	t.Helper()
	a, b = connectUneven(t, []rdma.ConnOption{rdma.WithQueueDepth(4)}, []rdma.ConnOption{rdma.WithQueueDepth(1)})
	for range 2 {
		if err := a.Send(limited(t), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// toTheEnd receives what has arrived at b: one message, or the second one as well, which may have
// been on its way when the connection ended.
func toTheEnd(t *testing.T, b *rdma.Conn) {
	t.Helper()
	for i := 0; ; i++ {
		m, err := b.Recv(limited(t))
		switch {
		case err == io.EOF && i > 0:
			return
		case err != nil || string(m) != "x" || i == 2:
			t.Fatalf("message %d: %q, %v", i, m, err)
		}
	}
}

// late is a context that is done, but does not say so when it is asked for the first time:
// before the transfer begins.
type late struct {
	context.Context
	asked bool
}

func (c *late) Err() error {
	if !c.asked {
		c.asked = true
		return nil
	}
	return c.Context.Err()
}

// With ctx's error in the middle of a transfer the memory is the caller's again, and the
// connection is over.
func TestTransferIsAborted(t *testing.T) {
	a, b := stuck(t)
	mr, err := b.RegisterWrite(make([]byte, 8))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1e6)
	defer cancel()
	if err := a.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it is not stuck: %v", err)
	}
	if err := a.RemoteWrite(&late{Context: ctx}, rdma.RemoteOf(mr), []byte("12345678"), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if !bytes.Equal(mr.Bytes(), make([]byte, 8)) {
		t.Error("written all the same")
	}
	for name, err := range map[string]error{
		"send":  a.Send(limited(t), nil),
		"recv":  func() error { _, err := a.Recv(limited(t)); return err }(),
		"close": a.Close(),
	} {
		if !errors.Is(err, syscall.ECONNABORTED) {
			t.Errorf("%s: %v", name, err)
		}
	}
	toTheEnd(t, b)
}

// Close of one whose peer takes nothing in gives up with the context, and tells that
// messages are lost.
func TestCloseTellsLoss(t *testing.T) {
	a, b := stuck(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10e6)
	defer cancel()
	if err := a.CloseContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	toTheEnd(t, b)
}

// The peer ends a connection on which messages were not taken in: Close tells it.
func TestPeerClosesWithoutReceiving(t *testing.T) {
	a, b := stuck(t)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := a.Recv(limited(t)); err != io.EOF {
		t.Error(err)
	}
	for name, err := range map[string]error{"flush": a.Flush(limited(t)), "send": a.Send(limited(t), nil), "close": a.Close()} {
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Who only receives is told why the connection has failed, too.
func TestRecvTellsWhySendFailed(t *testing.T) {
	a, _ := connectUneven(t, nil, []rdma.ConnOption{rdma.WithMaxMessage(10)})
	if err := a.Send(limited(t), make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Recv(limited(t)); !errors.Is(err, syscall.EMSGSIZE) {
			t.Error(err)
		}
	}
}

// A request whose peer gives up before it is answered is passed over.
func TestPeerGivesUp(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	first, giveUp := context.WithCancel(ctx)
	gone := make(chan error, 1)
	l, err := h.Listen(ctx, at.String()+":0", rdma.WithAdmit(func(_ netip.AddrPort, private []byte) ([]byte, bool) {
		if private[0] == 1 {
			giveUp()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		return nil, true
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
	_, err = h.Dial(first, l.Addr().String(), rdma.WithPrivateData([]byte{1}))
	gone <- err
	c, err := h.Dial(ctx, l.Addr().String(), rdma.WithPrivateData([]byte{2}))
	if err != nil {
		t.Fatal(err)
	}
	b := <-accepted
	if b.PrivateData()[0] != 2 {
		t.Errorf("% x", b.PrivateData())
	}
	if err := errors.Join(c.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}
