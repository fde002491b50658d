package queue

import "github.com/verbena-rdma/verbena/verbs/driver"

// RecvWQE is a receive work request. SGL lies in memory of the ring and is
// valid until the WQE is released by the next Take or, for the RC responder
// which holds it over several packets, until Release.
type RecvWQE struct {
	WRID uint64
	SGL  []driver.SGE
}

// RQ is a receive queue, of one queue pair or shared by many (SRQ). It has its
// own lock: posting never takes a shard's.
type RQ struct{}

// NewRQ makes a receive queue. onLimit is called (with no lock of the queue
// held) when a shared queue falls below its limit.
func NewRQ(depth, maxSGE int) *RQ { return &RQ{} }

// Post appends; it returns how many were taken and the error about the next.
func (q *RQ) Post(wrs []driver.RecvWR) (int, error) { return 0, nil }

// Take moves the oldest WQE into dst (whose SGL storage is reused, so that the
// slot is free at once). False: empty. limit tells that a shared queue just
// fell below its limit: the caller raises SRQ_LIMIT_REACHED.
func (q *RQ) Take(dst *RecvWQE) (ok, limit bool) { return false, false }
