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
	watchers int  // who wants to know of every completion: they sleep
	waking   bool // Push has reported for the watchers: Notify is on its way
	notify   func(armed bool)
	events   driver.EventSink

	ex  *extension  // nil: a plain queue
	mod *moderation // nil: notifications leave at once
}

// arming is what a completion queue is armed for.
type arming uint8

const (
	armedNot arming = iota
	armedSolicited
	armedAny
)

// NewCQ makes a queue for cqe completions, at least 1.
func NewCQ(cqe int) *CQ { return &CQ{ring: make([]driver.WC, cqe)} }

// Cap is the number of completions that the queue holds at most.
func (c *CQ) Cap() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ring)
}

// Push is PushAt for queues that are not moderated and have no timestamps.
func (c *CQ) Push(wc *driver.WC, solicited bool) (fire, overrun bool) {
	fire, overrun, _ = c.PushAt(0, 0, wc, solicited)
	return fire, overrun
}

// PushAt appends a completion at the time now; clock is the same by the device's
// clock, its timestamp. fire: somebody is to be told (the queue was armed for
// it, and is not any more; or somebody watches): the caller calls Notify, without
// locks. overrun: the queue was full, the completion is lost and the queue is in
// error (true once, at the first; the caller calls Notify then too). A queue in
// error takes nothing any more. held: a notification begins to wait; the caller
// asks Held for the time at which it is due, and Release then, until that says
// that there is none any more.
func (c *CQ) PushAt(now, clock int64, wc *driver.WC, solicited bool) (fire, overrun, held bool) {
	c.mu.Lock()
	if c.overrun.Load() {
		c.mu.Unlock()
		return false, false, false
	}
	n := int(c.n.Load())
	if n == len(c.ring) {
		if c.ex == nil || !c.ex.lossy {
			c.overrun.Store(true)
			if c.armed != armedNot {
				c.announce()
			}
			c.mu.Unlock()
			return false, true, false
		}
		n--
		c.loseOldest()
	}
	i := c.wrap(c.head + n)
	c.ring[i] = *wc
	if c.ex != nil && c.ex.stamps != nil {
		c.ex.stamps[i] = clock
	}
	c.n.Store(int32(n + 1))
	// A failed completion counts as solicited (IBA 11.4.2.2).
	if c.armed == armedAny || c.armed == armedSolicited && (solicited || wc.Status != ib.WCSuccess) {
		fire = true
		if c.mod != nil && wc.Status == ib.WCSuccess {
			fire, held = c.mod.enough(now)
		}
		if fire {
			c.announce()
		}
	}
	if c.watchers > 0 && !c.waking {
		c.waking = true
		fire = true
	}
	c.mu.Unlock()
	return fire, false, held
}

// announce ends the arming: a call of Notify is due. The lock is held.
func (c *CQ) announce() {
	c.armed = armedNot
	c.due++
	if c.mod != nil {
		c.mod.count, c.mod.at = 0, 0
	}
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
	if c.ex != nil {
		c.ex.lock()
		defer c.ex.unlock()
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

// Notify calls the function given by SetNotify, and tells it whether the queue
// was armed for what it got; else it is for the watchers only. The caller holds
// no locks. It is called once for each Push that said so, so that each
// notification that was asked for is given.
func (c *CQ) Notify() {
	c.mu.Lock()
	f, armed := c.notify, c.due > 0
	if armed {
		c.due--
	}
	c.waking = false
	c.mu.Unlock()
	if f != nil {
		f(armed)
	}
}

// Watch with 1 makes Push report completions for somebody who is going to
// sleep, until Watch with -1. Completions that are pushed before Notify runs are
// reported once. The order that loses nothing: Watch, look at Empty and Overrun,
// sleep until the function of SetNotify is called, look again.
func (c *CQ) Watch(delta int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers += delta
}

// SetNotify sets what Notify calls.
func (c *CQ) SetNotify(f func(armed bool)) {
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
	// Whoever completes waits for the lock, and with him his shard: the new memory,
	// which may be 64 MiB, is there before.
	ring := make([]driver.WC, cqe)
	var stamps []int64
	if c.ex != nil && c.ex.stamped {
		stamps = make([]int64, cqe)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int(c.n.Load())
	if cqe < n {
		return &WRError{"cqe", syscall.EINVAL, fmt.Sprintf("%d, the queue holds %d", cqe, n)}
	}
	k := copy(ring[:n], c.ring[c.head:])
	copy(ring[k:n], c.ring)
	if stamps != nil {
		k := copy(stamps[:n], c.ex.stamps[c.head:])
		copy(stamps[k:n], c.ex.stamps)
		c.ex.stamps = stamps
	}
	c.ring, c.head = ring, 0
	return nil
}
