package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// verdict is what a check says of a packet: what becomes of it.
type verdict uint8

const (
	good        verdict = iota
	dropped             // counted where it was seen
	duplicate           // seen before
	outOfOrder          // NAK: PSN sequence error
	notReady            // RNR NAK
	invalid             // NAK: invalid request; the rest is fatal too
	tooLong             // ... longer than the receive buffer
	noAccess            // NAK: remote access error
	localFault          // NAK: remote operational error, the receive request is bad
	badInv              // key to invalidate is bad: silence (class J error)
	streamFault         // as noAccess, found while a READ is being answered
)

func (v verdict) fatal() bool { return v >= invalid }

func (v verdict) String() string {
	names := [...]string{
		"good", "dropped", "duplicate", "out of order", "receiver not ready", "invalid request", "too long",
		"no access", "local fault", "bad invalidate", "no access for a response",
	}
	if int(v) < len(names) {
		return names[v]
	}
	return "unknown"
}

// refuse answers with a NAK, behind READ responses that are on their way out.
func (r *responder) refuse(e *transport.Env, v verdict) {
	r.silent = true
	if r.fifoLen > 0 {
		e.Stats.AckDeferred++
		r.pending = v
		return
	}
	r.answer(e, v, r.epsn)
}

// answer sends the NAK of a verdict for PSN at. A fatal one ends the queue pair:
// completion status and event are those of hardware (IBA 9.7.5.2, 9.9.3.1).
func (r *responder) answer(e *transport.Env, v verdict, at psn.PSN) {
	wc := driver.WC{Opcode: ib.WCRecv}
	var event ib.EventType
	raise := false
	switch v {
	case outOfOrder:
		e.Stats.SentSeqNAK++
		r.sendAck(e, roce.NAKPSNSeqErr, at)
		return
	case notReady:
		e.Stats.SentRNR++
		r.sendAck(e, roce.RNRNAK(r.b.Attr.MinRNRTimer), at)
		return
	case invalid:
		e.Stats.RespRemoteInvalid++
		r.sendAck(e, roce.NAKInvReq, at)
		event, raise = ib.EventQPReqErr, true
	case tooLong:
		r.sendAck(e, roce.NAKInvReq, at)
		wc.Status = ib.WCLocLenErr
	case noAccess, streamFault:
		e.Stats.RespRemoteAccess++
		r.sendAck(e, roce.NAKRemAccess, at)
		event, raise = ib.EventQPAccessErr, true
		// A WRITE with immediate had taken its receive request.
		if v == noAccess && r.b.RecvBusy && r.msg != msgSend {
			wc.Status, wc.Opcode = ib.WCLocAccessErr, ib.WCRecvRDMAWithImm
		}
	case localFault:
		r.sendAck(e, roce.NAKRemOp, at)
		wc.Status = ib.WCLocProtErr
	case badInv:
		e.Stats.DropInvalidate++
		wc.Status = ib.WCRemInvReqErr
	}
	if wc.Status != ib.WCSuccess && r.b.RecvBusy {
		wc.SrcQP = r.b.Attr.DestQPN
		r.b.CompleteRecv(e, &wc, false)
	}
	if raise {
		e.Raise(r.b.Events, event)
	}
	r.qp.fail(e)
}
