package rdmarw_test

import (
	"bytes"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// strategy is a device, and a queue pair, on which a transfer is made in one way.
type strategy struct {
	name   string
	limits soft.Limits
	force  bool
	bvec   bool // by InitBvec
	one    bool // of one element
	kinds  [2]rdmarw.Kind
	ops    [2]ib.WROpcode
	reg    [2]bool // with registrations
}

const (
	toPeer   = 0 // index of WRITE
	fromPeer = 1 // ... and of READ
)

var directions = [...]rdmarw.Direction{toPeer: rdmarw.DMAToDevice, fromPeer: rdmarw.DMAFromDevice}

func strategies() []strategy {
	plain := [2]ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead}
	inv := [2]ib.WROpcode{ib.WRRDMAWrite, ib.WRReadWithInv}
	both := func(k rdmarw.Kind) [2]rdmarw.Kind { return [2]rdmarw.Kind{k, k} }
	reads := [2]rdmarw.Kind{rdmarw.KindMultiWR, rdmarw.KindMR}
	return []strategy{
		{name: "single WR", one: true, kinds: both(rdmarw.KindSingleWR), ops: plain},
		{name: "several WRs", kinds: both(rdmarw.KindMultiWR), ops: plain},
		{name: "READs by regions", limits: soft.Limits{MaxSGLRd: 2, MaxFastRegPages: 8}, kinds: reads, ops: plain, reg: [2]bool{fromPeer: true}},
		{name: "iWARP", limits: soft.Limits{IWARP: true, MaxFastRegPages: 8}, kinds: reads, ops: plain, reg: [2]bool{fromPeer: true}},
		{name: "forced", limits: soft.Limits{MaxFastRegPages: 8}, force: true, kinds: both(rdmarw.KindMR), ops: plain, reg: [2]bool{true, true}},
		{name: "forced, READ with invalidate", limits: soft.Limits{MaxFastRegPages: 8, ReadWithInv: true}, force: true, kinds: both(rdmarw.KindMR), ops: inv, reg: [2]bool{true, true}},
		{name: "pages, single WR", bvec: true, one: true, kinds: both(rdmarw.KindSingleWR), ops: plain},
		{name: "pages, several WRs", bvec: true, kinds: both(rdmarw.KindMultiWR), ops: plain},
		{name: "pages, forced", bvec: true, force: true, limits: soft.Limits{MaxFastRegPages: 8}, kinds: both(rdmarw.KindMR), ops: plain, reg: [2]bool{true, true}},
		{name: "pages, one mapping", bvec: true, limits: soft.Limits{ContigMapping: true}, kinds: both(rdmarw.KindIOVA), ops: plain},
	}
}

// rig makes devices and queue pairs of a strategy.
func (s *strategy) rig(t testing.TB, base setup) (*rig, *rdmarw.QP, *verbs.QP) {
	t.Helper()
	base.limits = s.limits
	r := newRig(t, base)
	q, peer := r.target(func(a *rdmarw.QPInitAttr) {
		a.ForceMR = s.force
		if base.pool != 0 {
			a.MaxRDMACtxs, a.Cap.MaxSendWR = base.pool, 1200
		}
	})
	return r, q, peer
}

// list cuts b for the strategy, of at most n elements; offset is one that Init is given.
func (s *strategy) list(r *rig, b []byte, n int, dir int) (list [][]byte, offset int) {
	if s.one {
		n = 1
	}
	if s.reg[dir] {
		list = r.pages(b, n)
	} else {
		list = r.elements(b, n)
	}
	return list, r.rnd.IntN(len(list[0]))
}

// init initializes a context by the strategy's call, and gives the one that ends it.
func (s *strategy) init(c *rdmarw.Ctx, q *rdmarw.QP, list [][]byte, offset int, remote uint64, key ib.RKey, dir rdmarw.Direction) (int, func() error, error) {
	if !s.bvec {
		n, err := c.Init(q, 1, list, uint32(offset), remote, key, dir)
		return n, func() error { return c.Destroy(q, 1, list, dir) }, err
	}
	// The iterator begins inside the second entry.
	total := -offset
	v := []rdmarw.BioVec{{Page: make([]byte, 10), Len: 10}}
	for _, b := range list {
		v = append(v, rdmarw.BioVec{Page: b, Len: uint32(len(b))})
		total += len(b)
	}
	n, err := c.InitBvec(q, 1, v, rdmarw.BvecIter{Size: uint32(total), Idx: 1, BvecDone: uint32(offset)}, remote, key, dir)
	return n, func() error { return c.DestroyBvec(q, 1, v, dir) }, err
}

