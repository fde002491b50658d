package verbs

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CompChannel collects the notifications of completion queues, so that one
// goroutine can wait for many (struct ibv_comp_channel). The example has the loop; who
// waits for one queue uses CQ.Wait, which needs none of this.
type CompChannel struct {
	life
	ctx    *Context
	events eventQueue[*CQ]
}

// CreateCompChannel makes a completion channel (ibv_create_comp_channel).
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	if !c.hold(aChannel) {
		return nil, opErr("create_comp_channel", errDeviceClosed)
	}
	ch := &CompChannel{ctx: c}
	ch.events.init()
	ch.events.over = c.events.over
	return ch, nil
}

// GetCQEvent waits for the next notification and returns the completion queue
// that it is from (ibv_get_cq_event). Every notification is delivered, in order,
// however many come before somebody asks. Each is to be acknowledged with
// CQ.AckEvents. It fails with ctx's error, with EIO when the device went away and
// there are no more, or with net.ErrClosed when the channel is destroyed.
//
// The loop that loses nothing: get the event, acknowledge it, ReqNotify, then
// Poll until the queue is empty.
func (ch *CompChannel) GetCQEvent(ctx context.Context) (*CQ, error) {
	cq, err := ch.events.pop(ctx, errChannelClosed)
	if err != nil {
		return nil, opErr("get_cq_event", err)
	}
	return cq, nil
}

// Destroy ends the channel (ibv_destroy_comp_channel). EBUSY: a completion queue
// uses it. A GetCQEvent that waits returns.
func (ch *CompChannel) Destroy() error {
	return opErr("destroy_comp_channel", ch.end(context.Background(), nil, nil, func() {
		ch.events.close()
		ch.ctx.drop(aChannel)
	}))
}

// CQ is a completion queue (struct ibv_cq).
type CQ struct {
	life
	ctx   *Context
	ch    *CompChannel
	cq    driver.CQ
	user  any
	comp  ledger // notifications
	async ledger
}

// CreateCQ makes a completion queue for at least cqe completions
// (ibv_create_cq). Notifications go to ch, which may be nil. user is what
// CQ.UserContext returns. EINVAL: cqe is not in the device's limits.
func (c *Context) CreateCQ(cqe int, ch *CompChannel, user any) (*CQ, error) {
	return c.createCQ("create_cq", cqe, ch, user, func(notify func()) (driver.CQ, error) { return c.dev.CreateCQ(cqe, notify) })
}

func (c *Context) createCQ(op string, cqe int, ch *CompChannel, user any, create func(notify func()) (driver.CQ, error)) (*CQ, error) {
	if cqe < 1 {
		return nil, paramErr(op, "cqe", fmt.Sprintf("%d, want at least 1", cqe), syscall.EINVAL)
	}
	if ch != nil && ch.ctx != c {
		return nil, paramErr(op, "channel", "is of another device", syscall.EINVAL)
	}
	parents := []parent{{&c.life, errDeviceClosed, ""}}
	if ch != nil {
		parents = append(parents, parent{&ch.life, errChannelClosed, "channel"})
	}
	if err := holdAll(op, aCQ, parents...); err != nil {
		return nil, err
	}
	q := &CQ{ctx: c, ch: ch, user: user}
	var notify func()
	if ch != nil {
		notify = func() { ch.events.push(q, &q.comp) }
	}
	var err error
	if q.cq, err = create(notify); err != nil {
		q.release()
		return nil, opErr(op, err)
	}
	q.cq.Events(func(t ib.EventType) { c.raise(&AsyncEvent{Type: t, CQ: q}, &q.async) })
	return q, nil
}

func (q *CQ) release() {
	if q.ch != nil {
		q.ch.drop(aCQ)
	}
	q.ctx.drop(aCQ)
}

// Context is the open device that the queue belongs to.
func (q *CQ) Context() *Context { return q.ctx }

// Channel is the queue's completion channel, or nil.
func (q *CQ) Channel() *CompChannel { return q.ch }

// UserContext is what was given to CreateCQ.
func (q *CQ) UserContext() any { return q.user }

// CQE is the number of completions that the queue can hold.
func (q *CQ) CQE() int { return q.cq.CQE() }

// Resize changes the number of completions that the queue can hold
// (ibv_resize_cq) and keeps those that it holds. EINVAL: out of the device's
// limits or fewer than it holds; nothing has changed then.
func (q *CQ) Resize(cqe int) error {
	const op = "resize_cq"
	switch {
	case !q.alive():
		return opErr(op, errCQClosed)
	case cqe < 1:
		return paramErr(op, "cqe", fmt.Sprintf("%d, want at least 1", cqe), syscall.EINVAL)
	}
	return opErr(op, q.cq.Resize(cqe))
}

// Poll moves up to len(dst) completions to dst and returns their number
// (ibv_poll_cq). On an empty queue it makes the progress of the whole device.
// EOVERFLOW: the queue was too small and completions are lost; those that it has
// are given first, and the queue raised ib.EventCQErr.
func (q *CQ) Poll(dst []WC) (int, error) {
	if !q.alive() {
		return 0, opErr("poll_cq", errCQClosed)
	}
	n, err := q.cq.Poll(dst)
	if err != nil {
		return n, opErr("poll_cq", err)
	}
	return n, nil
}

// ReqNotify asks for one notification to the channel (ibv_req_notify_cq): at the
// next completion, or with solicitedOnly at the next one of a solicited receive
// or of work that failed. Completions that are there already do not notify:
// missed tells that there are some, and that the queue is to be polled now.
func (q *CQ) ReqNotify(solicitedOnly bool) (missed bool) {
	if !q.alive() {
		return true // Poll tells why
	}
	return q.cq.Arm(solicitedOnly)
}

// Wait returns when the queue holds a completion, or with ctx's error, or with
// net.ErrClosed when it is destroyed, or with EIO when it is empty and the device
// went away. It needs no channel, no ReqNotify and no second look, and makes
// progress itself: it polls for some microseconds, then sleeps.
func (q *CQ) Wait(ctx context.Context) error {
	if !q.alive() {
		return opErr("wait_cq", errCQClosed)
	}
	err := q.cq.Wait(ctx)
	if err != nil && !q.alive() {
		err = errCQClosed
	}
	return opErr("wait_cq", err)
}

// AckEvents acknowledges n notifications that GetCQEvent returned for this queue
// (ibv_ack_cq_events). Several at once cost as much as one. EINVAL: fewer are
// unacknowledged; nothing has changed then.
func (q *CQ) AckEvents(n int) error {
	if open, ok := q.comp.ack(n); !ok {
		return paramErr("ack_cq_events", "n", fmt.Sprintf("%d, only %d are unacknowledged", n, open), syscall.EINVAL)
	}
	return nil
}

// Destroy is DestroyContext without limit.
func (q *CQ) Destroy() error { return q.DestroyContext(context.Background()) }

// DestroyContext destroys the queue (ibv_destroy_cq), then waits until each
// event that was got for it, notification or asynchronous, is acknowledged.
// Events that nobody has got are discarded. EBUSY: a queue pair uses the queue.
// With ctx's error the queue is of no use any more; calling again waits again.
func (q *CQ) DestroyContext(ctx context.Context) error {
	return opErr("destroy_cq", q.end(ctx, q.cq.Destroy, func(ctx context.Context) error {
		if q.ch != nil {
			q.ch.events.mute(&q.comp)
		}
		q.ctx.events.mute(&q.async)
		if err := q.comp.wait(ctx, "CQ.AckEvents"); err != nil {
			return err
		}
		return q.async.wait(ctx, "AsyncEvent.Ack")
	}, q.release))
}
