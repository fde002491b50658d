package soft

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const (
	// yieldEvery empty polls in a row, Poll lets others run: without it a poll
	// loop delays the garbage collector by 5 ms and timers by more.
	yieldEvery = 16
	// waitSpin is how long Wait polls before it sleeps, in ns.
	waitSpin = 30_000
)

// cq is a completion queue.
type cq struct {
	dev   *Device
	q     *queue.CQ
	users users
	empty atomic.Uint32
	dead  atomic.Bool

	notify  func()
	calls   atomic.Int32 // of notify that are due, the one that is running included
	waiters atomic.Int32
	wake    chan struct{}

	// The context that the last lone waiter came with: its cancellation stays
	// watched, so that a loop of Waits with one context allocates nothing.
	ctxMu   sync.Mutex
	watched <-chan struct{}
	unwatch func() bool
}

// CreateCQ implements driver.Device.
func (d *Device) CreateCQ(cqe int, notify func()) (driver.CQ, error) {
	c, err := d.createCQ(cqe, notify, queue.NewCQ)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (d *Device) createCQ(cqe int, notify func(), queueOf func(int) *queue.CQ) (*cq, error) {
	if cqe < 1 || cqe > maxCQE {
		return nil, invalid("cqe", "%d, want 1 to %d", cqe, maxCQE)
	}
	if err := d.cqs.add(d, "completion queue"); err != nil {
		return nil, err
	}
	c := &cq{dev: d, q: queueOf(cqe), notify: notify, wake: make(chan struct{}, 1)}
	c.q.SetNotify(c.fired)
	c.Events(nil)
	return c, nil
}

// fired is called without locks when a completion came and the queue was armed
// for it, or somebody waits.
func (c *cq) fired(armed bool) {
	if armed && c.notify != nil && c.calls.Add(1) == 1 {
		// One call at a time: who finds one running leaves the next to it.
		for {
			c.notify()
			if c.calls.Add(-1) == 0 {
				break
			}
		}
	}
	if c.waiters.Load() > 0 {
		select {
		case c.wake <- struct{}{}:
		default:
		}
		c.dev.eng.Rouse()
	}
}

// cqOf checks that c is a live completion queue of this device.
func (d *Device) cqOf(what string, c driver.CQ) (*cq, error) {
	q, ok := c.(*cq)
	switch {
	case !ok || q == nil || q.dev != d:
		return nil, invalid(what, "is not a completion queue of this device")
	case q.dead.Load():
		return nil, invalid(what, "is a completion queue that was destroyed")
	}
	return q, nil
}

// Poll implements driver.CQ.
func (c *cq) Poll(dst []driver.WC) (int, error) {
	if n := c.q.Poll(dst); n > 0 {
		c.empty.Store(0)
		return n, nil
	}
	c.progress()
	if n := c.q.Poll(dst); n > 0 {
		return n, nil
	}
	return 0, c.overran()
}

// progress works for an empty queue.
func (c *cq) progress() {
	if c.empty.Add(1)%yieldEvery == 0 {
		runtime.Gosched()
	}
	c.dev.eng.Poll()
}

// overran is what an empty queue tells if it was too small.
func (c *cq) overran() error {
	if c.q.Overrun() {
		return fmt.Errorf("completion queue of %d overran, completions are lost; make it larger: %w", c.q.Cap(), syscall.EOVERFLOW)
	}
	return nil
}

// Arm implements driver.CQ.
func (c *cq) Arm(solicitedOnly bool) bool { return c.q.Arm(solicitedOnly) }

// Wait implements driver.CQ: it polls for a while, since a wake-up costs many
// times what a message does, then sleeps.
func (c *cq) Wait(ctx context.Context) error {
	ready := func() bool { return !c.q.Empty() || c.dead.Load() || c.q.Overrun() || c.dev.over.Load() }
	eng := c.dev.eng
	if spin := c.dev.spin(); spin > 0 {
		for end := c.dev.clock() + spin; !ready() && c.dev.clock() < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			if eng.Poll() == 0 {
				runtime.Gosched()
			}
		}
	}
	if !ready() {
		stop := c.watch(ctx, c.waiters.Add(1) == 1)
		c.q.Watch(1)
		err := eng.Sleep(ctx, ready, c.wake)
		c.q.Watch(-1)
		if stop != nil {
			stop()
		}
		if c.waiters.Add(-1) > 0 {
			// The one wake-up may have been meant for another waiter too.
			c.fired(false)
		}
		if err != nil && !ready() {
			return err
		}
	}
	if c.dead.Load() {
		return fmt.Errorf("completion queue was destroyed: %w", shard.ErrClosed)
	}
	if c.dev.over.Load() && c.q.Empty() && !c.q.Overrun() {
		return errGone // nothing will ever come
	}
	return nil
}

// spin is how long Wait polls, in ns.
func (d *Device) spin() int64 {
	switch {
	case d.cfg.Manual:
		return 0
	case d.cfg.WaitSpin != 0:
		return int64(d.cfg.WaitSpin)
	case runtime.GOMAXPROCS(0) == 1:
		return 0
	}
	return waitSpin
}

// watch makes a sleeper look again when ctx is done. A lone waiter's context is
// remembered; what is returned for others, if not nil, ends the watch.
func (c *cq) watch(ctx context.Context, lone bool) (stop func() bool) {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	c.ctxMu.Lock()
	defer c.ctxMu.Unlock()
	if c.watched == done {
		return nil
	}
	stop = context.AfterFunc(ctx, c.dev.eng.Rouse)
	if !lone {
		return stop
	}
	if c.unwatch != nil {
		c.unwatch()
	}
	c.watched, c.unwatch = done, stop
	return nil
}

// Resize implements driver.CQ.
func (c *cq) Resize(cqe int) error { return c.q.Resize(cqe, maxCQE) }

// CQE implements driver.CQ.
func (c *cq) CQE() int { return c.q.Cap() }

// Events implements driver.CQ.
func (c *cq) Events(s driver.EventSink) {
	c.q.SetEventSink(func(t ib.EventType) {
		// Once in the life of a queue: what the application sees is completions
		// that never come.
		c.dev.log.Error("completion queue overran, completions are lost: make it as large as all work that can be under way",
			"device", c.dev.cfg.Name, "cqe", c.q.Cap(), "event", t)
		if s != nil {
			s(t)
		}
	})
}

// Destroy implements driver.CQ.
func (c *cq) Destroy() error {
	first, err := c.users.end("completion queue")
	if first {
		c.dead.Store(true)
		c.q.Moderate(0, 0) // a notification that is held back has nobody to go to
		c.dev.cqs.drop()
		c.fired(false)
		c.ctxMu.Lock()
		defer c.ctxMu.Unlock()
		if c.unwatch != nil {
			c.unwatch()
			c.watched, c.unwatch = nil, nil
		}
	}
	return err
}
