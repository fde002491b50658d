package transport

import "github.com/verbena-rdma/verbena/ib"

// Local executes WQE i, a local operation: BIND_MW, LOCAL_INV or REG_MR. All that can be
// wrong with one is the status MW_BIND_ERR, the standard's memory management
// operation error (IBA 11.6.2), as on NICs; rdma_rxe says LOC_QP_OP_ERR of
// LOCAL_INV and REG_MR.
func (q *QP) Local(e *Env, i uint32) ib.WCStatus {
	if !e.Tx.Empty() {
		// Packets in the batch may refer to the memory; behind the completion it is
		// the application's alone.
		e.Send()
	}
	w := q.SQ.At(i)
	var ok bool
	switch w.Op {
	case ib.WRBindMW:
		win, reg := q.SQ.TakeBind(i)
		ok = win != nil && e.Mem.Bind(q.PD, q.Num, win, reg, w.RKey, w.RemoteAddr, w.CompareAdd, ib.Access(w.Swap))
	case ib.WRRegMR:
		_, reg := q.SQ.TakeBind(i)
		ok = reg != nil && e.Mem.FastRegister(q.PD, reg, w.RKey, ib.Access(w.Swap))
	case ib.WRLocalInv:
		ok = e.Mem.Invalidate(q.PD, q.Num, w.InvKey, false)
	}
	if !ok {
		return ib.WCMWBindErr
	}
	return ib.WCSuccess
}
