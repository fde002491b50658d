package verbs

import (
	"context"
	"os"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// XRCD is an XRC domain (struct ibv_xrcd): the shared receive queues in it can be
// reached through each of its target queue pairs.
type XRCD struct {
	life
	ctx  *Context
	xrcd driver.XRCD
}

// XRCDInitAttr says which XRC domain to open (struct ibv_xrcd_init_attr).
type XRCDInitAttr struct {
	// File names the domain: whoever opens it on the same Context with the same file,
	// by whatever path, has the same domain. nil: one of its own. The file is only
	// looked at, and may be closed; it must exist as long as the domain is open.
	//
	// Other processes, and other Contexts of this one, do not see the domain, unlike
	// in the kernel: a software device is part of its process. With the same file they
	// get a domain of their own.
	File *os.File
	// OFlags are os.O_CREATE: make the domain if the file has none; and os.O_EXCL:
	// fail if it has one. Without a file a domain is always made.
	OFlags int
}

// OpenXRCD opens an XRC domain (ibv_open_xrcd). Domains are known within the open
// device, not beyond. EAGAIN: the file has no domain, and os.O_CREATE is not set;
// EINVAL: it has one, and os.O_EXCL is set, or another flag is; ENOMEM: there are
// too many; EOPNOTSUPP: the device has no XRC.
func (c *Context) OpenXRCD(attr *XRCDInitAttr) (*XRCD, error) {
	const op = "open_xrcd"
	if attr == nil {
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	if attr.OFlags&^(os.O_CREATE|os.O_EXCL) != 0 {
		return nil, paramErr(op, "OFlags", "may be os.O_CREATE and os.O_EXCL", syscall.EINVAL)
	}
	d := driver.XRCDInitAttr{Create: attr.OFlags&os.O_CREATE != 0, Exclude: attr.OFlags&os.O_EXCL != 0}
	if attr.File != nil {
		info, err := attr.File.Stat()
		if err != nil {
			return nil, &OpError{Op: op, Param: "File", Err: err}
		}
		d.File = info
	}
	if !c.hold(anXRCD) {
		return nil, opErr(op, errDeviceClosed)
	}
	x, ok := c.dev.(driver.XRCDevice)
	if !ok {
		c.drop(anXRCD)
		return nil, noXRC(op)
	}
	h, err := x.OpenXRCD(&d)
	if err != nil {
		c.drop(anXRCD)
		return nil, opErr(op, err)
	}
	return &XRCD{ctx: c, xrcd: h}, nil
}

func noXRC(op string) error {
	return paramErr(op, "device", "has no XRC", syscall.EOPNOTSUPP)
}

// Context is the open device that the domain belongs to.
func (x *XRCD) Context() *Context { return x.ctx }

// Close closes the domain (ibv_close_xrcd); it ends when everybody has closed it.
// EBUSY: a queue pair or shared receive queue that was made through it is left.
func (x *XRCD) Close() error {
	return opErr("close_xrcd", x.end(context.Background(), x.xrcd.Close, nil, x.ctx.dropper(anXRCD)))
}

// SRQInitAttr describes a shared receive queue to create (struct
// ibv_srq_init_attr_ex).
type SRQInitAttr struct {
	Attr ib.SRQAttr
	Type ib.SRQType
	// XRCD and CQ are for ib.SRQXRC only: the domain in which peers find the queue,
	// and where what they send completes.
	XRCD        *XRCD
	CQ          *CQ
	UserContext any // what SRQ.UserContext returns
}

// CreateSRQEx makes a shared receive queue (ibv_create_srq_ex). The sizes that were
// really given are written back to attr.Attr. What peers do through an XRC queue is
// checked against the protection domain p, RDMA too. EINVAL, ENOMEM: as CreateSRQ;
// EOPNOTSUPP: the device does not have the type. attr has not changed then.
func (p *PD) CreateSRQEx(attr *SRQInitAttr) (*SRQ, error) {
	const op = "create_srq_ex"
	switch {
	case attr == nil:
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	case attr.Type == ib.SRQTM:
		return nil, paramErr(op, "Type", "no tag matching", syscall.EOPNOTSUPP)
	case attr.Type > ib.SRQTM:
		return nil, paramErr(op, "Type", "is unknown", syscall.EINVAL)
	case attr.Type == ib.SRQBasic && attr.XRCD != nil:
		return nil, paramErr(op, "XRCD", "is for type XRC", syscall.EINVAL)
	case attr.Type == ib.SRQBasic && attr.CQ != nil:
		return nil, paramErr(op, "CQ", "is for type XRC", syscall.EINVAL)
	case attr.Type == ib.SRQBasic:
		return p.createSRQ(op, &attr.Attr, attr.UserContext)
	case attr.XRCD == nil || attr.XRCD.ctx != p.ctx:
		return nil, paramErr(op, "XRCD", "is nil or of another device", syscall.EINVAL)
	case attr.CQ == nil || attr.CQ.ctx != p.ctx:
		return nil, paramErr(op, "CQ", "is nil or of another device", syscall.EINVAL)
	}
	x, ok := p.ctx.dev.(driver.XRCDevice)
	if !ok {
		return nil, noXRC(op)
	}
	s := &SRQ{pd: p, xrcd: attr.XRCD, cq: attr.CQ, user: attr.UserContext}
	err := holdAll(op, anSRQ, parent{&p.life, errPDClosed, ""}, parent{&s.xrcd.life, errXRCDClosed, "XRCD"}, parent{&s.cq.life, errCQClosed, "CQ"})
	if err != nil {
		return nil, err
	}
	a := attr.Attr
	a.SRQLimit = 0
	s.srq, err = x.CreateXRCSRQ(p.pd, s.xrcd.xrcd, s.cq.cq, &a, func(t ib.EventType) {
		p.ctx.raise(&AsyncEvent{Type: t, SRQ: s}, &s.async)
	})
	if err != nil {
		s.release()
		return nil, opErr(op, err)
	}
	attr.Attr.MaxWR, attr.Attr.MaxSGE = a.MaxWR, a.MaxSGE
	return s, nil
}

func (s *SRQ) release() {
	if s.xrcd != nil {
		s.cq.drop(anSRQ)
		s.xrcd.drop(anSRQ)
	}
	s.pd.drop(anSRQ)
}

// XRCD is the XRC domain of the queue; nil if it is not one for XRC.
func (s *SRQ) XRCD() *XRCD { return s.xrcd }

// QPOpenAttr names a queue pair to open (struct ibv_qp_open_attr).
type QPOpenAttr struct {
	QPNum       ib.QPN
	XRCD        *XRCD
	Type        ib.QPType // ib.XRCRecv
	UserContext any       // what QP.UserContext returns
}

// OpenQP opens a queue pair that somebody has made in an XRC domain (ibv_open_qp).
// Each handle gets the queue pair's events and can modify it; it is destroyed when
// its last handle is. EINVAL: the domain has no such queue pair.
func (c *Context) OpenQP(attr *QPOpenAttr) (*QP, error) {
	const op = "open_qp"
	switch {
	case attr == nil:
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	case attr.XRCD == nil || attr.XRCD.ctx != c:
		return nil, paramErr(op, "XRCD", "is nil or of another device", syscall.EINVAL)
	case attr.Type != ib.XRCRecv:
		return nil, paramErr(op, "Type", "want XRC_RECV: no other queue pair is shared", syscall.EINVAL)
	}
	return attr.XRCD.target(op, attr.UserContext, func(x driver.XRCDevice, ev driver.EventSink) (driver.QP, error) {
		return x.OpenXRCTarget(attr.XRCD.xrcd, attr.QPNum, ev)
	})
}

// target makes a handle of a target queue pair.
func (x *XRCD) target(op string, user any, open func(driver.XRCDevice, driver.EventSink) (driver.QP, error)) (*QP, error) {
	dev, ok := x.ctx.dev.(driver.XRCDevice)
	if !ok {
		return nil, noXRC(op)
	}
	if !x.hold(aQP) {
		return nil, opErr(op, errXRCDClosed)
	}
	q := &QP{ctx: x.ctx, xrcd: x, init: QPInitAttr{Type: ib.XRCRecv, UserContext: user}}
	early := early{raise: func(t ib.EventType) { x.ctx.raise(&AsyncEvent{Type: t, QP: q}, &q.async) }}
	var err error
	q.qp, err = open(dev, early.event)
	if err != nil {
		x.drop(aQP)
		return nil, opErr(op, err)
	}
	early.release()
	return q, nil
}

// early keeps the events of a queue pair that others drive already until this
// handle of it is whole.
type early struct {
	raise func(ib.EventType)

	mu    sync.Mutex
	whole bool
	kept  []ib.EventType
}

func (e *early) event(t ib.EventType) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.whole {
		e.raise(t)
	} else {
		e.kept = append(e.kept, t)
	}
}

func (e *early) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.whole = true
	for _, t := range e.kept {
		e.raise(t)
	}
	e.kept = nil
}

// XRCD is the XRC domain of a target queue pair; nil for all others.
func (q *QP) XRCD() *XRCD { return q.xrcd }
