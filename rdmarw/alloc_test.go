package rdmarw_test

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// A context that is used again takes nothing from the heap: not for Init, for the
// chain, the post, the callback or Destroy, whatever the way.
func TestReusedContextsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, s := range strategies() {
		for d, dir := range directions {
			t.Run(fmt.Sprintf("%s/%v", s.name, dir), func(t *testing.T) {
				r, q, _ := s.rig(t, setup{})
				b, remote := r.a.buffer(20*page), r.b.mem(20*page)
				list, offset := s.list(r, b, 20, d)
				total := -offset
				var v []rdmarw.BioVec
				for _, e := range list {
					v = append(v, rdmarw.BioVec{Page: e, Len: uint32(len(e))})
					total += len(e)
				}
				var c rdmarw.Ctx
				var e rdmarw.CQE
				told := 0
				e.Done = func(*rdmarw.CQ, *verbs.WC) { told++ }
				chain := []verbs.SendWR{{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, WRID: r.a.rw.WRID(&e)}}
				turn := func(chain []verbs.SendWR) {
					var err error
					if s.bvec {
						_, err = c.InitBvec(q, 1, v, rdmarw.BvecIter{Size: uint32(total), BvecDone: uint32(offset)}, remote.Addr(), remote.RKey(), dir)
					} else {
						_, err = c.Init(q, 1, list, uint32(offset), remote.Addr(), remote.RKey(), dir)
					}
					must(t, err)
					must(t, c.Post(q, 1, &e, chain))
					r.kick()
					was := told
					if !r.process(func() bool { return told > was }) {
						t.Fatal("no completion")
					}
					if s.bvec {
						must(t, c.DestroyBvec(q, 1, v, dir))
					} else {
						must(t, c.Destroy(q, 1, list, dir))
					}
				}
				for range 20 {
					turn(nil)
					turn(chain)
				}
				if n := testing.AllocsPerRun(50, func() { turn(nil) }); n != 0 {
					t.Errorf("%v allocations", n)
				}
				if n := testing.AllocsPerRun(50, func() { turn(chain) }); n != 0 {
					t.Errorf("%v allocations with a chain", n)
				}
			})
		}
	}
}

// So it is with signatures.
func TestReusedSignatureContextsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, c := range sigCases {
		for _, dir := range directions {
			r := newRig(t, setup{})
			q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.IntegrityEn = true })
			b, remote := r.a.buffer(8*block), r.b.mem(8*(block+tupleLen))
			list, prot := [][]byte{b[:1000], b[1000:]}, [][]byte(nil)
			data := make([]byte, 8*block)
			if c.mem {
				prot = [][]byte{tuples(data, 0)}
			}
			if c.wire {
				copy(remote.Bytes(), mixed(data, tuples(data, 0)))
			}
			attrs := c.attrs(0)
			var x rdmarw.Ctx
			var e rdmarw.CQE
			told := 0
			e.Done = func(*rdmarw.CQ, *verbs.WC) { told++ }
			turn := func() {
				_, err := x.SignatureInit(q, 1, list, prot, attrs, remote.Addr(), remote.RKey(), dir)
				must(t, err)
				must(t, x.Post(q, 1, &e, nil))
				r.kick()
				was := told
				if !r.process(func() bool { return told > was }) {
					t.Fatal("no completion")
				}
				if e, bad := x.CheckMRStatus(); bad {
					t.Fatalf("%+v", e)
				}
				must(t, x.DestroySignature(q, 1, list, prot, dir))
			}
			for range 20 {
				turn()
			}
			if n := testing.AllocsPerRun(50, turn); n != 0 {
				t.Errorf("%s, %v: %v allocations", c.name, dir, n)
			}
		}
	}
}
