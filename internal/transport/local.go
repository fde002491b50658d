package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
)

// Local executes WQE i, a local operation: BIND_MW, LOCAL_INV, REG_MR or
// REG_MR_INTEGRITY. All that can be
// wrong with one is the status MW_BIND_ERR, the standard's memory management
// operation error (IBA 11.6.2), as on NICs; rdma_rxe says LOC_QP_OP_ERR of
// LOCAL_INV and REG_MR.
func (q *QP) Local(e *Env, i uint32) ib.WCStatus {
	w := q.SQ.At(i)
	switch w.Op {
	case ib.WRBindMW:
		win, reg := q.SQ.TakeBind(i)
		if e.Revoke(func() bool {
			return win != nil && e.Mem.Bind(q.PD, q.Num, win, reg, w.RKey, w.RemoteAddr, w.CompareAdd, ib.Access(w.Swap))
		}) {
			return ib.WCSuccess
		}
		if win != nil {
			q.Fault(i, e.Mem.BindFault(q.PD, win, reg, w.RKey, w.RemoteAddr, w.CompareAdd, ib.Access(w.Swap)))
		}
	case ib.WRRegMR, ib.WRRegMRIntegrity:
		_, reg := q.SQ.TakeBind(i)
		if reg != nil && e.Mem.FastRegister(q.PD, reg, w.RKey, ib.Access(w.Swap)) {
			return ib.WCSuccess
		}
		if reg != nil {
			q.Fault(i, e.Mem.FastRegisterFault(q.PD, reg, w.RKey, ib.Access(w.Swap)))
		}
	case ib.WRLocalInv:
		return q.InvalidateLocal(e, i, w.InvKey)
	}
	return ib.WCMWBindErr
}

// InvalidateLocal invalidates a key of this side's for WQE i.
func (q *QP) InvalidateLocal(e *Env, i uint32, key ib.RKey) ib.WCStatus {
	if e.Revoke(func() bool { return e.Mem.Invalidate(q.PD, q.Num, key, false) }) {
		return ib.WCSuccess
	}
	q.Fault(i, e.Mem.InvalidateFault(q.PD, q.Num, key))
	return ib.WCMWBindErr
}

// SinkWritable reports whether the keys of a READ's list grant remote write, as
// iWARP needs it, where the responder writes to what the READ names.
func (q *QP) SinkWritable(e *Env, w *queue.WQE) bool {
	for i := range w.SGL {
		if w.SGL[i].Length != 0 && !e.Mem.Grants(q.PD, w.SGL[i].LKey, ib.AccessRemoteWrite) {
			return false
		}
	}
	return true
}

// Fault notes why WQE i is going to fail, for its completion. A queue pair has one
// such WQE: nothing behind it begins.
func (q *QP) Fault(i uint32, why ib.VendorErr) { q.fault, q.faultAt = why, i }

// Revoke calls f, which takes a key away, and makes that good: when it returns
// nobody uses the key any more, on other shards neither, and no packet in the
// batch refers to the memory. With the completion it is the application's alone.
// It returns what f does.
func (e *Env) Revoke(f func() bool) bool {
	if !e.Tx.Empty() {
		e.Send()
	}
	ok := f()
	if ok && e.Settle != nil {
		e.Settle()
	}
	return ok
}
