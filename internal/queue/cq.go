package queue

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CQ is a completion queue. It has its own lock; several shards may feed it.
type CQ struct {
	n       atomic.Int32 // completions in the ring; written under the lock
	overrun atomic.Bool  // set under the lock

	mu       sync.Mutex
	ring     []driver.WC
	head     int
	armed    arming
	due      int  // armed notifications on their way: so many calls of Notify call notify
	waking   bool // Push has reported for the sleepers: Notify wakes them
	sleepers []*Waiter
	notify   func()
	events   driver.EventSink
}

// arming is what a completion queue is armed for.
type arming uint8

const (
	armedNot arming = iota
	armedSolicited
	armedAny
)

// Waiter is somebody who sleeps until a completion queue gets something. One
// Waiter may sleep on several queues; it is reused.
type Waiter struct {
	// C gets a value when the waiter shall look again. A value may be left over
	// from before, or come for nothing.
	C chan struct{}
}

// NewWaiter makes a waiter.
func NewWaiter() *Waiter { return &Waiter{C: make(chan struct{}, 1)} }

// Wake makes the waiter look again.
func (w *Waiter) Wake() {
	select {
	case w.C <- struct{}{}:
	default: // a value is there already
	}
}

// NewCQ makes a queue for cqe completions, at least 1.
func NewCQ(cqe int) *CQ { return &CQ{ring: make([]driver.WC, cqe)} }

// Cap is the number of completions that the queue holds at most.
func (c *CQ) Cap() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ring)
}

// Push appends a completion. fire: somebody is to be told (the queue was armed
// for it, and is not any more; or somebody sleeps): the caller calls Notify,
// without locks. overrun: the queue was full, the completion is lost and the
// queue is in error (true once, at the first; the caller calls Notify then
// too). A queue in error takes nothing any more.
func (c *CQ) Push(wc *driver.WC, solicited bool) (fire, overrun bool) {
	c.mu.Lock()
	if c.overrun.Load() {
		c.mu.Unlock()
		return false, false
	}
	n := int(c.n.Load())
	if n == len(c.ring) {
		c.overrun.Store(true)
		if c.armed != armedNot {
			c.armed = armedNot
			c.due++
		}
		c.mu.Unlock()
		return false, true
	}
	c.ring[c.wrap(c.head+n)] = *wc
	c.n.Store(int32(n + 1))
	// A failed completion counts as solicited (IBA 11.4.2.2).
	if c.armed == armedAny || c.armed == armedSolicited && (solicited || wc.Status != ib.WCSuccess) {
		c.armed = armedNot
		c.due++
		fire = true
	}
	if len(c.sleepers) > 0 && !c.waking {
		c.waking = true
		fire = true
	}
	c.mu.Unlock()
	return fire, false
}

func (c *CQ) wrap(i int) int {
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	return i
}

// Poll moves up to len(dst) completions to dst. With 0 and Overrun the queue
// has lost completions behind those that it gave.
func (c *CQ) Poll(dst []driver.WC) int {
	if c.n.Load() == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(int(c.n.Load()), len(dst))
	k := copy(dst[:n], c.ring[c.head:])
	copy(dst[k:n], c.ring)
	c.head = c.wrap(c.head + n)
	c.n.Add(int32(-n))
	return n
}

// Empty reports, without a lock, whether the queue looks empty.
func (c *CQ) Empty() bool { return c.n.Load() == 0 }

// Len is the number of completions that the queue holds, without a lock.
func (c *CQ) Len() int { return int(c.n.Load()) }

// Overrun reports, without a lock, whether the queue is in error because it was
// too small.
func (c *CQ) Overrun() bool { return c.overrun.Load() }

// Arm asks for one notification: at the next completion, or the next solicited
// (or failed) one. Asked for both, any completion does. True: the queue holds
// completions already, or is in error.
func (c *CQ) Arm(solicitedOnly bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !solicitedOnly {
		c.armed = armedAny
	} else if c.armed == armedNot {
		c.armed = armedSolicited
	}
	return c.n.Load() > 0 || c.overrun.Load()
}

// Armed reports whether a notification was asked for and is not due yet.
func (c *CQ) Armed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.armed != armedNot
}

// Notify calls the function given by SetNotify, if the queue was armed for what
// it got, and wakes who sleeps. The caller holds no locks. It is called once
// for each Push that said so: each notification that was asked for is given.
func (c *CQ) Notify() {
	c.mu.Lock()
	var f func()
	if c.due > 0 {
		c.due--
		f = c.notify
	}
	c.waking = false
	for _, w := range c.sleepers {
		w.Wake() // does not block
	}
	c.mu.Unlock()
	if f != nil {
		f()
	}
}

// Sleep enters w among those that Notify wakes, until Leave. The order that
// loses nothing: Sleep, look at Empty and Overrun, wait for w.C, look again.
func (c *CQ) Sleep(w *Waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sleepers = append(c.sleepers, w)
}

// Leave takes w out again, if it is in.
func (c *CQ) Leave(w *Waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, s := range c.sleepers {
		if s == w {
			last := len(c.sleepers) - 1
			c.sleepers[i] = c.sleepers[last]
			c.sleepers[last] = nil
			c.sleepers = c.sleepers[:last]
			return
		}
	}
}

// SetNotify sets what Notify calls.
func (c *CQ) SetNotify(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notify = f
}

// EventSink is the receiver of the queue's asynchronous events, or nil.
func (c *CQ) EventSink() driver.EventSink {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events
}

// SetEventSink sets it.
func (c *CQ) SetEventSink(s driver.EventSink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = s
}

// Resize changes the size to cqe, at most most, and keeps what the queue holds.
// EINVAL: 0, beyond most, or fewer than it holds; nothing has changed then.
func (c *CQ) Resize(cqe, most int) error {
	if cqe <= 0 || cqe > most {
		return &WRError{"cqe", syscall.EINVAL, fmt.Sprintf("%d, possible are 1 to %d", cqe, most)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int(c.n.Load())
	if cqe < n {
		return &WRError{"cqe", syscall.EINVAL, fmt.Sprintf("%d, the queue holds %d", cqe, n)}
	}
	ring := make([]driver.WC, cqe)
	k := copy(ring[:n], c.ring[c.head:])
	copy(ring[k:n], c.ring)
	c.ring, c.head = ring, 0
	return nil
}
