package rdma_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// told sends what a peer must know of a region and gives what it understands.
func told(t *testing.T, from, to *rdma.Conn, mr *verbs.MR) rdma.Remote {
	t.Helper()
	ctx := limited(t)
	b, err := rdma.RemoteOf(mr).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	if err := from.Send(ctx, b); err != nil {
		t.Fatal(err)
	}
	m, err := to.Recv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var r rdma.Remote
	if err := r.UnmarshalBinary(append(m, 0, 0)); err != nil || r != rdma.RemoteOf(mr) {
		t.Fatal(r, err)
	}
	return r
}

// meet passes a message, so that accesses to memory before it on one side and after it on
// the other one are one after the other, for the race detector too.
func meet(t *testing.T, from, to *rdma.Conn) {
	t.Helper()
	ctx := limited(t)
	if err := from.Send(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Recv(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestRemoteMemory(t *testing.T) {
	p := loopPair(t)
	ctx := limited(t)
	const size = 1 << 20
	target, source := make([]byte, size), bytes.Repeat([]byte("source.."), size/8)
	w, err := p.b.RegisterWrite(target)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.b.RegisterRead(source)
	if err != nil {
		t.Fatal(err)
	}
	to, from := told(t, p.b, p.a, w), told(t, p.b, p.a, r)

	mine := bytes.Repeat([]byte("mine"), size/4)
	mr, err := p.a.Register(mine)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.a.RemoteWrite(ctx, to, mine, mr); err != nil { // a part of the region would do too
		t.Fatal(err)
	}
	if err := p.a.RemoteWrite(ctx, to.At(size-3), []byte("end"), nil); err != nil {
		t.Fatal(err)
	}
	if err := p.a.RemoteWrite(ctx, to.At(8), nil, nil); err != nil {
		t.Fatal(err)
	}
	meet(t, p.a, p.b)
	if !bytes.Equal(target[:size-3], mine[:size-3]) || string(target[size-3:]) != "end" {
		t.Error("written: other bytes")
	}
	if err := p.a.RemoteRead(ctx, from, mine, mr); err != nil || !bytes.Equal(mine, source) {
		t.Error("read: other bytes", err)
	}
	got := make([]byte, 5)
	if err := p.a.RemoteRead(ctx, from.At(3), got, nil); err != nil || string(got) != "rce.." {
		t.Errorf("%q %v", got, err)
	}

	// Many at once, with messages between them.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			b := make([]byte, 1000)
			for range 20 {
				if err := errors.Join(p.a.RemoteRead(ctx, from.At(uint64(8*i)), b, nil), p.a.Send(ctx, b)); err != nil || !bytes.Equal(b, source[:1000]) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 8 * 20 {
		if m, err := p.b.Recv(ctx); err != nil || !bytes.Equal(m, source[:1000]) {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if err := p.a.RemoteWrite(ctx, to.At(size-2), []byte("end"), nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if to.At(math.MaxUint64).Len != 0 {
		t.Error("memory behind the end")
	}
	if err := p.b.Deregister(w); err != nil {
		t.Error(err)
	}
	if err := p.b.Deregister(nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// What the peer may not access ends the connection at both ends; keys of another connection are worth
// nothing.
func TestRemoteMemoryRights(t *testing.T) {
	for name, access := range map[string]func(ctx context.Context, p, q *pair) error{
		"write where reading is allowed": func(ctx context.Context, p, q *pair) error {
			mr, err := p.b.RegisterRead(make([]byte, 8))
			if err != nil {
				return err
			}
			return p.a.RemoteWrite(ctx, rdma.RemoteOf(mr), make([]byte, 8), nil)
		},
		"read where writing is allowed": func(ctx context.Context, p, q *pair) error {
			mr, err := p.b.RegisterWrite(make([]byte, 8))
			if err != nil {
				return err
			}
			return p.a.RemoteRead(ctx, rdma.RemoteOf(mr), make([]byte, 8), nil)
		},
		"memory of another connection": func(ctx context.Context, p, q *pair) error {
			mr, err := q.b.RegisterWrite(make([]byte, 8))
			if err != nil {
				return err
			}
			return p.a.RemoteWrite(ctx, rdma.RemoteOf(mr), make([]byte, 8), nil)
		},
		"memory that was deregistered": func(ctx context.Context, p, q *pair) error {
			mr, err := p.b.RegisterWrite(make([]byte, 8))
			if err != nil {
				return err
			}
			r := rdma.RemoteOf(mr)
			return errors.Join(p.b.Deregister(mr), p.a.RemoteWrite(ctx, r, make([]byte, 8), nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := loopAddr()
			h := host(t, at)
			ctx := limited(t)
			p, q := connect(t, h, h, at), connect(t, h, h, at)
			err := access(ctx, p, q)
			var wc *verbs.WCError
			if !errors.Is(err, syscall.EACCES) || !errors.As(err, &wc) || wc.Status != ib.WCRemAccessErr {
				t.Errorf("%v", err)
			}
			if err := p.a.Send(ctx, nil); !errors.Is(err, syscall.EACCES) {
				t.Errorf("send: %v", err)
			}
			// The one that was attacked learns it from its queue pair, or from the other one's end.
			if err := p.a.Close(); !errors.Is(err, syscall.EACCES) {
				t.Errorf("close: %v", err)
			}
			if _, err := p.b.Recv(ctx); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("recv: %v", err)
			}
			// The other connection has nothing to do with it.
			if err := q.a.Send(ctx, []byte("fine")); err != nil {
				t.Error(err)
			}
			if m, err := q.b.Recv(ctx); err != nil || string(m) != "fine" {
				t.Error(m, err)
			}
		})
	}
}

// A transfer that is given up ends the connection: the memory is the caller's again.
func TestTransferGivenUp(t *testing.T) {
	p := loopPair(t)
	mr, err := p.b.RegisterWrite(make([]byte, 64<<20))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(limited(t))
	stop := context.AfterFunc(ctx, func() {})
	defer stop()
	done := make(chan error, 1)
	src := make([]byte, 64<<20)
	go func() { done <- p.a.RemoteWrite(ctx, rdma.RemoteOf(mr), src, nil) }()
	cancel()
	err = <-done
	switch {
	case err == nil: // it was faster
	case !errors.Is(err, context.Canceled):
		t.Error(err)
	default:
		// Either nothing had begun, or the connection is over.
		if err := p.a.Send(limited(t), nil); err != nil && !errors.Is(err, syscall.ECONNABORTED) {
			t.Error(err)
		}
	}
	if err := p.a.Close(); err != nil && !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestRemoteBytes(t *testing.T) {
	r := rdma.Remote{Addr: 0x0102030405060708, Len: 0x1112131415161718, Key: 0x21222324}
	b, err := r.MarshalBinary()
	want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24}
	if err != nil || !bytes.Equal(b, want) {
		t.Errorf("% x %v", b, err)
	}
	var q rdma.Remote
	if err := q.UnmarshalBinary(b); err != nil || q != r {
		t.Error(q, err)
	}
	if err := q.UnmarshalBinary(b[:19]); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}
