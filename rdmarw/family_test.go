package rdmarw_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// manyPages are n elements of a page each, without gaps.
func manyPages(b []byte, n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		list[i] = b[i*page:][:page:page]
	}
	return list
}

func TestWhenRegionsAreUsed(t *testing.T) {
	sgl, iwarp := soft.Limits{MaxSGLRd: 5}, soft.Limits{IWARP: true}
	for _, c := range []struct {
		name   string
		limits soft.Limits
		force  bool
		n      int
		read   rdmarw.Kind
		write  rdmarw.Kind
		pool   int
	}{
		{"a device without preference", soft.Limits{}, false, 40, rdmarw.KindMultiWR, rdmarw.KindMultiWR, 0},
		{"as many as it likes", sgl, false, 5, rdmarw.KindMultiWR, rdmarw.KindMultiWR, 7},
		{"one more", sgl, false, 6, rdmarw.KindMR, rdmarw.KindMultiWR, 7},
		{"iWARP, one element", iwarp, false, 1, rdmarw.KindMR, rdmarw.KindSingleWR, 7},
		{"iWARP", iwarp, false, 9, rdmarw.KindMR, rdmarw.KindMultiWR, 7},
		{"forced, one element", soft.Limits{}, true, 1, rdmarw.KindMR, rdmarw.KindMR, 7},
		{"forced", soft.Limits{}, true, 9, rdmarw.KindMR, rdmarw.KindMR, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, setup{limits: c.limits})
			q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR, a.MaxRDMACtxs = c.force, 7 })
			if free, size := q.MRs(); free != c.pool || size != c.pool {
				t.Errorf("a pool of %d and %d, want %d", free, size, c.pool)
			}
			b := r.a.buffer(40 * page)
			for d, want := range [...]rdmarw.Kind{toPeer: c.write, fromPeer: c.read} {
				var x rdmarw.Ctx
				ok(x.Init(q, 1, manyPages(b, c.n), 0, 0, 0, directions[d]))(t)
				if x.Kind() != want {
					t.Errorf("%v: %v, want %v", directions[d], x.Kind(), want)
				}
				must(t, x.Destroy(q, 1, nil, directions[d]))
			}
		})
	}
}

func TestInitSkipsToTheOffset(t *testing.T) {
	r := newRig(t, setup{limits: soft.Limits{MaxSGLRd: 2}})
	q, _ := r.target(nil)
	b, remote := r.a.buffer(3*page), r.b.mem(3*page)
	r.fill(remote.Bytes())
	list := [][]byte{b[:10], b[100:100], b[200:230], b[300:340]} // one is empty
	w := newWatch()
	for _, c := range []struct {
		offset uint32
		kind   rdmarw.Kind
	}{{0, 0}, {9, 0}, {10, rdmarw.KindMultiWR}, {11, rdmarw.KindMultiWR}, {39, rdmarw.KindMultiWR}, {40, rdmarw.KindSingleWR}, {79, rdmarw.KindSingleWR}} {
		var x rdmarw.Ctx
		_, err := x.Init(q, 1, list, c.offset, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice)
		if c.kind == 0 {
			// More elements than the READ may have without regions, and one is empty: a
			// region cannot hold it.
			is(t, "an empty element in a region", err, syscall.EINVAL)
			continue
		}
		must(t, err)
		if x.Kind() != c.kind {
			t.Errorf("offset %d: %v, want %v", c.offset, x.Kind(), c.kind)
		}
		clear(b)
		w.got = nil
		must(t, x.Post(q, 1, &w.CQE, nil))
		r.done(w)
		if got := join(list, int(c.offset)); !bytes.Equal(got, remote.Bytes()[:len(got)]) {
			t.Errorf("offset %d: other bytes", c.offset)
		}
		if !bytes.Equal(join(list, 0)[:c.offset], make([]byte, c.offset)) {
			t.Errorf("offset %d: bytes before it were written", c.offset)
		}
		must(t, x.Destroy(q, 1, list, rdmarw.DMAFromDevice))
	}
	var x rdmarw.Ctx
	for _, c := range []struct {
		list   [][]byte
		offset uint32
	}{{list, 80}, {list, 81}, {list, math.MaxUint32}, {nil, 0}, {[][]byte{{}}, 0}, {[][]byte{nil, {}}, 3}} {
		n, err := x.Init(q, 1, c.list, c.offset, 0, 0, rdmarw.DMAToDevice)
		is(t, fmt.Sprint("offset ", c.offset), err, syscall.EIO)
		if n != 0 || x.Kind() != rdmarw.KindNone {
			t.Errorf("%d, %v", n, &x)
		}
	}
}

