package verbs

import (
	"context"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// QPInitAttr describes a queue pair to create (struct ibv_qp_init_attr).
type QPInitAttr struct {
	SendCQ, RecvCQ *CQ  // both are needed; they may be the same. XRCSend has no RecvCQ
	SRQ            *SRQ // nil: the queue pair has its own receive queue
	Cap            ib.QPCap
	Type           ib.QPType
	SQSigAll       bool // every send completes, as if it were ib.SendSignaled
	// BlockSelfMcastLB keeps a datagram to a multicast group from its own sender.
	BlockSelfMcastLB bool
	// IntegrityEn lets the queue pair register signature regions (kernel:
	// IB_QP_CREATE_INTEGRITY_EN).
	IntegrityEn bool
	UserContext any // what QP.UserContext returns
}

// QP is a queue pair (struct ibv_qp).
type QP struct {
	life
	ctx   *Context
	pd    *PD // nil: an XRC target has none
	xrcd  *XRCD
	qp    driver.QP
	init  QPInitAttr // with the real sizes
	async ledger

	exMu sync.Mutex // held by a QPEx from Start to Complete or Abort

	oneMu   sync.Mutex
	oneSend [1]SendWR
	oneRecv [1]RecvWR
}

// CreateQP makes a queue pair in state RESET (ibv_create_qp). The sizes that
// were really given, at least those asked for, are written back to attr.Cap;
// with a SRQ the sizes of the receive queue are ignored and become 0. EINVAL,
// ENOMEM: beyond the device's limits; EOPNOTSUPP: it does not have the type.
// attr has not changed then.
func (p *PD) CreateQP(attr *QPInitAttr) (*QP, error) {
	const op = "create_qp"
	switch {
	case attr == nil:
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	case attr.Type == ib.XRCRecv:
		return nil, paramErr(op, "Type", "XRC_RECV is in an XRC domain, use Context.CreateQPEx", syscall.EINVAL)
	case attr.SendCQ == nil:
		return nil, paramErr(op, "SendCQ", "is nil", syscall.EINVAL)
	case attr.RecvCQ == nil && attr.Type != ib.XRCSend:
		return nil, paramErr(op, "RecvCQ", "is nil", syscall.EINVAL)
	case attr.SendCQ.ctx != p.ctx:
		return nil, paramErr(op, "SendCQ", "is of another device", syscall.EINVAL)
	case attr.RecvCQ != nil && attr.RecvCQ.ctx != p.ctx:
		return nil, paramErr(op, "RecvCQ", "is of another device", syscall.EINVAL)
	case attr.SRQ != nil && (attr.SRQ.pd == nil || attr.SRQ.pd.ctx != p.ctx):
		return nil, paramErr(op, "SRQ", "is of another device", syscall.EINVAL)
	}
	q := &QP{ctx: p.ctx, pd: p, init: *attr}
	if attr.Type == ib.XRCSend {
		q.init.RecvCQ, q.init.SRQ = nil, nil // no receive side: what stands here is ignored
	}
	parents := []parent{{&p.life, errPDClosed, ""}, {&attr.SendCQ.life, errCQClosed, "SendCQ"}}
	if q.init.RecvCQ != nil && q.init.RecvCQ != q.init.SendCQ {
		parents = append(parents, parent{&q.init.RecvCQ.life, errCQClosed, "RecvCQ"})
	}
	if q.init.SRQ != nil {
		parents = append(parents, parent{&q.init.SRQ.life, errSRQClosed, "SRQ"})
	}
	if err := holdAll(op, aQP, parents...); err != nil {
		return nil, err
	}
	d := driver.QPInitAttr{
		SendCQ: attr.SendCQ.cq, Cap: attr.Cap, Type: attr.Type,
		SQSigAll: attr.SQSigAll, BlockSelfMcastLB: attr.BlockSelfMcastLB,
		IntegrityEn: attr.IntegrityEn,
	}
	if q.init.RecvCQ != nil {
		d.RecvCQ = q.init.RecvCQ.cq
	}
	if q.init.SRQ != nil {
		d.SRQ = q.init.SRQ.srq
		d.Cap.MaxRecvWR, d.Cap.MaxRecvSGE = 0, 0
	}
	var err error
	q.qp, err = p.ctx.dev.CreateQP(p.pd, &d, func(t ib.EventType) { p.ctx.raise(&AsyncEvent{Type: t, QP: q}, &q.async) })
	if err != nil {
		q.release()
		return nil, opErr(op, err)
	}
	attr.Cap, q.init.Cap = d.Cap, d.Cap
	return q, nil
}

func (q *QP) release() {
	if q.init.SRQ != nil {
		q.init.SRQ.drop(aQP)
	}
	if q.init.RecvCQ != nil && q.init.RecvCQ != q.init.SendCQ {
		q.init.RecvCQ.drop(aQP)
	}
	if q.xrcd != nil {
		q.xrcd.drop(aQP)
		return
	}
	q.init.SendCQ.drop(aQP)
	q.pd.drop(aQP)
}

// PD is the domain of the queue pair; nil for an XRC target, which has none.
func (q *QP) PD() *PD { return q.pd }

// Context is the open device that the queue pair belongs to.
func (q *QP) Context() *Context { return q.ctx }

// Num is the queue pair's number.
func (q *QP) Num() ib.QPN { return q.qp.Num() }

// Type is the queue pair's transport service.
func (q *QP) Type() ib.QPType { return q.init.Type }

// SendCQ is where sends complete; nil for an XRC target.
func (q *QP) SendCQ() *CQ { return q.init.SendCQ }

// RecvCQ is where receives complete; nil for both types of XRC.
func (q *QP) RecvCQ() *CQ { return q.init.RecvCQ }

// SRQ is the shared receive queue, or nil.
func (q *QP) SRQ() *SRQ { return q.init.SRQ }

// UserContext is what was given to CreateQP.
func (q *QP) UserContext() any { return q.init.UserContext }

// Modify sets the attributes that mask names, among them the state
// (ibv_modify_qp). EINVAL: the transition is not legal, an attribute is missing
// or not allowed in it, or has a bad value; nothing has changed then.
func (q *QP) Modify(attr *ib.QPAttr, mask ib.QPAttrMask) error {
	const op = "modify_qp"
	switch {
	case attr == nil:
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	case !q.alive():
		return opErr(op, errQPClosed)
	}
	if mask&ib.QPAttrAV != 0 {
		if err := q.ctx.checkAV(op, &attr.AHAttr); err != nil {
			// Where there is no such transition, that is what to say.
			if terr := q.checkTransition(attr, mask); terr != nil {
				return opErr(op, terr)
			}
			return err
		}
	}
	return opErr(op, q.qp.Modify(attr, mask))
}

func (q *QP) checkTransition(attr *ib.QPAttr, mask ib.QPAttrMask) error {
	now, err := q.qp.Query()
	if err != nil {
		return err
	}
	to := now.QPState
	if mask&ib.QPAttrState != 0 {
		to = attr.QPState
	}
	return ib.CheckTransition(q.init.Type, now.QPState, to, mask)
}

// Query tells the attributes and how the queue pair was created
// (ibv_query_qp).
func (q *QP) Query() (ib.QPAttr, QPInitAttr, error) {
	if !q.alive() {
		return ib.QPAttr{}, QPInitAttr{}, opErr("query_qp", errQPClosed)
	}
	a, err := q.qp.Query()
	return a, q.init, opErr("query_qp", err)
}

// State is the queue pair's state; ib.QPStateUnknown once it is destroyed.
func (q *QP) State() ib.QPState {
	if !q.alive() {
		return ib.QPStateUnknown
	}
	a, err := q.qp.Query()
	if err != nil {
		return ib.QPStateUnknown
	}
	return a.QPState
}

// PostSend posts send requests in order (ibv_post_send) and usually sends them
// before it returns. If one is bad, those before it are posted and the error
// holds a *PostError. ENOMEM: the queue is full, poll and post again; EINVAL:
// everything else that is wrong with a request, or the state is not RTS, SQD,
// SQE or ERR; EOPNOTSUPP: the device does not have the opcode.
//
// What shows only when the work is done is no error here, but the status of a
// completion: bad keys, and a datagram longer than the port's active MTU
// (ib.WCLocLenErr). After such an error a UC or UD queue pair is in state SQE: what
// is posted then completes with ib.WCWRFlushErr, until Modify takes it to RTS again.
// An RC queue pair goes to ERR.
func (q *QP) PostSend(wrs []SendWR) error {
	const op = "post_send"
	if !q.alive() {
		return opErr(op, errQPClosed)
	}
	n, err := q.qp.PostSend(wrs)
	if err == nil {
		return nil
	}
	if n < 0 || n >= len(wrs) {
		return opErr(op, err)
	}
	return postErr(op, n, wrs[n].WRID, err)
}

// PostSendOne posts one send request without a list.
func (q *QP) PostSendOne(wr *SendWR) error {
	if wr == nil {
		return paramErr("post_send", "wr", "is nil", syscall.EINVAL)
	}
	q.oneMu.Lock()
	defer q.oneMu.Unlock()
	q.oneSend[0] = *wr
	err := q.PostSend(q.oneSend[:])
	q.oneSend[0] = SendWR{}
	return err
}

// PostRecv posts receive requests in order (ibv_post_recv), in any state but
// RESET. If one is bad, those before it are posted and the error holds a
// *PostError. ENOMEM: the queue is full; EINVAL: too many elements, state RESET,
// or the queue pair has a SRQ.
func (q *QP) PostRecv(wrs []RecvWR) error {
	const op = "post_recv"
	if !q.alive() {
		return opErr(op, errQPClosed)
	}
	if n, err := q.qp.PostRecv(wrs); err != nil {
		return recvErr(op, wrs, n, err)
	}
	return nil
}

// PostRecvOne posts one receive request without a list.
func (q *QP) PostRecvOne(wr *RecvWR) error {
	if wr == nil {
		return paramErr("post_recv", "wr", "is nil", syscall.EINVAL)
	}
	q.oneMu.Lock()
	defer q.oneMu.Unlock()
	q.oneRecv[0] = *wr
	err := q.PostRecv(q.oneRecv[:])
	q.oneRecv[0] = RecvWR{}
	return err
}

// Destroy is DestroyContext without limit.
func (q *QP) Destroy() error { return q.DestroyContext(context.Background()) }

// DestroyContext destroys the queue pair (ibv_destroy_qp), whatever is under
// way, then waits until each event that was got for it is acknowledged. Work
// that has not completed does not complete any more. With ctx's error the queue
// pair is of no use any more; calling again waits again.
func (q *QP) DestroyContext(ctx context.Context) error {
	return opErr("destroy_qp", q.end(ctx, q.qp.Destroy, func(ctx context.Context) error {
		q.ctx.events.mute(&q.async)
		return q.async.wait(ctx, "AsyncEvent.Ack")
	}, q.release))
}
