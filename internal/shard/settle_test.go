package shard

import (
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
	var inUse [3]atomic.Bool // a step that began before works with what it looked up
	var key atomic.Int64     // what lookups find
	var wg sync.WaitGroup
	for i, s := range e.shards {
		wg.Go(func() {
			for n := range 3000 {
				s.mu.Lock()
				if n%3 != i {
					k := key.Load()
					inUse[i].Store(true)
					for range 100 {
						_ = key.Load() - k
					}
					inUse[i].Store(false)
				} else {
					key.Add(1)
					s.settle()
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
