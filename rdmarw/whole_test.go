package rdmarw_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// A send queue that has no room for the whole chain takes nothing of it. When it has
// room the same context is posted.
func TestC5_WholeOrNothing(t *testing.T) {
	for _, s := range strategies() {
		for d, dir := range directions {
			t.Run(fmt.Sprintf("%s/%v", s.name, dir), func(t *testing.T) {
				r, q, _ := s.rig(t, setup{})
				b, remote := r.a.buffer(20*page), r.b.mem(20*page)
				r.fill(b)
				r.fill(remote.Bytes())
				list, offset := s.list(r, b, 20, d)
				var c rdmarw.Ctx
				n, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), dir)
				must(t, err)
				was := c.Regs()
				_, init, err := q.QP().Query()
				must(t, err)
				// All entries but n-1 are taken by READs of nothing, whose answers wait.
				full := newWatch()
				stop := r.net.Filter(func(*netEvent) netVerdict { return netDrop })
				wrs := slices.Repeat([]verbs.SendWR{{Opcode: ib.WRRDMARead, WRID: r.a.rw.WRID(&full.CQE), Flags: ib.SendSignaled}}, int(init.Cap.MaxSendWR)-n+1)
				must(t, q.QP().PostSendAll(wrs))
				w := newWatch()
				for range 3 {
					is(t, "full", c.Post(q, 1, &w.CQE, nil), syscall.ENOMEM)
					if !slices.Equal(c.Regs(), was) {
						t.Fatalf("%v, was %v", c.Regs(), was)
					}
				}
				stop()
				r.wait(full, len(wrs))
				r.quiet(w, full)
				before := slices.Clone(remote.Bytes())
				must(t, c.Post(q, 1, &w.CQE, nil))
				r.done(w)
				if want := join(list, offset); !bytes.Equal(remote.Bytes()[:len(want)], want) || dir == rdmarw.DMAFromDevice && !bytes.Equal(before, remote.Bytes()) {
					t.Error("other bytes")
				}
				must(t, destroy())
			})
		}
	}
}

// A chain whose last request is bad is not posted either, nor what comes before it.
func TestC5_BadChain(t *testing.T) {
	for _, s := range strategies() {
		r, q, _ := s.rig(t, setup{})
		b, remote := r.a.buffer(20*page), r.b.mem(20*page)
		list, offset := s.list(r, b, 20, fromPeer)
		var c rdmarw.Ctx
		n, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice)
		must(t, err)
		was := c.Regs()
		err = c.Post(q, 1, nil, append(send(1, 0), verbs.SendWR{Opcode: 77, WRID: 99}))
		is(t, s.name, err, syscall.EINVAL)
		var which *verbs.PostError
		if !errors.As(err, &which) || which.Index != n+1 || which.WRID != 99 {
			t.Errorf("%s: %v", s.name, err)
		}
		r.quiet()
		if !slices.Equal(c.Regs(), was) {
			t.Errorf("%s: %v, was %v", s.name, c.Regs(), was)
		}
		must(t, destroy())
	}
}

// Before the queue pair is connected nothing is posted; afterwards the same context is.
func TestC5_BeforeItIsConnected(t *testing.T) {
	for _, s := range strategies() {
		r := newRig(t, setup{limits: s.limits})
		attr := r.a.attr()
		attr.ForceMR = s.force
		q := ok(rdmarw.CreateQP(r.a.pd, attr))(t)
		r.a.later(func() error { return errors.Join(q.QP().Destroy(), q.CleanupMRs()) })
		b, remote := r.a.buffer(20*page), r.b.mem(20*page)
		list, offset := s.list(r, b, 20, fromPeer)
		var c rdmarw.Ctx
		_, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice)
		must(t, err)
		w := newWatch()
		is(t, s.name, c.Post(q, 1, &w.CQE, nil), syscall.EINVAL)
		r.peer(q.QP())
		must(t, c.Post(q, 1, &w.CQE, nil))
		r.done(w)
		must(t, destroy())
	}
}

