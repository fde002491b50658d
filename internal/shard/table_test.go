package shard

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

func entry(n ib.QPN) *member { return &member{qp: &transport.QP{Num: n}} }

// A table does what a map does.
func TestTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab table
		model := make(map[ib.QPN]*member)
		// Few numbers, so that they meet again; some far apart.
		num := rapid.Custom(func(t *rapid.T) ib.QPN {
			return ib.QPN(rapid.IntRange(0, 60).Draw(t, "n") * rapid.SampledFrom([]int{1, 0x10001}).Draw(t, "by") & 0xFFFFFF)
		})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				m := entry(num.Draw(t, "qpn"))
				_, taken := model[m.qp.Num]
				if tab.add(m) == taken {
					t.Fatalf("add of %v: taken is %v", m.qp.Num, taken)
				}
				if !taken {
					model[m.qp.Num] = m
				}
			},
			"remove": func(t *rapid.T) {
				n := num.Draw(t, "qpn")
				if got := tab.remove(n); got != model[n] {
					t.Fatalf("removed %p for %v, want %p", got, n, model[n])
				}
				delete(model, n)
			},
			"": func(t *rapid.T) {
				for i := range 61 {
					for _, n := range []ib.QPN{ib.QPN(i), ib.QPN(i * 0x10001 & 0xFFFFFF)} {
						if got := tab.find(n); got != model[n] {
							t.Fatalf("found %p for %v, want %p", got, n, model[n])
						}
					}
				}
				if tab.live != len(model) {
					t.Fatalf("live %d, want %d", tab.live, len(model))
				}
				if p := tab.slots.Load(); p != nil && 2*tab.used > len(*p) {
					t.Fatalf("%d of %d slots are used: a search may not end", tab.used, len(*p))
				}
			},
		})
	})
}

// Adding and removing for ever does not let the table grow for ever.
func TestTableTombstonesGo(t *testing.T) {
	var tab table
	for i := range ib.QPN(100_000) {
		tab.add(entry(i))
		tab.remove(i)
	}
	if n := len(*tab.slots.Load()); n > 64 {
		t.Fatalf("%d slots for no queue pair", n)
	}
}

// Who reads while others add and remove always finds what stays, and never a
// wrong one.
func TestTableConcurrentReaders(t *testing.T) {
	var tab table
	const stay, churn = 100, 2000
	kept := make([]*member, stay)
	for i := range kept {
		kept[i] = entry(ib.QPN(i * 7919))
		tab.add(kept[i])
	}
	var stop atomic.Bool
	var readers, writers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for !stop.Load() {
				for i, m := range kept {
					if got := tab.find(ib.QPN(i * 7919)); got != m {
						t.Errorf("number %d: found %p, want %p", i*7919, got, m)
						return
					}
				}
				for i := range 64 {
					n := ib.QPN(1_000_000 + i)
					if m := tab.find(n); m != nil && m.qp.Num != n {
						t.Errorf("found %v for %v", m.qp.Num, n)
						return
					}
				}
			}
		})
	}
	for w := range 2 {
		writers.Go(func() {
			for i := range churn {
				n := ib.QPN(1_000_000 + (2*i+w)%64)
				tab.add(entry(n))
				tab.remove(n)
				if i%50 == 0 { // makes it grow
					tab.add(entry(ib.QPN(2_000_000 + 2*i + w)))
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
}

// What is remembered about senders is bounded, whoever claims to send.
func TestPeersBounded(t *testing.T) {
	var p peers
	p.init()
	for i := range 3 * maxPeers {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		d := pkt.Datagram{Src: netip.AddrPortFrom(a, uint16(0xC000+i%7)), Dst: here}
		c := p.path(&d)
		if c.Src() != a || c.Dst() != here || c.SrcPort() != d.Src.Port() || c.peer != p.byKey[peerKey{a, here}] {
			t.Fatalf("path %d is %+v", i, c)
		}
		if len(p.byKey) > maxPeers {
			t.Fatalf("%d peers are remembered", len(p.byKey))
		}
	}
}

// One host is one peer from whichever port and zone it sends; to another of our
// addresses it is another one, with a path of its own.
func TestPeersPaths(t *testing.T) {
	var p peers
	p.init()
	d1 := pkt.Datagram{Src: netip.AddrPortFrom(there, 1), Dst: here}
	d2 := pkt.Datagram{Src: netip.AddrPortFrom(there, 2), Dst: here}
	d3 := pkt.Datagram{Src: netip.AddrPortFrom(there, 1), Dst: netip.MustParseAddr("192.0.2.9")}
	first := p.path(&d1).peer
	other := p.path(&d3).peer
	if first == other {
		t.Fatal("two ways have one count of identifications")
	}
	for range 3 {
		for _, d := range []*pkt.Datagram{&d1, &d2, &d3} {
			c := p.path(d)
			if want := map[bool]*peer{true: first, false: other}[d.Dst == here]; c.peer != want {
				t.Fatalf("the peer of %+v changed", d)
			}
			if c.SrcPort() != d.Src.Port() || c.Dst() != d.Dst {
				t.Fatalf("path of %+v is %+v", d, c)
			}
		}
	}
}

// Linux counts identifications for each destination: after much unicast the
// first datagram to a group has any, and is not sent again.
func TestFirstToGroupAfterUnicast(t *testing.T) {
	v := newVirtual(1)
	q := addQP(t, v.Engine, 2)
	if err := v.Attach(&q.QP, group, nil); err != nil {
		t.Fatal(err)
	}
	unknown := func(d pkt.Datagram) pkt.Datagram {
		d.IDKnown = false
		return d
	}
	for i := range uint16(50) {
		d := packet(2, int(i))
		p := roce.NewPath(there, here, 0xC000)
		putID(&p, d.Data, 1000+i)
		v.port.arrive(unknown(d))
	}
	v.turnAt(1e9)
	for _, id := range []uint16{40_000, 40_001} {
		v.port.arrive(unknown(toAll(group, 77, id)))
	}
	v.turnAt(1e9 + ms)
	if st := v.Stats(); st.DropID != 0 || q.packets != 52 {
		t.Errorf("%d packets, %d implausible", q.packets, st.DropID)
	}
}
