package verbs

import (
	"context"
	"fmt"
	"sync"
)

// ledger counts the events of one object that were got and not acknowledged.
type ledger struct {
	mu   sync.Mutex
	open int
	idle chan struct{} // closed when open becomes 0; nil if nobody waits

	muted bool // under the lock of the queue that the events go through
}

func (l *ledger) got() {
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
}

// ack takes n away and tells how many there were; false: fewer than n.
func (l *ledger) ack(n int) (open int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if open = l.open; n < 0 || n > open {
		return open, false
	}
	l.open -= n
	if l.open == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
	return open, true
}

// wait returns when every event was acknowledged, or ctx's error; how acknowledges
// them.
func (l *ledger) wait(ctx context.Context, how string) error {
	for {
		l.mu.Lock()
		if l.open == 0 {
			l.mu.Unlock()
			return nil
		}
		if l.idle == nil {
			l.idle = make(chan struct{})
		}
		idle := l.idle
		l.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return l.owed(ctx.Err(), how)
		}
	}
}

// owed says that the wait for acknowledgements ended with err.
func (l *ledger) owed(err error, how string) error {
	l.mu.Lock()
	n := l.open
	l.mu.Unlock()
	are := "events are"
	if n == 1 {
		are = "event is"
	}
	return fmt.Errorf("%d %s not acknowledged (%s): %w", n, are, how, err)
}

// eventQueue holds events until they are got. It grows: an event is never lost,
// and never merged with another one. The number is bounded by what raises them:
// a completion queue once for each time it was armed, errors once an object.
type eventQueue[T any] struct {
	mu     sync.Mutex
	list   []queued[T]
	wake   chan struct{}   // holds a token while list is not empty and nobody was told
	stop   chan struct{}   // closed by close
	over   <-chan struct{} // closed when nothing more will happen; nil: never
	closed bool
}

type queued[T any] struct {
	v   T
	led *ledger
}

func (q *eventQueue[T]) init() {
	q.wake = make(chan struct{}, 1)
	q.stop = make(chan struct{})
}

// push appends an event on the account of led; nil: of nobody.
func (q *eventQueue[T]) push(v T, led *ledger) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || led != nil && led.muted {
		return
	}
	q.list = append(q.list, queued[T]{v, led})
	q.signal()
}

func (q *eventQueue[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop takes the oldest event and enters it as got, in one step, so that muting
// sees it either here or in the ledger. errClosed is the error once closed. When
// nothing more will happen, what there is is still given, then errDeviceGone.
func (q *eventQueue[T]) pop(ctx context.Context, errClosed error) (v T, err error) {
	over := false
	for {
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			return v, errClosed
		}
		if len(q.list) > 0 {
			e := q.list[0]
			q.list[0] = queued[T]{}
			if q.list = q.list[1:]; len(q.list) > 0 {
				q.signal() // for the next one who waits
			} else {
				q.list = nil
			}
			if e.led != nil {
				e.led.got()
			}
			q.mu.Unlock()
			return e.v, nil
		}
		q.mu.Unlock()
		if over { // and the list was empty since then
			return v, errDeviceGone
		}
		select {
		case <-q.wake:
		case <-q.stop:
		case <-q.over:
			over = true
		case <-ctx.Done():
			select {
			case <-q.over: // goes before: asking again would be of no use
				over = true
			default:
				return v, ctx.Err()
			}
		}
	}
}

// mute discards the events on led's account, those that wait and those that
// come.
func (q *eventQueue[T]) mute(led *ledger) {
	q.mu.Lock()
	defer q.mu.Unlock()
	led.muted = true
	kept := q.list[:0]
	for _, e := range q.list {
		if e.led != led {
			kept = append(kept, e)
		}
	}
	clear(q.list[len(kept):])
	q.list = kept
}

// close makes every pop return the error for closed queues.
func (q *eventQueue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		q.list = nil
		close(q.stop)
	}
}
