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
