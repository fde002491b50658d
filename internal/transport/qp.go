package transport

import (
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/timer"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// QP is the part of a queue pair that all services share. Its device fills it;
// services read it and change State when work fails.
type QP struct {
	Num    ib.QPN
	Type   ib.QPType
	State  ib.QPState
	Attr   ib.QPAttr // as stored by modify; Attr.QPState is not maintained, State is
	PD     *mem.PD
	SQ     *queue.SQ
	RQ     *queue.RQ
	Shared bool // RQ is a shared receive queue
	// XRCD is where an XRC target finds its receive queues; PD, RQ, RecvCQ and
	// SRQEvents are then those of the request at hand (SelectSRQ).
	XRCD   *XRCD
	SendCQ *queue.CQ
	RecvCQ *queue.CQ
	SigAll bool
	// SinkRemoteWrite: a READ fills memory only that grants remote write (iWARP).
	SinkRemoteWrite bool

	// Events receives the queue pair's asynchronous events, SRQEvents those of
	// its shared receive queue.
	Events    driver.EventSink
	SRQEvents driver.EventSink

	// Set by the device when the queue pair goes to RTR (RC, UC).
	Flow *pkt.Flow
	Dest *Dest
	MTU  int // path MTU in bytes; for UD that of the port
	PKey ib.PKey

	Service Service // the service of this queue pair
	Timer   timer.Item[*QP]

	xrcSRQ  *XRCSRQ
	waiting bool // in Dest.waiters
	Owes    bool // in Env.Owed
	commEst bool
	lastWQE bool
	doomed  bool // in Env.Doomed
	// Flushed tells that receives are being flushed: whoever posts one has to
	// flush it.
	Flushed  atomic.Bool
	Recv     queue.RecvWQE // the receive in progress; storage is reused
	RecvBusy bool          // Recv holds a request that was taken and not completed

	cntrs *compCntrs // completion counters; nil: none

	fault   ib.VendorErr // why WQE faultAt fails; 0: there is none, or no more to tell
	faultAt uint32

	Stats Stats // what the steps for this queue pair counted; under the shard's lock
}

// Owe puts the queue pair on the list of those that owe an ACK.
func (q *QP) Owe(e *Env) {
	if !q.Owes {
		q.Owes = true
		e.Owed = append(e.Owed, q)
	}
}

// TakeRecv takes the next receive request into q.Recv, unless one is in
// progress. False: none is posted.
func (q *QP) TakeRecv(e *Env) bool {
	if q.RecvBusy {
		return true
	}
	ok, limit := q.RQ.Take(&q.Recv)
	if limit {
		e.Raise(q.SRQEvents, ib.EventSRQLimitReached)
	}
	q.RecvBusy = ok
	return ok
}

// CompleteRecv completes the receive in progress. wc's WRID and QPNum are
// filled in.
func (q *QP) CompleteRecv(e *Env, wc *driver.WC, solicited bool) {
	if q.dropGone(); !q.RecvBusy {
		return
	}
	wc.WRID, wc.QPNum = q.Recv.WRID, q.Num
	q.RecvBusy = false
	switch wc.Status {
	case ib.WCSuccess:
		e.Stats.RDMARecvs++
	default:
		e.Stats.recvFailed(wc.Status)
	}
	if q.cntrs != nil {
		q.count(ib.CompCntrRecv, wc.Status == ib.WCSuccess)
	}
	e.Complete(q.RecvCQ, wc, solicited || wc.Status != ib.WCSuccess)
	q.doom(e, q.RecvCQ)
}

// CompleteSend retires the oldest send WQE with the given status. Success of an
// unsignaled request makes no completion, an error always does (IBA 10.8.6).
func (q *QP) CompleteSend(e *Env, status ib.WCStatus) {
	w := q.SQ.At(q.SQ.Head())
	if status != ib.WCSuccess {
		e.Stats.sendFailed(status)
	} else if isSend(w.Op) {
		e.Stats.RDMASends++
	}
	if q.cntrs != nil {
		q.countSend(w.Op, status == ib.WCSuccess)
	}
	if status != ib.WCSuccess || w.Signaled {
		wc := driver.WC{WRID: w.WRID, Status: status, Opcode: WCOpcode(w.Op), QPNum: q.Num}
		switch w.Op {
		case ib.WRRDMARead:
			wc.ByteLen = uint32(w.Length)
		case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAndAdd:
			wc.ByteLen = 8
		}
		if q.fault != 0 && status != ib.WCSuccess {
			if q.faultAt == q.SQ.Head() && status != ib.WCWRFlushErr {
				wc.VendorErr = uint32(q.fault)
			}
			q.fault = 0 // what failed is this one, or flushed with it
		}
		e.Complete(q.SendCQ, &wc, status != ib.WCSuccess)
		q.doom(e, q.SendCQ)
	}
	q.SQ.Pop()
}

// FlushSends completes all send WQEs with WR_FLUSH_ERR.
func (q *QP) FlushSends(e *Env) {
	for q.SQ.Len() > 0 {
		q.CompleteSend(e, ib.WCWRFlushErr)
	}
}

// FlushRecvs completes the receive in progress and all that are posted with
// WR_FLUSH_ERR. On a shared queue only the one in progress is the queue pair's
// own; LAST_WQE_REACHED is raised once instead (IBA 11.6.3.1). An XRC target has
// no shared receive queue in that sense: it was not created with one, any number
// of others fill those that it uses, and nobody counts on the event.
func (q *QP) FlushRecvs(e *Env) {
	q.Flushed.Store(true)
	q.dropGone()
	for q.RecvBusy || !q.Shared && q.TakeRecv(e) {
		q.CompleteRecv(e, &driver.WC{Status: ib.WCWRFlushErr, Opcode: ib.WCRecv}, false)
	}
	if q.Shared && !q.lastWQE && q.XRCD == nil {
		q.lastWQE = true
		e.Raise(q.Events, ib.EventQPLastWQEReached)
	}
}

// Established raises COMM_EST at the first packet that arrives in RTR.
func (q *QP) Established(e *Env) {
	if q.State == ib.QPStateRTR && !q.commEst {
		q.commEst = true
		e.Raise(q.Events, ib.EventCommEst)
	}
}

// Forget clears what a reset forgets.
func (q *QP) Forget() {
	q.commEst, q.lastWQE, q.RecvBusy = false, false, false
	q.Flushed.Store(false)
}

func isSend(op ib.WROpcode) bool {
	return op == ib.WRSend || op == ib.WRSendWithImm || op == ib.WRSendWithInv
}

// WCOpcode is the completion opcode of a send work request.
func WCOpcode(op ib.WROpcode) ib.WCOpcode {
	switch op {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		return ib.WCRDMAWrite
	case ib.WRRDMARead:
		return ib.WCRDMARead
	case ib.WRAtomicCmpAndSwp:
		return ib.WCCompSwap
	case ib.WRAtomicFetchAndAdd:
		return ib.WCFetchAdd
	case ib.WRLocalInv:
		return ib.WCLocalInv
	case ib.WRBindMW:
		return ib.WCBindMW
	case ib.WRTSO:
		return ib.WCTSO
	case ib.WRFlush:
		return ib.WCFlush
	case ib.WRAtomicWrite:
		return ib.WCAtomicWrite
	case ib.WRRegMR, ib.WRRegMRIntegrity:
		return ib.WCRegMR
	}
	return ib.WCSend
}
