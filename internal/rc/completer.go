package rc

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// response handles what the peer's responder sends. A PSN that is not under
// way is a ghost: of an earlier transmission, or of nobody.
func (r *requester) response(e *transport.Env, p *transport.Packet) {
	at := p.BTH.PSN()
	if r.una == r.end || !at.InRange(r.una, r.end.Add(-1)) {
		if !r.endsRead(e, p, at) {
			e.Stats.DropStale++
		}
		return
	}
	switch f := p.Info.Flags; {
	case p.Op.Operation() == roce.OpAcknowledge:
		r.acknowledge(e, p, at)
	case f.Any(roce.FlagRead):
		r.readResponse(e, p, at)
	case f.Any(roce.FlagAtomic):
		r.atomicResponse(e, p, at)
	}
	switch r.b.State {
	case ib.QPStateRTS:
		r.goOn(e)
	case ib.QPStateSQD:
		r.goOn(e)
		r.drain(e)
	}
}

// goOn sends after an acknowledgement, behind those for whom it has opened the
// window: they have waited longer.
func (r *requester) goOn(e *transport.Env) {
	if len(e.Ready) > 0 {
		r.qp.again(e)
		return
	}
	r.send(e)
}

// endsRead handles a NAK that a responder which fails in the middle of a READ
// sends with the PSN of the request, as rdma_rxe does, though responses to it
// have arrived. Without it the READ would be asked for until the retries are
// used up.
func (r *requester) endsRead(e *transport.Env, p *transport.Packet, at psn.PSN) bool {
	if p.Op.Operation() != roce.OpAcknowledge || r.b.SQ.Len() == 0 {
		return false
	}
	w := r.b.SQ.At(r.b.SQ.Head())
	if !w.Started || w.Op != ib.WRRDMARead || !at.InRange(w.FirstPSN, w.LastPSN) || !at.Before(r.una) {
		return false
	}
	switch s := p.AETH().Syndrome(); s {
	case roce.NAKInvReq, roce.NAKRemAccess, roce.NAKRemOp:
		r.refused(e, s)
		return true
	}
	return false
}

// acknowledge handles ACK, NAK and RNR NAK.
func (r *requester) acknowledge(e *transport.Env, p *transport.Packet, at psn.PSN) {
	s := p.AETH().Syndrome()
	switch {
	case s.IsAck():
		// An ACK completes SENDs and WRITEs up to its PSN, never a READ or an
		// atomic: one that is in the way has lost its response, since an ACK
		// does not overtake responses (IBA 9.7.5.1.2).
		if r.advance(e, at.Next(), false) && !r.una.After(at) {
			r.lostResponse(e)
		}
	case s.IsRNRNAK() || s.IsNAK():
		// A NAK tells that everything before its PSN has arrived.
		if !r.advance(e, at, false) {
			return
		}
		if r.una != at {
			r.lostResponse(e)
			return
		}
		r.refused(e, s)
	default:
		e.Stats.DropStale++
	}
}

// refused handles a NAK for the packet una.
func (r *requester) refused(e *transport.Env, s roce.Syndrome) {
	switch {
	case s.IsRNRNAK():
		r.rnrNAK(e, s)
	case s == roce.NAKPSNSeqErr:
		e.Stats.RcvdSeqNAK++
		// With nothing under way there is nothing to send again. So it is during an
		// RNR wait: rdma_rxe sends one for a packet that was in flight behind the
		// one refused, which must not end the wait.
		if r.next != r.una {
			r.retry(e)
		}
	case s == roce.NAKInvReq:
		r.qp.failSend(e, ib.WCRemInvReqErr)
	case s == roce.NAKRemAccess:
		r.qp.failSend(e, ib.WCRemAccessErr)
	case s == roce.NAKRemOp:
		r.qp.failSend(e, ib.WCRemOpErr)
	case s == roce.NAKInvRDReq && r.qp.class != 0:
		// Hardware that has a completion status of its own for a bad XRC receive
		// queue (hns) gives it this name: the NAK code may come on XRC too.
		r.qp.failSend(e, ib.WCRemInvRDReqErr)
	default:
		e.Stats.DropStale++ // reserved codes
	}
}

// arrived handles what responses have in common: they acknowledge all SENDs and
// WRITEs before them, and must be the one that is due. It reports whether this
// one is.
func (r *requester) arrived(e *transport.Env, at psn.PSN) bool {
	if !r.advance(e, at, false) {
		return false
	}
	if r.una != at {
		r.lostResponse(e)
		return false
	}
	return true
}