func TestElementsOfARequest(t *testing.T) {
	for _, c := range []struct {
		sge, rd     int // of the queue pair; of the device's READs
		write, read int // requests for 10 elements
	}{{4, 32, 3, 3}, {4, 3, 3, 4}, {1, 32, 10, 10}, {10, 9, 1, 2}, {32, 1, 1, 10}, {5, 5, 2, 2}} {
		r := newRig(t, setup{limits: soft.Limits{MaxSGERd: c.rd}})
		q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.Cap.MaxSendSGE = uint32(c.sge) })
		b := r.a.buffer(10 * page)
		for d, want := range [...]int{toPeer: c.write, fromPeer: c.read} {
			var x rdmarw.Ctx
			n := ok(x.Init(q, 1, manyPages(b, 10), 0, 1000, 5, directions[d]))(t)
			wrs := ok(x.WRs(q, 1, &newWatch().CQE, nil))(t)
			if n != want || len(wrs) != want {
				t.Errorf("%+v, %v: %d, %d requests", c, directions[d], n, len(wrs))
			}
			at := uint64(1000)
			for _, wr := range wrs {
				if wr.RemoteAddr != at || wr.RKey != 5 {
					t.Errorf("%+v: at %d, want %d", c, wr.RemoteAddr, at)
				}
				at += uint64(len(wr.SGList) * page)
			}
			if at != 1000+10*page {
				t.Errorf("%+v: %d bytes", c, at-1000)
			}
			must(t, x.Destroy(q, 1, nil, directions[d]))
		}
	}
}

func TestElementsOfARegion(t *testing.T) {
	for _, c := range []struct {
		limits    soft.Limits
		integrity bool
		most      int
	}{
		{soft.Limits{MaxFastRegPages: 512}, false, 256},
		{soft.Limits{MaxFastRegPages: 100}, false, 100},
		{soft.Limits{MaxFastRegPages: 1}, false, 1},
		{soft.Limits{MaxFastRegPages: 100, MaxPIFastRegPages: 9}, true, 9},
	} {
		r := newRig(t, setup{limits: c.limits})
		q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR, a.IntegrityEn = true, c.integrity })
		b := r.a.buffer(513 * page)
		for _, n := range []int{1, c.most - 1, c.most, c.most + 1, 2 * c.most, 2*c.most + 1} {
			if n == 0 {
				continue
			}
			free, _ := q.MRs()
			var x rdmarw.Ctx
			got := ok(x.Init(q, 1, manyPages(b, n), 0, 0, 0, rdmarw.DMAFromDevice))(t)
			want := (n + c.most - 1) / c.most
			left, _ := q.MRs()
			if got != 2*want || free-left != want || len(x.Regs()) != want {
				t.Errorf("%+v: %d elements, %d requests, %d regions, want %d", c.limits, n, got, free-left, want)
			}
			must(t, x.Destroy(q, 1, nil, rdmarw.DMAFromDevice))
		}
	}
}