// On a queue pair in ERR the post succeeds, and its flush reaches the CQE once,
// whatever requests the chain has. Nobody else hears of it but as of nobody's.
func TestC5_QueuePairInError(t *testing.T) {
	for _, s := range strategies() {
		for d, dir := range directions {
			for _, early := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/early %v", s.name, dir, early), func(t *testing.T) {
					r, q, peer := s.rig(t, setup{})
					b, remote := r.a.buffer(20*page), r.b.mem(20*page)
					free, size := q.MRs()
					var c rdmarw.Ctx
					list, offset := s.list(r, b, 20, d)
					n, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), dir)
					must(t, err)
					w := newWatch()
					stop := r.net.Filter(func(*netEvent) netVerdict { return netDrop })
					if early {
						must(t, c.Post(q, 1, &w.CQE, nil))
					}
					must(t, q.QP().Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
					if !early {
						must(t, c.Post(q, 1, &w.CQE, nil))
					}
					r.wait(w, 1)
					r.quiet(w)
					if w.got[0].Status != ib.WCWRFlushErr {
						t.Errorf("%+v", w.got[0])
					}
					for _, wc := range r.a.lost {
						if wc.WRID != 0 || wc.Err() == nil {
							t.Errorf("%+v", wc)
						}
					}
					if len(r.a.lost) >= n {
						t.Errorf("%d of %d requests are nobody's", len(r.a.lost), n)
					}
					must(t, destroy())
					if f, s := q.MRs(); f != free || s != size {
						t.Errorf("%d of %d regions, %d of %d before", f, s, free, size)
					}
					stop()
					// After RESET the pool's regions work, whether their last registration came
					// to be or not.
					r.a.lost = nil
					must(t, q.QP().Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState))
					must(t, peer.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState))
					r.a.connect(q.QP(), peer, r.b.addr)
					r.b.connect(peer, q.QP(), r.a.addr)
					for range 2 {
						r.fill(remote.Bytes())
						_, destroy, err = s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice)
						if s.reg[toPeer] != s.reg[fromPeer] && errors.Is(err, syscall.EINVAL) {
							return // cut for the other direction
						}
						must(t, err)
						w.got = nil
						must(t, c.Post(q, 1, &w.CQE, nil))
						r.done(w)
						if want := join(list, offset); !bytes.Equal(remote.Bytes()[:len(want)], want) {
							t.Error("other bytes")
						}
						must(t, destroy())
					}
				})
			}
		}
	}
}

// The flush of a chain reaches each signaled request's CQE once, and that of no other.
func TestC5_FlushOfAChain(t *testing.T) {
	for _, s := range strategies() {
		r, q, _ := s.rig(t, setup{})
		b, remote := r.a.buffer(20*page), r.b.mem(20*page)
		list, offset := s.list(r, b, 20, toPeer)
		var c rdmarw.Ctx
		n, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice)
		must(t, err)
		must(t, q.QP().Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
		one, two, other := newWatch(), newWatch(), newWatch()
		chain := append(send(r.a.rw.WRID(&one.CQE), ib.SendSignaled), send(r.a.rw.WRID(&two.CQE), ib.SendSignaled)...)
		must(t, c.Post(q, 1, &other.CQE, chain))
		r.wait(one, 1)
		r.wait(two, 1)
		r.quiet(one, two, other)
		if one.got[0].Status != ib.WCWRFlushErr || two.got[0].Status != ib.WCWRFlushErr || len(other.got) != 0 || len(r.a.lost) > n {
			t.Errorf("%s: %+v, %+v, %+v; for nobody: %d", s.name, one.got, two.got, other.got, len(r.a.lost))
		}
		must(t, destroy())
		if free, size := q.MRs(); free != size {
			t.Errorf("%s: %d of %d regions", s.name, free, size)
		}
	}
}

// A request of the chain that fails, here because of the peer's key, ends the queue
// pair; the CQE is told of the flush, or of the failure if it is of the last.
func TestC5_FailureInTheMiddle(t *testing.T) {
	for _, s := range strategies() {
		for d, dir := range directions {
			t.Run(fmt.Sprintf("%s/%v", s.name, dir), func(t *testing.T) {
				r, q, _ := s.rig(t, setup{})
				b, remote := r.a.buffer(20*page), r.b.mem(20*page)
				var c rdmarw.Ctx
				list, offset := s.list(r, b, 20, d)
				_, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey()+0x100, dir)
				must(t, err)
				w := newWatch()
				must(t, c.Post(q, 1, &w.CQE, nil))
				r.wait(w, 1)
				r.quiet(w)
				want := ib.WCRemAccessErr
				if s.requests(len(list), d) > 1 {
					want = ib.WCWRFlushErr
				}
				if w.got[0].Status != want {
					t.Errorf("%+v", w.got[0])
				}
				if want == ib.WCWRFlushErr && (len(r.a.lost) == 0 || r.a.lost[0].Status != ib.WCRemAccessErr) {
					t.Errorf("nobody was told of %v: %+v", ib.WCRemAccessErr, r.a.lost)
				}
				must(t, destroy())
				if free, size := q.MRs(); free != size {
					t.Errorf("%d of %d regions", free, size)
				}
			})
		}
	}
}