// requests is the number of READs or WRITEs of a list of n elements.
func (s *strategy) requests(n, dir int) int {
	per := 4 // elements of a request
	switch {
	case s.kinds[dir] == rdmarw.KindIOVA:
		per = n
	case s.reg[dir]:
		per = 8
	}
	return (n + per - 1) / per
}

func TestC1_AllOperations(t *testing.T) {
	for _, s := range strategies() {
		for d, dir := range directions {
			t.Run(fmt.Sprintf("%s/%v", s.name, dir), func(t *testing.T) {
				r, q, _ := s.rig(t, setup{})
				b, remote := r.a.buffer(24*page), r.b.mem(25*page)
				var c rdmarw.Ctx
				w := newWatch()
				for turn := range 4 { // regions are new, then used ones
					r.fill(b)
					r.fill(remote.Bytes())
					list, offset := s.list(r, b, 20, d)
					want, before := join(list, offset), slices.Clone(remote.Bytes())
					if dir == rdmarw.DMAFromDevice {
						want = slices.Clone(before[7:][:len(want)])
					}
					n, destroy, err := s.init(&c, q, list, offset, remote.Addr()+7, remote.RKey(), dir)
					must(t, err)
					if c.Kind() != s.kinds[d] {
						t.Fatalf("%v, want %v", c.Kind(), s.kinds[d])
					}
					wrs := ok(c.WRs(q, 1, &w.CQE, nil))(t)
					var ops []ib.WROpcode
					for range s.requests(len(list), d) {
						// A pool gives what came back last: after one turn regions are used.
						if s.reg[d] && turn > 0 && s.ops[d] != ib.WRReadWithInv {
							ops = append(ops, ib.WRLocalInv)
						}
						if s.reg[d] {
							ops = append(ops, ib.WRRegMR)
						}
						ops = append(ops, s.ops[d])
					}
					if got := opcodes(wrs); !slices.Equal(got, ops) || n != len(ops) {
						t.Fatalf("%v, %d told; want %v", got, n, ops)
					}
					w.got = nil
					must(t, c.Post(q, 1, &w.CQE, nil))
					r.done(w)
					must(t, destroy())
					got := join(list, offset)
					if dir == rdmarw.DMAToDevice {
						copy(before[7:], want)
						got = want
						if !bytes.Equal(remote.Bytes(), before) {
							t.Fatal("the peer has other bytes")
						}
					}
					if !bytes.Equal(got, want) {
						t.Fatal("other bytes")
					}
				}
			})
		}
	}
}

// send is a chain of one request, a message to the peer.
func send(wrid uint64, flags ib.SendFlags) []verbs.SendWR {
	return []verbs.SendWR{{Opcode: ib.WRSend, WRID: wrid, Flags: flags}}
}

func TestC2_ChainComesBehind(t *testing.T) {
	for _, s := range strategies() {
		t.Run(s.name, func(t *testing.T) {
			r, q, peer := s.rig(t, setup{})
			b, remote := r.a.buffer(20*page), r.b.mem(20*page)
			r.fill(b)
			list, offset := s.list(r, b, 20, toPeer)
			var c rdmarw.Ctx
			_, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice)
			must(t, err)
			must(t, peer.PostRecvOne(&verbs.RecvWR{WRID: 5}))
			w := newWatch()
			chain := send(r.a.rw.WRID(&w.CQE), ib.SendSignaled)
			was := slices.Clone(chain)
			must(t, c.Post(q, 1, nil, chain))
			// When the peer has the message it has the data.
			r.kick()
			var wc [2]verbs.WC
			if !r.process(func() bool { n, _ := r.b.rcq.Poll(wc[:]); return n == 1 }) || wc[0].Err() != nil {
				t.Fatalf("%+v", wc[0])
			}
			if want := join(list, offset); !bytes.Equal(remote.Bytes()[:len(want)], want) {
				t.Error("other bytes")
			}
			r.done(w)
			if w.got[0].Opcode != ib.WCSend {
				t.Errorf("%+v", w.got[0])
			}
			if chain[0].WRID != was[0].WRID || chain[0].Flags != was[0].Flags {
				t.Errorf("the caller's chain has changed: %+v", chain)
			}
			r.quiet(w)
			must(t, destroy())
		})
	}
}

