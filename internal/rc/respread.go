package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// stream answers READs and atomics in their order, up to streamBudget packets;
// the rest follows in another Post of this turn. Behind the last answer come the
// NAK or the ACK that waited for it: responses leave in the order of PSNs.
func (r *responder) stream(e *transport.Env) {
	if r.fifoLen == 0 {
		return
	}
	r.b.Flow.MaxSegs = r.b.Dest.GSO.MaxSegs()
	budget := streamBudget
	for r.fifoLen > 0 {
		s := &r.res[r.fifo[r.fifoHead]]
		for done := false; !done; budget-- {
			if budget == 0 {
				r.qp.again(e)
				return
			}
			if s.kind == resAtomic {
				r.sendAtomicAck(e, s)
			} else if s.kind != resRead {
				r.sendEmptyResponse(e, s)
			} else if !r.sendReadResponse(e, s) {
				// Memory that was there when the request came is not there any
				// more: the NAK has the PSN of the packet that could not be sent.
				at := s.next
				if s.asked {
					// The application may have taken the key away because it knew
					// that the peer was done: what asks again is a late copy then,
					// and must not end the queue pair. A peer that does wait for
					// the answer ends its own.
					e.Stats.RespRemoteAccess++
					r.sendAck(e, roce.NAKRemAccess, at)
					break
				}
				r.fifoLen = 0
				r.answer(e, streamFault, at)
				return
			}
			done = s.next == s.end
			s.next = s.next.Next()
		}
		if s.end.Next() == r.epsn {
			r.acked()
		}
		r.popAnswer()
	}
	if v := r.pending; v != good {
		r.pending = good
		r.answer(e, v, r.epsn)
		return
	}
	if r.owed {
		r.b.Owe(e)
	}
}

// sendReadResponse sends the response packet s.next. False: the memory is not
// accessible any more.
func (r *responder) sendReadResponse(e *transport.Env, s *resource) bool {
	b := r.b
	mtu := uint64(b.MTU)
	off := uint64((s.next-s.from)&psn.Mask) * mtu
	n := min(uint64(s.bytes)-off, mtu)
	op := roce.OpRCReadRespMiddle
	switch first, last := s.next == s.from, s.next == s.end; {
	case first && last:
		op = roce.OpRCReadRespOnly
	case first:
		op = roce.OpRCReadRespFirst
	case last:
		op = roce.OpRCReadRespLast
	}
	pieces := r.qp.pieces[:0]
	if n > 0 {
		var ok bool
		va := s.va + uint64((s.from-s.first)&psn.Mask)*mtu + off
		if s.asked {
			pieces, ok = e.Mem.RemoteAgain(s.pd, b.Num, s.rkey, va, n, pieces)
		} else {
			pieces, ok = e.Mem.Remote(s.pd, b.Num, s.rkey, va, n, ib.AccessRemoteRead, pieces)
		}
		if !ok {
			r.qp.keep(pieces)
			return false
		}
	}
	op |= r.qp.class
	info := op.Info()
	// Copied when asked for again: the bytes may have changed on the way to the
	// socket the first time, and the packet was dropped for its ICRC. Memory that
	// never rests can be read too.
	h := e.Begin(b.Flow, info.HdrLen, int(n), len(pieces), s.asked)
	roce.BTH(h).Put(op, false, int(-n&3), uint16(b.PKey), uint32(b.Attr.DestQPN), false, s.next)
	if info.AETH != 0 {
		roce.AETH(h[info.AETH:]).Put(roce.AckNoCredit, r.msn)
	}
	for _, m := range pieces {
		if e.Tx.Payload(m) != nil {
			e.Tx.Abort()
			r.qp.keep(pieces)
			return false
		}
	}
	e.Tx.End()
	r.qp.keep(pieces)
	if b.Dest.GSO == transport.GSOUnknown && e.Tx.Joined() {
		s.probed = true
	}
	if n > pkt.InlineCopy && !s.asked {
		r.refs = e.Tx.Packets
	}
	return true
}

// sendAtomicAck sends the result of an atomic.
func (r *responder) sendAtomicAck(e *transport.Env, s *resource) {
	const hdr = roce.BTHLen + roce.AETHLen + roce.AtomicAckETHLen
	b := r.b
	e.Room(0)
	h := e.Tx.Begin(b.Flow, hdr, 0)
	roce.BTH(h).Put(roce.OpRCAtomicAck|r.qp.class, false, 0, uint16(b.PKey), uint32(b.Attr.DestQPN), false, s.next)
	roce.AETH(h[roce.BTHLen:]).Put(roce.AckNoCredit, r.msn)
	roce.AtomicAckETH(h[roce.BTHLen+roce.AETHLen:]).Put(s.va)
	e.Tx.End()
}

// settleRefs sends what is in the batch if a READ response in it still refers to
// registered memory: a later WRITE of this peer may change those bytes, and the
// packet's ICRC would not fit them any more.
func (r *responder) settleRefs(e *transport.Env) {
	if r.refs == 0 {
		return
	}
	if e.Tx.Packets >= r.refs {
		e.Send()
	}
	r.refs = 0
}
