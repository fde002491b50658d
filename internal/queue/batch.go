package queue

import "github.com/verbena-rdma/verbena/ib"

// Truncate takes back what was pushed since Tail was tail, none of which the
// protocol has seen.
func (q *SQ) Truncate(tail uint32) {
	for q.tail != tail {
		q.tail--
		w := q.At(q.tail)
		w.AH = nil
		if opsMemory.Has(w.Op) && w.Op != ib.WRLocalInv {
			q.TakeBind(q.tail)
		}
	}
}