// Elements of many pages take as many regions as their pages need.
func TestLongElementsInRegions(t *testing.T) {
	r := newRig(t, setup{limits: soft.Limits{MaxFastRegPages: 4}})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR = true })
	b, remote := r.a.buffer(50*page), r.b.mem(50*page)
	w := newWatch()
	for _, c := range []struct {
		list    [][]byte
		offset  int
		regions int
	}{
		{[][]byte{b[:10*page]}, 0, 3},
		{[][]byte{b[:12*page]}, 1, 3},
		{[][]byte{b[7 : 12*page+1]}, 3*page - 6, 3},
		{[][]byte{b[5*page+9 : 8*page], b[20*page : 23*page], b[10*page : 10*page+5]}, 100, 2},
		{[][]byte{b[:4*page], b[20*page : 24*page]}, 0, 2},
	} {
		r.fill(b)
		for _, dir := range directions {
			var x rdmarw.Ctx
			n := ok(x.Init(q, 1, c.list, uint32(c.offset), remote.Addr(), remote.RKey(), dir))(t)
			if len(x.Regs()) != c.regions || n < 2*c.regions {
				t.Errorf("%d regions, %d requests, want %d", len(x.Regs()), n, c.regions)
			}
			if dir == rdmarw.DMAFromDevice {
				r.fill(remote.Bytes())
			}
			w.got = nil
			must(t, x.Post(q, 1, &w.CQE, nil))
			r.done(w)
			if got := join(c.list, c.offset); !bytes.Equal(got, remote.Bytes()[:len(got)]) {
				t.Errorf("%v: other bytes", dir)
			}
			must(t, x.Destroy(q, 1, nil, dir))
		}
	}
}

// A gap in what a region has to hold is refused, whatever comes before it, and the pool
// is whole.
func TestGapsInRegions(t *testing.T) {
	r := newRig(t, setup{limits: soft.Limits{MaxFastRegPages: 4}})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR = true })
	b := r.a.buffer(20 * page)
	states := q.PoolStates()
	for _, list := range [][][]byte{
		{b[:page-1], b[2*page : 3*page]},
		{b[:page], b[2*page+8 : 3*page]},
		{b[:page], b[page : 2*page-1], b[4*page : 5*page]},
		append(manyPages(b, 5), b[8*page:9*page-1], b[12*page:13*page]),
	} {
		for _, bvec := range []bool{false, true} {
			s := strategy{bvec: bvec}
			var x rdmarw.Ctx
			n, _, err := s.init(&x, q, list, 0, 0, 0, rdmarw.DMAToDevice)
			is(t, "gap", err, syscall.EINVAL)
			if n != 0 || x.Kind() != rdmarw.KindNone || !slices.Equal(q.PoolStates(), states) {
				t.Errorf("%d, %v, the pool has %v", n, &x, q.PoolStates())
			}
		}
	}
	// Neighbours inside a page are no gap.
	var x rdmarw.Ctx
	ok(x.Init(q, 1, [][]byte{b[7:100], b[100:2000], b[2000 : page+5]}, 0, 0, 0, rdmarw.DMAToDevice))(t)
	must(t, x.Destroy(q, 1, nil, rdmarw.DMAToDevice))
}

