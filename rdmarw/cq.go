package rdmarw

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/verbs"
)

// CQE is who is told of a completion (struct ib_cqe). Work requests name it by the
// WRID that CQ.WRID gives; the completion of each calls Done. It may be embedded in
// what the work is about, and serve any number of requests, at the same time too. A
// CQE must not be copied after its first use.
type CQE struct {
	// Done is called for each completion, failed ones too, on the goroutine that
	// processes the queue, without a lock: it may post, destroy contexts and process
	// the queue itself. wc is valid during the call only.
	Done func(cq *CQ, wc *verbs.WC)

	in atomic.Pointer[entry] // the queues that know it
}

// entry is one queue that knows a CQE.
type entry struct {
	cq   *CQ
	id   uint64
	next *entry
}

// on finds the queue's entry; nil: it does not know the CQE.
func (e *CQE) on(cq *CQ) *entry {
	for r := e.in.Load(); r != nil; r = r.next {
		if r.cq == cq {
			return r
		}
	}
	return nil
}

// CQ hands the completions of a completion queue to their CQEs (kernel:
// ib_alloc_cq, ib_process_cq_direct). Nobody else may poll the queue, but for
// QP.Drain with Dispatch as its handler.
type CQ struct {
	cq    *verbs.CQ
	other func(*CQ, *verbs.WC)

	mu    sync.Mutex
	slots []slot   // by the low half of a WRID, less 1
	free  []int    // indices of empty slots
	bufs  []*batch // nobody uses them at the moment
}

// slot is the place of a CQE.
type slot struct {
	cqe *CQE
	gen uint32 // how often the place was left: the high half of the WRID
}

// pollBatch is how many completions are taken from the queue at a time.
const pollBatch = 16

// batch is where completions are while they are handed out.
type batch [pollBatch]verbs.WC

// NewCQ makes the queue's completions go to CQEs. other, which may be nil, gets those
// that belong to none: the parts of a chain before the last (WRID 0), which complete only
// when they fail, unless the queue pair has SQSigAll, and requests whose WRID is not from
// CQ.WRID.
func NewCQ(cq *verbs.CQ, other func(*CQ, *verbs.WC)) *CQ { return &CQ{cq: cq, other: other} }

// CQ is the queue itself.
func (q *CQ) CQ() *verbs.CQ { return q.cq }

// WRID gives the WRID whose completions call e.Done: it is never 0. The queue keeps e
// from then on, until Forget. Again gives the same number.
func (q *CQ) WRID(e *CQE) uint64 {
	if r := e.on(q); r != nil {
		return r.id
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := e.on(q); r != nil {
		return r.id
	}
	i := len(q.slots)
	if n := len(q.free); n > 0 {
		i, q.free = q.free[n-1], q.free[:n-1]
	} else {
		q.slots = append(q.slots, slot{})
	}
	s := &q.slots[i]
	s.cqe = e
	r := &entry{cq: q, id: uint64(s.gen)<<32 | uint64(i+1)}
	for { // another queue may be about to add its own
		r.next = e.in.Load()
		if e.in.CompareAndSwap(r.next, r) {
			return r.id
		}
	}
}

// Forget lets go of e, if the queue knows it. No completion of it is outstanding
// then; one that is goes to nobody.
func (q *CQ) Forget(e *CQE) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := e.on(q)
	if r == nil {
		return
	}
	i := int(uint32(r.id)) - 1
	s := &q.slots[i]
	s.cqe, s.gen = nil, (s.gen+1)&maxGen
	q.free = append(q.free, i)
	for {
		old := e.in.Load()
		if e.in.CompareAndSwap(old, old.without(q)) {
			return
		}
	}
}

// maxGen leaves out the highest WRIDs, which are Drain's.
const maxGen = 1<<31 - 1

// without is the list without one queue's entry.
func (r *entry) without(q *CQ) *entry {
	switch {
	case r == nil:
		return nil
	case r.cq == q:
		return r.next
	}
	return &entry{r.cq, r.id, r.next.without(q)}
}

// find is the CQE of a WRID, or nil.
func (q *CQ) find(id uint64) *CQE {
	i := uint32(id) - 1
	q.mu.Lock()
	defer q.mu.Unlock()
	if uint64(i) >= uint64(len(q.slots)) {
		return nil
	}
	if s := &q.slots[i]; s.cqe != nil && s.gen == uint32(id>>32) {
		return s.cqe
	}
	return nil
}

// Process polls the queue and calls back for what it gives, in batches, until it is
// empty or budget completions were handled; a negative budget is without limit. It
// returns how many it were. On an empty queue it makes the progress of the whole
// device. Several goroutines may do so: each completion is handled by one of them.
// The errors are those of CQ.Poll.
func (q *CQ) Process(budget int) (int, error) {
	if budget == 0 {
		return 0, nil
	}
	b := q.take()
	defer q.give(b)
	done := 0
	for {
		want := pollBatch
		if budget > 0 {
			want = min(want, budget-done)
		}
		n, err := q.cq.Poll(b[:want])
		q.Dispatch(b[:n])
		done += n
		switch {
		case err != nil:
			return done, opErr("process_cq", err)
		case n < want, done == budget:
			return done, nil
		}
	}
}

// Dispatch calls back for completions that were polled elsewhere: it is a handler for
// QP.Drain.
func (q *CQ) Dispatch(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		switch e := q.find(wc.WRID); {
		case e != nil && e.Done != nil:
			e.Done(q, wc)
		case q.other != nil:
			q.other(q, wc)
		}
	}
}

// runBudget is how many completions Run handles before it lets others run.
const runBudget = 256

// Run processes the queue, and waits for completions without polling for long, until
// ctx is done or the queue is destroyed. It returns ctx's error, or that of CQ.Poll
// or CQ.Wait.
func (q *CQ) Run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return opErr("run_cq", err)
		}
		n, err := q.Process(runBudget)
		switch {
		case err != nil:
			return err
		case n == runBudget:
			runtime.Gosched()
			continue
		case n > 0:
			continue
		}
		if err := q.cq.Wait(ctx); err != nil {
			return opErr("run_cq", err)
		}
	}
}

// take gives a batch that nobody uses.
func (q *CQ) take() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.bufs); n > 0 {
		b := q.bufs[n-1]
		q.bufs = q.bufs[:n-1]
		return b
	}
	return new(batch)
}

func (q *CQ) give(b *batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bufs = append(q.bufs, b)
}
