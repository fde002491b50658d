package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
)

// doom notes that the queue pair's completions go to a queue in error: it cannot
// report its work any more, which is its end (IBA 11.6.3.2, local work queue
// catastrophic error). The state does not change here, in the middle of a step:
// FailDoomed does that at its end.
func (q *QP) doom(e *Env, cq *queue.CQ) {
	if cq.Overrun() && !q.doomed {
		q.doomed = true
		e.Doomed = append(e.Doomed, q)
	}
}

// FailDoomed ends the queue pairs that lost completions in this step: each goes
// to Err and raises QP_FATAL, unless it is there already. The caller holds the
// lock and is in no service's step.
func (e *Env) FailDoomed() {
	for len(e.Doomed) > 0 {
		n := len(e.Doomed) - 1
		q := e.Doomed[n]
		e.Doomed[n] = nil
		e.Doomed = e.Doomed[:n]
		if q.Fail(e) {
			e.Raise(q.Events, ib.EventQPFatal)
		}
		// Not before: what Fail flushes is lost too. A reset queue pair that
		// works for the same queue again ends again.
		q.doomed = false
	}
}

// Fail moves the queue pair to Err from the outside, as a modify would: its work
// is flushed. It reports whether that changed anything: Reset and Err stay. The
// caller holds the lock and is in no service's step.
func (q *QP) Fail(e *Env) bool {
	from := q.State
	if from == ib.QPStateReset || from == ib.QPStateErr {
		return false
	}
	e.Count(&q.Stats)
	q.State = ib.QPStateErr
	q.Service.Modified(e, from, ib.QPAttrState)
	return true
}