// When the pool has too few regions, a transfer that needs them is to be tried again,
// another one is made without.
func TestEmptyPool(t *testing.T) {
	for _, s := range []struct {
		name   string
		limits soft.Limits
		force  bool
		again  bool
	}{
		{"preferred", soft.Limits{MaxSGLRd: 2, MaxFastRegPages: 4}, false, false},
		{"iWARP", soft.Limits{IWARP: true, MaxFastRegPages: 4}, false, true},
		{"forced", soft.Limits{MaxFastRegPages: 4}, true, true},
	} {
		t.Run(s.name, func(t *testing.T) {
			r := newRig(t, setup{limits: s.limits})
			q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR, a.MaxRDMACtxs = s.force, 3 })
			b, remote := r.a.buffer(24*page), r.b.mem(24*page)
			r.fill(remote.Bytes())
			const dir = rdmarw.DMAFromDevice
			var one, two rdmarw.Ctx
			ok(one.Init(q, 1, manyPages(b, 8), 0, remote.Addr(), remote.RKey(), dir))(t) // two regions
			list := manyPages(b[8*page:], 8)
			w := newWatch()
			_, err := two.Init(q, 1, list, 0, remote.Addr()+8*page, remote.RKey(), dir)
			if s.again {
				is(t, "two", err, syscall.EAGAIN)
				if free, _ := q.MRs(); free != 1 || two.Kind() != rdmarw.KindNone {
					t.Errorf("%d regions left, %v", free, &two)
				}
			} else {
				must(t, err)
				if two.Kind() != rdmarw.KindMultiWR {
					t.Errorf("%v", &two)
				}
				must(t, two.Post(q, 1, &w.CQE, nil))
				r.done(w)
				if !bytes.Equal(b[8*page:16*page], remote.Bytes()[8*page:16*page]) {
					t.Error("other bytes")
				}
				must(t, two.Destroy(q, 1, nil, dir))
			}
			// Pages have no other way once regions are the choice.
			bv := strategy{bvec: true}
			_, _, err = bv.init(&two, q, list, 0, 0, 0, dir)
			is(t, "pages", err, syscall.EAGAIN)
			must(t, one.Destroy(q, 1, nil, dir))
			n := ok(two.Init(q, 1, list, 0, remote.Addr(), remote.RKey(), dir))(t)
			if two.Kind() != rdmarw.KindMR || n != 4 {
				t.Errorf("%d, %v", n, &two)
			}
			must(t, two.Destroy(q, 1, nil, dir))
		})
	}
}

func TestBvecRefusals(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(nil)
	b := r.a.buffer(3 * page)
	v := []rdmarw.BioVec{{b[:page], page, 0}, {b[page : 2*page], 100, 50}, {b[2*page:], page, 0}}
	size := uint32(2*page + 100)
	for name, c := range map[string]struct {
		v    []rdmarw.BioVec
		iter rdmarw.BvecIter
	}{
		"no entry":                   {nil, rdmarw.BvecIter{Size: 1}},
		"size 0":                     {v, rdmarw.BvecIter{}},
		"more than the list":         {v, rdmarw.BvecIter{Size: size + 1}},
		"more than the rest":         {v, rdmarw.BvecIter{Size: size, BvecDone: 1}},
		"more than the last entry":   {v, rdmarw.BvecIter{Size: page + 1, Idx: 2}},
		"behind the list":            {v, rdmarw.BvecIter{Size: 1, Idx: 3}},
		"far behind":                 {v, rdmarw.BvecIter{Size: 1, Idx: math.MaxUint32}},
		"begins behind its entry":    {v, rdmarw.BvecIter{Size: 1, Idx: 1, BvecDone: 101}},
		"one entry, more than it":    {v[:1], rdmarw.BvecIter{Size: page + 1}},
		"an entry beyond its page":   {[]rdmarw.BioVec{{b[:page], page, 1}}, rdmarw.BvecIter{Size: 1}},
		"an entry that wraps around": {[]rdmarw.BioVec{{b[:page], math.MaxUint32, 2}}, rdmarw.BvecIter{Size: 1}},
	} {
		var x rdmarw.Ctx
		n, err := x.InitBvec(q, 1, c.v, c.iter, 0, 0, rdmarw.DMAToDevice)
		is(t, name, err, syscall.EINVAL)
		if n != 0 || x.Kind() != rdmarw.KindNone {
			t.Errorf("%s: %d, %v", name, n, &x)
		}
	}
}

