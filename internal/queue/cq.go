package queue

import "github.com/verbena-rdma/verbena/verbs/driver"

// CQ is a completion queue. It has its own lock; several shards may feed it.
type CQ struct{}

// NewCQ makes a queue for cqe completions.
func NewCQ(cqe int) *CQ { return &CQ{} }

// Push appends a completion. fire: the queue was armed for it, and is not any
// more: the caller notifies, without locks. overrun: the queue was full, the
// completion is lost and the queue is in error (true once, at the first).
func (c *CQ) Push(wc *driver.WC, solicited bool) (fire, overrun bool) { return false, false }

// Poll moves up to len(dst) completions to dst.
func (c *CQ) Poll(dst []driver.WC) int { return 0 }

// Empty reports, without a lock, whether the queue looks empty.
func (c *CQ) Empty() bool { return true }

// Arm asks for one notification: at the next completion, or the next solicited
// (or failed) one. True: the queue holds completions already.
func (c *CQ) Arm(solicitedOnly bool) bool { return false }

// Notify calls the function given by SetNotify and wakes who waits.
func (c *CQ) Notify() {}

// SetNotify sets what Notify calls. Before the queue is used.
func (c *CQ) SetNotify(f func()) {}

// EventSink is the receiver of the queue's asynchronous events, or nil.
func (c *CQ) EventSink() driver.EventSink { return nil }

// SetEventSink sets it.
func (c *CQ) SetEventSink(s driver.EventSink) {}
