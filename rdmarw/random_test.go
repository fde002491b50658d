package rdmarw_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// Random scatterlists of 1 to 4,096 elements of odd places and lengths, by every way to
// move them, over a network that loses, doubles and reorders: byte for byte what they
// should be, on both sides, and nothing beside them is touched.
func TestRandomLists(t *testing.T) {
	const size = 1 << 20
	turns := 5
	if raceEnabled {
		turns = 2
	}
	for i, s := range strategies() {
		t.Run(s.name, func(t *testing.T) {
			seed := uint64(i + 1)
			t.Log("seed", seed)
			link := simnet.Link{Loss: 0.01, Dup: 0.005, Reorder: 0.005, Delay: 5000}
			s.limits.MaxFastRegPages *= 8 // 64 pages a region
			r, q, _ := s.rig(t, setup{seed: seed, link: link, pool: 128, small: i%2 == 0})
			b, remote := r.a.buffer(size), r.b.mem(size+100)
			var c rdmarw.Ctx
			w := newWatch()
			for turn := range turns {
				for d, dir := range directions {
					n := [...]int{4096, 1, 2, 100, 1 + r.rnd.IntN(4096)}[turn]
					r.fill(b)
					r.fill(remote.Bytes())
					list, offset := [][]byte(nil), 0
					if s.reg[d] {
						list = r.pieces(b, n)
						offset = r.rnd.IntN(len(list[0]))
					} else {
						list, offset = s.list(r, b, n, d)
					}
					if n = len(list); turn == 0 && n < 4000 && !s.one {
						t.Fatalf("%d elements", n)
					}
					shift := r.rnd.IntN(100)
					here, there := slices.Clone(b), slices.Clone(remote.Bytes())
					_, destroy, err := s.init(&c, q, list, offset, remote.Addr()+uint64(shift), remote.RKey(), dir)
					must(t, err)
					w.got = nil
					must(t, c.Post(q, 1, &w.CQE, nil))
					r.done(w)
					must(t, destroy())
					if dir == rdmarw.DMAToDevice {
						copy(there[shift:], join(list, offset))
					} else {
						// The same by hand: what is beside the list has to be as it was, too.
						scatter(b, here, list, offset, there[shift:])
						if !bytes.Equal(here, b) {
							t.Fatalf("%v of %d elements: other bytes here", dir, n)
						}
					}
					if !bytes.Equal(remote.Bytes(), there) {
						t.Fatalf("%v of %d elements: other bytes there", dir, n)
					}
				}
			}
		})
	}
}

// scatter puts from into what a list of pieces of b, from an offset on, is of model, a
// copy of b.
func scatter(b, model []byte, list [][]byte, offset int, from []byte) {
	for _, e := range list {
		at := int(mem.Address(e) - mem.Address(b))
		from = from[copy(model[at+offset:at+len(e)], from):]
		offset = 0
	}
}

// Many contexts on several queue pairs are under way at once, and complete in any
// order.
func TestManyContexts(t *testing.T) {
	for i, s := range strategies() {
		t.Run(s.name, func(t *testing.T) {
			seed := uint64(100 + i)
			t.Log("seed", seed)
			r := newRig(t, setup{seed: seed, limits: s.limits, link: simnet.Link{Loss: 0.01, Delay: 5000}})
			const qps, each, elements = 3, 8, 12
			var all []*transfer
			b, remote := r.a.buffer(qps*each*elements*page), r.b.mem(qps*each*elements*page)
			r.fill(b)
			r.fill(remote.Bytes())
			for range qps {
				q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR, a.MaxRDMACtxs, a.Cap.MaxSendWR = s.force, 2*each, 100 })
				for range each {
					x := &transfer{q: q, at: len(all) * elements * page}
					x.Done = func(_ *rdmarw.CQ, wc *verbs.WC) {
						x.n++
						if wc.Err() != nil {
							t.Error(wc.Err())
						}
						// The callback may do everything.
						must(t, x.destroy())
					}
					all = append(all, x)
				}
			}
			left := len(all)
			for i, x := range all {
				d := i % 2
				part, there := b[x.at:][:elements*page], remote.Bytes()[x.at:][:elements*page]
				x.list, x.offset = s.list(r, part, elements, d)
				x.want = join(x.list, x.offset)
				if directions[d] == rdmarw.DMAFromDevice {
					x.want = slices.Clone(there[:len(x.want)])
				}
				x.there = there[:len(x.want)]
				_, destroy, err := s.init(&x.Ctx, x.q, x.list, x.offset, remote.Addr()+uint64(x.at), remote.RKey(), directions[d])
				must(t, err)
				x.destroy = func() error { left--; return destroy() }
				must(t, x.Post(x.q, 1, &x.CQE, nil))
			}
			r.kick()
			if !r.process(func() bool { return left == 0 }) {
				t.Fatalf("%d are left", left)
			}
			r.quiet()
			for i, x := range all {
				if x.n != 1 || !bytes.Equal(join(x.list, x.offset), x.want) || !bytes.Equal(x.there, x.want) {
					t.Errorf("transfer %d: %d completions, or other bytes", i, x.n)
				}
				if free, size := x.q.MRs(); free != size {
					t.Errorf("%d of %d regions", free, size)
				}
			}
		})
	}
}

