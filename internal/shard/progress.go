package shard

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/internal/transport"
)

// Progress: somebody has to read the socket and fire the timers. In order of
// preference: the application that polls a completion queue (Poll), the one that
// waits for one (Sleep), and the background thread (run) when neither does.
// Measured: half a ping-pong takes 2.8 us when the poller reads the socket
// itself, 22 us through a blocked thread, 31 us through Go's netpoller.
const (
	// pollQuiet is how long after the last poll the background thread takes over.
	pollQuiet = 100_000
	// pollerGone is how long after the last poll there is no poller that only waits for its
	// turn: more than the runtime lets a goroutine run (10 ms).
	pollerGone = 25_000_000
	// idleLook is the longest time between two looks whether the background thread is
	// needed, while others make progress.
	idleLook = time.Millisecond
	// parkAfter looks in a row at which a waiter had the role, there are no more looks.
	parkAfter = 20
)

// progress is the part of an Engine that decides who reads the socket.
type progress struct {
	// role is full while somebody may block in the port's Wait. A channel, since
	// who waits for it must still see a completion, a cancellation and Close.
	role     chan struct{}
	byThread atomic.Bool  // the background thread holds the role
	wanted   atomic.Int32 // waiters that want the role from the thread
	sleepers atomic.Int32 // waiters asleep without the role

	lastPoll   atomic.Int64 // real clock
	sleepUntil atomic.Int64 // engine time until which the role's holder blocks; 0 = nobody blocks

	parked atomic.Bool // nobody looks until the thread was nudged

	closed  atomic.Bool
	stop    chan struct{} // closed by Close
	freed   chan struct{} // closed by Free
	nudge   chan struct{} // wakes the thread
	stopped sync.WaitGroup
}

func (p *progress) init() {
	p.role = make(chan struct{}, 1)
	p.stop = make(chan struct{})
	p.freed = make(chan struct{})
	p.nudge = make(chan struct{}, 1)
}

// Start begins background progress, unless the engine is manual.
func (e *Engine) Start() {
	if e.cfg.Manual || e.waiter == nil {
		return
	}
	e.stopped.Add(1)
	go e.run()
}

// Close ends background progress and every Sleep.
func (e *Engine) Close() {
	if e.closed.Swap(true) {
		return
	}
	close(e.stop)
	if e.waiter != nil {
		e.waiter.Kick()
	}
	e.stopped.Wait()
	// What arrived is acknowledged, also to queue pairs that nobody destroyed.
	e.rxMu.Lock()
	for _, s := range e.shards {
		if s.owes.Load() {
			s.begin(e.now())
			s.end(&e.rxDeliver)
		}
	}
	e.finish(0)
}

// Poll makes progress if nobody else is at it. The number of datagrams read is
// returned.
func (e *Engine) Poll() int {
	if e.cfg.Manual {
		return 0
	}
	now := e.cfg.Clock()
	e.lastPoll.Store(now)
	if !e.rxMu.TryLock() {
		return 0
	}
	n := e.finish(e.turn(now - e.skew.Load()))
	if n > 0 {
		// A turn that sends much takes longer than pollQuiet: the thread must not
		// take that for silence.
		e.lastPoll.Store(e.cfg.Clock())
	}
	if e.sleepUntil.Load() != 0 {
		// Who blocks has not seen the datagrams that were read here, and the
		// application need not poll again: its timers are the sleeper's.
		if d := e.nextDeadline(); d != math.MaxInt64 {
			e.wakeFor(d)
		}
	}
	return n
}

// Turn makes progress and returns the time at which the next turn is needed, 0
// for none. It is how the simulated network drives an engine.
func (e *Engine) Turn(now int64) int64 {
	e.rxMu.Lock()
	e.finish(e.turn(now - e.skew.Load()))
	d := e.nextDeadline()
	if d == math.MaxInt64 {
		return 0
	}
	return max(d+e.skew.Load(), 1)
}

// finish releases the receive lock and delivers what the turn brought.
func (e *Engine) finish(n int) int {
	if !e.rxDeliver.Any() {
		e.rxMu.Unlock()
		return n
	}
	d := e.deliveries.Get().(*transport.Deliveries)
	e.rxDeliver, *d = *d, e.rxDeliver
	e.rxMu.Unlock()
	d.Deliver()
	e.deliveries.Put(d)
	return n
}

// wakeFor makes sure that whoever blocks wakes up by deadline d.
func (e *Engine) wakeFor(d int64) {
	if d == 0 {
		return
	}
	if u := e.sleepUntil.Load(); u != 0 && d < u && e.sleepUntil.CompareAndSwap(u, d) {
		e.waiter.Kick()
	}
}

// Rouse makes whoever blocks look whether it is ready.
func (e *Engine) Rouse() {
	if e.sleepUntil.Load() != 0 {
		e.waiter.Kick()
	}
}

// block puts the calling thread to sleep until a datagram or a deadline. The
// caller holds the role. still is asked once more after the others were told.
func (e *Engine) block(still func() bool) {
	d := e.nextDeadline()
	e.sleepUntil.Store(d)
	// Whoever sets an earlier deadline from here on kicks; look again for one
	// that was set just before.
	if n := e.nextDeadline(); n < d {
		d = n
	}
	wait := time.Duration(-1)
	if d != math.MaxInt64 {
		wait = time.Duration(max(d-e.now(), 0))
	}
	if still() && !e.closed.Load() && (wait < 0 || wait > 0) {
		e.waiter.Wait(wait)
	}
	e.sleepUntil.Store(0)
}

// turnNow takes the receive lock and makes a turn.
func (e *Engine) turnNow() int {
	e.rxMu.Lock()
	return e.finish(e.turn(e.now()))
}

