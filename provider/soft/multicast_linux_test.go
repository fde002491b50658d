package soft

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// aGroup is an IPv4 group that no other test uses.
func aGroup() netip.Addr {
	return netip.AddrFrom4([4]byte{239, byte(rand.IntN(256)), byte(rand.IntN(256)), byte(rand.IntN(256))})
}

func (h *host) groupAH(group netip.Addr) driver.AH {
	h.t.Helper()
	ah, err := h.dev.CreateAH(h.pd, &ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(group), PortNum: 1})
	must(h.t, err)
	h.later(ah.Destroy)
	return ah
}

func toGroup(ah driver.AH) driver.SendWR {
	return driver.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: []byte("all"), AH: ah,
		RemoteQPN: ib.QPNMulticast, RemoteQKey: testQKey,
	}
}

// Queue pairs attach, detach and are destroyed while datagrams to their groups
// arrive: nothing is lost to those that stay, and nobody who left hears more.
func TestMulticastUnderUse(t *testing.T) {
	h := newHost(t, setup{shards: 3})
	group, other := aGroup(), aGroup()
	gid, gid2 := ib.GIDFromAddr(group), ib.GIDFromAddr(other)
	sender := h.qp(ib.UD, 0)
	sender.up(sender, ib.MTU1024)
	ahs := []driver.AH{h.groupAH(group), h.groupAH(other)}

	// One that stays.
	cq, err := h.dev.CreateCQ(1<<14, nil)
	must(t, err)
	h.later(cq.Destroy)
	a := h.attr(ib.UD)
	a.RecvCQ = cq
	stays := h.qpWith(a, 0)
	stays.up(stays, ib.MTU1024)
	must(t, stays.QP.(driver.Multicaster).AttachMcast(gid, 0))
	for i := range 200 {
		stays.recv(uint64(i), 0, 64)
	}

	var stop atomic.Bool
	var users sync.WaitGroup
	for i := range 3 {
		users.Go(func() {
			for n := 0; !stop.Load(); n++ {
				q, err := h.dev.CreateQP(h.pd, h.attr(ib.UD), nil)
				if err != nil {
					t.Error(err)
					return
				}
				e := &end{q, h, 0, ib.UD}
				if err := errors.Join(e.init(), e.rtr(e, ib.MTU1024)); err != nil {
					t.Error(err)
				}
				m := q.(driver.Multicaster)
				_ = m.AttachMcast(gid, 0)
				_ = m.AttachMcast(gid2, 0)
				if _, err := q.PostRecv([]driver.RecvWR{{SGList: h.sge(1024*(i+1), 64)}}); err != nil {
					t.Error(err)
				}
				if err := q.Destroy(); !errors.Is(err, syscall.EBUSY) {
					t.Errorf("destroy while attached: %v", err)
				}
				if n%2 == 0 { // two at once
					var pair sync.WaitGroup
					pair.Go(func() { _ = m.DetachMcast(gid, 0) })
					_ = m.DetachMcast(gid2, 0)
					pair.Wait()
				} else if err := errors.Join(m.DetachMcast(gid, 0), m.DetachMcast(gid2, 0)); err != nil {
					t.Error(err)
				}
				if err := q.Destroy(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	const count = 200
	var wcs [64]driver.WC
	got, deadline := 0, time.Now().Add(patience)
	for i := 0; got < count && time.Now().Before(deadline); i++ {
		if i < count {
			if _, err := sender.PostSend([]driver.SendWR{toGroup(ahs[0]), toGroup(ahs[1])}); err != nil {
				t.Fatal(err)
			}
		}
		n, err := cq.Poll(wcs[:])
		must(t, err)
		for _, wc := range wcs[:n] {
			if wc.Status != ib.WCSuccess || wc.QPNum != stays.Num() || wc.SrcQP != sender.Num() {
				t.Fatalf("%+v", wc)
			}
		}
		got += n
		for { // the others' queue
			n, err := h.cq.Poll(wcs[:])
			must(t, err)
			if n == 0 {
				break
			}
		}
	}
	stop.Store(true)
	users.Wait()
	if got != count {
		t.Errorf("who stayed got %d of %d; %v", got, count, h.dev.Counters())
	}
	must(t, stays.QP.(driver.Multicaster).DetachMcast(gid, 0))
}

// A device that is closed under its groups leaves them, and refuses new ones.
func TestMulticastClose(t *testing.T) {
	port, err := udp.Open(udp.Config{})
	must(t, err)
	dev, err := NewDevice(Config{Name: "closing", Port: port, Addrs: []netip.Addr{loopAddr()}})
	must(t, err)
	pd, err := dev.AllocPD()
	must(t, err)
	cq, err := dev.CreateCQ(4, nil)
	must(t, err)
	q, err := dev.CreateQP(pd, &driver.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.UD}, nil)
	must(t, err)
	m, gid := q.(driver.Multicaster), ib.GIDFromAddr(aGroup())
	must(t, m.AttachMcast(gid, 0))
	must(t, dev.Close())
	if err := m.AttachMcast(ib.GIDFromAddr(aGroup()), 0); err == nil {
		t.Error("a closed device joined a group")
	}
	if err := m.DetachMcast(gid, 0); err != nil {
		t.Errorf("detach after Close: %v", err)
	}
	if err := q.Destroy(); err != nil {
		t.Error(err)
	}
}

// Receiving from a group allocates nothing, for who does not want its own either.
func TestMulticastNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h := newHost(t, setup{shards: 2})
	group := aGroup()
	gid := ib.GIDFromAddr(group)
	a := h.attr(ib.UD)
	a.BlockSelfMcastLB = true
	sender := h.qpWith(a, 0)
	ends := []*end{sender, h.qp(ib.UD, 0), h.qp(ib.UD, 0)}
	for _, e := range ends {
		e.up(e, ib.MTU1024)
		must(t, e.QP.(driver.Multicaster).AttachMcast(gid, 0))
	}
	wrs := []driver.SendWR{toGroup(h.groupAH(group))}
	recv := []driver.RecvWR{{SGList: h.sge(0, 64)}}
	var wcs [16]driver.WC
	var lost bool
	n := testing.AllocsPerRun(100, func() {
		for _, e := range ends[1:] {
			_, _ = e.PostRecv(recv)
		}
		_, _ = sender.PostSend(wrs)
		got, end := 0, time.Now().Add(patience)
		for got < 2 && !lost {
			k, _ := h.cq.Poll(wcs[:])
			got += k
			lost = time.Now().After(end)
		}
	})
	if n != 0 || lost {
		t.Errorf("%v allocations; lost %v; %v", n, lost, h.dev.Counters())
	}
	for _, e := range ends {
		must(t, e.QP.(driver.Multicaster).DetachMcast(gid, 0))
	}
}

// A port that cannot do multicast, as on systems other than Linux.
func TestMulticastNotOffered(t *testing.T) {
	p, err := udp.Open(udp.Config{})
	must(t, err)
	dev, err := NewDevice(Config{Name: "plain", Port: struct{ port.Port }{p}, Addrs: []netip.Addr{loopAddr()}})
	must(t, err)
	defer func() { must(t, dev.Close()) }()
	pd, err := dev.AllocPD()
	must(t, err)
	cq, err := dev.CreateCQ(4, nil)
	must(t, err)
	q, err := dev.CreateQP(pd, &driver.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.UD}, nil)
	must(t, err)
	gid := ib.GIDFromAddr(aGroup())
	if err := q.(driver.Multicaster).AttachMcast(gid, 0); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("attach: %v, want EOPNOTSUPP", err)
	}
	_, err = dev.CreateAH(pd, &ib.AHAttr{IsGlobal: true, DGID: gid, PortNum: 1})
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("address handle: %v, want EOPNOTSUPP", err)
	}
	must(t, q.Destroy())
}
