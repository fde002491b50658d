package rdmacm

import (
	"context"
	"fmt"
	"syscall"
)

// EventChannel collects the events of the IDs that were made with it (struct
// rdma_event_channel). It may be used by several goroutines.
type EventChannel struct {
	m *Manager
}

// NewEventChannel makes an event channel (rdma_create_event_channel).
func (m *Manager) NewEventChannel() (*EventChannel, error) { return nil, errNotBuilt }

// Get waits for the next event (rdma_get_cm_event). Every event is delivered, in
// order. It fails with ctx's error, or with net.ErrClosed when the channel is closed.
func (c *EventChannel) Get(ctx context.Context) (*Event, error) { return nil, errNotBuilt }

// Poll is Get without waiting, as with a descriptor that does not block: EAGAIN when
// there is no event.
func (c *EventChannel) Poll() (*Event, error) { return nil, errNotBuilt }

// Ready holds a token while there may be events: to wait for several things at once.
// After it was received call Poll until that fails with EAGAIN.
func (c *EventChannel) Ready() <-chan struct{} { return nil }

// Close ends the channel (rdma_destroy_event_channel). A Get that waits returns.
// EBUSY: an ID uses it.
func (c *EventChannel) Close() error { return errNotBuilt }

// Event tells of something that happened to an ID (struct rdma_cm_event).
type Event struct {
	ID       *ID // whose event it is; of EventConnectRequest a new one
	ListenID *ID // of EventConnectRequest: the one that listens
	Type     EventType
	// Status is 0 for success, else a negative errno, or what EventType says.
	Status int
	Conn   ConnParam // of connections
	UD     UDParam   // of datagrams and multicast
	// UserContext is what was given to JoinMulticast, of multicast events.
	UserContext any
}

// Ack acknowledges the event (rdma_ack_cm_event). Destroy and Migrate of its ID (of
// the one that listens, for EventConnectRequest) wait until that was done. Once is
// enough.
func (e *Event) Ack() error { return errNotBuilt }

// Err is the event as an error: nil when Status is 0, *RejectError, *SIDRError, or one
// that matches the errno.
func (e *Event) Err() error { return nil }

// String is the event's type and status.
func (e *Event) String() string {
	if e.Status == 0 {
		return e.Type.String()
	}
	return fmt.Sprintf("%v, status %d", e.Type, e.Status)
}

var errNotBuilt = fmt.Errorf("not built: %w", syscall.ENOSYS)