// Sleep blocks until ready reports true, or ctx is done, or the engine is closed
// (ErrClosed). wake receives a value when somebody else made ready true. The
// caller sees to it that Rouse is called when ctx is done. Sleep makes progress
// itself where it can.
func (e *Engine) Sleep(ctx context.Context, ready func() bool, wake <-chan struct{}) error {
	for !ready() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if e.closed.Load() {
			return ErrClosed
		}
		if !e.takeRole(ctx, wake) {
			continue
		}
		for !ready() && ctx.Err() == nil && !e.closed.Load() {
			// What is there already ends the block at once: asking the socket
			// first would cost a system call more in every ping-pong.
			if !e.oweAny() {
				e.block(func() bool { return !ready() && ctx.Err() == nil })
			}
			e.turnNow()
		}
		e.lastPoll.Store(e.cfg.Clock())
		e.leaveRole()
		if e.parked.Load() || e.sleepers.Load() > 0 {
			e.callThread()
		}
	}
	return nil
}

func (e *Engine) tryRole() bool {
	select {
	case e.role <- struct{}{}:
		return true
	default:
		return false
	}
}

func (e *Engine) leaveRole() { <-e.role }

// takeRole gets the role for a waiter: at once if it is free, from the thread by
// asking it. If another waiter has it, or gets it first, it sleeps until there is
// a reason to look again, and returns false.
func (e *Engine) takeRole(ctx context.Context, wake <-chan struct{}) bool {
	if e.waiter == nil || e.cfg.Manual {
		return e.doze(ctx, wake, nil)
	}
	if e.tryRole() {
		return true
	}
	if !e.byThread.Load() {
		return e.doze(ctx, wake, nil)
	}
	e.wanted.Add(1)
	e.waiter.Kick()
	got := e.doze(ctx, wake, e.role)
	e.wanted.Add(-1)
	return got
}

// doze sleeps without the role, until it gets it from role (nil: it does not want
// it), is woken, or has no more reason to sleep.
func (e *Engine) doze(ctx context.Context, wake <-chan struct{}, role chan<- struct{}) (got bool) {
	e.sleepers.Add(1)
	select {
	case role <- struct{}{}:
		got = true
	case <-wake:
	case <-ctx.Done():
	case <-e.stop:
	case <-e.freed:
	}
	e.sleepers.Add(-1)
	return got
}

func (e *Engine) oweAny() bool {
	for _, s := range e.shards {
		if s.owes.Load() {
			return true
		}
	}
	return false
}

// polled reports whether the application polls, and nobody sleeps for whom the
// thread would be needed all the same.
func (e *Engine) polled() bool {
	return e.cfg.Clock()-e.lastPoll.Load() < pollQuiet && e.sleepers.Load() == 0
}

func (e *Engine) callThread() {
	select {
	case e.nudge <- struct{}{}:
	default:
	}
}

// run is the background thread: it sleeps until look, or who leaves the role, finds that
// it is needed, and reads until somebody polls or wants the role.
func (e *Engine) run() {
	defer e.stopped.Done()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := newLooker(e)
	defer l.timer.Stop()
	for !e.closed.Load() {
		select {
		case <-e.nudge:
		case <-e.stop:
			return
		}
		e.parked.Store(false)
		for !e.polled() && e.wanted.Load() == 0 && e.tryRole() {
			e.byThread.Store(true)
			e.serve()
			e.byThread.Store(false)
			e.leaveRole()
			if e.closed.Load() {
				return
			}
		}
		l.again()
	}
}

// serve reads until somebody polls or wants the role, or the engine is closed.
func (e *Engine) serve() {
	for !e.closed.Load() && e.wanted.Load() == 0 {
		if e.turnNow() == 0 && !e.oweAny() {
			// A poller may only lack a processor, which this thread would take
			// along into the block until the runtime notices. A locked thread
			// that yields costs two more threads' wake-ups: not for pollers that
			// there were none of for long.
			if e.cfg.Clock()-e.lastPoll.Load() < pollerGone {
				runtime.Gosched()
			}
			if !e.polled() {
				e.block(func() bool { return e.wanted.Load() == 0 })
			}
		}
		if e.polled() {
			return
		}
	}
}

// looker looks now and then whether the thread is needed, while that sleeps. It does so in a
// timer's goroutine: to wake the thread itself for every look, which is locked, would wake two
// others of the runtime as well, on the processor of who sleeps or polls.
type looker struct {
	e *Engine

	mu    sync.Mutex
	timer *time.Timer
	pause time.Duration // to the next look
	taken int           // looks in a row at which a waiter had the role
}

func newLooker(e *Engine) *looker {
	l := &looker{e: e}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(pollQuiet, l.look)
	l.pause = pollQuiet
	return l
}

// again begins anew, when the thread has let go of the role.
func (l *looker) again() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause, l.taken = pollQuiet, 0
	l.timer.Reset(l.pause)
}

// look calls the thread if nobody makes progress, or sees to it that there is another look.
func (l *looker) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.e
	if e.closed.Load() || e.byThread.Load() {
		return
	}
	free := func() bool { return len(e.role) == 0 }
	switch busy := e.polled() || e.wanted.Load() > 0; {
	case busy:
		l.taken = 0
	case free():
		e.callThread()
		return
	default:
		l.taken++
	}
	if l.taken > parkAfter {
		// A waiter has the role for long: it calls when it lets go.
		e.parked.Store(true)
		if free() {
			e.callThread()
		}
		return
	}
	l.timer.Reset(l.pause)
	l.pause = min(2*l.pause, idleLook)
}
