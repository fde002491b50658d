package shard

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// patience is how long a test waits before it takes a goroutine for stuck.
const patience = 20 * time.Second

// sleeper is a completion queue with what its waiters need, as a device has it.
type sleeper struct {
	e    *Engine
	q    *queue.CQ
	wake chan struct{}
	n    atomic.Int32
}

func newSleeper(e *Engine) *sleeper {
	s := &sleeper{e: e, q: queue.NewCQ(1 << 12), wake: make(chan struct{}, 1)}
	s.q.SetNotify(func(bool) { s.fired() })
	return s
}

func (s *sleeper) fired() {
	signal(s.wake)
	s.e.Rouse()
}

func (s *sleeper) wait(ctx context.Context) error {
	s.n.Add(1)
	s.q.Watch(1)
	stop := context.AfterFunc(ctx, s.e.Rouse)
	err := s.e.Sleep(ctx, func() bool { return !s.q.Empty() }, s.wake)
	stop()
	s.q.Watch(-1)
	if s.n.Add(-1) > 0 {
		s.fired()
	}
	return err
}

// finish waits for goroutines that must come to an end.
func finish(t *testing.T, wg *sync.WaitGroup, what string) {
	t.Helper()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s: stuck", what)
	}
}

// Completions for many waiters on many queues of one engine, whichever of them,
// of the pollers or of the thread reads the socket: each one is seen.
func TestSleepLosesNoWakeUp(t *testing.T) {
	const queues, each = 6, 400
	for _, pollers := range []int{0, 2} {
		e, p := newReal(t, 2)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		var wg sync.WaitGroup
		var end atomic.Bool
		for i := range queues {
			s := newSleeper(e)
			addQP(t, e, ib.QPN(2+i)).completes(s.q)
			// Two wait on each queue, and share what comes.
			var left atomic.Int64
			left.Store(each)
			mine, stop := context.WithCancel(ctx)
			defer stop()
			for range 2 {
				wg.Go(func() {
					wcs := make([]driver.WC, 3)
					for left.Load() > 0 {
						if err := s.wait(mine); err != nil && left.Load() > 0 {
							t.Errorf("queue %d: %v with %d left", i, err, left.Load())
							return
						}
						if left.Add(-int64(s.q.Poll(wcs))) <= 0 {
							stop()
						}
					}
				})
			}
		}
		var others sync.WaitGroup
		for range pollers {
			others.Go(func() {
				for !end.Load() {
					e.Poll()
					// Now and then it is quiet long enough for the thread to take over.
					if rand.IntN(50) == 0 {
						time.Sleep(200 * time.Microsecond)
					}
				}
			})
		}
		others.Go(func() {
			for k := range each * queues {
				p.arrive(packet(ib.QPN(2+k%queues), k))
				if k%97 == 0 {
					time.Sleep(50 * time.Microsecond)
				}
			}
		})
		finish(t, &wg, "waiters")
		end.Store(true)
		finish(t, &others, "pollers")
		cancel()
	}
}

// A cancelled context ends its waiter, and no other, wherever that one sleeps.
func TestSleepCancel(t *testing.T) {
	e, p := newReal(t, 1)
	stay, stop := context.WithCancel(context.Background())
	var staying, leaving sync.WaitGroup
	s := newSleeper(e)
	addQP(t, e, 2).completes(s.q)
	staying.Go(func() {
		if err := s.wait(stay); err != nil {
			t.Errorf("the one who stays: %v", err)
		}
	})
	for range 300 {
		ctx, cancel := context.WithCancel(context.Background())
		for range 3 {
			o := newSleeper(e)
			leaving.Go(func() {
				if err := o.wait(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("cancelled: %v", err)
				}
			})
		}
		for range rand.IntN(4) {
			e.Poll()
		}
		cancel()
		finish(t, &leaving, "cancelled waiters")
	}
	p.arrive(packet(2, 0))
	finish(t, &staying, "the waiter that stayed")
	stop()
}

// Close ends every waiter with EIO, and every later one.
func TestSleepClose(t *testing.T) {
	for range 50 {
		e, _ := newReal(t, 1)
		var wg sync.WaitGroup
		var began sync.WaitGroup
		for range 5 {
			s := newSleeper(e)
			began.Add(1)
			wg.Go(func() {
				began.Done()
				if err := s.wait(context.Background()); !errors.Is(err, syscall.EIO) {
					t.Errorf("closed: %v", err)
				}
			})
		}
		began.Wait()
		e.Close()
		finish(t, &wg, "waiters of a closed engine")
		if err := newSleeper(e).wait(context.Background()); !errors.Is(err, ErrClosed) {
			t.Fatalf("after close: %v", err)
		}
	}
}

// A waiter that asked the thread for the right to block, and lost it to another
// waiter, still ends with its context and with its completion.
func TestSleepWantsRoleOfAnother(t *testing.T) {
	e, _ := newIdle(1)
	e.role <- struct{}{}
	e.byThread.Store(true)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	a, b := newSleeper(e), newSleeper(e)
	addQP(t, e, 2).completes(b.q)
	wg.Go(func() {
		if err := a.wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a: %v", err)
		}
	})
	wg.Go(func() {
		if err := b.wait(context.Background()); err != nil {
			t.Errorf("b: %v", err)
		}
	})
	for e.wanted.Load() != 2 {
		time.Sleep(time.Millisecond) // until both asked
	}
	cancel()
	sh := e.ShardFor(2)
	env := sh.Lock()
	env.Complete(b.q, &driver.WC{}, false)
	sh.Unlock(nil)
	finish(t, &wg, "waiters that want the role")
	if e.wanted.Load() != 0 || e.sleepers.Load() != 0 {
		t.Fatalf("%d want the role, %d sleep", e.wanted.Load(), e.sleepers.Load())
	}
	<-e.role
}