func TestBvecOrderOfChoice(t *testing.T) {
	all := soft.Limits{MaxSGLRd: 2, ContigMapping: true}
	iwarp := all
	iwarp.IWARP = true
	noContig := soft.Limits{MaxSGLRd: 2}
	for _, c := range []struct {
		name        string
		limits      soft.Limits
		force       bool
		n           int
		write, read rdmarw.Kind
	}{
		{"forced goes before all", all, true, 1, rdmarw.KindMR, rdmarw.KindMR},
		{"so do READs on iWARP", iwarp, false, 1, rdmarw.KindSingleWR, rdmarw.KindMR},
		{"iWARP, several", iwarp, false, 5, rdmarw.KindIOVA, rdmarw.KindMR},
		{"one entry", all, false, 1, rdmarw.KindSingleWR, rdmarw.KindSingleWR},
		{"a mapping before regions", all, false, 5, rdmarw.KindIOVA, rdmarw.KindIOVA},
		{"regions where they pay", noContig, false, 5, rdmarw.KindMultiWR, rdmarw.KindMR},
		{"else several requests", noContig, false, 2, rdmarw.KindMultiWR, rdmarw.KindMultiWR},
	} {
		r := newRig(t, setup{limits: c.limits})
		q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR = c.force })
		b := r.a.buffer(5 * page)
		for d, want := range [...]rdmarw.Kind{toPeer: c.write, fromPeer: c.read} {
			for range 2 {
				s := strategy{bvec: true}
				var x rdmarw.Ctx
				_, destroy, err := s.init(&x, q, manyPages(b, c.n), 0, 0, 0, directions[d])
				must(t, err)
				if x.Kind() != want {
					t.Errorf("%s, %v: %v, want %v", c.name, directions[d], x.Kind(), want)
				}
				must(t, destroy())
			}
		}
	}
}

// The iterator names bytes inside of entries, and stays where it was.
func TestBvecIterator(t *testing.T) {
	for _, contig := range []bool{false, true} {
		r := newRig(t, setup{limits: soft.Limits{ContigMapping: contig}})
		q, _ := r.target(nil)
		b, remote := r.a.buffer(6*page), r.b.mem(6*page)
		r.fill(b)
		v := []rdmarw.BioVec{{b[:page], 500, 3}, {b[page : 2*page], 0, 0}, {b[2*page : 4*page], 2 * page, 0}, {b[4*page : 5*page], page - 9, 9}}
		var all []byte
		var starts []int
		for _, e := range v {
			starts = append(starts, len(all))
			all = append(all, e.Page[e.Offset:][:e.Len]...)
		}
		w := newWatch()
		for range 60 {
			idx := r.rnd.IntN(len(v))
			done := r.rnd.IntN(int(v[idx].Len) + 1)
			from := starts[idx] + done
			if from == len(all) {
				continue
			}
			iter := rdmarw.BvecIter{Size: uint32(1 + r.rnd.IntN(len(all)-from)), Idx: uint32(idx), BvecDone: uint32(done)}
			was := iter
			clear(remote.Bytes())
			var x rdmarw.Ctx
			ok(x.InitBvec(q, 1, v, iter, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice))(t)
			w.got = nil
			must(t, x.Post(q, 1, &w.CQE, nil))
			r.done(w)
			want := make([]byte, len(remote.Bytes()))
			copy(want, all[from:][:iter.Size])
			if !bytes.Equal(remote.Bytes(), want) || iter != was {
				t.Errorf("%+v: other bytes, or it is %+v", was, iter)
			}
			must(t, x.DestroyBvec(q, 1, v, rdmarw.DMAToDevice))
		}
	}
}

