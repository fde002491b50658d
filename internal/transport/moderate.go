package transport

import (
	"slices"

	"github.com/verbena-rdma/verbena/internal/queue"
)

// ModeratedAt is the earliest time at which a notification that a completion
// queue holds back is due, 0 = none is.
func (e *Env) ModeratedAt() (at int64) {
	for _, cq := range e.moderated {
		if t := cq.Held(); t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	return at
}

// FireModerated lets go of the notifications that are due.
func (e *Env) FireModerated() {
	if len(e.moderated) == 0 {
		return
	}
	n := 0
	for _, cq := range e.moderated {
		fire, held := cq.Release(e.Now)
		if fire {
			e.fired = append(e.fired, cq)
		}
		if held {
			e.moderated[n] = cq
			n++
		}
	}
	clear(e.moderated[n:])
	e.moderated = e.moderated[:n]
}

// hold notes that cq began to hold a notification back. Other shards may hold the
// same queue in mind: the first one whose time comes lets it go.
func (e *Env) hold(cq *queue.CQ) {
	if !slices.Contains(e.moderated, cq) {
		e.moderated = append(e.moderated, cq)
	}
}
