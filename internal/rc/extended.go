package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// RDMA FLUSH and ATOMIC WRITE (IBA annex A19). Both are answered by a READ
// RESPONSE ONLY without payload, so both count among the READs and atomics under
// way, take an entry of the responder's and are executed once: a repeated request
// is answered from what was saved. rdma_rxe's responder does the same; no
// hardware is known to have them.

// extended reports whether an operation is answered by an empty READ response.
func extended(op ib.WROpcode) bool { return op == ib.WRFlush || op == ib.WRAtomicWrite }

// sendExtended sends the request packet of a FLUSH or ATOMIC WRITE.
func (r *requester) sendExtended(e *transport.Env, w *queue.WQE) bool {
	if r.reads >= int(r.b.Attr.MaxRDAtomic) {
		return false
	}
	if w.Op == ib.WRAtomicWrite {
		// A WRITE of one packet in all but its opcode and its answer.
		if !r.sendData(e, w) {
			return false
		}
		r.reads++
		return true
	}
	size, _ := r.cost(w, 0, 1)
	if !r.room(size) {
		return false
	}
	h := r.beginRequest(e, roce.OpRCFlush, roce.FETHLen+roce.RETHLen, w)
	roce.FETH(h).Put(w.FlushType, w.FlushLevel)
	roce.RETH(h[roce.FETHLen:]).Put(w.RemoteAddr, uint32(w.RKey), uint32(w.Length))
	e.Tx.End()
	r.b.Dest.Sent(size)
	r.reads++
	r.sent(e, size, r.next.Next(), true)
	r.nextWQE()
	return true
}

// emptyResponse takes the answer to the FLUSH or ATOMIC WRITE at una.
func (r *requester) emptyResponse(e *transport.Env, p *transport.Packet, at psn.PSN) {
	if p.Op.Operation() != roce.OpReadRespOnly || len(p.Payload) != 0 || !p.AETH().Syndrome().IsAck() {
		r.badResponse(e)
		return
	}
	if r.reads > 0 {
		r.reads--
	}
	r.advance(e, at.Next(), true)
}

// checkExtended asks whether the queue pair allows a FLUSH or ATOMIC WRITE. The
// latter is a remote write by its rights. What is reserved in a FETH is invalid,
// and so is a FLUSH of nothing, or to storage where there is none.
func (r *responder) checkExtended(e *transport.Env, p *transport.Packet) verdict {
	need := ib.AccessRemoteWrite
	if p.Op.Operation() == roce.OpFlush {
		h := p.FETH()
		const known = roce.FlushGlobalVisibility | roce.FlushPersistence
		if t := h.Placement(); t == 0 || t&^known != 0 || h.Selectivity() > roce.FlushMR ||
			t&roce.FlushPersistence != 0 && !e.Mem.CanPersist() {
			return invalid
		}
		need = flushRights(h)
	}
	if r.b.Attr.QPAccessFlags&need != need {
		return invalid
	}
	return good
}

// flushRights are the rights that a FLUSH takes, of the queue pair and of the
// region.
func flushRights(h roce.FETH) (need ib.Access) {
	if h.Placement()&roce.FlushGlobalVisibility != 0 {
		need |= ib.AccessFlushGlobal
	}
	if h.Placement()&roce.FlushPersistence != 0 {
		need |= ib.AccessFlushPersistent
	}
	return need
}

// checkExtendedLength: an ATOMIC WRITE has 8 bytes, by its RETH and its payload,
// for an address that is a multiple of 8.
func checkExtendedLength(p *transport.Packet) verdict {
	h := p.RETH()
	switch p.Op.Operation() {
	case roce.OpAtomicWrite:
		if h.DMALen() != 8 || len(p.Payload) != 8 || h.VA()%8 != 0 {
			return invalid
		}
	default:
		if h.DMALen() > ib.MaxMsgSize && p.FETH().Selectivity() == roce.FlushRange {
			return invalid
		}
	}
	return good
}

// executeExtended executes a FLUSH or ATOMIC WRITE, saves that, and answers it.
func (r *responder) executeExtended(e *transport.Env, p *transport.Packet) verdict {
	r.settleRefs(e)
	kind, v := resFlush, good
	if p.Op.Operation() == roce.OpAtomicWrite {
		kind, v = resAtomicWrite, r.atomicWrite(e, p)
	} else {
		v = r.flush(e, p)
	}
	if v != good {
		return v
	}
	if kind == resAtomicWrite {
		r.b.CountRemote(ib.CompCntrRemoteRDMAWrite, true)
	}
	s, i := r.takeSlot()
	*s = resource{kind: kind, first: r.epsn, last: r.epsn}
	s.answer(s.first, s.last, 0)
	r.epsn = r.epsn.Next()
	r.msn++
	r.enqueue(e, i)
	return good
}

// atomicWrite stores the 8 bytes of the payload, as they are, at once.
func (r *responder) atomicWrite(e *transport.Env, p *transport.Packet) verdict {
	h := p.RETH()
	pieces, ok := e.Mem.RemoteWord(r.b.PD, r.b.Num, ib.RKey(h.RKey()), h.VA(), ib.AccessRemoteWrite, r.qp.pieces[:0])
	ok = ok && len(pieces) == 1 && mem.StoreWord(pieces[0], p.Payload) == nil
	r.qp.keep(pieces)
	if !ok {
		return noAccess
	}
	return good
}

// flush makes what came before visible or durable. Earlier WRITEs were executed
// when they arrived, and whoever learns of the FLUSH's completion does so over
// the network or under a lock: visible they are. To make them durable takes as
// long as the storage does, and the shard waits for it: its other queue pairs
// make no progress meanwhile, nor do their timers (the FLUSH must not be
// answered before, and nothing of this queue pair executed that came after it).
func (r *responder) flush(e *transport.Env, p *transport.Packet) verdict {
	h, f := p.RETH(), p.FETH()
	pieces, ok := e.Mem.Flushable(r.b.PD, r.b.Num, ib.RKey(h.RKey()), h.VA(), uint64(h.DMALen()),
		f.Selectivity() == roce.FlushMR, flushRights(f), r.qp.pieces[:0])
	v := good
	if !ok {
		v = noAccess
	} else if f.Placement()&roce.FlushPersistence != 0 {
		for _, m := range pieces {
			switch err := e.Mem.Persist(m); err {
			case nil:
				continue
			case mem.ErrFault:
				v = noAccess
			default:
				v = localFault // the storage's: remote operational error
			}
			break
		}
	}
	r.qp.keep(pieces)
	return v
}

// repeatExtended answers a repeated FLUSH or ATOMIC WRITE that was executed.
func (r *responder) repeatExtended(e *transport.Env, p *transport.Packet) {
	kind := resFlush
	if p.Op.Operation() == roce.OpAtomicWrite {
		kind = resAtomicWrite
	}
	r.repeatSaved(e, p, kind)
}

// sendEmptyResponse answers a FLUSH or ATOMIC WRITE.
func (r *responder) sendEmptyResponse(e *transport.Env, s *resource) {
	const hdr = roce.BTHLen + roce.AETHLen
	b := r.b
	e.Room(0)
	h := e.Tx.Begin(b.Flow, hdr, 0)
	roce.BTH(h).Put(roce.OpRCReadRespOnly|r.qp.class, false, 0, uint16(b.PKey), uint32(b.Attr.DestQPN), false, s.next)
	roce.AETH(h[roce.BTHLen:]).Put(roce.AckNoCredit, r.msn)
	e.Tx.End()
}
