package ud

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// AddressHandle is what the address handles of a work request must be for a UD
// queue pair to send to them.
type AddressHandle interface {
	driver.AH
	// Flow is where datagrams go, nil once the handle is destroyed.
	Flow() *pkt.Flow
}

// UD is the datagram service of one queue pair.
type UD struct {
	sender
	grh [roce.GRHLen]byte // scratch
}

var _ transport.Service = (*UD)(nil)

// NewUD makes the service of a queue pair of type UD and sets q.Service.
func NewUD(q *transport.QP) *UD {
	u := &UD{sender: sender{q: q}}
	q.Service = u
	return u
}

// Base gives the part that all services share.
func (u *UD) Base() *transport.QP { return u.q }

// Modified takes over what a modify call set.
func (u *UD) Modified(e *transport.Env, from ib.QPState, mask ib.QPAttrMask) {
	u.modified(e, from, mask, true)
}

// Ack does nothing: UD acknowledges nothing.
func (u *UD) Ack(*transport.Env) {}

// Timer does nothing.
func (u *UD) Timer(*transport.Env) {}

// Deadline is never.
func (u *UD) Deadline() int64 { return 0 }

// Post sends what may be sent.
func (u *UD) Post(e *transport.Env) {
	q := u.q
	for range postPackets {
		switch q.State {
		case ib.QPStateRTS:
		case ib.QPStateSQE:
			q.FlushSends(e)
			return
		case ib.QPStateErr:
			q.FlushSends(e)
			q.FlushRecvs(e)
			return
		default:
			return
		}
		w := u.pending()
		if w == nil {
			u.retire(e)
			return
		}
		if status := u.packet(e, w); status != ib.WCSuccess {
			u.fail(e, status)
			return
		}
	}
	u.retire(e)
	if q.SQ.Len() > 0 {
		e.Ready = append(e.Ready, q)
	}
}

// packet puts the datagram of w into the batch.
func (u *UD) packet(e *transport.Env, w *queue.WQE) ib.WCStatus {
	q := u.q
	op := roce.OpUDSendOnly
	switch w.Op {
	case ib.WRSend:
	case ib.WRSendWithImm:
		op = roce.OpUDSendOnlyImm
	default:
		return ib.WCLocQPOpErr
	}
	ah, ok := w.AH.(AddressHandle)
	if !ok {
		return ib.WCLocQPOpErr
	}
	flow := ah.Flow()
	if flow == nil {
		return ib.WCLocQPOpErr
	}
	if w.Length > uint64(q.MTU) {
		return ib.WCLocLenErr // one packet per message, of the port's MTU (IBA 9.8.4)
	}
	n := int(w.Length)
	var c transport.Cursor
	defer u.release()
	if status := u.local(e, &c, w, 0, w.Length); status != ib.WCSuccess {
		return status
	}
	info := op.Info()
	h := e.Begin(flow, info.HdrLen, n, len(u.pieces), false)
	roce.BTH(h).Put(op, w.Flags&ib.SendSolicited != 0, roce.PadLen(n), uint16(q.PKey), uint32(w.RemoteQPN), false, u.next)
	qkey := w.RemoteQKey
	if qkey.Privileged() {
		qkey = q.Attr.QKey // IBA 10.2.5: the controlled key stands for the queue pair's own
	}
	roce.DETH(h[info.DETH:]).Put(uint32(qkey), uint32(q.Num))
	if o := info.Imm; o != 0 {
		roce.ImmDt(h[o:]).Put(w.Imm)
	}
	if !u.payload(e, n) {
		return ib.WCLocProtErr
	}
	e.Tx.End()
	u.next = u.next.Next()
	u.done()
	return ib.WCSuccess
}
