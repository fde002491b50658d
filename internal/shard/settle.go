package shard

import "runtime"

// settle returns when every step that was running on another shard when it was
// called has ended, or waits here too: what such a step looked up in the key
// table before is not used any more. The shard's lock is held, and the step that
// calls has nothing in hand that it looked up before. It is [Engine.Quiesce] for
// who holds a lock.
func (s *Shard) settle() {
	if len(s.eng.shards) == 1 {
		return
	}
	// Two that wait for each other would wait for ever: whoever waits counts as
	// one that has ended.
	s.settling.Store(true)
	defer s.settling.Store(false)
	for _, o := range s.eng.shards {
		// A lock that many wait for is handed from one to the next and is never free.
		for n := o.steps.Load(); o != s && !o.settling.Load() && o.steps.Load() == n; {
			if o.mu.TryLock() {
				o.mu.Unlock()
				break
			}
			runtime.Gosched() // steps are short, but whoever is at it may have lost its processor
		}
	}
}

// unlock ends a step.
func (s *Shard) unlock() {
	if len(s.eng.shards) > 1 {
		s.steps.Add(1)
	}
	s.mu.Unlock()
}
