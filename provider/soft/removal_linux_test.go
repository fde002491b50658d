package soft

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// The interface changes and goes away while several goroutines send, create and
// destroy: every call ends, with EIO or as it should, and all work completes.
func TestRemovalUnderTraffic(t *testing.T) {
	for range 5 {
		removalUnderTraffic(t)
	}
}

func removalUnderTraffic(t *testing.T) {
	var report func(Netdev)
	addr := loopAddr()
	p, err := udp.Open(udp.Config{})
	must(t, err)
	d, err := NewDevice(Config{
		Name: "soft_test", NetDev: "lo", Port: p, Addrs: []netip.Addr{addr}, Shards: 2,
		Watch: func(r func(Netdev)) (func(), error) { report = r; return func() {}, nil },
	})
	must(t, err)
	var fatal atomic.Int32
	d.Events(func(e ib.EventType) {
		if e == ib.EventDeviceFatal {
			fatal.Add(1)
		}
	})
	h := &host{t: t, dev: d, port: p, addrs: []netip.Addr{addr}, buf: make([]byte, 64<<10)}
	h.pd, err = d.AllocPD()
	must(t, err)
	h.cq, err = d.CreateCQ(1<<14, nil)
	must(t, err)
	h.mr, err = h.pd.RegMR(h.buf, 0, false, allRights)
	must(t, err)
	h.later(h.pd.Dealloc)
	h.later(h.cq.Destroy)
	h.later(h.mr.Dereg)

	const pairs, sends = 4, 3000
	var wg sync.WaitGroup
	var begun sync.WaitGroup
	begun.Add(pairs)
	for range pairs {
		cq, err := d.CreateCQ(sends, nil)
		must(t, err)
		h.later(cq.Destroy)
		at := h.attr(ib.RC)
		at.SendCQ, at.RecvCQ = cq, cq
		a, b := h.qpWith(at, 0), h.qp(ib.RC, 0)
		join(a, b, ib.MTU1024)
		wg.Go(func() {
			wc := make([]driver.WC, 64)
			posted, done, failed := 0, 0, 0
			for done < sends {
				if posted < sends && posted-done < 64 {
					wr := driver.SendWR{
						Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: h.sge(0, 4096), RemoteAddr: h.mr.Addr(), RKey: h.mr.RKey(),
					}
					if _, err := a.PostSend([]driver.SendWR{wr}); err != nil {
						t.Error(err)
						return
					}
					posted++
				}
				n, err := cq.Poll(wc)
				if err != nil {
					t.Error(err)
					return
				}
				for _, w := range wc[:n] {
					switch {
					case w.Status == ib.WCSuccess && failed == 0:
					case w.Status == ib.WCWRFlushErr || w.Status == ib.WCRetryExcErr && failed == 0:
						failed++
					default:
						t.Errorf("%v after %d failures", w.Status, failed)
					}
				}
				if done += n; done > 100 && done-n <= 100 {
					begun.Done()
				}
			}
		})
	}
	// One who comes and goes.
	wg.Go(func() {
		for {
			q, err := d.CreateQP(h.pd, h.attr(ib.RC), nil)
			if err != nil {
				if !errors.Is(err, syscall.EIO) {
					t.Error(err)
				}
				return
			}
			e := &end{q, h, 0, ib.RC}
			for _, step := range []func() error{e.init, func() error { return e.rtr(e, ib.MTU1024) }, e.rts} {
				if err := step(); err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EINVAL) {
					t.Error(err)
				}
			}
			if s, dead := q.(*qp).state(); dead || s == ib.QPStateRTS && d.gone.Load() {
				// Between the two looks it may have been ended.
				if a, err := q.Query(); err != nil || a.QPState == ib.QPStateRTS && isClosed(d.removed) {
					t.Errorf("works on a device that is gone: %v, %v", a.QPState, err)
				}
			}
			if err := q.Destroy(); err != nil {
				t.Error(err)
			}
		}
	})
	// Those who wait for what never comes.
	idle, err := d.CreateCQ(1, nil)
	must(t, err)
	h.later(idle.Destroy)
	for range 4 {
		wg.Go(func() {
			if err := idle.Wait(context.Background()); !errors.Is(err, syscall.EIO) {
				t.Errorf("wait on a device that is gone: %v", err)
			}
		})
	}
	begun.Wait()
	n := Netdev{Up: true, Enabled: true, MTU: 65536, Addrs: []netip.Addr{addr}}
	report(n)
	n.Addrs = append(n.Addrs, netip.MustParseAddr("192.0.2.1"))
	report(n)
	n.MTU = 1500
	report(n)
	report(Netdev{Gone: true})
	if !isClosed(d.removed) {
		t.Error("not removed")
	}
	wg.Wait()
	if fatal.Load() != 1 {
		t.Errorf("%d DEVICE_FATAL", fatal.Load())
	}
	h.close()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
