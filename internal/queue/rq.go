package queue

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// RecvWQE is a receive work request. SGL lies in memory of the RecvWQE itself,
// which Take fills anew.
type RecvWQE struct {
	WRID uint64
	SGL  []driver.SGE
}

// RQ is a receive queue, of one queue pair or shared by many (SRQ). It has its
// own lock: posting never takes a shard's.
type RQ struct {
	maxSGE int

	mu     sync.Mutex
	ring   []recvSlot
	sgl    store[driver.SGE]
	head   int // ring index of the oldest
	n      int
	limit  int  // of a shared queue; 0 = not armed
	closed bool // posts are refused
}

type recvSlot struct {
	wrid uint64
	sges int
}

// NewRQ makes a receive queue for depth work requests, 0 to MaxDepth.
func NewRQ(depth, maxSGE int) *RQ {
	return &RQ{maxSGE: maxSGE, ring: make([]recvSlot, depth), sgl: newStore[driver.SGE](depth, maxSGE)}
}

// MaxSGE is the most elements that a work request may have.
func (q *RQ) MaxSGE() int { return q.maxSGE }

// Cap is the number of work requests that the queue holds at most.
func (q *RQ) Cap() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ring)
}

// Len is the number that it holds.
func (q *RQ) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n
}

// Post appends; it returns how many were taken and the error about the next:
// a *WRError, EINVAL for too many elements or a queue that is closed, ENOMEM
// when the queue is full.
func (q *RQ) Post(wrs []driver.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		if err := q.post(&wrs[i]); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (q *RQ) post(wr *driver.RecvWR) error {
	if q.closed {
		return &WRError{"queue", syscall.EINVAL, "the queue pair is in state RESET, receives need INIT or later"}
	}
	if err := CheckRecv(wr, q.maxSGE); err != nil {
		return err
	}
	if q.n == len(q.ring) {
		return ErrFull
	}
	i := q.wrap(q.head + q.n)
	q.ring[i] = recvSlot{wr.WRID, len(wr.SGList)}
	_ = append(q.sgl.slot(i), wr.SGList...) // fits: the list was checked
	q.n++
	return nil
}

func (q *RQ) wrap(i int) int {
	if i >= len(q.ring) {
		i -= len(q.ring)
	}
	return i
}

// Take moves the oldest WQE into dst (whose SGL storage is reused, so that the
// slot is free at once). False: empty. limit tells that a shared queue just
// fell below its limit: the caller raises SRQ_LIMIT_REACHED. That happens once;
// the limit is then 0 (IBA 10.2.9.1).
func (q *RQ) Take(dst *RecvWQE) (ok, limit bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		return false, false
	}
	s := &q.ring[q.head]
	dst.WRID = s.wrid
	dst.SGL = append(dst.SGL[:0], q.sgl.slot(q.head)[:s.sges]...)
	q.head = q.wrap(q.head + 1)
	q.n--
	if q.n < q.limit {
		q.limit = 0
		return true, true
	}
	return true, false
}

// Limit is the armed limit, 0 when none is.
func (q *RQ) Limit() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.limit
}

// SetLimit arms the limit: the Take that leaves fewer than n reports it. 0
// disarms. EINVAL: beyond the queue's size.
func (q *RQ) SetLimit(n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := checkLimit(n, len(q.ring)); err != nil {
		return err
	}
	q.limit = n
	return nil
}

func checkLimit(n, depth int) error {
	if n < 0 || n > depth {
		return &WRError{"SRQLimit", syscall.EINVAL, fmt.Sprintf("%d, the queue has %d", n, depth)}
	}
	return nil
}

// Resize changes the size to depth, at most most, and keeps what the queue
// holds. EINVAL: 0, beyond most, below the armed limit, or fewer than it holds;
// nothing has changed then.
func (q *RQ) Resize(depth, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.resize(depth, most, q.limit)
}

// ResizeLimit is Resize and SetLimit in one step: both are done or none.
func (q *RQ) ResizeLimit(depth, most, limit int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := checkLimit(limit, depth); err != nil {
		return err
	}
	if err := q.resize(depth, most, limit); err != nil {
		return err
	}
	q.limit = limit
	return nil
}

func (q *RQ) resize(depth, most, limit int) error {
	switch {
	case depth <= 0 || depth > most:
		return &WRError{"MaxWR", syscall.EINVAL, fmt.Sprintf("%d, possible are 1 to %d", depth, most)}
	case depth < q.n:
		return &WRError{"MaxWR", syscall.EINVAL, fmt.Sprintf("%d, the queue holds %d", depth, q.n)}
	case depth < limit:
		return &WRError{"MaxWR", syscall.EINVAL, fmt.Sprintf("%d, the limit is %d", depth, limit)}
	case depth == len(q.ring):
		return nil
	}
	ring, sgl := make([]recvSlot, depth), newStore[driver.SGE](depth, q.maxSGE)
	for i := range q.n {
		from := q.wrap(q.head + i)
		ring[i] = q.ring[from]
		_ = append(sgl.slot(i), q.sgl.slot(from)[:ring[i].sges]...)
	}
	q.ring, q.sgl, q.head = ring, sgl, 0
	return nil
}

// SetClosed says whether posts are refused: in state RESET, and after destroy.
func (q *RQ) SetClosed(closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = closed
}

// Clear drops all work requests, as a reset does.
func (q *RQ) Clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.head, q.n = 0, 0
}
