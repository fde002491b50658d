package soft

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/rc"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// xrcDomain is an XRC domain. It lives while somebody has it open.
type xrcDomain struct {
	transport.XRCD
	file   fs.FileInfo // nil: it cannot be opened again
	opened int         // handles; under xrcTable.mu

	mu      sync.Mutex
	targets map[ib.QPN]*qp
	handles map[*qp][]*xrcTarget // of each target, never empty
}

// xrcTable is the open XRC domains of a device.
type xrcTable struct {
	counter
	mu   sync.Mutex
	list []*xrcDomain // those that have a file
}

// xrcd is one opening of a domain.
type xrcd struct {
	dev   *Device
	dom   *xrcDomain
	users users
}

var _ driver.XRCDevice = (*Device)(nil)

// OpenXRCD implements driver.XRCDevice. As Linux does, it gives EAGAIN when the
// file has no domain and none is to be made, and EINVAL when it has one and must
// not. Domains belong to this device: unlike in the kernel no other process, and no
// second opening of the device, sees them.
func (d *Device) OpenXRCD(attr *driver.XRCDInitAttr) (driver.XRCD, error) {
	if err := d.xrcds.add(d, "XRC domain"); err != nil {
		return nil, err
	}
	dom, err := d.xrcds.open(attr)
	if err != nil {
		d.xrcds.drop()
		return nil, err
	}
	return &xrcd{dev: d, dom: dom}, nil
}

func (t *xrcTable) open(attr *driver.XRCDInitAttr) (*xrcDomain, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var dom *xrcDomain
	if attr.File != nil {
		for _, o := range t.list {
			if os.SameFile(o.file, attr.File) {
				dom = o
			}
		}
		switch {
		case dom == nil && !attr.Create:
			return nil, &paramError{"OFlags", "the file has no XRC domain, and os.O_CREATE is not set", syscall.EAGAIN}
		case dom != nil && attr.Exclude:
			return nil, invalid("OFlags", "os.O_EXCL is set, but the file has an XRC domain")
		}
	}
	if dom == nil {
		dom = &xrcDomain{file: attr.File, targets: map[ib.QPN]*qp{}, handles: map[*qp][]*xrcTarget{}}
		if attr.File != nil {
			t.list = append(t.list, dom)
		}
	}
	dom.opened++
	return dom, nil
}

// Close implements driver.XRCD.
func (x *xrcd) Close() error {
	first, err := x.users.endFor("XRC domain", "objects")
	if first {
		t := &x.dev.xrcds
		t.mu.Lock()
		if x.dom.opened--; x.dom.opened == 0 {
			t.list = slices.DeleteFunc(t.list, func(o *xrcDomain) bool { return o == x.dom })
		}
		t.mu.Unlock()
		t.drop()
	}
	return err
}

// xrcdOf holds an open domain of this device.
func (d *Device) xrcdOf(h driver.XRCD) (*xrcd, error) {
	x, ok := h.(*xrcd)
	if !ok || x == nil || x.dev != d || !x.users.hold() {
		return nil, invalid("XRCD", "is not an open XRC domain of this device")
	}
	return x, nil
}

// CreateXRCSRQ implements driver.XRCDevice.
func (d *Device) CreateXRCSRQ(p driver.PD, xd driver.XRCD, c driver.CQ, attr *ib.SRQAttr, ev driver.EventSink) (driver.SRQ, error) {
	x, err := d.xrcdOf(xd)
	if err != nil {
		return nil, err
	}
	rcq, err := d.cqOf("CQ", c)
	if err == nil && !rcq.users.hold() {
		err = invalid("CQ", "the completion queue was destroyed")
	}
	if err != nil {
		x.users.drop()
		return nil, err
	}
	h, err := d.CreateSRQ(p, attr, ev)
	if err != nil {
		rcq.users.drop()
		x.users.drop()
		return nil, err
	}
	s := h.(*srq)
	s.xrcd, s.cq = x, rcq
	for {
		s.xrc = &transport.XRCSRQ{Num: s.num, PD: &s.pd.mem, RQ: s.q, CQ: rcq.q, Events: ev}
		if x.dom.Add(s.xrc) {
			return s, nil
		}
		s.num = d.newSRQNum() // numbers have wrapped
	}
}

// newSRQNum gives a number of 24 bits that is not 0.
func (d *Device) newSRQNum() uint32 {
	for {
		if n := d.srqNum.Add(1) & 0xFFFFFF; n != 0 {
			return n
		}
	}
}

