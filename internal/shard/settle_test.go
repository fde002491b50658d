package shard

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Whoever settles sees the steps of the others end, however many settle at once.
func TestSettle(t *testing.T) {
	e := &Engine{}
	for range 3 {
		e.shards = append(e.shards, &Shard{eng: e})
	}
	var key atomic.Int64      // what lookups find
	var inUse [3]atomic.Int64 // what a step has looked up and works with, 0 = nothing
	key.Store(1)
	var wg sync.WaitGroup
	for i, s := range e.shards {
		wg.Go(func() {
			for n := range 5000 {
				s.mu.Lock()
				if n%3 != i {
					inUse[i].Store(key.Load())
					for range n % 200 {
						_ = key.Load()
					}
					inUse[i].Store(0)
				} else {
					now := key.Add(1)
					s.settle()
					for o := range inUse {
						if was := inUse[o].Load(); was != 0 && was < now {
							t.Errorf("shard %d works with key %d, which was taken away at %d", o, was, now)
						}
					}
				}
				s.mu.Unlock()
			}
		})
	}
	wg.Wait()
	// A step that runs is waited for.
	a, b := e.shards[0], e.shards[1]
	b.mu.Lock()
	a.mu.Lock()
	var done atomic.Bool
	var ended sync.WaitGroup
	ended.Go(func() {
		a.settle()
		done.Store(true)
	})
	for !a.settling.Load() {
		if done.Load() {
			t.Fatal("did not wait for a step that runs")
		}
	}
	if done.Load() {
		t.Fatal("did not wait for a step that runs")
	}
	b.mu.Unlock()
	ended.Wait()
	a.mu.Unlock()
}

// A lock that is handed from one to the next, and so never free, keeps nobody: the
// steps that ran when settle was called end all the same.
func TestSettleWithALockThatIsNeverFree(t *testing.T) {
	e := &Engine{}
	e.shards = []*Shard{{eng: e}, {eng: e}}
	a, b := e.shards[0], e.shards[1]
	b.mu.Lock()
	var ended sync.WaitGroup
	var done atomic.Bool
	ended.Go(func() {
		a.mu.Lock()
		a.settle()
		done.Store(true)
		a.mu.Unlock()
	})
	for !done.Load() {
		b.steps.Add(1) // what unlock does before it hands the lock on
		runtime.Gosched()
	}
	ended.Wait()
	n := b.steps.Load()
	if b.unlock(); b.steps.Load() == n {
		t.Error("the end of a step is not counted")
	}
}
