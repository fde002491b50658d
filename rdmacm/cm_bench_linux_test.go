package rdmacm_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// Connections that are made and ended one after the other, by synchronous IDs in one
// process.
func BenchmarkConnectDisconnect(b *testing.B) {
	a := loopAddr()
	m := rdmacm.NewManager(rdmacm.WithProviders(soft.NewProvider(soft.WithAddrs("lo", a))))
	ctx := b.Context()
	l := cmOK(m.CreateEP(ctx, passive(a, 0), nil, cmAttr()))(b)
	if err := l.Listen(0); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for range b.N {
			s, err := l.GetRequest(ctx)
			if err == nil {
				err = errors.Join(s.Accept(ctx, nil), s.Disconnect(ctx), s.DestroyEP(ctx))
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		c, err := m.CreateEP(ctx, &rdmacm.AddrInfo{Dst: netip.AddrPortFrom(a, l.SrcPort())}, nil, cmAttr())
		if err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(c.Connect(ctx, nil), c.Disconnect(ctx), c.DestroyEP(ctx)); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := errors.Join(<-done, l.DestroyEP(ctx), m.Close()); err != nil {
		b.Fatal(err)
	}
}

// As many as the machine takes: several clients, one listener with asynchronous IDs.
func BenchmarkConnectDisconnectParallel(b *testing.B) {
	a := loopAddr()
	m := rdmacm.NewManager(rdmacm.WithProviders(soft.NewProvider(soft.WithAddrs("lo", a))))
	ctx := b.Context()
	ch := cmOK(m.NewEventChannel())(b)
	l := cmOK(m.NewID(ch, rdmacm.PSTCP, nil))(b)
	if err := errors.Join(l.Bind(netip.AddrPortFrom(a, 0)), l.Listen(0)); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for ended := 0; ended < b.N; {
			e, err := ch.Get(ctx)
			if err != nil {
				done <- err
				return
			}
			e.Ack()
			switch e.Type {
			case rdmacm.EventConnectRequest:
				err = errors.Join(e.ID.CreateQP(nil, cmAttr()), e.ID.Accept(ctx, nil))
			case rdmacm.EventDisconnected:
				err = errors.Join(e.ID.Disconnect(ctx), e.ID.DestroyEP(ctx))
				ended++
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	b.SetParallelism(8)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			c, err := m.CreateEP(ctx, &rdmacm.AddrInfo{Dst: netip.AddrPortFrom(a, l.SrcPort())}, nil, cmAttr())
			if err == nil {
				err = errors.Join(c.Connect(ctx, nil), c.Disconnect(ctx), c.DestroyEP(ctx))
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	if err := errors.Join(<-done, l.DestroyEP(ctx), ch.Close(), m.Close()); err != nil {
		b.Fatal(err)
	}
}
