package rdmacm

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// CreateQP makes the ID's queue pair, of the ID's type (attr.Type, if it is not 0, must be
// that), and moves it to INIT, or for datagrams to RTS (rdma_create_qp). pd nil: the ID's
// domain, which is the device's default one. Completion
// queues that attr does not name are made, of the size of the work queues and with a
// completion channel of their own, and are the ID's: SendCQ, SendChannel and so on.
// The real sizes, the type and the queues are written back to attr. EINVAL: the ID is not
// bound to a device, has a queue pair, or pd or a queue is of another device.
func (id *ID) CreateQP(pd *verbs.PD, attr *verbs.QPInitAttr) error {
	const op = "create_qp"
	if attr == nil {
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	ex := verbs.QPInitAttrEx{QPInitAttr: *attr, PD: pd}
	if err := id.createQP(op, &ex); err != nil {
		return err
	}
	*attr = ex.QPInitAttr
	return nil
}

// CreateQPEx is CreateQP with all attributes (rdma_create_qp_ex): also for ib.XRCSend
// and ib.XRCRecv, where an XRCD that attr does not name is the device's default
// one.
func (id *ID) CreateQPEx(attr *verbs.QPInitAttrEx) error {
	const op = "create_qp_ex"
	if attr == nil {
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	ex := *attr
	if err := id.createQP(op, &ex); err != nil {
		return err
	}
	*attr = ex
	return nil
}

// bound is the device of an ID that may have objects.
func (id *ID) bound() (*device, *verbs.PD, error) {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return nil, nil, err
	}
	if id.dev == nil {
		return nil, nil, fmt.Errorf("the ID is not bound to a device: %w", syscall.EINVAL)
	}
	return id.dev, id.pd, nil
}

func (id *ID) createQP(op string, attr *verbs.QPInitAttrEx) error {
	id.qpMu.Lock()
	defer id.qpMu.Unlock()
	d, pd, err := id.bound()
	if err != nil {
		return opErr(op, err)
	}
	switch {
	case id.QP() != nil:
		return paramErr(op, "id", "has a queue pair", syscall.EINVAL)
	case attr.Type != 0 && attr.Type != id.typ:
		return paramErr(op, "Type", fmt.Sprintf("%v, the ID is for %v", attr.Type, id.typ), syscall.EINVAL)
	case attr.PD != nil && attr.PD.Context() != d.ctx:
		return paramErr(op, "pd", "is one of another device", syscall.EINVAL)
	case id.sendCQ != nil && attr.SendCQ != nil && id.sendCQ != attr.SendCQ:
		return paramErr(op, "SendCQ", "is not the ID's", syscall.EINVAL)
	case id.recvCQ != nil && attr.RecvCQ != nil && id.recvCQ != attr.RecvCQ:
		return paramErr(op, "RecvCQ", "is not the ID's", syscall.EINVAL)
	}
	attr.Type = id.typ
	if id.typ == ib.XRCRecv {
		attr.PD = nil
		if attr.XRCD == nil {
			id.m.mu.Lock()
			attr.XRCD, err = d.defaultXRCD()
			id.m.mu.Unlock()
			if err != nil {
				return opErr(op, err)
			}
		}
	} else {
		if attr.PD == nil {
			attr.PD = pd
		}
		if attr.SRQ == nil && id.srq != nil && !id.xrcSRQ && id.typ != ib.XRCSend {
			attr.SRQ = id.srq
		}
		if err := id.createCQs(d, attr); err != nil {
			return opErr(op, err)
		}
	}
	q, err := d.ctx.CreateQPEx(attr)
	if err != nil {
		id.destroyCQs(context.Background())
		return opErr(op, err)
	}
	if err = id.install(q, attr.PD); err != nil {
		q.Destroy()
		id.destroyCQs(context.Background())
		return opErr(op, err)
	}
	return nil
}

// install makes q the ID's queue pair and moves it to its first states.
func (id *ID) install(q *verbs.QP, pd *verbs.PD) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return err
	}
	states := []ib.QPState{ib.QPStateInit}
	if id.typ == ib.UD {
		states = append(states, ib.QPStateRTR, ib.QPStateRTS)
	}
	for _, s := range states {
		if err := id.modify(q, s); err != nil {
			return err
		}
	}
	id.qp = q
	if pd != nil {
		id.pd = pd
	}
	id.sendCQ = q.SendCQ()
	if q.RecvCQ() != nil {
		id.recvCQ = q.RecvCQ()
	}
	id.publish()
	return nil
}

