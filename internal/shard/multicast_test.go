package shard

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

var group = netip.MustParseAddr("239.1.2.3")

// toAll is a datagram to a group from queue pair src.
func toAll(g netip.Addr, src ib.QPN, id uint16) pkt.Datagram {
	b := make([]byte, roce.BTHLen+roce.DETHLen+roce.ICRCLen)
	roce.BTH(b).Put(roce.OpUDSendOnly, false, 0, 0xFFFF, uint32(ib.QPNMulticast), false, 0)
	roce.DETH(b[roce.BTHLen:]).Put(0, uint32(src))
	p := roce.NewPath(there, g, 0xC000)
	putID(&p, b, id)
	return pkt.Datagram{Data: b, SegSize: len(b), Src: netip.AddrPortFrom(there, 0xC000), Dst: g, Local: -1, ID: id, IDKnown: true}
}

// Every member gets each segment of what comes for its group, in whatever order
// the members' locks follow each other; what else arrives in the turn is not
// disturbed.
func TestMulticastTurn(t *testing.T) {
	v := newVirtual(2)
	var qs []*fakeQP
	for n := range 4 {
		qs = append(qs, addQP(t, v.Engine, ib.QPN(2+n)))
	}
	lone, idle := addQP(t, v.Engine, 7), addQP(t, v.Engine, 8)
	for _, q := range qs[:3] {
		for range 2 { // twice is once
			if err := v.Attach(&q.QP, group, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := v.Attach(&qs[3].QP, group.Next(), nil); err != nil {
		t.Fatal(err)
	}
	var order []ib.QPN
	for _, q := range append(qs, lone) {
		q.onPkt = func(*transport.Env) { order = append(order, q.Num) }
	}
	super := toAll(group, 77, 7) // two segments, the second with identification 8
	super.Data = append(super.Data, toAll(group, 77, 8).Data...)
	v.port.arrive(packet(7, 0), super, toAll(group.Next(), 77, 0), toAll(group.Next().Next(), 77, 0), packet(7, 1))
	v.turnAt(1e9)
	if want := []ib.QPN{7, 2, 3, 4, 2, 3, 4, 5, 7}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if st := v.Stats(); idle.packets != 0 || st.DropMulticast != 1 || st.RcvdPackets != 9 {
		t.Errorf("%d for a bystander, dropped %d, counted %d", idle.packets, st.DropMulticast, st.RcvdPackets)
	}
	// Who left, or is gone, gets no more; nobody left is nobody's.
	v.Detach(&qs[0].QP, group)
	v.Detach(&qs[0].QP, group)
	v.Remove(&qs[1].QP, qs[1].sh)
	order = nil
	v.port.arrive(toAll(group, 77, 1))
	v.turnAt(1e9 + ms)
	v.Detach(&qs[2].QP, group)
	v.Detach(&qs[1].QP, group)
	v.port.arrive(toAll(group, 77, 1))
	v.turnAt(1e9 + 2*ms)
	if st := v.Stats(); !slices.Equal(order, []ib.QPN{4}) || st.DropNoQP != 1 || st.DropMulticast != 2 {
		t.Errorf("order %v, %+v", order, st)
	}
	if err := v.Attach(&qs[1].QP, group, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("attach of a removed queue pair: %v", err)
	}
}

// A damaged datagram is dropped once, for all; one's own only if it is really one's own.
func TestMulticastDrops(t *testing.T) {
	v := newVirtual(2)
	a, b := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	mine := true
	own := func(x netip.Addr) bool { return mine && x == there }
	for _, q := range []*fakeQP{a, b} {
		if err := v.Attach(&q.QP, group, own); err != nil {
			t.Fatal(err)
		}
	}
	bad := toAll(group, 2, 0)
	bad.Data[9] ^= 1
	v.port.arrive(bad)
	v.turnAt(1e9)
	if st := v.Stats(); st.DropICRC != 1 || a.packets+b.packets != 0 {
		t.Errorf("damaged: dropped %d, packets %d %d", st.DropICRC, a.packets, b.packets)
	}
	v.port.arrive(toAll(group, 2, 0))
	v.turnAt(1e9 + ms)
	mine = false // the number is somebody else's, on another host
	v.port.arrive(toAll(group, 2, 0))
	v.turnAt(1e9 + 2*ms)
	if st := v.Stats(); st.DropOwn != 1 || a.packets != 1 || b.packets != 2 {
		t.Errorf("own: dropped %d, packets %d %d", st.DropOwn, a.packets, b.packets)
	}
	// Reliable packets have no business in a group.
	rc := toAll(group, 2, 0)
	rc.Data[0] = byte(roce.OpRCSendOnly)
	v.port.arrive(rc)
	v.turnAt(1e9 + 3*ms)
	if st := v.Stats(); st.DropTransport != 1 {
		t.Errorf("reliable: dropped %d", st.DropTransport)
	}
}

// Members come and go while the thread reads: after Detach none of a queue pair's
// steps runs.
func TestMulticastDetachIsFinal(t *testing.T) {
	e, p := newReal(t, 2)
	stays := addQP(t, e, 2)
	var heard atomic.Int64
	stays.onPkt = func(*transport.Env) { heard.Add(1) }
	if err := e.Attach(&stays.QP, group, nil); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 2 {
		q := addQP(t, e, ib.QPN(10+i))
		var in atomic.Bool
		q.onPkt = func(*transport.Env) {
			if !in.Load() {
				t.Error("a step for a queue pair that is detached")
			}
		}
		wg.Go(func() {
			for range 300 {
				in.Store(true)
				if err := e.Attach(&q.QP, group, nil); err != nil {
					t.Error(err)
				}
				p.arrive(toAll(group, 77, 0))
				e.Detach(&q.QP, group)
				in.Store(false)
			}
		})
	}
	finish(t, &wg, "members")
	for heard.Load() < 600 {
		e.Poll()
	}
}