func TestC2_UnsignaledChainGivesNoNotice(t *testing.T) {
	r := newRig(t, setup{})
	q, peer := r.target(nil)
	b, remote := r.a.buffer(page), r.b.mem(page)
	must(t, peer.PostRecvOne(&verbs.RecvWR{}))
	var c rdmarw.Ctx
	ok(c.Init(q, 1, [][]byte{b}, 0, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice))(t)
	w := newWatch()
	wrs := ok(c.WRs(q, 1, nil, send(r.a.rw.WRID(&w.CQE), ib.SendSolicited)))(t)
	if len(wrs) != 2 || wrs[0].Flags != 0 || wrs[0].WRID != 0 || wrs[1].Flags != ib.SendSolicited {
		t.Errorf("%+v", wrs)
	}
	must(t, c.Post(q, 1, nil, send(r.a.rw.WRID(&w.CQE), ib.SendSolicited)))
	r.quiet(w)
	var wc [2]verbs.WC
	if n, err := r.b.rcq.Poll(wc[:]); n != 1 || err != nil {
		t.Error(n, err)
	}
	must(t, c.Destroy(q, 1, nil, rdmarw.DMAToDevice))
}

// A chain may be that of another context, which may have one itself.
func TestC2_ChainOfOtherContexts(t *testing.T) {
	for _, force := range []bool{false, true} {
		r := newRig(t, setup{})
		q, peer := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR = force })
		b, remote := r.a.buffer(3*page), r.b.mem(3*page)
		r.fill(b)
		r.fill(remote.Bytes())
		last := slices.Clone(remote.Bytes()[2*page:])
		must(t, peer.PostRecvOne(&verbs.RecvWR{}))
		w := newWatch()
		for range 3 {
			var c [3]rdmarw.Ctx
			dirs := [...]rdmarw.Direction{rdmarw.DMAToDevice, rdmarw.DMAToDevice, rdmarw.DMAFromDevice}
			var chain []verbs.SendWR
			total := 0
			for i := 2; i >= 0; i-- {
				n := ok(c[i].Init(q, 1, [][]byte{b[i*page:][:page]}, 0, remote.Addr()+uint64(i*page), remote.RKey(), dirs[i]))(t)
				total += n
				if i > 0 {
					cqe := &w.CQE
					if chain != nil {
						cqe = nil
					}
					chain = ok(c[i].WRs(q, 1, cqe, chain))(t)
				}
			}
			if len(chain) != total-total/3 {
				t.Errorf("%d requests, %d in all", len(chain), total)
			}
			w.got = nil
			must(t, c[0].Post(q, 1, nil, chain))
			r.done(w)
			if !bytes.Equal(b[:2*page], remote.Bytes()[:2*page]) || !bytes.Equal(b[2*page:], last) {
				t.Error("other bytes")
			}
			for i := range c {
				must(t, c[i].Destroy(q, 1, nil, dirs[i]))
			}
		}
	}
}

func TestC3_NeitherIsRefused(t *testing.T) {
	for _, s := range strategies() {
		r, q, _ := s.rig(t, setup{})
		b, remote := r.a.buffer(20*page), r.b.mem(20*page)
		list, offset := s.list(r, b, 20, toPeer)
		var c rdmarw.Ctx
		_, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice)
		must(t, err)
		was := c.Regs()
		is(t, s.name, c.Post(q, 1, nil, nil), syscall.EINVAL)
		is(t, s.name, c.Post(q, 1, nil, []verbs.SendWR{}), syscall.EINVAL)
		_, err = c.WRs(q, 1, nil, nil)
		is(t, s.name, err, syscall.EINVAL)
		r.quiet()
		if !slices.Equal(c.Regs(), was) {
			t.Errorf("%s: %v, was %v", s.name, c.Regs(), was)
		}
		if !bytes.Equal(remote.Bytes(), make([]byte, 20*page)) {
			t.Error("something was written")
		}
		// The context is as good as before.
		w := newWatch()
		must(t, c.Post(q, 1, &w.CQE, nil))
		r.done(w)
		must(t, destroy())
	}
}

func TestC3_TheLastIsSignaledToTheCQE(t *testing.T) {
	for _, s := range strategies() {
		for d, dir := range directions {
			r, q, _ := s.rig(t, setup{})
			b, remote := r.a.buffer(20*page), r.b.mem(20*page)
			list, offset := s.list(r, b, 20, d)
			var c rdmarw.Ctx
			_, destroy, err := s.init(&c, q, list, offset, remote.Addr(), remote.RKey(), dir)
			must(t, err)
			w := newWatch()
			wrs := ok(c.WRs(q, 1, &w.CQE, nil))(t)
			for i, wr := range wrs {
				if last := i == len(wrs)-1; (wr.Flags == ib.SendSignaled) != last || (wr.WRID != 0) != last {
					t.Errorf("%s: request %d of %d: %+v", s.name, i, len(wrs), wr)
				}
			}
			must(t, c.Post(q, 1, &w.CQE, nil))
			r.done(w)
			r.quiet(w)
			want := ib.WCRDMAWrite
			if dir == rdmarw.DMAFromDevice {
				want = ib.WCRDMARead
			}
			if w.got[0].Opcode != want {
				t.Errorf("%s: %+v", s.name, w.got[0])
			}
			must(t, destroy())
		}
	}
}

