package rdma_test

import (
	"testing"

	"github.com/verbena-rdma/verbena/rdma"
)

// A message there and back.
func BenchmarkPingPong(b *testing.B) {
	p := loopPair(b)
	ctx := b.Context()
	go func() {
		buf := make([]byte, 64)
		for {
			n, err := p.b.RecvInto(ctx, buf)
			if err != nil || p.b.Send(ctx, buf[:n]) != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := p.a.Send(ctx, buf[:8]); err != nil {
			b.Fatal(err)
		}
		if _, err := p.a.RecvInto(ctx, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// Messages in one direction.
func BenchmarkStream(b *testing.B) {
	p := loopPair(b)
	ctx := b.Context()
	go func() {
		buf := make([]byte, rdma.DefaultMaxMessage)
		for {
			if _, err := p.b.RecvInto(ctx, buf); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, rdma.DefaultMaxMessage)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.a.Send(ctx, buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.a.Flush(ctx); err != nil {
		b.Fatal(err)
	}
}

// A connection made and ended.
func BenchmarkDialClose(b *testing.B) {
	at := loopAddr()
	h := host(b, at)
	ctx := b.Context()
	l, err := h.Listen(ctx, at.String()+":0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			c.Recv(ctx)
			c.Close()
		}
	}()
	for b.Loop() {
		c, err := h.Dial(ctx, l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