// Registrations stand before their transfer; the rights are local ones, or what iWARP
// needs; keys are settled when the chain is built.
func TestRegistrationsOfAChain(t *testing.T) {
	for _, c := range []struct {
		limits soft.Limits
		access ib.Access
		read   ib.WROpcode
	}{
		{soft.Limits{}, ib.AccessLocalWrite, ib.WRRDMARead},
		{soft.Limits{IWARP: true}, ib.AccessLocalWrite | ib.AccessRemoteWrite, ib.WRRDMARead},
		{soft.Limits{ReadWithInv: true}, ib.AccessLocalWrite, ib.WRReadWithInv},
	} {
		c.limits.MaxFastRegPages = 4
		r := newRig(t, setup{limits: c.limits})
		q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR, a.MaxRDMACtxs = true, 2 })
		b, remote := r.a.buffer(6*page), r.b.mem(6*page)
		list := manyPages(b, 6)
		w := newWatch()
		var x rdmarw.Ctx
		owed := false // by what was before
		for turn := range 5 {
			dir, op := rdmarw.DMAFromDevice, c.read
			if turn == 2 {
				dir, op = rdmarw.DMAToDevice, ib.WRRDMAWrite
			}
			ok(x.Init(q, 1, list, 0, remote.Addr(), remote.RKey(), dir))(t)
			before := x.Regs()
			wrs := ok(x.WRs(q, 1, &w.CQE, nil))(t)
			one := []ib.WROpcode{ib.WRRegMR, op}
			if owed {
				one = []ib.WROpcode{ib.WRLocalInv, ib.WRRegMR, op}
			}
			if got := opcodes(wrs); !slices.Equal(got, slices.Concat(one, one)) {
				t.Fatalf("turn %d: %v", turn, got)
			}
			for i, was := range before {
				part := wrs[i*len(one):][:len(one)]
				if owed && part[0].InvalidateRKey != was.Key {
					t.Errorf("LOCAL_INV of %#x, want %#x", part[0].InvalidateRKey, was.Key)
				}
				reg, move := part[len(one)-2], part[len(one)-1]
				if key := ib.IncRKey(was.Key); reg.RKey != key || move.SGList[0].LKey != ib.LKey(key) || op == ib.WRReadWithInv && move.InvalidateRKey != key {
					t.Errorf("keys of %+v, %+v, want %#x", reg, move, key)
				}
				if reg.Bind.Access != c.access {
					t.Errorf("rights %v", reg.Bind.Access)
				}
			}
			if !slices.EqualFunc(x.Regs(), before, func(a, b rdmarw.RegState) bool {
				return a.Key == b.Key && a.NeedInval == (op != ib.WRReadWithInv)
			}) {
				t.Errorf("%v, was %v", x.Regs(), before)
			}
			w.got = nil
			must(t, x.Post(q, 1, &w.CQE, nil))
			r.done(w)
			for i, s := range x.Regs() {
				if s.Key != ib.IncRKey(before[i].Key) {
					t.Errorf("key %#x, was %#x", s.Key, before[i].Key)
				}
			}
			must(t, x.Destroy(q, 1, nil, dir))
			owed = op != ib.WRReadWithInv
			for _, s := range q.PoolStates() {
				if s.NeedInval != owed {
					t.Errorf("turn %d: %+v", turn, s)
				}
			}
		}
	}
}

func TestMRFactorAndMaxSendWR(t *testing.T) {
	for _, c := range []struct {
		limits    soft.Limits
		force     bool
		integrity bool
		pages     int
		factor    int
		perCtx    uint64
	}{
		{soft.Limits{}, false, false, 256, 8, 1}, // 32 elements of a READ
		{soft.Limits{MaxSGERd: 30}, false, false, 61, 3, 1},
		{soft.Limits{MaxSGERd: 30}, false, true, 61, 3, 3},
		{soft.Limits{MaxSGERd: 30}, true, false, 256, 1, 3},
		{soft.Limits{MaxSGERd: 30}, true, false, 257, 2, 3},
		{soft.Limits{MaxSGLRd: 4, MaxFastRegPages: 100}, false, false, 101, 2, 3},
		{soft.Limits{MaxSGLRd: 4, MaxFastRegPages: 100, MaxPIFastRegPages: 10}, false, true, 100, 1, 3},
		{soft.Limits{IWARP: true, MaxFastRegPages: 10}, false, false, 100, 10, 3},
		{soft.Limits{}, false, false, 0, 0, 1},
		{soft.Limits{}, false, false, 1, 1, 1},
	} {
		r := newRig(t, setup{limits: c.limits})
		if n := rdmarw.MRFactor(r.a.ctx, 1, c.pages, c.force); n != c.factor {
			t.Errorf("%+v: factor %d", c, n)
		}
		for _, ctxs := range []uint32{0, 1, 100, math.MaxUint32/3 + 1, math.MaxUint32} {
			attr := &rdmarw.QPInitAttr{MaxRDMACtxs: ctxs, ForceMR: c.force}
			attr.IntegrityEn = c.integrity
			want := min(uint64(ctxs)*c.perCtx, math.MaxUint32)
			if n := rdmarw.MaxSendWR(r.a.ctx, attr); uint64(n) != want {
				t.Errorf("%+v, %d contexts: %d entries, want %d", c, ctxs, n, want)
			}
			dev := ok(r.a.ctx.QueryDevice())(t)
			attr.Cap.MaxSendWR = 7
			rdmarw.InitQP(r.a.ctx, attr)
			if want := min(want+7, uint64(dev.MaxQPWR)); uint64(attr.Cap.MaxSendWR) != want {
				t.Errorf("%+v, %d contexts: a queue of %d, want %d", c, ctxs, attr.Cap.MaxSendWR, want)
			}
		}
	}
}

