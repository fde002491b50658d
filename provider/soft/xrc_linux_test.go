package soft

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// xrcHost is what a host has for XRC: a domain and receive queues in it, all with
// the host's own memory and completion queue.
func (h *host) xrc(srqs int) (driver.XRCD, []driver.SRQ) {
	h.t.Helper()
	x, err := h.dev.OpenXRCD(&driver.XRCDInitAttr{})
	must(h.t, err)
	h.later(x.Close)
	var list []driver.SRQ
	for range srqs {
		s, err := h.dev.CreateXRCSRQ(h.pd, x, h.cq, &ib.SRQAttr{MaxWR: 64, MaxSGE: 1}, nil)
		must(h.t, err)
		h.later(s.Destroy)
		list = append(list, s)
	}
	return x, list
}

func (h *host) xrcTarget(x driver.XRCD) *end {
	h.t.Helper()
	q, err := h.dev.CreateQP(nil, &driver.QPInitAttr{Type: ib.XRCRecv, XRCD: x}, nil)
	must(h.t, err)
	h.later(q.Destroy)
	return &end{q, h, 0, ib.XRCRecv}
}

// TestXRCOverSockets has several initiators send to several receive queues of one
// domain, over the loopback.
func TestXRCOverSockets(t *testing.T) {
	const (
		size   = 100_000
		queues = 3
	)
	a, b := newHost(t, setup{size: 1 << 20}), newHost(t, setup{size: 1 << 20, shards: 2})
	x, srqs := b.xrc(queues)
	a.fill(1)
	var ini []*end
	for range 2 {
		i, tgt := a.qp(ib.XRCSend, 0), b.xrcTarget(x)
		join(i, tgt, ib.MTU4096)
		ini = append(ini, i)
	}
	for k, i := range ini {
		for n, s := range srqs {
			off := (k*queues + n) * size
			_, err := s.PostRecv([]driver.RecvWR{{WRID: uint64(off), SGList: b.sge(off, size)}})
			must(t, err)
			i.send(driver.SendWR{WRID: 1, Opcode: ib.WRSend, SGList: a.sge(off, size), RemoteSRQN: s.Num()})
			if wc := b.ok(); wc.WRID != uint64(off) || wc.ByteLen != size || wc.SrcQP != i.Num() {
				t.Fatalf("%+v", wc)
			}
			a.ok()
			if sum(a.buf[off:off+size]) != sum(b.buf[off:off+size]) {
				t.Error("a message differs")
			}
			// Back by a READ, into other memory.
			i.send(driver.SendWR{
				Opcode: ib.WRRDMARead, SGList: a.sge(900_000, size), RemoteSRQN: s.Num(), RemoteAddr: b.mr.Addr() + uint64(off), RKey: b.mr.RKey(),
			})
			a.ok()
			if sum(a.buf[900_000:900_000+size]) != sum(b.buf[off:off+size]) {
				t.Error("what was read differs")
			}
		}
	}
}

