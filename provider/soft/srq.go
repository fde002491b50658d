package soft

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// srq is a shared receive queue.
type srq struct {
	pd     *pd
	q      *queue.RQ
	num    uint32
	events driver.EventSink
	users  users
	xrc    *transport.XRCSRQ // nil: not one for XRC
	xrcd   *xrcd
	cq     *cq
	dead   atomic.Bool
}

// CreateSRQ implements driver.Device.
func (d *Device) CreateSRQ(p driver.PD, attr *ib.SRQAttr, ev driver.EventSink) (driver.SRQ, error) {
	dom, err := d.pdOf(p)
	switch {
	case err != nil:
		return nil, err
	case attr.MaxWR < 1 || attr.MaxWR > maxSRQWR:
		return nil, invalid("MaxWR", "%d, want 1 to %d", attr.MaxWR, maxSRQWR)
	case attr.MaxSGE > maxSGE:
		return nil, invalid("MaxSGE", "%d, want at most %d", attr.MaxSGE, maxSGE)
	}
	if err := d.srqs.add(d, "shared receive queue"); err != nil {
		return nil, err
	}
	if !dom.mem.Hold() {
		d.srqs.drop()
		return nil, fmt.Errorf("protection domain is deallocated: %w", syscall.EINVAL)
	}
	attr.MaxSGE = max(attr.MaxSGE, 1)
	s := &srq{pd: dom, q: queue.NewRQ(int(attr.MaxWR), int(attr.MaxSGE)), num: d.newSRQNum(), events: ev}
	attr.MaxWR = uint32(s.q.Cap())
	return s, nil
}

func (d *Device) srqOf(s driver.SRQ) (*srq, error) {
	q, ok := s.(*srq)
	switch {
	case !ok || q == nil || q.pd.dev != d:
		return nil, invalid("SRQ", "is not a shared receive queue of this device")
	case q.dead.Load():
		return nil, invalid("SRQ", "was destroyed")
	}
	return q, nil
}

// PostRecv implements driver.SRQ.
func (s *srq) PostRecv(wrs []driver.RecvWR) (int, error) {
	if s.dead.Load() {
		return 0, fmt.Errorf("shared receive queue was destroyed: %w", syscall.EINVAL)
	}
	return s.q.Post(wrs)
}

// Modify implements driver.SRQ.
func (s *srq) Modify(attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	if mask&^(ib.SRQMaxWR|ib.SRQLimit) != 0 {
		return invalid("mask", "%#x, want ib.SRQMaxWR and ib.SRQLimit at most", uint8(mask))
	}
	size, limit := s.q.Cap(), s.q.Limit()
	if mask&ib.SRQMaxWR != 0 {
		if attr.MaxWR < 1 || attr.MaxWR > maxSRQWR {
			return invalid("MaxWR", "%d, want 1 to %d", attr.MaxWR, maxSRQWR)
		}
		size = int(attr.MaxWR)
	}
	if mask&ib.SRQLimit != 0 {
		if attr.SRQLimit > uint32(size) {
			return invalid("SRQLimit", "%d, the queue has room for %d", attr.SRQLimit, size)
		}
		limit = int(attr.SRQLimit)
	}
	if err := s.q.ResizeLimit(size, maxSRQWR, limit); err != nil {
		return err
	}
	if mask&ib.SRQMaxWR != 0 {
		attr.MaxWR = uint32(s.q.Cap())
	}
	return nil
}

// Query implements driver.SRQ.
func (s *srq) Query() ib.SRQAttr {
	return ib.SRQAttr{MaxWR: uint32(s.q.Cap()), MaxSGE: uint32(s.q.MaxSGE()), SRQLimit: uint32(s.q.Limit())}
}

// Num implements driver.SRQ.
func (s *srq) Num() uint32 { return s.num }

// Destroy implements driver.SRQ.
func (s *srq) Destroy() error {
	first, err := s.users.end("shared receive queue")
	if first {
		s.dead.Store(true)
		s.closeXRC()
		s.pd.mem.Drop()
		s.pd.dev.srqs.drop()
	}
	return err
}
