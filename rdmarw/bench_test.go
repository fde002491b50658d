package rdmarw_test

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/rdmarw"
)

// What a context costs besides the post itself: from Init to the chain, and Destroy.
func BenchmarkContext(b *testing.B) {
	for _, s := range strategies() {
		for _, n := range []int{1, 16, 256} {
			if s.one != (n == 1) || s.limits.ContigMapping {
				continue
			}
			b.Run(fmt.Sprintf("%s/%d elements", s.name, n), func(b *testing.B) {
				r, q, _ := s.rig(b, setup{pool: 64})
				list := manyPages(r.a.buffer(n*page), n)
				v := make([]rdmarw.BioVec, n)
				for i := range v {
					v[i] = rdmarw.BioVec{Page: list[i], Len: page}
				}
				var c rdmarw.Ctx
				w := newWatch()
				const dir = rdmarw.DMAFromDevice
				for b.Loop() {
					var err error
					if s.bvec {
						_, err = c.InitBvec(q, 1, v, rdmarw.BvecIter{Size: uint32(n * page)}, 0, 0, dir)
					} else {
						_, err = c.Init(q, 1, list, 0, 0, 0, dir)
					}
					must(b, err)
					if _, err = c.WRs(q, 1, &w.CQE, nil); err != nil {
						b.Fatal(err)
					}
					if s.bvec {
						err = c.DestroyBvec(q, 1, v, dir)
					} else {
						err = c.Destroy(q, 1, list, dir)
					}
					must(b, err)
				}
			})
		}
	}
}
