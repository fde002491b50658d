package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Limits of this implementation.
const (
	sendBudget   = 256      // request packets in one Post
	streamBudget = 64       // response packets in one go
	readChunk    = 64 << 10 // bytes of one READ request packet at most
	ackBytes     = 64 << 10 // received bytes after which an ACK leaves at once
	ackPackets   = 64       // ... packets
	ackDelay     = 20_000   // ns that an owed ACK may wait
	askEvery     = 32       // packets in a message without AckReq
	maxUnacked   = 1 << 16  // PSNs under way; the standard's limit is 2^23-1
)

// QP is the service of one RC or XRC queue pair: an XRC initiator has the requester
// only, a target the responder. It implements transport.Service.
type QP struct {
	base *transport.QP
	req  requester
	rsp  responder

	class roce.Opcode // of all opcodes: RC or XRC

	ready  bool     // in Env.Ready by our own doing
	pieces [][]byte // scratch for resolved memory; empty between packets
}

// New makes the service of q and stores it there.
func New(q *transport.QP) *QP {
	s := &QP{base: q, class: q.Class()}
	s.req.qp, s.req.b = s, q
	s.rsp.qp, s.rsp.b = s, q
	q.Service = s
	return s
}

// Base gives the common part.
func (q *QP) Base() *transport.QP { return q.base }

// Modified takes over what a modify changed. Attributes that are read where they
// are used (timers, counters, rights) need nothing here.
func (q *QP) Modified(e *transport.Env, from ib.QPState, mask ib.QPAttrMask) {
	b := q.base
	switch b.State {
	case ib.QPStateReset:
		q.reset(e)
	case ib.QPStateErr:
		q.fail(e)
	case ib.QPStateRTR:
		if from == ib.QPStateInit {
			q.rsp.start()
		}
	case ib.QPStateRTS, ib.QPStateSQD:
		if from == ib.QPStateRTR {
			q.req.start(psn.PSN(b.Attr.SQPSN & psn.Mask))
		}
		if mask&ib.QPAttrMaxDestRDAtomic != 0 && len(q.rsp.res) > 0 {
			q.rsp.resize()
		}
		if b.State == ib.QPStateSQD && from != ib.QPStateSQD {
			q.req.notify = mask&ib.QPAttrEnSQDAsyncNotify != 0 && b.Attr.EnSQDAsyncNotify
		}
		q.req.rehome(e)
		q.req.reload()
		q.req.send(e)
		if b.State == ib.QPStateSQD {
			q.req.drain(e)
		} else {
			q.req.drained = false
		}
	}
}

// Post sends what may be sent, and what a bounded turn left over. In the state
// Err it flushes what was posted meanwhile.
func (q *QP) Post(e *transport.Env) {
	q.ready = false
	switch q.base.State {
	case ib.QPStateErr:
		q.base.FlushSends(e)
		q.base.FlushRecvs(e)
		return
	case ib.QPStateRTR:
		q.rsp.stream(e)
		return
	case ib.QPStateRTS, ib.QPStateSQD:
	default:
		return
	}
	q.rsp.stream(e)
	if q.base.State != ib.QPStateErr {
		q.req.send(e)
	}
}

// Packet handles a received packet: a request goes to the responder, which
// works from RTR on, a response to the completer, which needs RTS.
func (q *QP) Packet(e *transport.Env, p *transport.Packet) {
	b := q.base
	if !ib.PKey(p.BTH.PKey()).Matches(b.PKey) {
		e.BadPKey()
		return
	}
	f := p.Info.Flags
	switch b.State {
	case ib.QPStateRTS, ib.QPStateSQD:
		if f.Any(roce.FlagResponse) && b.Type != ib.XRCRecv {
			q.req.response(e, p)
			return
		}
	case ib.QPStateRTR:
	default:
		e.Stats.DropState++
		return
	}
	// An unknown opcode counts as a request, an invalid one. An XRC initiator has
	// nobody who would take one, a target nobody who would have asked.
	if f.Any(roce.FlagResponse) || b.Type == ib.XRCSend {
		e.Stats.DropState++
		return
	}
	b.Established(e)
	q.rsp.request(e, p)
}

// Ack sends the ACK that is owed, if one is. While READ responses are on their
// way out it waits for them.
func (q *QP) Ack(e *transport.Env) {
	q.base.Owes = false
	q.rsp.payAck(e)
}

// Timer handles the deadlines that have passed.
func (q *QP) Timer(e *transport.Env) {
	if at := q.rsp.ackDeadline(); at != 0 && at <= e.Now {
		q.rsp.payAck(e)
	}
	if at := q.req.rnrAt; at != 0 && at <= e.Now {
		q.req.rnrElapsed(e)
	}
	if at := q.req.ackAt; at != 0 && at <= e.Now {
		q.req.timedOut(e)
	}
}

// Deadline is the next time at which Timer has something to do, 0 = never.
func (q *QP) Deadline() int64 {
	at := q.req.ackAt
	if r := q.req.rnrAt; r != 0 && (at == 0 || r < at) {
		at = r
	}
	if r := q.rsp.ackDeadline(); r != 0 && (at == 0 || r < at) {
		at = r
	}
	return at
}

// Draining reports, in the state SQD, whether messages that had started are
// still under way.
func (q *QP) Draining() bool { return q.base.State == ib.QPStateSQD && !q.req.idle() }

// again asks for another Post in this turn.
func (q *QP) again(e *transport.Env) {
	if !q.ready {
		q.ready = true
		e.Ready = append(e.Ready, q.base)
	}
}

// fail moves the queue pair to the state Err and flushes its work, sends before
// receives (IBA 10.3.1.6, 10.8.3). The peer hears of what arrived before.
func (q *QP) fail(e *transport.Env) {
	q.rsp.payAck(e)
	q.base.State = ib.QPStateErr
	q.req.stop(e)
	q.rsp.stop()
	q.base.FlushSends(e)
	q.base.FlushRecvs(e)
}

// failSend ends the oldest send work request with an error.
func (q *QP) failSend(e *transport.Env, status ib.WCStatus) {
	q.base.CompleteSend(e, status)
	q.fail(e)
}

// reset forgets all work without a completion (IBA 10.2.4.4).
func (q *QP) reset(e *transport.Env) {
	b := q.base
	q.req.stop(e)
	q.rsp.stop()
	q.rsp.res, q.rsp.fifo = nil, nil
	for b.SQ.Len() > 0 {
		b.SQ.Pop()
	}
	b.RecvBusy = false
	if !b.Shared {
		for {
			if ok, _ := b.RQ.Take(&b.Recv); !ok {
				break
			}
		}
	}
	b.Forget()
}

// keep stores the scratch for the next packet and lets go of the memory in it.
func (q *QP) keep(pieces [][]byte) {
	clear(pieces)
	q.pieces = pieces[:0]
}