// Keys and what is owed are as before after each failed post, for new regions and used
// ones, and a chain that was built and not posted leaves neither a double nor a missing
// invalidation.
func TestC5_RegionsAreAsBefore(t *testing.T) {
	r := newRig(t, setup{limits: soft.Limits{MaxFastRegPages: 4}})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR = true; a.MaxRDMACtxs = 3 })
	b, remote := r.a.buffer(12*page), r.b.mem(12*page)
	list := r.pages(b, 12)
	var c rdmarw.Ctx
	w := newWatch()
	bad := []verbs.SendWR{{Opcode: 77}}
	for turn := range 600 { // the last 8 bits of the keys wrap around
		n := ok(c.Init(q, 1, list, 0, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice))(t)
		was := c.Regs()
		if want := 6 + 3*min(turn, 1); n != want {
			t.Fatalf("%d requests, want %d", n, want)
		}
		is(t, "bad chain", c.Post(q, 1, nil, bad), syscall.EINVAL)
		if !slices.Equal(c.Regs(), was) {
			t.Fatalf("%v, was %v", c.Regs(), was)
		}
		if turn%3 == 0 { // destroyed after a failed post, then after it was built twice and not posted
			for built := range 3 {
				if built == 1 {
					ok(c.WRs(q, 1, &w.CQE, nil))(t)
					ok(c.WRs(q, 1, &w.CQE, nil))(t)
				}
				must(t, c.Destroy(q, 1, list, rdmarw.DMAFromDevice))
				got := q.PoolStates()
				slices.Reverse(got) // the first is on top
				if !slices.Equal(got, was) {
					t.Fatalf("the pool has %v, was %v", got, was)
				}
				ok(c.Init(q, 1, list, 0, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice))(t)
			}
		}
		w.got = nil
		must(t, c.Post(q, 1, &w.CQE, nil))
		is(t, "under way", c.Post(q, 1, &w.CQE, nil), syscall.EINVAL)
		r.done(w)
		for i, s := range c.Regs() {
			if !s.NeedInval || s.Key&0xFF == was[i].Key&0xFF {
				t.Fatalf("after the post %v, was %v", s, was[i])
			}
		}
		// What was posted is not posted again.
		is(t, "posted", c.Post(q, 1, &w.CQE, nil), syscall.EINVAL)
		must(t, c.Destroy(q, 1, list, rdmarw.DMAFromDevice))
	}
}

// Every call that can fail fails once, in the set-up and in the life of contexts of each
// kind: nothing leaks, and what did not fail works.
func TestC5_EveryFailurePoint(t *testing.T) {
	for _, s := range strategies() {
		t.Run(s.name, func(t *testing.T) {
			points := 0
			for at := 1; ; at++ {
				f := &faults{at: at}
				failed := life(t, s, f)
				if f.open != 0 {
					t.Fatalf("call %d fails: %d regions are left", at, f.open)
				}
				if f.calls < at {
					if failed != 0 {
						t.Errorf("%d failures without a failing call", failed)
					}
					break
				}
				if failed != 1 {
					t.Errorf("call %d fails: %d failures", at, failed)
				}
				points++
			}
			t.Logf("%d failure points", points)
			if points < 3 {
				t.Error("too few")
			}
		})
	}
}

// life sets up a queue pair, transfers three times in both directions and takes all
// down, and counts what failed.
func life(t *testing.T, s strategy, f *faults) (failed int) {
	r := newRig(t, setup{limits: s.limits, faults: f})
	fail := func(err error) bool {
		if err != nil {
			is(t, "failure", err, syscall.ENOMEM)
			failed++
		}
		return err != nil
	}
	b, remote := r.a.buffer(20*page), r.b.mem(20*page)
	attr := r.a.attr()
	attr.ForceMR, attr.MaxRDMACtxs = s.force, 3
	q, err := rdmarw.CreateQP(r.a.pd, attr)
	if fail(err) {
		r.shut()
		return failed
	}
	r.peer(q.QP())
	var c rdmarw.Ctx
	w := newWatch()
	for range 3 {
		for d, dir := range directions {
			list, offset := s.list(r, b, 20, d)
			n, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), dir)
			if fail(err) {
				if n != 0 || c.Kind() != rdmarw.KindNone {
					t.Errorf("a failed Init gives %d, %v", n, &c)
				}
				if free, size := q.MRs(); free != size {
					t.Errorf("%d of %d regions", free, size)
				}
				continue
			}
			w.got = nil
			if err := c.Post(q, 1, &w.CQE, nil); fail(err) {
				r.quiet(w)
				if r.rnd.IntN(2) == 0 {
					must(t, destroy())
					continue
				}
				must(t, c.Post(q, 1, &w.CQE, nil))
			}
			r.done(w)
			must(t, destroy())
			if want := join(list, offset); !bytes.Equal(remote.Bytes()[:len(want)], want) {
				t.Error("other bytes")
			}
		}
	}
	if free, size := q.MRs(); free != size {
		t.Errorf("%d of %d regions", free, size)
	}
	r.a.later(func() error { return errors.Join(q.CleanupMRs(), q.CleanupMRs(), q.QP().Destroy()) })
	r.shut()
	return failed
}
