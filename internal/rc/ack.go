package rc

import (
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// owe notes that the peer is to get an ACK. It may wait for company.
func (r *responder) owe(e *transport.Env) {
	if !r.owed {
		r.owed = true
		r.owedAt = e.Now + ackDelay
	}
	r.b.Owe(e)
}

// payAck sends the ACK that is owed: one for every SEND and WRITE that has
// arrived. It must not overtake a READ response. Its PSN is never that of a READ
// or an atomic, which are answered for themselves: rdma_rxe takes an ACKNOWLEDGE
// with their PSN for their completion, though the data never came.
func (r *responder) payAck(e *transport.Env) {
	if !r.owed {
		return
	}
	if r.fifoLen > 0 {
		e.Stats.AckDeferred++
		return
	}
	r.sendAck(e, roce.AckNoCredit, r.newest)
}

// acked notes that the peer will know all that has arrived.
func (r *responder) acked() {
	r.owed, r.owedAt = false, 0
	r.sinceBytes, r.sincePkts = 0, 0
}

// ackDeadline is when the owed ACK must leave, 0 = never.
func (r *responder) ackDeadline() int64 {
	if !r.owed || r.fifoLen > 0 {
		return 0
	}
	return r.owedAt
}

// sendAck sends an ACKNOWLEDGE packet: ACK, NAK or RNR NAK. Credits are never
// given (syndrome 31): RNR NAKs do what is needed.
func (r *responder) sendAck(e *transport.Env, s roce.Syndrome, at psn.PSN) {
	const hdr = roce.BTHLen + roce.AETHLen
	b := r.b
	e.Room(0)
	h := e.Tx.Begin(b.Flow, hdr, 0)
	roce.BTH(h).Put(roce.OpRCAcknowledge|r.qp.class, false, 0, uint16(b.PKey), uint32(b.Attr.DestQPN), false, at)
	roce.AETH(h[roce.BTHLen:]).Put(s, r.msn)
	e.Tx.End()
	r.acked()
}