// transfer is a context with its CQE, as a server has one for each request.
type transfer struct {
	rdmarw.Ctx
	rdmarw.CQE
	q       *rdmarw.QP
	at      int
	list    [][]byte
	offset  int
	want    []byte
	there   []byte
	destroy func() error
	n       int
}

// What a region is asked to hold but cannot reach is an error of the call, with words.
func TestMemoryThatIsNotRegistered(t *testing.T) {
	r := newRig(t, setup{})
	m := new(rdmarw.Memory)
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.Memory = m })
	plain, _ := r.target(nil)
	b, remote, heap := r.a.buffer(4*page), r.b.mem(4*page), make([]byte, 3*page)
	var c rdmarw.Ctx
	try := func(q *rdmarw.QP, list ...[]byte) error {
		_, err := c.Init(q, 1, list, 0, remote.Addr(), remote.RKey(), rdmarw.DMAToDevice)
		if err == nil {
			w := newWatch()
			must(t, c.Post(q, 1, &w.CQE, nil))
			r.done(w)
			if want := join(list, 0); !bytes.Equal(want, remote.Bytes()[:len(want)]) {
				t.Error("other bytes")
			}
			must(t, c.Destroy(q, 1, list, rdmarw.DMAToDevice))
		}
		return err
	}
	r.fill(b)
	r.fill(heap)
	for name, list := range map[string][][]byte{
		"heap":                    {b[:5], heap[:8]},
		"beyond the buffer's end": {b[: 4*page : 4*page], heap[:1]},
		"all of it":               {heap},
	} {
		err := try(q, list...)
		is(t, name, err, syscall.EINVAL)
		if err != nil && !strings.Contains(err.Error(), "is not registered") {
			t.Error(err)
		}
	}
	// Regions of parts of it, one at another address, one inside the other.
	one := ok(r.a.pd.RegMR(heap[:2*page], 0))(t)
	two := ok(r.a.pd.RegMRIOVA(heap[page:], 1<<40, 0))(t)
	three := ok(r.a.pd.RegMR(heap[2*page+100:2*page+200], 0))(t)
	for _, mr := range []*verbs.MR{three, one, two} {
		must(t, m.Add(mr))
	}
	for _, list := range [][][]byte{
		{heap[:2*page]},
		{heap[page:]},
		{heap[5:100], b[7:9], heap[2*page+100 : 2*page+200], heap[3*page-1:]},
		{heap[2*page+150 : 2*page+300], heap[2*page-1 : 2*page+1]},
	} {
		must(t, try(q, list...))
		is(t, "a queue pair that does not know them", try(plain, list...), syscall.EINVAL)
	}
	is(t, "in two regions, but in none of them", try(q, heap), syscall.EINVAL)
	m.Remove(two)
	is(t, "removed", try(q, heap[2*page+10:2*page+20]), syscall.EINVAL)
	must(t, try(q, heap[2*page+110:2*page+120]))
	for _, mr := range []*verbs.MR{one, two, three} {
		m.Remove(mr)
		must(t, mr.Dereg())
	}
	is(t, "removed", try(q, heap[:1]), syscall.EINVAL)
	must(t, try(q, b))
	null, fast := ok(r.a.pd.NullMR())(t), ok(r.a.pd.AllocMR(4))(t)
	for i, mr := range []*verbs.MR{nil, null, fast} {
		is(t, fmt.Sprint("region ", i), m.Add(mr), syscall.EINVAL)
	}
	// Not either while something is registered with it.
	if _, _, err := fast.MapSG([][]byte{b[:page], b[2*page : 3*page]}, 0, page); err != nil {
		t.Fatal(err)
	}
	if err := plain.QP().PostSend([]verbs.SendWR{{
		Opcode: ib.WRRegMR, RKey: ib.IncRKey(fast.RKey()), Bind: &verbs.BindInfo{MR: fast, Access: ib.AccessLocalWrite},
	}}); err != nil {
		t.Fatal(err)
	}
	r.kick()
	r.net.RunFor(1e6)
	if fast.Length() != 2*page {
		t.Errorf("%d bytes are registered", fast.Length())
	}
	is(t, "registered region", m.Add(fast), syscall.EINVAL)
	must(t, null.Dereg())
	must(t, fast.Dereg())
	// With regions for the transfer memory needs no registration of its own.
	forced, _ := r.target(func(a *rdmarw.QPInitAttr) { a.ForceMR = true })
	must(t, try(forced, heap[9:2*page]))
}
