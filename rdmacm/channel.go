package rdmacm

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/cm"
)

// EventChannel collects the events of the IDs that were made with it (struct
// rdma_event_channel). It may be used by several goroutines.
type EventChannel struct {
	m *Manager

	// Under the manager's mu.
	list   []*Event
	ids    int
	closed bool

	wake chan struct{} // holds a token while list is not empty and nobody was told
	stop chan struct{}
}

// newChannel makes a channel that counts for nobody.
func newChannel(m *Manager) *EventChannel {
	return &EventChannel{m: m, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// NewEventChannel makes an event channel (rdma_create_event_channel). The caller closes
// it.
func (m *Manager) NewEventChannel() (*EventChannel, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, opErr("create_event_channel", errManagerClosed)
	}
	m.channels++
	return newChannel(m), nil
}

// Get waits for the next event (rdma_get_cm_event). Every event is delivered, in
// order. It fails with ctx's error, or with net.ErrClosed when the channel is closed.
func (c *EventChannel) Get(ctx context.Context) (*Event, error) {
	e, err := c.get(ctx)
	return e, opErr("get_cm_event", err)
}

func (c *EventChannel) get(ctx context.Context) (*Event, error) {
	for {
		e, err := c.take()
		if e != nil || err != nil {
			return e, err
		}
		select {
		case <-c.wake:
		case <-c.stop:
		case <-ctx.Done():
			// What is there goes before: it would be lost to a caller that gives up.
			if e, err := c.take(); e != nil || err != nil {
				return e, err
			}
			return nil, ctx.Err()
		}
	}
}

// Poll is Get without waiting, as with a descriptor that does not block: EAGAIN when
// there is no event.
func (c *EventChannel) Poll() (*Event, error) {
	e, err := c.take()
	if e == nil && err == nil {
		err = fmt.Errorf("there is no event: %w", syscall.EAGAIN)
	}
	return e, opErr("get_cm_event", err)
}

// take takes the oldest event and enters it as got; nil: there is none.
func (c *EventChannel) take() (*Event, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.closed {
		return nil, errChannelClosed
	}
	if len(c.list) == 0 {
		return nil, nil
	}
	e := c.list[0]
	c.list[0] = nil
	if c.list = c.list[1:]; len(c.list) > 0 {
		c.signal() // for the next one who waits
	} else {
		c.list = nil
	}
	e.owner.open++
	if e.group != nil {
		e.group.open++
	}
	if e.request != nil { // its place in the backlog is free
		e.ID.dev.cm.Taken(e.request)
		e.request = nil
	}
	return e, nil
}

func (c *EventChannel) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Ready holds a token while there may be events: to wait for several things at once.
// After it was received call Poll until that fails with EAGAIN.
func (c *EventChannel) Ready() <-chan struct{} { return c.wake }

// Close ends the channel (rdma_destroy_event_channel). A Get that waits returns.
// EBUSY: an ID uses it.
func (c *EventChannel) Close() error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case c.ids > 0:
		return opErr("destroy_event_channel", fmt.Errorf("%d IDs use it: %w", c.ids, syscall.EBUSY))
	}
	c.m.channels--
	c.shut()
	return nil
}

// shut ends every Get. The caller holds mu.
func (c *EventChannel) shut() {
	if !c.closed {
		c.closed = true
		close(c.stop)
	}
}

// remove takes out the events that drop reports. The caller holds mu.
func (c *EventChannel) remove(drop func(*Event) bool) {
	kept := c.list[:0]
	for _, e := range c.list {
		if !drop(e) {
			kept = append(kept, e)
		}
	}
	clear(c.list[len(kept):])
	if c.list = kept; len(kept) == 0 {
		c.list = nil
	}
}

// Event tells of something that happened to an ID (struct rdma_cm_event).
type Event struct {
	ID       *ID // whose event it is; of EventConnectRequest a new one
	ListenID *ID // of EventConnectRequest: the one that listens
	Type     EventType
	// Status is 0 for success, else a negative errno, or what EventType says.
	Status int
	// Conn is for connections, UD for datagrams and multicast. Private data, where the
	// event has any, are in both.
	Conn ConnParam
	UD   UDParam
	// UserContext is what was given to JoinMulticast, of multicast events.
	UserContext any

	owner   *ID      // who waits for Ack
	group   *group   // of multicast events
	request *cm.Conn // holds a place in the backlog
	acked   bool
}

// push gives the ID an event. The caller holds mu.
func (id *ID) push(e *Event) { id.pushOn(id, e) }

// pushOn gives an event on the account of owner, who listens for id.
func (id *ID) pushOn(owner *ID, e *Event) {
	e.owner = owner
	c := owner.ch
	c.list = append(c.list, e)
	c.signal()
}

// Ack acknowledges the event (rdma_ack_cm_event). Destroy and Migrate of its ID (of
// the one that listens, for EventConnectRequest) wait until that was done. Once is
// enough.
func (e *Event) Ack() error {
	if e == nil || e.owner == nil {
		return paramErr("ack_cm_event", "event", "is none that was got", syscall.EINVAL)
	}
	e.owner.m.mu.Lock()
	defer e.owner.m.mu.Unlock()
	e.ack()
	return nil
}

// ack is Ack for who holds mu.
func (e *Event) ack() {
	if e.acked {
		return
	}
	e.acked = true
	e.owner.ledger.close()
	if e.group != nil {
		e.group.ledger.close()
	}
}

// Err is the event as an error: nil when Status is 0, *RejectError, *SIDRError, or one
// that matches the errno.
func (e *Event) Err() error {
	switch {
	case e.Status == 0:
		return nil
	case e.Type == EventRejected && e.Status > 0:
		return &RejectError{Reason: RejectReason(e.Status), PrivateData: e.Conn.PrivateData}
	case e.Status > 0:
		return &SIDRError{Status: uint8(e.Status), PrivateData: e.UD.PrivateData}
	}
	return fmt.Errorf("%v: %w", e.Type, syscall.Errno(-e.Status))
}

// String is the event's type and status.
func (e *Event) String() string {
	if e.Status == 0 {
		return e.Type.String()
	}
	return fmt.Sprintf("%v, status %d", e.Type, e.Status)
}

// ledger counts events that were got and not acknowledged. It is under the manager's
// mu.
type ledger struct {
	open int
	idle chan struct{} // closed when open becomes 0; nil if nobody waits
}

func (l *ledger) close() {
	if l.open--; l.open == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// wait returns when all are acknowledged, or ctx's error. The caller does not hold mu.
func (l *ledger) wait(ctx context.Context, m *Manager) error {
	for {
		m.mu.Lock()
		if l.open <= 0 {
			m.mu.Unlock()
			return nil
		}
		if l.idle == nil {
			l.idle = make(chan struct{})
		}
		idle := l.idle
		m.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
