package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// life is the part of every object that counts children and makes destroying
// it safe against everything that happens at the same time.
type life struct {
	users atomic.Int64 // children, or dead
	mu    sync.Mutex   // held by whoever destroys
	gone  bool         // under mu: the provider's object is destroyed
	done  bool         // under mu: parents were released
}

// dead in users refuses new children for good.
const dead = -1 << 62

// alive reports whether nobody has begun to destroy the object.
func (l *life) alive() bool { return l.users.Load() >= 0 }

// hold counts a child; false: the object is gone.
func (l *life) hold() bool {
	for {
		n := l.users.Load()
		if n < 0 {
			return false
		}
		if l.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop takes a child away.
func (l *life) drop() { l.users.Add(-1) }

// end destroys the object: EBUSY while it has children. destroy ends the
// provider's object; if it fails nothing has changed. settle, if not nil, then
// waits for what the application still owes, without lock; if it gives up, the
// next call goes on waiting. release lets go of the parents, once. Calls after
// that do nothing.
func (l *life) end(ctx context.Context, destroy func() error, settle func(context.Context) error, release func()) error {
	if err := l.kill(destroy); err != nil {
		return err
	}
	if settle != nil {
		if err := settle(ctx); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		l.done = true
		if release != nil {
			release()
		}
	}
	return nil
}

// kill is the part of end that happens at once.
func (l *life) kill(destroy func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil
	}
	if !l.users.CompareAndSwap(0, dead) {
		return fmt.Errorf("%d objects still use it: %w", l.users.Load(), syscall.EBUSY)
	}
	if destroy != nil {
		if err := destroy(); err != nil {
			l.users.Store(0)
			return err
		}
	}
	l.gone = true
	return nil
}

// holdAll takes a hold, for the call op, on each parent or on none. The error names
// the first one that is gone.
func holdAll(op string, parents ...parent) error {
	for i, p := range parents {
		if p.life.hold() {
			continue
		}
		for _, q := range parents[:i] {
			q.life.drop()
		}
		return &OpError{Op: op, Param: p.param, Err: p.gone}
	}
	return nil
}

// parent is an object that another one holds, the error if it is gone, and the
// parameter that it was given as; "" if it was none.
type parent struct {
	life  *life
	gone  error
	param string
}
