package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// Host is this process on the RDMA network: the devices and the connection manager that
// its connections share. Dial and Listen of this package make one for themselves, which is
// enough for a program with one connection or one listener. Programs with more make one for
// all: it opens each device once, and where addresses are not shared (see Open) an address is
// in use by one Host of the machine at a time.
type Host struct {
	m    *rdmacm.Manager
	auto bool // made by Dial or Listen, ends with the last that uses it

	mu     sync.Mutex
	refs   int
	closed bool
	ch     *rdmacm.EventChannel // of connections; nil until there is one
	ended  chan struct{}        // closed when the goroutine that reads ch has ended
}

// NewHost makes a Host with the devices that the options and the environment describe,
// as Devices. None is opened before one is needed. EINVAL: bad addresses.
func NewHost(opts ...Option) (*Host, error) {
	c := config{env: os.Getenv(AddrsEnv)}
	for _, o := range opts {
		o(&c)
	}
	ps, err := c.all()
	if err != nil {
		return nil, err
	}
	mo := []rdmacm.Option{rdmacm.WithProviders(ps...)}
	if c.logger != nil {
		mo = append(mo, rdmacm.WithLogger(c.logger))
	}
	return &Host{m: rdmacm.NewManager(mo...)}, nil
}

// Manager is the connection manager, for all that this package has no short way to.
func (h *Host) Manager() *rdmacm.Manager { return h.m }

// Close ends the Host and closes its devices. EBUSY: a connection, a listener or an ID of
// the manager's is left; nothing has changed then.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	if h.refs > 0 {
		return fmt.Errorf("rdma: %d connections and listeners are left: %w", h.refs, syscall.EBUSY)
	}
	return h.end()
}

// end closes all. The caller holds mu.
func (h *Host) end() error {
	if h.ch != nil {
		if err := h.ch.Close(); err != nil {
			return err
		}
		<-h.ended // it needs no lock of ours
		h.ch = nil
	}
	err := h.m.Close()
	// The manager stays open exactly if something of the application's is left on it.
	h.closed = !errors.Is(err, syscall.EBUSY)
	return err
}

// hold enters one more user.
func (h *Host) hold() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return net.ErrClosed
	}
	h.refs++
	return nil
}

// share enters one more user next to one that holds the Host.
func (h *Host) share() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refs++
}

// release strikes a user off.
func (h *Host) release() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refs--
	if h.refs > 0 || !h.auto || h.closed {
		return nil
	}
	return h.end()
}

// channel is the event channel of connections. With the first one begins the goroutine that
// reads it: the only one of a Host, and no data pass through it.
func (h *Host) channel() (*rdmacm.EventChannel, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ch == nil {
		ch, err := h.m.NewEventChannel()
		if err != nil {
			return nil, err
		}
		h.ch, h.ended = ch, make(chan struct{})
		go watch(ch, h.ended)
	}
	return h.ch, nil
}

// watch tells connections what happens to them, until the channel is closed.
func watch(ch *rdmacm.EventChannel, ended chan struct{}) {
	defer close(ended)
	for {
		e, err := ch.Get(context.Background())
		if err != nil {
			return
		}
		if c, ok := e.ID.UserContext().(*Conn); ok {
			c.event(e)
		}
		e.Ack()
	}
}
