package soft

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Objects of every kind come and go, in every order, while others work with them and
// then the interface goes away: every call ends, with an error that a caller can
// know, nothing is left, and the race detector finds nothing.
func TestEveryVerbAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 3 {
		everyVerb(t, rnd.Uint64())
	}
}

func everyVerb(t *testing.T, seed uint64) {
	const (
		rounds = 150
		// The first part of the memory is only read; each goroutine receives into one of
		// its own: devices keep no order between queue pairs of different shards.
		own = 64 << 10
	)
	var report func(Netdev)
	addr := loopAddr()
	p, err := udp.Open(udp.Config{})
	must(t, err)
	d, err := NewDevice(Config{
		Name: "soft_test", NetDev: "lo", Port: p, Addrs: []netip.Addr{addr}, Shards: 2, Capture: &Capture{W: io.Discard},
		Watch: func(r func(Netdev)) (func(), error) { report = r; return func() {}, nil },
	})
	must(t, err)
	h := &host{t: t, dev: d, port: p, addrs: []netip.Addr{addr}, buf: make([]byte, 8*own)}
	h.pd, err = d.AllocPD()
	must(t, err)
	h.cq, err = d.CreateCQ(1<<14, nil)
	must(t, err)
	h.mr, err = h.pd.RegMR(h.buf, 0, false, allRights|ib.AccessMWBind)
	must(t, err)
	h.later(h.pd.Dealloc)
	h.later(h.cq.Destroy)

	// What may go wrong when objects vanish under their users.
	known := []syscall.Errno{syscall.EINVAL, syscall.EIO, syscall.EBUSY, syscall.ENOMEM, syscall.EPERM, syscall.EOVERFLOW}
	fine := func(err error) bool {
		for _, e := range known {
			if errors.Is(err, e) {
				return true
			}
		}
		if err != nil {
			t.Errorf("%v", err)
		}
		return err == nil
	}
	var (
		mu      sync.Mutex
		shared  []driver.QP // of other goroutines
		windows []driver.MW
		regions []driver.MR
	)
	some := func(r *rand.Rand) (q driver.QP, w driver.MW, m driver.MR) {
		mu.Lock()
		defer mu.Unlock()
		if len(shared) > 0 {
			q = shared[r.IntN(len(shared))]
		}
		if len(windows) > 0 {
			w = windows[r.IntN(len(windows))]
		}
		if len(regions) > 0 {
			m = regions[r.IntN(len(regions))]
		}
		return q, w, m
	}
	put := func(q driver.QP, w driver.MW, m driver.MR) {
		mu.Lock()
		defer mu.Unlock()
		if q != nil {
			shared = append(shared, q)
		}
		if w != nil {
			windows = append(windows, w)
		}
		if m != nil {
			regions = append(regions, m)
		}
	}
	pair := func() (a, b *end, err error) {
		qa, err := d.CreateQP(h.pd, h.attr(ib.RC), nil)
		if err != nil {
			return nil, nil, err
		}
		put(qa, nil, nil)
		qb, err := d.CreateQP(h.pd, h.attr(ib.RC), nil)
		if err != nil {
			return nil, nil, errors.Join(err, qa.Destroy())
		}
		put(qb, nil, nil)
		a, b = &end{qa, h, 0, ib.RC}, &end{qb, h, 0, ib.RC}
		for _, f := range []func() error{
			a.init, b.init, func() error { return a.rtr(b, ib.MTU1024) }, func() error { return b.rtr(a, ib.MTU1024) }, a.rts, b.rts,
		} {
			if err := f(); err != nil {
				return nil, nil, errors.Join(err, qa.Destroy(), qb.Destroy())
			}
		}
		return a, b, nil
	}
	var wg sync.WaitGroup
	workers := 0
	work := func(f func(r *rand.Rand, at int)) {
		workers++
		k := workers
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(k)))
			for range rounds {
				f(r, k*own)
			}
		})
	}
	drain := func(c driver.CQ) {
		var wc [32]driver.WC
		_, err := c.Poll(wc[:])
		fine(err)
	}

	// Queue pairs that bind, register, write and invalidate what others take away.
	for range 2 {
		work(func(r *rand.Rand, at int) {
			a, b, err := pair()
			if !fine(err) || err != nil {
				return
			}
			for range 8 {
				_, w, m := some(r)
				var wrs []driver.SendWR
				switch r.IntN(5) {
				case 0:
					if w != nil && m != nil {
						wrs = append(wrs, driver.SendWR{Opcode: ib.WRBindMW, RKey: ib.IncRKey(w.RKey()), Flags: ib.SendSignaled, Bind: &driver.BindInfo{
							MW: w, MR: m, Addr: m.Addr(), Length: 64, Access: ib.AccessRemoteRead,
						}})
					}
				case 1:
					if w != nil && m != nil {
						fine(a.QP.(driver.MWBinder).BindMW(w, &driver.MWBind{Info: driver.BindInfo{MR: m, Addr: m.Addr(), Length: 64, Access: ib.AccessRemoteRead}}))
					}
				case 2:
					if m != nil {
						wrs = append(wrs, driver.SendWR{Opcode: ib.WRRegMR, RKey: ib.IncRKey(m.RKey()), Bind: &driver.BindInfo{MR: m, Access: allRights}})
					}
				case 3:
					if m != nil {
						wrs = append(wrs, driver.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: m.RKey()})
					}
				}
				if w != nil {
					wrs = append(wrs, driver.SendWR{Opcode: ib.WRRDMARead, SGList: h.sge(at, 64), RemoteAddr: h.mr.Addr(), RKey: w.RKey()})
				}
				wrs = append(wrs, driver.SendWR{Opcode: ib.WRAtomicWrite, Flags: ib.SendInline, InlineData: make([]byte, 8), RemoteAddr: h.mr.Addr() + uint64(at), RKey: h.mr.RKey()})
				if r.IntN(2) == 0 {
					_, err = a.QP.(driver.BatchPoster).PostSendAll(wrs)
				} else {
					_, err = a.PostSend(wrs)
				}
				fine(err)
				drain(h.cq)
			}
			if r.IntN(2) == 0 {
				fine(a.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
			}
			fine(a.Destroy())
			fine(b.Destroy())
		})
	}
	// Windows and regions.
	work(func(r *rand.Rand, _ int) {
		if w, err := h.pd.(driver.MWPD).AllocMW(ib.MWType(1 + r.IntN(2))); fine(err) && err == nil {
			put(nil, w, nil)
		}
		if m, err := h.pd.(driver.FastRegPD).AllocMR(16); fine(err) && err == nil {
			_, _, err = m.MapSG([][]byte{h.buf[:4096]}, 0, 4096)
			fine(err)
			put(nil, nil, m)
		}
		if m, err := h.pd.RegMR(h.buf[:own], 0, false, allRights|ib.AccessMWBind); fine(err) && err == nil {
			put(nil, nil, m)
		}
		_, w, m := some(r)
		if w != nil && r.IntN(2) == 0 {
			fine(w.Dealloc())
		}
		switch m := m.(type) {
		case driver.FastMR:
			_, _, err := m.MapSG([][]byte{h.buf[8192:own]}, 100, 4096)
			fine(err)
		case driver.MRRereger:
			fine(m.Rereg(ib.ReregFlags(1+r.IntN(7)), &driver.ReregAttr{PD: h.pd, Bytes: make([]byte, 4096), Access: allRights}))
		}
		if m != nil && r.IntN(3) == 0 {
			fine(m.Dereg())
		}
	})
	// XRC domains, queues in them, and several handles of each target.
	work(func(r *rand.Rand, at int) {
		x, err := d.OpenXRCD(&driver.XRCDInitAttr{})
		if !fine(err) || err != nil {
			return
		}
		s, err := d.CreateXRCSRQ(h.pd, x, h.cq, &ib.SRQAttr{MaxWR: 16, MaxSGE: 1}, nil)
		fine(err)
		qt, err2 := d.CreateQP(nil, &driver.QPInitAttr{Type: ib.XRCRecv, XRCD: x}, func(ib.EventType) {})
		fine(err2)
		qi, err3 := d.CreateQP(h.pd, h.attr(ib.XRCSend), nil)
		fine(err3)
		if errors.Join(err, err2, err3) == nil {
			put(qt, nil, nil)
			i, g := &end{qi, h, 0, ib.XRCSend}, &end{qt, h, 0, ib.XRCRecv}
			for _, f := range []func() error{
				i.init, g.init, func() error { return i.rtr(g, ib.MTU1024) }, func() error { return g.rtr(i, ib.MTU1024) }, i.rts, g.rts,
			} {
				fine(f())
			}
			_, err = s.PostRecv([]driver.RecvWR{{SGList: h.sge(at, 60000)}, {SGList: h.sge(at, 60000)}})
			fine(err)
			_, err = i.PostSend([]driver.SendWR{
				{Opcode: ib.WRSend, SGList: h.sge(0, 60000), RemoteSRQN: s.Num()}, {Opcode: ib.WRSend, SGList: h.sge(0, 60000), RemoteSRQN: s.Num()},
			})
			fine(err)
			var two sync.WaitGroup
			for range 2 {
				two.Go(func() {
					o, err := d.OpenXRCTarget(x, qt.Num(), func(ib.EventType) {})
					if fine(err) && err == nil {
						_, err = o.Query()
						fine(err)
						fine(o.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
						fine(o.Destroy())
					}
				})
			}
			two.Go(func() { fine(s.Destroy()) })
			if r.IntN(2) == 0 {
				two.Go(func() { fine(qt.Destroy()) })
			}
			two.Wait()
		}
		if qi != nil {
			fine(qi.Destroy())
		}
		if qt != nil {
			fine(qt.Destroy())
		}
		if s != nil {
			fine(s.Destroy())
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	// Completion queues that overrun, are moderated and vanish; counters.
	work(func(r *rand.Rand, _ int) {
		cq, err := d.CreateCQEx(&driver.CQInitAttr{CQE: 4 + r.IntN(8), WCFlags: ib.WCExCompletionTimestamp, Flags: ib.CQFlags(r.IntN(2) * 2)}, func() {})
		if !fine(err) || err != nil {
			return
		}
		at := h.attr(ib.RC)
		at.SendCQ = cq
		q, err := d.CreateQP(h.pd, at, func(ib.EventType) {})
		c, err2 := d.CreateCompCntr()
		fine(err)
		fine(err2)
		if errors.Join(err, err2) == nil {
			put(q, nil, nil)
			fine(q.(driver.CompCntrAttacher).AttachCompCntr(c, ib.CompCntrSend|ib.CompCntrRDMAWrite))
			e := &end{q, h, 0, ib.RC}
			for _, f := range []func() error{e.init, func() error { return e.rtr(e, ib.MTU1024) }, e.rts} {
				fine(f())
			}
			var two sync.WaitGroup
			two.Go(func() {
				for i := range 10 {
					fine(cq.(driver.CQModerator).Moderate(i%3, time.Duration(i%2)*time.Millisecond))
					cq.Arm(false)
					fine(cq.Resize(4 + i))
					if wcs, _, err := cq.Look(); fine(err) && len(wcs) > 0 {
						cq.Done(1)
					}
				}
			})
			for range 20 {
				_, err := q.PostSend([]driver.SendWR{{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RemoteAddr: 1}})
				fine(err)
				d.Progress()
			}
			two.Go(func() { fine(q.Destroy()) })
			two.Go(func() { fine(c.Destroy()) })
			two.Wait()
		}
		if q != nil {
			fine(q.Destroy())
		}
		if c != nil {
			fine(c.Destroy())
		}
		if err := cq.Destroy(); err != nil {
			t.Error(err)
		}
	})
	// Whoever looks on, and meddles with the queue pairs of the others.
	work(func(r *rand.Rand, _ int) {
		if q, _, _ := some(r); q != nil {
			_, err := q.Query()
			fine(err)
			_, err = q.(driver.QPCounter).Counters()
			fine(err)
			if r.IntN(4) == 0 {
				fine(q.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
			}
		}
		_, err := d.HWCounters(0)
		fine(err)
		d.Progress()
	})
	wg.Go(func() {
		for range 20 {
			report(Netdev{Up: true, Enabled: true, MTU: 65536, Addrs: []netip.Addr{addr}})
			report(Netdev{Up: false, Enabled: true, MTU: 9000, Addrs: []netip.Addr{addr}})
			time.Sleep(time.Duration(seed%20) * time.Millisecond) // when does not matter, as long as it is not always the same
		}
		report(Netdev{Gone: true})
	})
	wg.Wait()
	for _, q := range shared {
		fine(q.Destroy())
	}
	for _, w := range windows {
		fine(w.Dealloc())
	}
	must(t, h.mr.Dereg())
	for _, m := range regions {
		if err := m.Dereg(); err != nil {
			t.Error(err)
		}
	}
	h.close()
}