func TestC3_WithAChainTheCQEIsNotUsed(t *testing.T) {
	r := newRig(t, setup{})
	q, peer := r.target(nil)
	b, remote := r.a.buffer(page), r.b.mem(page)
	must(t, peer.PostRecvOne(&verbs.RecvWR{}))
	var c rdmarw.Ctx
	ok(c.Init(q, 1, [][]byte{b}, 0, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice))(t)
	w, other := newWatch(), newWatch()
	must(t, c.Post(q, 1, &other.CQE, send(r.a.rw.WRID(&w.CQE), ib.SendSignaled)))
	r.done(w)
	r.quiet(w, other)
	if len(other.got) != 0 {
		t.Errorf("%+v", other.got)
	}
	must(t, c.Destroy(q, 1, nil, rdmarw.DMAToDevice))
}

// A queue pair without a CQ of this package needs a chain.
func TestC3_CQEWithoutCQ(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.CQ = nil })
	b, remote := r.a.buffer(page), r.b.mem(page)
	var c rdmarw.Ctx
	ok(c.Init(q, 1, [][]byte{b}, 0, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice))(t)
	is(t, "cqe", c.Post(q, 1, &newWatch().CQE, nil), syscall.EINVAL)
	must(t, c.Post(q, 1, nil, []verbs.SendWR{{Opcode: ib.WRRDMAWrite, WRID: 99, Flags: ib.SendSignaled}}))
	r.kick()
	if !r.process(func() bool { return len(r.a.lost) == 1 }) || r.a.lost[0].WRID != 99 || r.a.lost[0].Err() != nil {
		t.Errorf("%+v", r.a.lost)
	}
	must(t, c.Destroy(q, 1, nil, rdmarw.DMAToDevice))
}

func TestC4_Port(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(nil)
	b, remote := r.a.buffer(page), r.b.mem(page)
	var c rdmarw.Ctx
	for _, port := range []uint8{0, 2, 255} {
		_, err := c.Init(q, port, [][]byte{b}, 0, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice)
		is(t, "Init", err, syscall.EINVAL)
	}
	ok(c.Init(q, 1, [][]byte{b}, 0, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice))(t)
	w := newWatch()
	for _, port := range []uint8{0, 2, 255} {
		is(t, "Post", c.Post(q, port, &w.CQE, nil), syscall.EINVAL)
		_, err := c.WRs(q, port, &w.CQE, nil)
		is(t, "WRs", err, syscall.EINVAL)
		is(t, "Destroy", c.Destroy(q, port, nil, rdmarw.DMAToDevice), syscall.EINVAL)
	}
	r.quiet(w)
	must(t, c.Post(q, 1, &w.CQE, nil))
	r.done(w)
	must(t, c.Destroy(q, 1, nil, rdmarw.DMAToDevice))
	for _, port := range []uint8{2, 255} {
		attr := r.a.attr()
		attr.Port = port
		_, err := rdmarw.CreateQP(r.a.pd, attr)
		is(t, "CreateQP", err, syscall.EINVAL)
	}
}

// What the port is decides on the requests: READs on iWARP are registered, with the
// right that peers need there.
func TestC4_PortDecidesOnRequests(t *testing.T) {
	for _, iwarp := range []bool{false, true} {
		r := newRig(t, setup{limits: soft.Limits{IWARP: iwarp}})
		q, _ := r.target(nil)
		b, remote := r.a.buffer(page), r.b.mem(page)
		var c rdmarw.Ctx
		ok(c.Init(q, 1, [][]byte{b}, 0, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice))(t)
		wrs := ok(c.WRs(q, 1, &newWatch().CQE, nil))(t)
		want := []ib.WROpcode{ib.WRRDMARead}
		if iwarp {
			want = []ib.WROpcode{ib.WRRegMR, ib.WRRDMARead}
		}
		if !slices.Equal(opcodes(wrs), want) {
			t.Errorf("iWARP %v: %v", iwarp, opcodes(wrs))
		}
		if iwarp && wrs[0].Bind.Access != ib.AccessLocalWrite|ib.AccessRemoteWrite {
			t.Errorf("rights %v", wrs[0].Bind.Access)
		}
		must(t, c.Destroy(q, 1, nil, rdmarw.DMAFromDevice))
	}
}
