package cmapp

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// EventError is an event that tells of a failure.
type EventError struct {
	Type   rdmacm.EventType
	Status int
	err    error
}

// Error tells the event and why.
func (e *EventError) Error() string {
	s := fmt.Sprintf("event %v, error %d", e.Type, e.Status)
	if e.err != nil {
		s += ": " + e.err.Error()
	}
	return s
}

// Unwrap gives the reason.
func (e *EventError) Unwrap() error { return e.err }

// Failure makes an error of an event, with what to do about it.
func Failure(ev *rdmacm.Event) error {
	err := error(&EventError{ev.Type, ev.Status, ev.Err()})
	switch {
	case ev.Type == rdmacm.EventRejected && rdmacm.RejectReason(ev.Status) == rdmacm.RejectBadServiceID,
		ev.Type == rdmacm.EventUnreachable && ev.Status == sidrUnsupported:
		return cli.Hint(err, "Nobody listens on the port: start the server first, and give both sides the same port")
	case ev.Type == rdmacm.EventRejected || ev.Type == rdmacm.EventUnreachable && ev.Status > 0:
		return cli.Hint(err, "The server refuses: it is busy with others, was started with other options, or\n  listens for IPv4 only and you ask by IPv6 (bound to ::0 it listens for both)")
	case ev.Type == rdmacm.EventUnreachable:
		return cli.Hint(err, "The host does not answer: UDP port 4791 must be open both ways, and a program must listen")
	}
	return err
}

// sidrUnsupported is the status of a datagram lookup of a port that nobody listens on
// (IBA 12.11.2.2).
const sidrUnsupported = 1

// Failed tells whether an event is the end of an attempt to connect or to join.
func Failed(t rdmacm.EventType) bool {
	switch t {
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError,
		rdmacm.EventUnreachable, rdmacm.EventRejected, rdmacm.EventMulticastError:
		return true
	}
	return false
}

// While handles events as long as *left is not 0.
func While(ctx context.Context, ch *rdmacm.EventChannel, left *int, handle func(*rdmacm.Event) error) error {
	for *left > 0 {
		ev, err := ch.Get(ctx)
		if err != nil {
			return err
		}
		err = handle(ev)
		if e := ev.Ack(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Status is the number that the programs end with: 0, the status of an event, or a
// negative errno.
func Status(err error) int {
	var ev *EventError
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ev):
		return ev.Status
	case errors.As(err, &errno):
		return -int(errno)
	}
	return -1
}