// Regions come as MaxRDMACtxs says, and go when no context has one any more.
func TestPools(t *testing.T) {
	r := newRig(t, setup{})
	base := r.a.attr()
	base.ForceMR, base.IntegrityEn, base.MaxRDMACtxs = true, true, 5
	q := ok(rdmarw.CreateQP(r.a.pd, base))(t)
	if base.Cap.MaxSendWR < 16+15 {
		t.Errorf("a queue of %d", base.Cap.MaxSendWR)
	}
	if free, size := q.MRs(); free != 5 || size != 5 {
		t.Errorf("%d of %d regions", free, size)
	}
	if free, size := q.SigMRs(); free != 5 || size != 5 {
		t.Errorf("%d of %d signature regions", free, size)
	}
	b := r.a.buffer(page)
	var x rdmarw.Ctx
	ok(x.Init(q, 1, [][]byte{b}, 0, 0, 0, rdmarw.DMAToDevice))(t)
	is(t, "regions in use", q.CleanupMRs(), syscall.EBUSY)
	if free, size := q.SigMRs(); free != 5 || size != 5 {
		t.Errorf("%d of %d signature regions after a refusal", free, size)
	}
	must(t, x.Destroy(q, 1, nil, rdmarw.DMAToDevice))
	must(t, q.CleanupMRs())
	must(t, q.CleanupMRs())
	if free, size := q.MRs(); free != 0 || size != 0 {
		t.Errorf("%d of %d regions are left", free, size)
	}
	must(t, q.QP().Destroy())

	// The queue pair may be made by somebody else, as rdma_cm does.
	attr := *base
	rdmarw.InitQP(r.a.ctx, &attr)
	qp := ok(r.a.pd.CreateQP(&attr.QPInitAttr))(t)
	q = ok(rdmarw.InitMRs(qp, &attr))(t)
	must(t, q.CleanupMRs())

	for name, f := range map[string]func(a *rdmarw.QPInitAttr) *verbs.QP{
		"no queue pair":       func(*rdmarw.QPInitAttr) *verbs.QP { return nil },
		"another queue's CQ":  func(a *rdmarw.QPInitAttr) *verbs.QP { a.CQ = rdmarw.NewCQ(r.a.rcq, nil); return qp },
		"a port not there":    func(a *rdmarw.QPInitAttr) *verbs.QP { a.Port = 3; return qp },
		"without integrity":   func(a *rdmarw.QPInitAttr) *verbs.QP { return r.plainQP(ib.RC, 4) },
		"another type":        func(a *rdmarw.QPInitAttr) *verbs.QP { a.IntegrityEn = false; return r.plainQP(ib.UC, 4) },
		"without any element": func(a *rdmarw.QPInitAttr) *verbs.QP { a.IntegrityEn = false; return r.plainQP(ib.RC, 0) },
	} {
		a := attr
		_, err := rdmarw.InitMRs(f(&a), &a)
		is(t, name, err, syscall.EINVAL)
	}
	_, err := rdmarw.InitMRs(qp, nil)
	is(t, "no attributes", err, syscall.EINVAL)
	_, err = rdmarw.CreateQP(nil, &attr)
	is(t, "no domain", err, syscall.EINVAL)
	_, err = rdmarw.CreateQP(r.a.pd, nil)
	is(t, "no attributes", err, syscall.EINVAL)
	must(t, qp.Destroy())
}

