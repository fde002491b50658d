package ud

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// postPackets bounds the packets of one Post, so that one queue pair does not
// keep its shard.
const postPackets = 256

// sender is what the requesters of UC and UD have in common.
type sender struct {
	q    *transport.QP
	next psn.PSN // of the next packet

	// sent counts the WQEs at the head of the queue whose last packet is in the
	// batch and which are not completed yet.
	sent uint32
	// inPlace: the batch refers to memory of one of them, which belongs to the
	// application as soon as the completion is there.
	inPlace bool

	// notify: SQ_DRAINED is to be raised when the queue pair has come to rest in SQD.
	notify bool

	pieces [][]byte // scratch
}

// modified takes over what a modify call set. idle: no message is half sent.
func (s *sender) modified(e *transport.Env, from ib.QPState, mask ib.QPAttrMask, idle bool) {
	q := s.q
	if mask&ib.QPAttrSQPSN != 0 {
		s.next = psn.PSN(q.Attr.SQPSN & psn.Mask)
	}
	switch q.State {
	case ib.QPStateReset:
		for q.SQ.Len() > 0 {
			q.SQ.Pop()
		}
		if !q.Shared {
			q.RQ.Clear()
		}
		q.Forget()
	case ib.QPStateErr:
		q.FlushSends(e)
		q.FlushRecvs(e)
	case ib.QPStateRTS:
		if q.SQ.Len() > 0 { // posted while sends rested
			e.Ready = append(e.Ready, q)
		}
	case ib.QPStateSQD:
		if from != ib.QPStateSQD {
			s.notify = mask&ib.QPAttrEnSQDAsyncNotify != 0 && q.Attr.EnSQDAsyncNotify
			q.Attr.SQDraining = !idle
		}
		if idle {
			s.drained(e)
		}
		return
	}
	s.notify = false
	q.Attr.SQDraining = false
}

// drained tells that no message is half sent any more (IBA 10.3.1.5).
func (s *sender) drained(e *transport.Env) {
	s.q.Attr.SQDraining = false
	if s.notify {
		s.notify = false
		e.Raise(s.q.Events, ib.EventSQDrained)
	}
}

// pending gives the oldest WQE that is not sent, or nil.
func (s *sender) pending() *queue.WQE {
	i := s.q.SQ.Head() + s.sent
	if i == s.q.SQ.Tail() {
		return nil
	}
	return s.q.SQ.At(i)
}

// payload adds n bytes of s.pieces to the packet that was begun. False: the
// memory is gone, the packet was dropped.
func (s *sender) payload(e *transport.Env, n int) bool {
	for _, p := range s.pieces {
		if e.Tx.Payload(p) != nil {
			e.Tx.Abort()
			return false
		}
	}
	if n > pkt.InlineCopy {
		s.inPlace = true
	}
	return true
}

// done notes that the last packet of the oldest unsent WQE is in the batch.
func (s *sender) done() { s.sent++ }

// retire completes the WQEs that were sent. With the completion their memory
// goes back to the application, which may overwrite it at once: the batch has
// to leave before.
func (s *sender) retire(e *transport.Env) {
	if s.sent == 0 {
		return
	}
	if s.inPlace {
		e.Send()
		s.inPlace = false
	}
	for ; s.sent > 0; s.sent-- {
		s.q.CompleteSend(e, ib.WCSuccess)
	}
}

// fail completes the oldest unsent WQE with an error. The send side stops:
// what is behind it is flushed (IBA 10.3.1.6).
func (s *sender) fail(e *transport.Env, status ib.WCStatus) {
	s.retire(e)
	s.q.CompleteSend(e, status)
	s.q.State = ib.QPStateSQE
	s.q.Attr.SQDraining, s.notify = false, false
	s.q.FlushSends(e)
}

// local resolves the payload of a WQE into s.pieces.
func (s *sender) local(e *transport.Env, c *transport.Cursor, w *queue.WQE, off, n uint64) ib.WCStatus {
	var status ib.WCStatus
	s.pieces, status = c.SendPieces(e.Mem, s.q.PD, w, off, n, s.pieces[:0])
	return status
}

// broken moves the whole queue pair to the error state: a receive request was
// bad. It completes with status, all others are flushed.
func (s *sender) broken(e *transport.Env, status ib.WCStatus) {
	q := s.q
	q.CompleteRecv(e, &driver.WC{Status: status, Opcode: ib.WCRecv}, false)
	q.State = ib.QPStateErr
	s.retire(e)
	q.FlushSends(e)
	q.FlushRecvs(e)
}

// receives reports whether the queue pair takes packets in its state.
func receives(s ib.QPState) bool {
	switch s {
	case ib.QPStateRTR, ib.QPStateRTS, ib.QPStateSQD, ib.QPStateSQE:
		return true
	}
	return false
}

// release lets go of the memory that a packet touched.
func (s *sender) release() {
	clear(s.pieces)
	s.pieces = s.pieces[:0]
}