// readResponse stores a packet of READ data. Its opcode may be FIRST or ONLY in
// the middle of a request that was repeated from there.
func (r *requester) readResponse(e *transport.Env, p *transport.Packet, at psn.PSN) {
	if !r.arrived(e, at) {
		return
	}
	b := r.b
	w := b.SQ.At(b.SQ.Head())
	if extended(w.Op) {
		r.emptyResponse(e, p, at)
		return
	}
	if w.Op != ib.WRRDMARead {
		r.badResponse(e)
		return
	}
	i := uint32((at - w.FirstPSN) & psn.Mask)
	c := r.chunk()
	start, end := i%c == 0, (i+1)%c == 0 || at == w.LastPSN
	want := min(w.Length-uint64(i)*uint64(b.MTU), uint64(b.MTU))
	f := p.Info.Flags
	if uint64(len(p.Payload)) != want || f.Any(roce.FlagEnd) != end || start && !f.Any(roce.FlagStart) ||
		p.Info.AETH != 0 && !p.AETH().Syndrome().IsAck() {
		r.badResponse(e)
		return
	}
	if i == 0 {
		r.sink = transport.Cursor{}
	}
	if status := r.store(e, p.Payload); status != ib.WCSuccess {
		r.qp.failSend(e, status)
		return
	}
	if end && r.reads > 0 {
		r.reads--
	}
	r.advance(e, at.Next(), true)
}

// atomicResponse stores the original value of an atomic, in host order.
func (r *requester) atomicResponse(e *transport.Env, p *transport.Packet, at psn.PSN) {
	if !r.arrived(e, at) {
		return
	}
	w := r.b.SQ.At(r.b.SQ.Head())
	if !atomic(w.Op) || len(p.Payload) != 0 || !p.AETH().Syndrome().IsAck() {
		r.badResponse(e)
		return
	}
	var v [8]byte
	binary.NativeEndian.PutUint64(v[:], p.AtomicAckETH().Orig())
	r.sink = transport.Cursor{}
	if status := r.store(e, v[:]); status != ib.WCSuccess {
		r.qp.failSend(e, status)
		return
	}
	if r.reads > 0 {
		r.reads--
	}
	r.advance(e, at.Next(), true)
}

// store copies data to where the oldest WQE wants it.
func (r *requester) store(e *transport.Env, data []byte) ib.WCStatus {
	w := r.b.SQ.At(r.b.SQ.Head())
	at := r.sink
	pieces, status := r.sink.Pieces(e.Mem, r.b.PD, w.SGL, uint64(len(data)), true, r.qp.pieces[:0])
	if status == ib.WCSuccess && (transport.Scatter(pieces, data) != nil || !at.Arrived(e.Mem, w.SGL, uint64(len(data)))) {
		status = ib.WCLocProtErr
	}
	r.qp.keep(pieces)
	return status
}

// badResponse ends the oldest WQE: what came for it is no answer to it.
func (r *requester) badResponse(e *transport.Env) {
	e.Stats.BadResponse++
	r.qp.failSend(e, ib.WCBadRespErr)
}

// advance moves una up to the PSN to, completes the WQEs that it passes, and
// counts that as progress. It stops before a READ or an atomic unless its
// response was stored (stored). It reports whether the queue pair still works.
func (r *requester) advance(e *transport.Env, to psn.PSN, stored bool) bool {
	if r.una == to {
		return true
	}
	b := r.b
	from := r.una
	var bytes, pkts int
	for r.una != to && b.SQ.Len() > 0 {
		w := b.SQ.At(b.SQ.Head())
		if !w.Started || answered(w.Op) && !stored {
			break
		}
		stop := w.LastPSN.Next()
		done := uint32((to-w.FirstPSN)&psn.Mask) >= span(w)
		if !done {
			stop = to
		}
		// What waits for being sent again is not under way.
		sent := stop
		if sent.After(r.next) {
			sent = r.next
		}
		if r.una.Before(sent) {
			n, k := r.cost(w, uint32((r.una-w.FirstPSN)&psn.Mask), uint32((sent-w.FirstPSN)&psn.Mask))
			bytes, pkts = bytes+n, pkts+k
		}
		r.una = stop
		if done {
			if w.InvLocal && !r.endSink(e, w) {
				return false
			}
			b.CompleteSend(e, ib.WCSuccess)
			r.retireLocal(e)
		}
	}
	if r.una == from {
		return true
	}
	r.progress(e, bytes, pkts)
	return b.State != ib.QPStateErr
}

// progress follows an advance: counters start anew, so does the timer.
func (r *requester) progress(e *transport.Env, bytes, pkts int) {
	r.reload()
	r.gapped = false
	if r.asking && r.una.After(r.asked) {
		r.asking = false
	}
	if r.next.Before(r.una) {
		r.seek()
	}
	if r.rnrAt != 0 && r.una.After(r.rnrPSN) {
		r.rnrAt = 0
	}
	r.outBytes -= bytes
	r.outPkts -= pkts
	r.ackAt = 0
	if r.outPkts > 0 {
		r.startTimer(e)
	}
	if r.probing && r.una.After(r.probe) {
		r.probing = false
		r.b.Dest.Probed()
	}
	r.b.Dest.Acked(e, bytes, pkts)
	r.b.Flow.MaxSegs = r.b.Dest.GSO.MaxSegs()
	r.settle(e)
}
