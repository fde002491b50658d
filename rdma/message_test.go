package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/rdma"
)

// A sender that is ahead waits until the peer receives: nothing is lost, and a deadline ends
// the wait.
func TestFlowControl(t *testing.T) {
	p := loopPair(t, rdma.WithQueueDepth(4), rdma.WithMaxMessage(1000))
	ctx := limited(t)
	short, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.a.Send(short, []byte("never")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := p.b.Recv(short); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// Of both queues together more fit than in one, and then no more.
	sent := 0
	waiting, stop := context.WithTimeout(ctx, 1)
	defer stop()
	for {
		err := p.a.Send(ctx, message(sent, 1000))
		if err != nil {
			t.Fatal(err)
		}
		if sent++; sent == 8 {
			break
		}
	}
	<-waiting.Done()
	err := p.a.Send(waiting, []byte("too much"))
	var n net.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &n) || !n.Timeout() {
		t.Error(err)
	}
	more := make(chan error, 1)
	go func() {
		for i := sent; i < 100; i++ {
			if err := p.a.Send(ctx, message(i, 1000)); err != nil {
				more <- err
				return
			}
		}
		more <- p.a.Flush(ctx)
	}()
	for i := range 100 {
		m, err := p.b.Recv(ctx)
		if err != nil || !bytes.Equal(m, message(i, 1000)) {
			t.Fatalf("message %d: %d bytes, %v", i, len(m), err)
		}
	}
	if err := <-more; err != nil {
		t.Error(err)
	}
}

func TestMessageLengths(t *testing.T) {
	p := loopPair(t, rdma.WithMaxMessage(5000))
	ctx := limited(t)
	for _, n := range []int{0, 1, 1023, 1024, 4096, 4097, 5000} {
		want := bytes.Repeat([]byte{byte(n)}, n)
		if err := p.a.Send(ctx, want); err != nil {
			t.Fatal(n, err)
		}
		m, err := p.b.Recv(ctx)
		if err != nil || m == nil || !bytes.Equal(m, want) {
			t.Errorf("%d: %d bytes, %v", n, len(m), err)
		}
	}
	if err := p.a.Send(ctx, make([]byte, 5001)); !errors.Is(err, syscall.EMSGSIZE) {
		t.Error(err)
	}
	// A buffer that is too short: the message stays.
	if err := p.a.Send(ctx, []byte("message")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	if n, err := p.b.RecvInto(ctx, buf[:6]); n != 7 || !errors.Is(err, io.ErrShortBuffer) {
		t.Error(n, err)
	}
	if n, err := p.b.RecvInto(ctx, buf); n != 7 || err != nil || string(buf[:n]) != "message" {
		t.Errorf("%d %v %q", n, err, buf)
	}
}

// A message longer than the receiver's buffers ends the connection, and both are told why.
func TestLongerThanTheReceiverExpects(t *testing.T) {
	at := loopAddr()
	h := host(t, at)
	ctx := limited(t)
	l, err := h.Listen(ctx, at.String()+":0", rdma.WithMaxMessage(10))
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
	a, err := h.Dial(ctx, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b := <-accepted
	defer b.Close()
	if err := a.Send(ctx, make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Recv(ctx); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("receiver: %v", err)
	}
	if err := a.Flush(ctx); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("sender, Flush: %v", err)
	}
	if err := a.Send(ctx, nil); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("sender, Send: %v", err)
	}
	if _, err := a.Recv(ctx); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("sender, Recv: %v", err)
	}
	if err := a.Close(); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("sender, Close: %v", err)
	}
}

// The data path allocates nothing.
func TestMessagesAllocateNothing(t *testing.T) {
	p := loopPair(t)
	ctx := limited(t)
	msg, buf := []byte("0123456789abcdef"), make([]byte, 64)
	if n := testing.AllocsPerRun(200, func() {
		if err := p.a.Send(ctx, msg); err != nil {
			t.Fatal(err)
		}
		if n, err := p.b.RecvInto(ctx, buf); n != len(msg) || err != nil {
			t.Fatal(n, err)
		}
	}); n > 0.1 && !raceEnabled {
		t.Errorf("%v allocations a message", n)
	}
}
