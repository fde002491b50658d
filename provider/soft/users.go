package soft

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// users counts the queue pairs that use a completion queue or a shared receive
// queue. None begins once it was destroyed.
type users struct{ n atomic.Int32 }

// destroyed is the count of what is destroyed.
const destroyed = -1

// hold begins a use; false: it is destroyed.
func (u *users) hold() bool {
	for {
		n := u.n.Load()
		if n == destroyed {
			return false
		}
		if u.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (u *users) drop() { u.n.Add(-1) }

// end destroys what has no user, else EBUSY. first is true once.
func (u *users) end(what string) (first bool, err error) { return u.endFor(what, "queue pairs") }

// endFor is end for what others than queue pairs use.
func (u *users) endFor(what, by string) (first bool, err error) {
	for {
		switch n := u.n.Load(); n {
		case destroyed:
			return false, nil
		case 0:
			if u.n.CompareAndSwap(0, destroyed) {
				return true, nil
			}
		default:
			return false, fmt.Errorf("%s is used by %d %s: %w", what, n, by, syscall.EBUSY)
		}
	}
}

// hold begins the queue pair's use of what it was created with.
func (q *qp) hold() error {
	gone := func(param, what string) error { return invalid(param, "the %s was destroyed", what) }
	switch {
	case !q.pd.mem.Hold():
		return gone("PD", "protection domain")
	case !q.scq.users.hold():
		q.pd.mem.Drop()
		return gone("SendCQ", "completion queue")
	case !q.rcq.users.hold():
		q.scq.users.drop()
		q.pd.mem.Drop()
		return gone("RecvCQ", "completion queue")
	case q.srq != nil && !q.srq.users.hold():
		q.rcq.users.drop()
		q.scq.users.drop()
		q.pd.mem.Drop()
		return gone("SRQ", "shared receive queue")
	}
	return nil
}

// release ends it. A target queue pair of XRC uses nothing: its handles do.
func (q *qp) release() {
	q.dropCntrs()
	if q.Type == ib.XRCRecv {
		return
	}
	if q.srq != nil {
		q.srq.users.drop()
	}
	q.rcq.users.drop()
	q.scq.users.drop()
	q.pd.mem.Drop()
}