// plainQP is a queue pair without contexts.
func (r *rig) plainQP(typ ib.QPType, sges uint32) *verbs.QP {
	a := r.a.attr().QPInitAttr
	a.Type, a.Cap.MaxSendSGE = typ, sges
	q := ok(r.a.pd.CreateQP(&a))(r.t)
	r.a.later(q.Destroy)
	return q
}

func TestDestroyMatchesInit(t *testing.T) {
	r := newRig(t, setup{limits: soft.Limits{ContigMapping: true}})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.IntegrityEn = true })
	other, _ := r.target(nil)
	b, remote := r.a.buffer(8*page), r.b.mem(8*page)
	const dir = rdmarw.DMAToDevice
	v := []rdmarw.BioVec{{b[:page], page, 0}, {b[2*page : 3*page], page, 0}}
	list := manyPages(b, 2)
	plain := func(x *rdmarw.Ctx) (int, error) { return x.Init(q, 1, list, 0, remote.Addr(), remote.RKey(), dir) }
	bvec := func(x *rdmarw.Ctx) (int, error) {
		return x.InitBvec(q, 1, v, rdmarw.BvecIter{Size: 2 * page}, remote.Addr(), remote.RKey(), dir)
	}
	sig := func(x *rdmarw.Ctx) (int, error) {
		return x.SignatureInit(q, 1, list, nil, &ib.SigAttrs{}, remote.Addr(), remote.RKey(), dir)
	}
	inits := []func(*rdmarw.Ctx) (int, error){plain, bvec, sig}
	ends := []func(x *rdmarw.Ctx, q *rdmarw.QP, dir rdmarw.Direction) error{
		func(x *rdmarw.Ctx, q *rdmarw.QP, dir rdmarw.Direction) error { return x.Destroy(q, 1, list, dir) },
		func(x *rdmarw.Ctx, q *rdmarw.QP, dir rdmarw.Direction) error { return x.DestroyBvec(q, 1, v, dir) },
		func(x *rdmarw.Ctx, q *rdmarw.QP, dir rdmarw.Direction) error {
			return x.DestroySignature(q, 1, list, nil, dir)
		},
	}
	w := newWatch()
	for i, init := range inits {
		var x rdmarw.Ctx
		for _, end := range ends {
			is(t, "not initialized", end(&x, q, dir), syscall.EINVAL)
		}
		is(t, "post before", x.Post(q, 1, &w.CQE, nil), syscall.EINVAL)
		n := ok(init(&x))(t)
		_, err := init(&x)
		is(t, "again", err, syscall.EBUSY)
		for j, end := range ends {
			if j != i {
				is(t, fmt.Sprintf("init %d, end %d", i, j), end(&x, q, dir), syscall.EINVAL)
			}
			is(t, "another queue pair", end(&x, other, dir), syscall.EINVAL)
			is(t, "no queue pair", end(&x, nil, dir), syscall.EINVAL)
			is(t, "another direction", end(&x, q, rdmarw.DMAFromDevice), syscall.EINVAL)
		}
		is(t, "another queue pair", x.Post(other, 1, &w.CQE, nil), syscall.EINVAL)
		// It is as it was.
		wrs := ok(x.WRs(q, 1, &w.CQE, nil))(t)
		if len(wrs) != n {
			t.Errorf("%d requests, want %d", len(wrs), n)
		}
		w.got = nil
		must(t, x.Post(q, 1, &w.CQE, nil))
		r.done(w)
		must(t, ends[i](&x, q, dir))
		is(t, "twice", ends[i](&x, q, dir), syscall.EINVAL)
	}
	var x rdmarw.Ctx
	for _, dir := range []rdmarw.Direction{0, 3} {
		_, err := x.Init(q, 1, list, 0, 0, 0, dir)
		is(t, "no direction", err, syscall.EINVAL)
	}
	_, err := x.Init(nil, 1, list, 0, 0, 0, dir)
	is(t, "no queue pair", err, syscall.EINVAL)
}
