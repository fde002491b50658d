package ud

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
)

// Pacing of UC. Nobody tells the sender how fast the receiver reads, so no more
// than a receive buffer holds leaves in the time that a sleeping receiver takes
// to wake up and empty it.
const (
	paceBytes = transport.WindowStartBytes
	pacePkts  = transport.WindowStartPkts
	paceTime  = 100_000 // ns
)

// UC is the unreliable connection of one queue pair.
type UC struct {
	sender

	// The message at the head of the unsent WQEs.
	off    uint64 // bytes of it in packets so far; it is half sent if started
	cursor transport.Cursor

	// What was sent since pacedAt, and until when the sender rests (0: it does not).
	pacedAt    int64
	pacedBytes int
	pacedPkts  int
	resume     int64

	in inbound
}

var _ transport.Service = (*UC)(nil)

// NewUC makes the service of a queue pair of type UC and sets q.Service.
func NewUC(q *transport.QP) *UC {
	u := &UC{sender: sender{q: q}}
	q.Service = u
	return u
}

// Base gives the part that all services share.
func (u *UC) Base() *transport.QP { return u.q }

// Modified takes over what a modify call set.
func (u *UC) Modified(e *transport.Env, from ib.QPState, mask ib.QPAttrMask) {
	q := u.q
	if mask&ib.QPAttrRQPSN != 0 {
		u.in.start(q.Attr.RQPSN)
	}
	switch q.State {
	case ib.QPStateReset:
		u.off, u.resume, u.pacedAt = 0, 0, 0
		u.in = inbound{pieces: u.in.pieces}
	case ib.QPStateErr:
		u.off, u.resume = 0, 0
	}
	u.modified(e, from, mask, u.off == 0)
}

// Ack does nothing: UC acknowledges nothing.
func (u *UC) Ack(*transport.Env) {}

// Timer goes on sending after a rest.
func (u *UC) Timer(e *transport.Env) {
	if u.resume != 0 && e.Now >= u.resume {
		u.resume = 0 // whatever Post finds: a deadline that stays in the past would fire for ever
		u.Post(e)
	}
}

// Deadline is the end of a rest.
func (u *UC) Deadline() int64 { return u.resume }
