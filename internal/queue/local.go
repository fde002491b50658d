package queue

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Local reports whether an operation works on this side's keys only: it sends
// nothing and takes no PSN.
func Local(op ib.WROpcode) bool { return opsMemory.Has(op) }

// binding is what a BIND_MW or a REG_MR is about. Few requests have one: it does
// not lie in the WQE.
type binding struct {
	window *mem.Window
	region *mem.Region
}

// SetBind sets what the newest WQE, a BIND_MW or a REG_MR, is about: window and
// region as the device knows them, range and rights of b. Address, length and
// rights use the fields that such requests have no other use for.
func (q *SQ) SetBind(win *mem.Window, reg *mem.Region, b *driver.BindInfo) {
	i := q.tail - 1
	w := q.At(i)
	w.RemoteAddr, w.CompareAdd, w.Swap = b.Addr, b.Length, uint64(b.Access)
	q.binds.slot(int(i & uint32(len(q.wqes)-1)))[:1][0] = binding{win, reg}
}

// TakeBind gives window and region of WQE i, once: they are let go of.
func (q *SQ) TakeBind(i uint32) (*mem.Window, *mem.Region) {
	p := &q.binds.slot(int(i & uint32(len(q.wqes)-1)))[:1][0]
	b := *p
	*p = binding{}
	return b.window, b.region
}
