package verbs

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// life is the part of every object that counts children and makes destroying
// it safe against everything that happens at the same time.
type life struct {
	users atomic.Int64                        // children, or dead
	kids  atomic.Pointer[[kinds]atomic.Int32] // ... by kind, to tell; nil: there was none
	mu    sync.Mutex                          // held by whoever destroys
	gone  bool                                // under mu: the provider's object is destroyed
	done  bool                                // under mu: parents were released
}

// dead in users refuses new children for good.
const dead = -1 << 62

// alive reports whether nobody has begun to destroy the object.
func (l *life) alive() bool { return l.users.Load() >= 0 }

// hold counts a child; false: the object is gone.
func (l *life) hold(k kind) bool {
	for {
		n := l.users.Load()
		if n < 0 {
			return false
		}
		if l.users.CompareAndSwap(n, n+1) {
			l.kind(k).Add(1)
			return true
		}
	}
}

// drop takes a child away.
func (l *life) drop(k kind) {
	l.kind(k).Add(-1)
	l.users.Add(-1)
}

func (l *life) kind(k kind) *atomic.Int32 {
	c := l.kids.Load()
	if c == nil {
		l.kids.CompareAndSwap(nil, new([kinds]atomic.Int32))
		c = l.kids.Load()
	}
	return &c[k]
}

// dropper is drop as a function.
func (l *life) dropper(k kind) func() { return func() { l.drop(k) } }

// kind is what a child is.
type kind uint8

const (
	aPD kind = iota
	aParentDomain
	aTD
	anMR
	anMW
	aDM
	anAH
	aChannel
	aCQ
	anSRQ
	aQP
	anXRCD
	aCompCntr
	kinds
)

var kindNames = [kinds][2]string{
	aPD: {"protection domain", "protection domains"}, aParentDomain: {"parent domain", "parent domains"}, aTD: {"thread domain", "thread domains"},
	anMR: {"memory region", "memory regions"}, anMW: {"memory window", "memory windows"}, aDM: {"piece of device memory", "pieces of device memory"},
	anAH: {"address handle", "address handles"}, aChannel: {"completion channel", "completion channels"},
	aCQ: {"completion queue", "completion queues"}, anSRQ: {"shared receive queue", "shared receive queues"}, aQP: {"queue pair", "queue pairs"},
	anXRCD: {"XRC domain", "XRC domains"}, aCompCntr: {"completion counter", "completion counters"},
}

// who tells the children: "2 queue pairs, 1 address handle still use it".
func (l *life) who() string {
	var list []string
	var n int64
	for k := range kinds {
		c := int64(l.kind(k).Load())
		n += c
		switch {
		case c == 1:
			list = append(list, "1 "+kindNames[k][0])
		case c > 1:
			list = append(list, strconv.FormatInt(c, 10)+" "+kindNames[k][1])
		}
	}
	if n == 1 {
		return list[0] + " still uses it"
	}
	if len(list) == 0 { // they are going at this moment
		list = append(list, "objects")
	}
	return strings.Join(list, ", ") + " still use it"
}

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
		return fmt.Errorf("%s: %w", l.who(), syscall.EBUSY)
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

// holdAll takes a hold for a child, made by the call op, on each parent or on none.
// The error names the first one that is gone.
func holdAll(op string, k kind, parents ...parent) error {
	for i, p := range parents {
		if p.life.hold(k) {
			continue
		}
		for _, q := range parents[:i] {
			q.life.drop(k)
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
