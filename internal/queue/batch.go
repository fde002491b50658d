package queue

import "github.com/verbena-rdma/verbena/ib"

// Truncate takes back what was pushed since Tail was tail, none of which the
// protocol has seen.
func (q *SQ) Truncate(tail uint32) {
	for q.tail != tail {
		q.tail--
		w := q.At(q.tail)
		w.AH = nil
		if w.Op == ib.WRBindMW || w.Op == ib.WRRegMR {
			q.TakeBind(q.tail)
		}
	}
}
