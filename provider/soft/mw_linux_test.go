package soft

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Peers write under a key as fast as they can, over queue pairs of several shards,
// while it comes and goes in every way there is. When the way that takes it away
// has ended nobody writes any more: the test itself then uses the memory, which
// the race detector watches.
func TestKeysComeAndGoUnderTraffic(t *testing.T) {
	const peers, size = 4, 8192
	ha, hb := newHost(t, setup{}), newHost(t, setup{shards: 4})
	var key, addr atomic.Uint64
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	var ends []*end
	for range peers {
		cq, err := ha.dev.CreateCQ(16, nil)
		must(t, err)
		ha.later(cq.Destroy)
		at := ha.attr(ib.UC) // a UC queue pair outlives keys that are dead
		at.SendCQ = cq
		a, b := ha.qpWith(at, 0), hb.qp(ib.UC, 0)
		join(a, b, ib.MTU1024)
		ends = append(ends, b)
		wg.Go(func() {
			for !stop.Load() {
				_, err := a.PostSend([]driver.SendWR{{
					Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: ha.sge(0, size),
					RemoteAddr: addr.Load(), RKey: ib.RKey(key.Load()),
				}})
				if err != nil {
					t.Error(err)
					return
				}
				if wc := wcFrom(t, cq, ha.dev); wc.Status != ib.WCSuccess {
					t.Error(wc)
					return
				}
			}
		})
	}
	pd := hb.pd.(*pd)
	m, err := pd.AllocBuffer(2*size, bindRights)
	must(t, err)
	hb.later(m.Free)
	w1, err := pd.AllocMW(ib.MWType1)
	must(t, err)
	hb.later(w1.Dealloc)
	fast, err := pd.AllocMR(8)
	must(t, err)
	hb.later(fast.Dereg)
	mem := m.Bytes()[:size]
	info := driver.BindInfo{MR: m.MR(), Addr: m.MR().Addr(), Length: size, Access: ib.AccessRemoteWrite}
	at := func(k ib.RKey, a uint64) { addr.Store(a); key.Store(uint64(k)) }
	quiet := func(how string) {
		t.Helper()
		for i := range mem {
			mem[i] = 0x77
		}
		_, _ = hb.dev.Progress(), hb.dev.Progress()
		if !bytes.Equal(mem, bytes.Repeat([]byte{0x77}, size)) {
			t.Fatalf("%s: the memory was written afterwards", how)
		}
	}
	arrived := func(how string) {
		t.Helper()
		was := hb.dev.Stats().RcvdPackets
		for hb.dev.Stats().RcvdPackets < was+4 {
			hb.dev.Progress()
		}
	}
	do := func(q *end, wr driver.SendWR) { t.Helper(); q.send(wr); hb.ok() }
	call := func(q *end, w driver.MW, i driver.BindInfo) {
		t.Helper()
		must(t, q.QP.(driver.MWBinder).BindMW(w, &driver.MWBind{Flags: ib.SendSignaled, Info: i}))
		hb.ok()
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	rounds := 300
	if testing.Short() || raceEnabled {
		rounds = 100
	}
	var landed int
	for round := range rounds {
		q := ends[rnd.IntN(peers)]
		how := []string{"type 1 unbound", "type 1 bound anew", "type 1 deallocated", "type 2 invalidated", "type 2 deallocated", "LOCAL_INV", "dereg", "rereg"}[round%8]
		switch how {
		case "type 1 unbound", "type 1 bound anew", "type 1 deallocated":
			w := w1
			if how == "type 1 deallocated" {
				w, err = pd.AllocMW(ib.MWType1)
				must(t, err)
			}
			call(q, w, info)
			at(w.RKey(), info.Addr)
			arrived(how)
			if mem[0] != 0x77 {
				landed++
			}
			switch how {
			case "type 1 unbound":
				call(q, w, driver.BindInfo{})
			case "type 1 bound anew":
				other := info
				other.Addr += size
				call(ends[0], w, other)
			default:
				must(t, w.Dealloc())
			}
		case "type 2 invalidated", "type 2 deallocated":
			w, err := pd.AllocMW(ib.MWType2)
			must(t, err)
			i := info
			i.MW = w
			do(q, driver.SendWR{Opcode: ib.WRBindMW, RKey: ib.IncRKey(w.RKey()), Bind: &i})
			at(w.RKey(), info.Addr)
			arrived(how)
			if how == "type 2 invalidated" {
				do(q, driver.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: w.RKey()})
				quiet(how)
			}
			must(t, w.Dealloc())
		case "LOCAL_INV":
			n, _, err := fast.MapSG([][]byte{mem[:4096], mem[4096:]}, 0, 4096)
			if n != 2 || err != nil {
				t.Fatal(n, err)
			}
			do(q, driver.SendWR{Opcode: ib.WRRegMR, RKey: ib.IncRKey(fast.RKey()), Bind: &driver.BindInfo{MR: fast, Access: bindRights}})
			at(fast.RKey(), fast.Addr())
			arrived(how)
			do(ends[rnd.IntN(peers)], driver.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: fast.RKey()})
		case "dereg", "rereg":
			mr, err := pd.RegMR(mem, 0, false, bindRights)
			must(t, err)
			at(mr.RKey(), mr.Addr())
			arrived(how)
			if how == "rereg" {
				must(t, mr.(driver.MRRereger).Rereg(ib.ReregTranslation, &driver.ReregAttr{Bytes: m.Bytes()[size:]}))
				at(mr.RKey(), mr.Addr())
				quiet(how)
			}
			must(t, mr.Dereg())
		}
		quiet(how)
	}
	if landed == 0 {
		t.Error("no write has ever landed")
	}
}

