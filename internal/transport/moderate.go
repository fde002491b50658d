package transport

import (
	"slices"

	"github.com/verbena-rdma/verbena/internal/queue"
)

// ModeratedAt is a time before which no notification that a completion queue holds
// back is due, 0 = none is held back. It may be too early where one has left since
// for another reason: who asks after every step must not have to look at each queue.
func (e *Env) ModeratedAt() int64 { return e.moderatedAt }

// FireModerated lets go of the notifications that are due.
func (e *Env) FireModerated() {
	if e.moderatedAt == 0 || e.Now < e.moderatedAt {
		return
	}
	n := 0
	e.moderatedAt = 0
	for _, cq := range e.moderated {
		fire, held := cq.Release(e.Now)
		if fire {
			e.fired = append(e.fired, cq)
		}
		if held {
			e.moderated[n] = cq
			n++
			e.dueAt(cq.Held())
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
	e.dueAt(cq.Held())
}

// dueAt takes over when a notification is due, 0 = it has left meanwhile: then
// the next look is at once.
func (e *Env) dueAt(at int64) {
	if at = max(at, 1); e.moderatedAt == 0 || at < e.moderatedAt {
		e.moderatedAt = at
	}
}
