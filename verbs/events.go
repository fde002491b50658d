package verbs

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// AsyncEvent is an asynchronous event of a device or of one of its objects
// (struct ibv_async_event). One of CQ, QP and SRQ is set for events of objects;
// Port for those of ports.
type AsyncEvent struct {
	Type ib.EventType
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
	Port uint8

	led   *ledger
	acked atomic.Bool
}

// Ack acknowledges the event (ibv_ack_async_event). Destroying the object waits
// for it, so that nobody still works on the event of an object that is gone.
// Acknowledging again does nothing.
func (e *AsyncEvent) Ack() {
	if e.led != nil && !e.acked.Swap(true) {
		e.led.ack(1)
	}
}

// String tells what happened, in words, and to what: "queue pair 0x1234: local access
// violation work queue error".
func (e *AsyncEvent) String() string {
	switch {
	case e.QP != nil:
		return fmt.Sprintf("queue pair %#x: %v", uint32(e.QP.Num()), e.Type)
	case e.SRQ != nil:
		return fmt.Sprintf("shared receive queue %d: %v", e.SRQ.Num(), e.Type)
	case e.CQ != nil:
		return fmt.Sprintf("completion queue of %d: %v", e.CQ.CQE(), e.Type)
	case e.Port != 0:
		return fmt.Sprintf("port %d: %v", e.Port, e.Type)
	}
	return e.Type.String()
}

// GetAsyncEvent waits for the next asynchronous event (ibv_get_async_event). It
// fails with ctx's error, or, once the device is closed, with net.ErrClosed,
// which is EIO too. A device that went away gives its last events, then EIO
// alone. With a context that is done already it does not wait. Every event must
// be acknowledged.
func (c *Context) GetAsyncEvent(ctx context.Context) (*AsyncEvent, error) {
	e, err := c.events.pop(ctx, errDeviceClosed)
	if err != nil {
		return nil, opErr("get_async_event", err)
	}
	return e, nil
}

// raise queues an event of an object.
func (c *Context) raise(e *AsyncEvent, led *ledger) {
	e.led = led
	c.events.push(e, led)
}