// createCQs makes the completion queues that attr does not name. The caller holds
// qpMu.
func (id *ID) createCQs(d *device, attr *verbs.QPInitAttrEx) error {
	if attr.SendCQ == nil {
		if attr.SendCQ = id.sendCQ; attr.SendCQ == nil {
			ch, cq, err := id.createCQ(d, attr.Cap.MaxSendWR)
			if err != nil {
				return err
			}
			id.m.mu.Lock()
			id.sendChan, id.sendCQ, id.madeSend = ch, cq, true
			id.publish()
			id.m.mu.Unlock()
			attr.SendCQ = cq
		}
	}
	if attr.RecvCQ == nil && id.typ != ib.XRCSend {
		if attr.RecvCQ = id.recvCQ; attr.RecvCQ == nil {
			size := attr.Cap.MaxRecvWR
			if attr.SRQ != nil {
				if a, err := attr.SRQ.Query(); err == nil {
					size = a.MaxWR
				}
			}
			if err := id.createRecvCQ(d, size); err != nil {
				id.destroyCQs(context.Background())
				return err
			}
			attr.RecvCQ = id.recvCQ
		}
	}
	return nil
}

func (id *ID) createRecvCQ(d *device, size uint32) error {
	ch, cq, err := id.createCQ(d, size)
	if err != nil {
		return err
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	id.recvChan, id.recvCQ, id.madeRecv = ch, cq, true
	id.publish()
	return nil
}

func (id *ID) createCQ(d *device, size uint32) (*verbs.CompChannel, *verbs.CQ, error) {
	ch, err := d.ctx.CreateCompChannel()
	if err != nil {
		return nil, nil, err
	}
	cq, err := d.ctx.CreateCQ(int(max(size, 1)), ch, id)
	if err != nil {
		ch.Destroy()
		return nil, nil, err
	}
	return ch, cq, nil
}

// destroyCQs destroys the queues that were made for the ID. The caller holds qpMu.
func (id *ID) destroyCQs(ctx context.Context) error {
	if id.madeSend {
		if err := id.sendCQ.DestroyContext(ctx); err != nil {
			return err
		}
		if err := id.sendChan.Destroy(); err != nil {
			return err
		}
	}
	id.m.mu.Lock()
	id.sendCQ, id.sendChan, id.madeSend = nil, nil, false
	id.publish()
	id.m.mu.Unlock()
	if id.xrcSRQ { // the queue is the shared receive queue's too
		return nil
	}
	if id.madeRecv {
		if err := id.recvCQ.DestroyContext(ctx); err != nil {
			return err
		}
		if err := id.recvChan.Destroy(); err != nil {
			return err
		}
	}
	id.m.mu.Lock()
	id.recvCQ, id.recvChan, id.madeRecv = nil, nil, false
	id.publish()
	id.m.mu.Unlock()
	return nil
}

// DestroyQP destroys the queue pair and the completion queues and channels that were
// made for it (rdma_destroy_qp). Without one it does nothing. It waits for
// unacknowledged events, as verbs.QP.DestroyContext; with ctx's error calling again
// goes on. EBUSY: it is attached to a
// multicast group that was not joined through the ID.
func (id *ID) DestroyQP(ctx context.Context) error {
	const op = "destroy_qp"
	id.qpMu.Lock()
	defer id.qpMu.Unlock()
	id.m.mu.Lock()
	q := id.qp
	if q != nil {
		for _, g := range id.groups {
			g.detach(q)
		}
	}
	id.m.mu.Unlock()
	if q != nil {
		if err := q.DestroyContext(ctx); err != nil {
			return opErr(op, err)
		}
		id.m.mu.Lock()
		id.qp = nil
		id.publish()
		id.m.mu.Unlock()
	}
	return opErr(op, id.destroyCQs(ctx))
}

// QP is the queue pair; nil: none.
func (id *ID) QP() *verbs.QP { return get(id, func() *verbs.QP { return id.qp }) }

// SendCQ is where the queue pair's sends complete; nil: none.
func (id *ID) SendCQ() *verbs.CQ { return get(id, func() *verbs.CQ { return id.sendCQ }) }

// RecvCQ is where its receives complete, or those of SRQ; nil: none.
func (id *ID) RecvCQ() *verbs.CQ { return get(id, func() *verbs.CQ { return id.recvCQ }) }

// SendChannel is the completion channel that was made for SendCQ; nil: none.
func (id *ID) SendChannel() *verbs.CompChannel {
	return get(id, func() *verbs.CompChannel { return id.sendChan })
}

// RecvChannel is the completion channel that was made for RecvCQ; nil: none.
func (id *ID) RecvChannel() *verbs.CompChannel {
	return get(id, func() *verbs.CompChannel { return id.recvChan })
}

// CreateSRQ makes a shared receive queue for queue pairs that are created after it on
// the ID (rdma_create_srq). pd nil: the ID's domain. EINVAL: the ID is
// not bound to a device, or has one.
func (id *ID) CreateSRQ(pd *verbs.PD, attr *ib.SRQAttr) error {
	const op = "create_srq"
	if attr == nil {
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	ex := verbs.SRQInitAttr{Attr: *attr, UserContext: id}
	if err := id.createSRQ(op, pd, &ex); err != nil {
		return err
	}
	*attr = ex.Attr
	return nil
}

// CreateSRQEx is CreateSRQ with all attributes (rdma_create_srq_ex): of type ib.SRQXRC
// an XRCD that attr does not name is the device's default one, and a CQ is made if
// there is none.
func (id *ID) CreateSRQEx(pd *verbs.PD, attr *verbs.SRQInitAttr) error {
	const op = "create_srq_ex"
	if attr == nil {
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	ex := *attr
	if err := id.createSRQ(op, pd, &ex); err != nil {
		return err
	}
	*attr = ex
	return nil
}

func (id *ID) createSRQ(op string, pd *verbs.PD, attr *verbs.SRQInitAttr) error {
	id.qpMu.Lock()
	defer id.qpMu.Unlock()
	d, own, err := id.bound()
	if err != nil {
		return opErr(op, err)
	}
	switch {
	case id.srq != nil:
		return paramErr(op, "id", "has a shared receive queue", syscall.EINVAL)
	case pd == nil:
		pd = own
	case pd.Context() != d.ctx:
		return paramErr(op, "pd", "is one of another device", syscall.EINVAL)
	}
	made := false
	if attr.Type == ib.SRQXRC {
		if attr.XRCD == nil {
			id.m.mu.Lock()
			attr.XRCD, err = d.defaultXRCD()
			id.m.mu.Unlock()
			if err != nil {
				return opErr(op, err)
			}
		}
		if attr.CQ == nil {
			if id.recvCQ == nil {
				if err := id.createRecvCQ(d, attr.Attr.MaxWR); err != nil {
					return opErr(op, err)
				}
				made = true
			}
			attr.CQ = id.recvCQ
		}
	}
	s, err := pd.CreateSRQEx(attr)
	if err != nil {
		if made {
			id.destroyCQs(context.Background())
		}
		return opErr(op, err)
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	id.srq, id.xrcSRQ = s, attr.Type == ib.SRQXRC
	if id.xrcSRQ {
		id.recvCQ = attr.CQ
	}
	id.publish()
	return nil
}

// DestroySRQ destroys the shared receive queue, and the completion queue that was made for
// it (rdma_destroy_srq). EBUSY: a queue pair
// uses it. Without one it does nothing.
func (id *ID) DestroySRQ(ctx context.Context) error {
	const op = "destroy_srq"
	id.qpMu.Lock()
	defer id.qpMu.Unlock()
	if id.srq == nil {
		return nil
	}
	if err := id.srq.DestroyContext(ctx); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	id.srq, id.xrcSRQ = nil, false
	id.publish()
	none := id.qp == nil
	id.m.mu.Unlock()
	if none {
		return opErr(op, id.destroyCQs(ctx))
	}
	return nil
}

// SRQ is the shared receive queue; nil: none.
func (id *ID) SRQ() *verbs.SRQ { return get(id, func() *verbs.SRQ { return id.srq }) }
