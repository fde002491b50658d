package transport

import (
	"math/bits"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// CompCntr counts completions: those that succeeded and those that failed.
type CompCntr struct{ Done, Failed atomic.Uint64 }

// compCntrs are the counters of a queue pair, one for each operation that is
// counted, by the bit of ib.CompCntrOps.
type compCntrs [6]*CompCntr

// Count has c count the operations ops; false: another one counts one of them.
func (q *QP) Count(c *CompCntr, ops ib.CompCntrOps) bool {
	var t compCntrs
	if q.cntrs != nil {
		t = *q.cntrs
	}
	for i := range t {
		if ops>>i&1 == 0 {
			continue
		}
		if t[i] != nil {
			return false
		}
		t[i] = c
	}
	q.cntrs = &t
	return true
}

// count counts a completion of one operation.
func (q *QP) count(op ib.CompCntrOps, ok bool) {
	c := q.cntrs[bits.TrailingZeros32(uint32(op))]
	switch {
	case c == nil:
	case ok:
		c.Done.Add(1)
	default:
		c.Failed.Add(1)
	}
}

// countSend counts a send request that has ended, signaled or not. Atomics,
// FLUSH and what happens to keys are not counted: there is no name for them.
func (q *QP) countSend(op ib.WROpcode, ok bool) {
	switch op {
	case ib.WRSend, ib.WRSendWithImm, ib.WRSendWithInv:
		q.count(ib.CompCntrSend, ok)
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRAtomicWrite:
		q.count(ib.CompCntrRDMAWrite, ok)
	case ib.WRRDMARead:
		q.count(ib.CompCntrRDMARead, ok)
	}
}

// CountRemote counts a WRITE or READ of the peer's that was executed, or refused.
func (q *QP) CountRemote(op ib.CompCntrOps, ok bool) {
	if q.cntrs != nil {
		q.count(op, ok)
	}
}