// closeXRC ends a shared receive queue's part in its domain. When it returns no
// target queue pair touches its queues any more; one that was in the middle of a
// message refuses the rest.
func (s *srq) closeXRC() {
	if s.xrc == nil {
		return
	}
	s.xrcd.dom.Remove(s.xrc)
	s.pd.dev.eng.Quiesce()
	s.cq.users.drop()
	s.xrcd.users.drop()
}

// xrcTarget is a handle of an XRCRecv queue pair, which many can share. Modify and
// Query are those of the queue pair.
type xrcTarget struct {
	*qp
	xrcd *xrcd
	ev   driver.EventSink
	dead bool // under the domain's lock
}

// createTarget makes an XRCRecv queue pair and its first handle.
func (d *Device) createTarget(attr *driver.QPInitAttr, ev driver.EventSink) (driver.QP, error) {
	x, err := d.xrcdOf(attr.XRCD)
	if err != nil {
		return nil, err
	}
	if err = d.qps.add(d, "queue pair"); err != nil {
		x.users.drop()
		return nil, err
	}
	q := &qp{dev: d}
	dom := x.dom
	q.Type, q.PKey, q.MTU, q.XRCD, q.Shared = ib.XRCRecv, ib.PKeyDefault, d.activeMTU().Bytes(), &dom.XRCD, true
	q.SQ, q.RQ = queue.NewSQ(0, 0, 0), queue.NewRQ(0, 0)
	q.Events = func(t ib.EventType) {
		dom.mu.Lock()
		all := slices.Clone(dom.handles[q])
		dom.mu.Unlock()
		for _, h := range all {
			if h.ev != nil {
				h.ev(t)
			}
		}
	}
	attr.Cap = ib.QPCap{}
	rc.New(&q.QP)
	h := &xrcTarget{qp: q, xrcd: x, ev: ev}
	dom.mu.Lock()
	defer dom.mu.Unlock()
	d.addQP(q)
	dom.targets[q.QP.Num] = q
	dom.handles[q] = []*xrcTarget{h}
	return h, nil
}

// OpenXRCTarget implements driver.XRCDevice.
func (d *Device) OpenXRCTarget(xd driver.XRCD, num ib.QPN, ev driver.EventSink) (driver.QP, error) {
	x, err := d.xrcdOf(xd)
	if err != nil {
		return nil, err
	}
	dom := x.dom
	dom.mu.Lock()
	defer dom.mu.Unlock()
	q := dom.targets[num]
	if q == nil {
		x.users.drop()
		return nil, invalid("QPNum", "%#x is no XRC_RECV queue pair of the XRC domain", uint32(num))
	}
	h := &xrcTarget{qp: q, xrcd: x, ev: ev}
	dom.handles[q] = append(dom.handles[q], h)
	return h, nil
}

// gone tells that the handle was destroyed, though the queue pair may live on.
func (h *xrcTarget) gone() error {
	h.xrcd.dom.mu.Lock()
	defer h.xrcd.dom.mu.Unlock()
	if h.dead {
		return fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
	}
	return nil
}

// Modify implements driver.QP.
func (h *xrcTarget) Modify(attr *ib.QPAttr, mask ib.QPAttrMask) error {
	if err := h.gone(); err != nil {
		return err
	}
	return h.qp.Modify(attr, mask)
}

// Query implements driver.QP.
func (h *xrcTarget) Query() (ib.QPAttr, error) {
	if err := h.gone(); err != nil {
		return ib.QPAttr{}, err
	}
	return h.qp.Query()
}

// Destroy implements driver.QP: the last handle takes the queue pair with it.
func (h *xrcTarget) Destroy() error {
	dom := h.xrcd.dom
	dom.mu.Lock()
	if h.dead {
		dom.mu.Unlock()
		return nil
	}
	h.dead = true
	rest := slices.DeleteFunc(dom.handles[h.qp], func(o *xrcTarget) bool { return o == h })
	dom.handles[h.qp] = rest
	if len(rest) == 0 {
		delete(dom.handles, h.qp)
		delete(dom.targets, h.qp.QP.Num)
	}
	dom.mu.Unlock()
	var err error
	if len(rest) == 0 {
		err = h.qp.Destroy()
	}
	h.xrcd.users.drop()
	return err
}