// A deadline that a post sets while somebody blocks wakes the one who blocks,
// though nobody polls.
func TestDeadlineWakesSleeper(t *testing.T) {
	for _, who := range []string{"thread", "waiter"} {
		t.Run(who, func(t *testing.T) {
			e, p := newReal(t, 1)
			q := addQP(t, e, 2)
			fired := make(chan struct{}, 1)
			q.onTimer = func(*transport.Env) { fired <- struct{}{} }
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			if who == "waiter" {
				wg.Go(func() { _ = newSleeper(e).wait(ctx) })
			}
			for range 30 {
				n := p.waits.Load()
				q.set(e.now() + ms)
				select {
				case <-fired:
				case <-time.After(patience):
					t.Fatalf("the timer did not fire; blocked %d times since", p.waits.Load()-n)
				}
			}
			cancel()
			finish(t, &wg, "waiter")
		})
	}
}

// A timer that a poller's turn sets fires though the poller polls no more, and
// the thread blocked without a limit before: it has not seen the datagram.
func TestPolledDeadlineWakesSleeper(t *testing.T) {
	e, p := newIdle(1)
	q := addQP(t, e, 2)
	q.onPkt = func(env *transport.Env) { q.at = env.Now + ms }
	// Somebody blocks without a limit ...
	e.sleepUntil.Store(math.MaxInt64)
	p.arrive(packet(2, 0))
	e.Poll()
	if len(p.kick) != 1 || e.sleepUntil.Load() != e.nextDeadline() {
		t.Fatal("who blocks was not woken for the timer that a poll set")
	}
	// ... and one who wakes up in time anyway is left alone.
	<-p.kick
	e.Poll()
	if len(p.kick) != 0 {
		t.Fatal("woken without need")
	}
}

// What is set while block decides to sleep is seen.
func TestBlockSeesDeadlineSetMeanwhile(t *testing.T) {
	v := newVirtual(1)
	v.waiter = v.port
	q := addQP(t, v.Engine, 2)
	var slept []time.Duration
	v.port.onWait = func(d time.Duration) { slept = append(slept, d) }
	v.block(func() bool { q.set(v.now + 5); return true })
	if len(slept) != 1 || slept[0] >= 0 {
		t.Fatalf("slept %v", slept)
	}
	if len(v.port.kick) != 1 {
		t.Fatal("the deadline set on the way did not kick")
	}
	<-v.port.kick
	v.block(func() bool { return true })
	if len(slept) != 2 || slept[1] != 5 {
		t.Fatalf("slept %v", slept)
	}
	v.now += 5
	if v.block(func() bool { return true }); len(slept) != 2 {
		t.Fatal("slept though a timer is due")
	}
	if v.sleepUntil.Load() != 0 {
		t.Fatal("still marked as blocked")
	}
}

// The thread works for those who neither poll nor wait.
func TestThreadServesTheAbsent(t *testing.T) {
	e, p := newReal(t, 2)
	got := make(chan int, 64)
	for n := range ib.QPN(4) {
		q := addQP(t, e, 2+n)
		q.onPkt = func(env *transport.Env) { q.Owe(env); q.at = env.Now + 20_000; got <- 0 }
		q.onTimer = func(*transport.Env) {}
	}
	for k := range 40 {
		p.arrive(packet(ib.QPN(2+k%4), k))
		select {
		case <-got:
		case <-time.After(patience):
			t.Fatalf("packet %d was not read", k)
		}
		if k%10 == 0 {
			e.Poll() // it lets the poller go first, and comes back
		}
	}
}

// Queue pairs come and go while packets for them arrive: none gets a step after
// its removal has returned.
func TestRemoveWhilePacketsArrive(t *testing.T) {
	const rounds = 300
	e, p := newReal(t, 3)
	var stop atomic.Bool
	var wg, feeder sync.WaitGroup
	feeder.Go(func() {
		for k := 0; !stop.Load(); k++ {
			p.arrive(packet(ib.QPN(2+k%6), k))
			if e.Poll(); k%64 == 0 {
				time.Sleep(10 * time.Microsecond)
			}
		}
	})
	for w := range 6 {
		wg.Go(func() {
			for range rounds {
				q := &fakeQP{sh: e.ShardFor(ib.QPN(2 + w))}
				q.Num, q.Type = ib.QPN(2+w), ib.UD
				q.QP.Service = q
				var removed atomic.Bool
				check := func(*transport.Env) {
					if removed.Load() {
						t.Error("a step for a removed queue pair")
					}
				}
				q.onPkt = func(env *transport.Env) { check(env); q.Owe(env); q.at = env.Now + 20_000 }
				q.onTimer, q.onPost = check, check
				if err := e.Add(&q.QP, q.sh); err != nil {
					t.Error(err)
					return
				}
				q.set(e.now() + 10_000)
				e.Poll()
				e.Remove(&q.QP, q.sh)
				removed.Store(true)
			}
		})
	}
	finish(t, &wg, "those who add and remove")
	stop.Store(true)
	feeder.Wait()
	if err := e.Busy(); err != nil {
		t.Error(err)
	}
}
