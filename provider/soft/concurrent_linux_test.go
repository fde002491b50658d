package soft

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Everything at once on a device of four shards: posts, polls, waits, regions
// that come and go, queue pairs that fail and are destroyed under load. Every
// completion is one that may be; the device is clean at the end.
func TestEverythingAtOnce(t *testing.T) {
	const workers, rounds = 8, 12
	ha, hb := newHost(t, setup{shards: 4}), newHost(t, setup{shards: 4})
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var stop atomic.Bool
	var wg, helpers sync.WaitGroup
	for _, h := range []*host{ha, hb} {
		helpers.Go(func() { // polls a queue that gets nothing
			wcs := make([]driver.WC, 4)
			for !stop.Load() {
				if n, err := h.cq.Poll(wcs); n != 0 || err != nil {
					t.Errorf("idle queue: %d, %v", n, err)
					return
				}
				time.Sleep(50 * time.Microsecond)
			}
		})
		helpers.Go(func() { // reads everything that can be read
			for !stop.Load() {
				h.dev.Counters()
				_, _ = h.dev.QueryPort(1)
				_ = h.dev.Leaks()
				runtime.Gosched()
				time.Sleep(time.Millisecond)
			}
		})
	}
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 7))
			for range rounds {
				if !chaos(t, ctx, ha, hb, rnd) {
					return
				}
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	helpers.Wait()
}

// chaos is the life of one connection.
func chaos(t *testing.T, ctx context.Context, ha, hb *host, rnd *rand.Rand) bool {
	fail := func(err error) bool {
		if err != nil {
			t.Error(err)
		}
		return err != nil
	}
	cqs := [2]driver.CQ{}
	ends := [2]*end{}
	var err error
	for i, h := range []*host{ha, hb} {
		if cqs[i], err = h.dev.CreateCQ(512, nil); fail(err) {
			return false
		}
		a := h.attr(ib.RC)
		a.SendCQ, a.RecvCQ = cqs[i], cqs[i]
		q, err := h.dev.CreateQP(h.pd, a, func(ib.EventType) {})
		if fail(err) {
			return false
		}
		ends[i] = &end{q, h, 0, ib.RC}
	}
	for i, e := range ends {
		if fail(errors.Join(e.init(), e.rtr(ends[1-i], ib.MTU1024), e.rts())) {
			return false
		}
	}
	buf := make([]byte, 32<<10)
	mr, err := hb.pd.RegMR(buf, 0, false, allRights)
	if fail(err) {
		return false
	}
	// Memory of its own on both sides: one queue pair's work is in one shard.
	local := make([]byte, len(buf))
	lmr, err := ha.pd.RegMR(local, 0, false, allRights)
	if fail(err) {
		return false
	}
	var posted, done atomic.Int64
	var wg sync.WaitGroup
	ending := make(chan struct{})
	wg.Go(func() { // waits and polls
		wcs := make([]driver.WC, 7)
		for {
			for {
				n, err := cqs[0].Poll(wcs)
				if fail(err) || n == 0 {
					break
				}
				for _, wc := range wcs[:n] {
					switch wc.Status {
					case ib.WCSuccess, ib.WCWRFlushErr, ib.WCRemAccessErr, ib.WCRetryExcErr, ib.WCRemOpErr:
					default:
						t.Errorf("completion %+v", wc)
					}
				}
				done.Add(int64(n))
			}
			select {
			case <-ending:
				if done.Load() >= posted.Load() {
					return
				}
			default:
			}
			one, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
			err := cqs[0].Wait(one)
			cancel()
			if err != nil && ctx.Err() != nil {
				t.Errorf("%d of %d completions; %v", done.Load(), posted.Load(), ha.dev.Counters())
				return
			}
		}
	})
	var posters sync.WaitGroup
	for range 2 {
		ops := []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead, ib.WRAtomicFetchAndAdd}
		seed := rnd.Uint64()
		posters.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 1))
			for range 60 {
				op, n := ops[rnd.IntN(3)], rnd.IntN(len(buf))
				if op == ib.WRAtomicFetchAndAdd {
					n = 8
				}
				posted.Add(1)
				_, err := ends[0].PostSend([]driver.SendWR{{
					Opcode: op, Flags: ib.SendSignaled, RemoteAddr: mr.Addr(), RKey: mr.RKey(), CompareAdd: 1,
					SGList: []driver.SGE{{Addr: lmr.Addr(), Length: uint32(n), LKey: lmr.LKey()}},
				}})
				if err != nil {
					posted.Add(-1)
					if !errors.Is(err, syscall.ENOMEM) {
						t.Error(err)
						return
					}
					runtime.Gosched()
				}
			}
		})
	}
	switch rnd.IntN(4) {
	case 0:
		fail(mr.Dereg())
	case 1:
		fail(ends[rnd.IntN(2)].Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
	case 2:
		_, err := ends[0].Query()
		fail(err)
	}
	posters.Wait()
	if rnd.IntN(2) == 0 {
		fail(ends[1].Destroy()) // the peer goes away under load
	}
	fail(ends[0].Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
	close(ending)
	wg.Wait()
	fail(errors.Join(ends[0].Destroy(), ends[1].Destroy(), mr.Dereg(), lmr.Dereg(), cqs[0].Destroy(), cqs[1].Destroy()))
	return !t.Failed()
}

// A shared receive queue feeds many queue pairs; each message takes one request,
// and the limit's event comes once (case 61).
func TestCase61_SharedReceiveQueue(t *testing.T) {
	const qps, each = 8, 20
	ha, hb := newHost(t, setup{}), newHost(t, setup{shards: 2})
	var limits atomic.Int32
	srq, err := hb.dev.CreateSRQ(hb.pd, &ib.SRQAttr{MaxWR: 256, MaxSGE: 1}, func(e ib.EventType) {
		if e == ib.EventSRQLimitReached {
			limits.Add(1)
		}
	})
	must(t, err)
	hb.later(srq.Destroy)
	var as []*end
	for range qps {
		at := hb.attr(ib.RC)
		at.SRQ = srq
		at.Cap.MaxRecvWR = 1<<32 - 1 // ignored (case 58)
		a, b := ha.qp(ib.RC, 0), hb.qpWith(at, 0)
		join(a, b, ib.MTU1024)
		as = append(as, a)
		if _, err := b.PostRecv([]driver.RecvWR{{}}); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("receive posted beside the shared queue: %v", err)
		}
	}
	for i := range qps * each {
		_, err := srq.PostRecv([]driver.RecvWR{{WRID: uint64(i), SGList: hb.sge(i*8, 8)}})
		must(t, err)
	}
	must(t, srq.Modify(&ib.SRQAttr{SRQLimit: 3}, ib.SRQLimit))
	if got := srq.Query().SRQLimit; got != 3 {
		t.Fatalf("limit %d", got)
	}
	for k := range each {
		for i, a := range as {
			binary.NativeEndian.PutUint64(ha.buf[8*(k*qps+i):], uint64(k*qps+i)+1)
			a.send(driver.SendWR{Opcode: ib.WRSend, SGList: ha.sge(8*(k*qps+i), 8)})
		}
	}
	seen, values := map[uint64]bool{}, map[uint64]bool{}
	for range qps * each {
		ha.ok()
		wc := hb.ok()
		v := binary.NativeEndian.Uint64(hb.buf[wc.WRID*8:])
		if wc.ByteLen != 8 || seen[wc.WRID] || values[v] || v == 0 {
			t.Fatalf("completion %+v of message %d", wc, v)
		}
		seen[wc.WRID], values[v] = true, true
	}
	if n := limits.Load(); n != 1 || srq.Query().SRQLimit != 0 {
		t.Fatalf("%d limit events, limit now %d", n, srq.Query().SRQLimit)
	}
}

