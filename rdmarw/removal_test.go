package rdmarw_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
)

// The device is removed under contexts: what is under way is flushed, once, what is
// posted afterwards too, what is set up afterwards is refused, and all can be taken down
// with nothing left.
func TestDeviceRemoval(t *testing.T) {
	for _, s := range strategies() {
		for d, dir := range directions {
			t.Run(fmt.Sprintf("%s/%v", s.name, dir), func(t *testing.T) {
				r, q, _ := s.rig(t, setup{})
				b, remote := r.a.buffer(20*page), r.b.mem(20*page)
				start := func(c *rdmarw.Ctx) (func() error, error) {
					list, offset := s.list(r, b, 9, d)
					n, destroy, err := s.init(c, q, list, offset, remote.Addr(), remote.RKey(), dir)
					if err != nil && (n != 0 || c.Kind() != rdmarw.KindNone) {
						t.Errorf("a failed Init gives %d, %v", n, c)
					}
					return destroy, err
				}
				var under, late, fresh rdmarw.Ctx
				w, lw, fw := newWatch(), newWatch(), newWatch()
				destroy := ok(start(&under))(t)
				lateDestroy := ok(start(&late))(t)
				r.net.Filter(func(*netEvent) netVerdict { return netDrop })
				must(t, under.Post(q, 1, &w.CQE, nil))
				r.kick()
				r.net.RunFor(1e5)
				r.a.report(soft.Netdev{Gone: true})
				r.wait(w, 1)
				if w.got[0].Status != ib.WCWRFlushErr {
					t.Errorf("%+v", w.got[0])
				}
				for _, c := range []struct {
					c *rdmarw.Ctx
					w *watch
				}{{&late, lw}, {&fresh, fw}} {
					end := lateDestroy
					if c.c == &fresh {
						var err error
						if end, err = start(c.c); err != nil {
							is(t, "after removal", err, syscall.EIO)
							continue
						}
					}
					if err := c.c.Post(q, 1, &c.w.CQE, nil); err != nil {
						is(t, "post", err, syscall.EIO)
					} else {
						r.wait(c.w, 1)
						if c.w.got[0].Status != ib.WCWRFlushErr {
							t.Errorf("%+v", c.w.got[0])
						}
					}
					must(t, end())
				}
				if s.reg[d] {
					is(t, "with a context", q.CleanupMRs(), syscall.EBUSY)
				}
				must(t, destroy())
				r.quiet(w, lw, fw)
				if free, size := q.MRs(); free != size {
					t.Errorf("%d of %d regions", free, size)
				}
				attr := r.a.attr()
				attr.ForceMR = true
				if _, err := rdmarw.InitMRs(q.QP(), attr); err != nil {
					is(t, "set up", err, syscall.EIO)
				} else {
					t.Error("regions of a device that is gone")
				}
				must(t, errors.Join(q.CleanupMRs(), q.CleanupMRs()))
				if _, size := q.MRs(); size != 0 {
					t.Errorf("%d regions are left", size)
				}
			})
		}
	}
}

// So are contexts with signature regions: one under way, one that was never posted.
func TestDeviceRemovalSignature(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.IntegrityEn, a.MaxRDMACtxs = true, 2 })
	b, remote := r.a.buffer(4*block), r.b.mem(4*(block+tupleLen))
	attrs := (&sigCase{wire: true}).attrs(0)
	var under, late rdmarw.Ctx
	for _, c := range []*rdmarw.Ctx{&under, &late} {
		ok(c.SignatureInit(q, 1, [][]byte{b}, nil, attrs, remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice))(t)
	}
	r.net.Filter(func(*netEvent) netVerdict { return netDrop })
	w := newWatch()
	must(t, under.Post(q, 1, &w.CQE, nil))
	r.kick()
	r.net.RunFor(1e5)
	r.a.report(soft.Netdev{Gone: true})
	r.wait(w, 1)
	if _, bad := under.CheckMRStatus(); bad || w.got[0].Status != ib.WCWRFlushErr {
		t.Errorf("%+v", w.got[0])
	}
	is(t, "with contexts", q.CleanupMRs(), syscall.EBUSY)
	must(t, under.DestroySignature(q, 1, nil, nil, rdmarw.DMAFromDevice))
	must(t, late.DestroySignature(q, 1, nil, nil, rdmarw.DMAFromDevice))
	must(t, q.CleanupMRs())
	if free, size := q.SigMRs(); free != 0 || size != 0 {
		t.Errorf("%d of %d signature regions are left", free, size)
	}
}
