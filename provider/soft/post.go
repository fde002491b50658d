package soft

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// PostSendAll implements driver.BatchPoster.
func (q *qp) PostSendAll(wrs []driver.SendWR) (n int, err error) {
	e := q.sh.LockFor(&q.QP)
	tail := q.SQ.Tail()
	// A handle that is not of this module may panic when it is unwrapped.
	posted := false
	defer func() {
		if !posted {
			q.SQ.Truncate(tail)
		}
		q.sh.Unlock(&q.QP)
	}()
	if err = q.canPost(); err != nil {
		return len(wrs), err
	}
	for ; n < len(wrs); n++ {
		if err = q.push(&wrs[n]); err != nil {
			return n, err
		}
	}
	posted = true
	if n > 0 {
		q.Service.Post(e)
	}
	return n, nil
}

// CanSend implements driver.BatchPoster.
func (q *qp) CanSend(op ib.WROpcode) error { return queue.CheckOpcode(op, q.Type, &q.limits) }