// Atomics of many queue pairs, on several shards, add up exactly; every original
// value is seen once.
func TestAtomicsAddUp(t *testing.T) {
	const qps, each = 12, 40
	ha, hb := newHost(t, setup{shards: 4}), newHost(t, setup{shards: 4})
	var as []*end
	for range qps {
		a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
		join(a, b, ib.MTU1024)
		as = append(as, a)
	}
	var wg sync.WaitGroup
	for i, a := range as {
		wg.Go(func() {
			for k := range each {
				_, err := a.PostSend([]driver.SendWR{{
					Opcode: ib.WRAtomicFetchAndAdd, Flags: ib.SendSignaled, SGList: ha.sge(8*(i*each+k), 8),
					RemoteAddr: hb.mr.Addr() + 64, RKey: hb.mr.RKey(), CompareAdd: 1,
				}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for range qps * each {
		ha.ok()
	}
	hb.dev.eng.Quiesce()
	if got := binary.NativeEndian.Uint64(hb.buf[64:]); got != qps*each {
		t.Fatalf("sum %d, want %d", got, qps*each)
	}
	seen := make(map[uint64]bool)
	for i := range qps * each {
		v := binary.NativeEndian.Uint64(ha.buf[8*i:])
		if v >= qps*each || seen[v] {
			t.Fatalf("original value %d twice or too large", v)
		}
		seen[v] = true
	}
}

// Waiters on many queues of one device, some cancelled, while others poll: every
// completion finds its waiter; Close ends the rest with EIO.
func TestWaitersOfOneDevice(t *testing.T) {
	const pairs, each = 6, 60
	ha, hb := newHost(t, setup{}), newHost(t, setup{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for i := range pairs {
		cq, err := hb.dev.CreateCQ(256, nil)
		must(t, err)
		hb.later(cq.Destroy)
		at := hb.attr(ib.RC)
		at.RecvCQ = cq
		a, b := ha.qp(ib.RC, 0), hb.qpWith(at, 0)
		join(a, b, ib.MTU1024)
		for k := range each {
			b.recv(uint64(k), 0, 0)
		}
		wg.Go(func() {
			var wcs [3]driver.WC
			for got := 0; got < each; {
				short, stop := context.WithTimeout(ctx, time.Duration(1+i)*time.Millisecond)
				err := cq.Wait(short)
				stop()
				if err != nil && ctx.Err() != nil {
					t.Errorf("queue %d: %d of %d; %v", i, got, each, err)
					return
				}
				n, err := cq.Poll(wcs[:])
				if err != nil {
					t.Error(err)
					return
				}
				got += n
			}
		})
		wg.Go(func() {
			for range each {
				if _, err := a.PostSend([]driver.SendWR{{Opcode: ib.WRSend}}); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Duration(i*20) * time.Microsecond)
			}
		})
	}
	wg.Wait()

	idle, err := hb.dev.CreateCQ(1, nil)
	must(t, err)
	hb.later(idle.Destroy)
	for range 4 {
		wg.Go(func() {
			if err := idle.Wait(context.Background()); !errors.Is(err, syscall.EIO) {
				t.Errorf("wait on a closed device: %v", err)
			}
		})
	}
	runtime.Gosched()
	must(t, hb.dev.Close())
	wg.Wait()
}