const bindRights = allRights | ib.AccessMWBind

// Windows are allocated, bound, unbound, deallocated, and their regions and queue
// pairs end, all at the same time: every call ends as it may, nothing is left.
func TestWindowsEndAtTheSameTime(t *testing.T) {
	h := newHost(t, setup{shards: 2})
	p := h.pd.(*pd)
	for round := range 150 {
		mr, err := p.RegMR(make([]byte, 64), 0, false, bindRights)
		must(t, err)
		cq, err := h.dev.CreateCQ(256, nil)
		must(t, err)
		at := h.attr(ib.RC)
		at.SendCQ, at.RecvCQ = cq, cq
		q, err := h.dev.CreateQP(h.pd, at, nil)
		must(t, err)
		e := &end{q, h, 0, ib.RC}
		e.up(e, ib.MTU1024) // connected to itself
		w, err := p.AllocMW([]ib.MWType{ib.MWType1, ib.MWType2}[round%2])
		must(t, err)
		info := driver.BindInfo{MW: w, MR: mr, Addr: mr.Addr(), Length: 64, Access: ib.AccessRemoteRead}
		var wg sync.WaitGroup
		may := func(err error, errs ...syscall.Errno) {
			for _, e := range errs {
				if errors.Is(err, e) {
					return
				}
			}
			if err != nil {
				t.Error(err)
			}
		}
		for i := range 2 {
			wg.Go(func() {
				for range 5 {
					if round%2 == 0 {
						may(q.(driver.MWBinder).BindMW(w, &driver.MWBind{Info: info}), syscall.EINVAL)
						continue
					}
					_, err := q.PostSend([]driver.SendWR{
						{Opcode: ib.WRBindMW, RKey: ib.TagRKey(w.RKey(), uint8(i)), Bind: &info},
						{Opcode: ib.WRLocalInv, InvalidateRKey: ib.TagRKey(w.RKey(), uint8(i))},
					})
					may(err, syscall.EINVAL)
				}
			})
		}
		var dereg error
		wg.Go(func() { dereg = mr.Dereg(); may(dereg, syscall.EBUSY) })
		wg.Go(func() { must(t, w.Dealloc()) })
		wg.Go(func() { must(t, q.Destroy()) })
		wg.Wait()
		if err := errors.Join(w.Dealloc(), q.Destroy(), mr.Dereg(), cq.Destroy()); err != nil {
			t.Fatal(round, err)
		}
	}
	if n := h.dev.table.Windows(); n != 0 {
		t.Errorf("%d windows are left", n)
	}
}