// TestXRCDestroyUnderLoad destroys receive queues, handles and targets while
// messages for them arrive. Nothing may be touched that is gone; the race detector
// and the device's own count of objects look.
func TestXRCDestroyUnderLoad(t *testing.T) {
	a, b := newHost(t, setup{size: 1 << 20}), newHost(t, setup{size: 1 << 20})
	x, _ := b.xrc(0)
	for round := range 12 {
		cq, err := b.dev.CreateCQ(64, nil)
		must(t, err)
		s, err := b.dev.CreateXRCSRQ(b.pd, x, cq, &ib.SRQAttr{MaxWR: 64, MaxSGE: 1}, nil)
		must(t, err)
		for range 32 {
			_, err := s.PostRecv([]driver.RecvWR{{SGList: b.sge(0, 1<<20)}})
			must(t, err)
		}
		qa := a.qp(ib.XRCSend, 0)
		q, err := b.dev.CreateQP(nil, &driver.QPInitAttr{Type: ib.XRCRecv, XRCD: x}, nil)
		must(t, err)
		tgt := &end{q, b, 0, ib.XRCRecv}
		must(t, qa.init())
		must(t, qa.rtr(tgt, ib.MTU1024))
		must(t, qa.rts())
		tgt.up(qa, ib.MTU1024)
		second, err := b.dev.OpenXRCTarget(x, q.Num(), func(ib.EventType) {})
		must(t, err)
		for range 8 {
			qa.send(driver.SendWR{Opcode: ib.WRSend, SGList: a.sge(0, 1<<20), RemoteSRQN: s.Num()})
		}
		if round%4 != 0 {
			wcFrom(t, cq, b.dev) // the rest is on its way
		}
		var wg sync.WaitGroup
		for _, f := range []func() error{q.Destroy, second.Destroy, func() error { return errors.Join(s.Destroy(), cq.Destroy()) }}[round%3:] {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := f(); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		must(t, errors.Join(q.Destroy(), second.Destroy(), s.Destroy(), cq.Destroy(), qa.Destroy()))
	}
	if err := errors.Join(b.dev.Busy(), a.dev.Busy()); err != nil {
		t.Error(err)
	}
}

// What the provider refuses by itself.
func TestXRCProviderRefuses(t *testing.T) {
	a, b := newHost(t, setup{}), newHost(t, setup{})
	x, srqs := b.xrc(1)
	closed, err := b.dev.OpenXRCD(&driver.XRCDInitAttr{})
	must(t, err)
	must(t, closed.Close())
	tgt := b.xrcTarget(x)
	attr := ib.SRQAttr{MaxWR: 4, MaxSGE: 1}
	for name, f := range map[string]func() error{
		"SRQ, other device": func() error { _, err := a.dev.CreateXRCSRQ(a.pd, x, a.cq, &attr, nil); return err },
		"SRQ, closed":       func() error { _, err := b.dev.CreateXRCSRQ(b.pd, closed, b.cq, &attr, nil); return err },
		"SRQ, other CQ":     func() error { _, err := b.dev.CreateXRCSRQ(b.pd, x, a.cq, &attr, nil); return err },
		"SRQ, other PD":     func() error { _, err := b.dev.CreateXRCSRQ(a.pd, x, b.cq, &attr, nil); return err },
		"SRQ of no size":    func() error { _, err := b.dev.CreateXRCSRQ(b.pd, x, b.cq, &ib.SRQAttr{}, nil); return err },
		"target, none": func() error {
			_, err := b.dev.CreateQP(nil, &driver.QPInitAttr{Type: ib.XRCRecv}, nil)
			return err
		},
		"target, closed": func() error {
			_, err := b.dev.CreateQP(nil, &driver.QPInitAttr{Type: ib.XRCRecv, XRCD: closed}, nil)
			return err
		},
		"RC with a domain": func() error {
			at := b.attr(ib.RC)
			at.XRCD = x
			_, err := b.dev.CreateQP(b.pd, at, nil)
			return err
		},
		"RC with XRC's queue": func() error {
			at := b.attr(ib.RC)
			at.SRQ = srqs[0]
			_, err := b.dev.CreateQP(b.pd, at, nil)
			return err
		},
		"open, closed":       func() error { _, err := b.dev.OpenXRCTarget(closed, tgt.Num(), nil); return err },
		"open, other device": func() error { _, err := a.dev.OpenXRCTarget(x, tgt.Num(), nil); return err },
		"target posts":       func() error { _, err := tgt.PostRecv([]driver.RecvWR{{}}); return err },
	} {
		if err := f(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Over IPv6 an XRC request can be 4 bytes longer than RC's longest: a path MTU that
// would not leave them is refused.
func TestXRCPathMTU(t *testing.T) {
	src, dst := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	f := &pkt.Flow{Path: roce.NewPath(src, dst, roce.Port)}
	for _, c := range []struct {
		typ  ib.QPType
		link int
		ok   bool
	}{
		{ib.RC, 4096 + 83, false},
		{ib.RC, 4096 + 84, true},
		{ib.XRCSend, 4096 + 87, false},
		{ib.XRCSend, 4096 + 88, true},
		{ib.XRCRecv, 4096 + 87, false},
		{ib.XRCRecv, 4096 + 88, true},
	} {
		d := &Device{cfg: Config{LinkMTU: c.link}}
		if err := d.checkPathMTU(ib.MTU4096, f, c.typ); c.ok != (err == nil) {
			t.Errorf("%v over a link of %d: %v", c.typ, c.link, err)
		}
	}
}
