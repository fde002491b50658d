package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
)

// Local operations (BIND_MW, LOCAL_INV, REG_MR) take no PSN. They are executed
// when all earlier work requests have been sent, and complete when those have
// completed: what is sent later finds them done (IBA 10.8.3, table 79).

// beginLocal executes the local operation w. A LOCAL_INV with a fence waits for
// all earlier work: what is sent again, and READs, still need the key (IBA
// 10.8.3.3). Other local operations have the ordinary fence.
func (r *requester) beginLocal(e *transport.Env, w *queue.WQE) bool {
	if w.Op == ib.WRLocalInv && w.Flags&ib.SendFence != 0 && r.cur != r.b.SQ.Head() {
		return false
	}
	if s := r.b.Local(e, r.cur); s != ib.WCSuccess {
		return r.stall(e, w, s)
	}
	w.Started, w.Done = true, true
	return true
}

// endSink invalidates the key of a READ with invalidate, whose data is all here,
// before its completion. False: it could not be, and the queue pair ends.
func (r *requester) endSink(e *transport.Env, w *queue.WQE) bool {
	s := r.b.InvalidateLocal(e, r.b.SQ.Head(), w.InvKey)
	if s != ib.WCSuccess {
		r.qp.failSend(e, s)
	}
	return s == ib.WCSuccess
}

// passLocal moves behind the local operation at cur, which is done.
func (r *requester) passLocal(e *transport.Env) {
	if r.cur != r.b.SQ.Head() {
		r.nextWQE()
		return
	}
	r.retireLocal(e)
}

// retireLocal completes local operations that have become the oldest work.
func (r *requester) retireLocal(e *transport.Env) {
	for r.b.SQ.Len() > 0 && r.b.SQ.At(r.b.SQ.Head()).Done {
		if r.cur == r.b.SQ.Head() {
			r.nextWQE()
		}
		r.b.CompleteSend(e, ib.WCSuccess)
	}
}
