package rdmacm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Option sets an option of a [Manager].
type Option func(*config)

type config struct {
	providers []driver.Provider
	contexts  []*verbs.Context
	given     bool // devices were named, even if none
	clock     func() int64
	manual    bool
	seed      uint64
	log       *slog.Logger
}

// WithProviders sets where the devices come from, in place of a software device for
// every network interface with its own addresses. The manager opens all of their
// devices when it first needs one, and closes them in Close. Devices that cannot be
// opened are passed over.
func WithProviders(p ...driver.Provider) Option {
	return func(c *config) { c.providers, c.given = append(c.providers, p...), true }
}

// WithContexts adds devices that are open already. They are not closed by the
// manager, and must be open as long as it.
func WithContexts(ctxs ...*verbs.Context) Option {
	return func(c *config) { c.contexts, c.given = append(c.contexts, ctxs...), true }
}

// WithManual makes a manager that does nothing by itself: Turn drives it, by a clock
// in ns that is never 0. It is for simulations, where IDs must have event channels:
// nothing waits.
func WithManual(clock func() int64) Option {
	return func(c *config) { c.clock, c.manual = clock, true }
}

// WithSeed makes communication ids, PSNs and ephemeral ports reproducible; random if
// not set, or 0.
func WithSeed(seed uint64) Option { return func(c *config) { c.seed = seed } }

// WithLogger sets where the manager logs what it does on its own.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// Manager is the connection manager of a process: what librdmacm and the kernel keep
// behind its calls. Its methods and those of what it makes may be called by
// several goroutines at once.
type Manager struct {
	cfg   config
	log   *slog.Logger
	clock func() int64
	rand  func() uint64 // under mu

	openMu sync.Mutex // held while the devices are opened or closed

	mu       sync.Mutex
	opened   bool
	devs     []*device
	leftOut  error // why devices are missing; nil: none is
	ports    map[PortSpace]map[uint16][]*ID
	ids      map[*ID]struct{}
	channels int
	closed   bool
	loopback string // name of the loopback interface, once it was asked for

	wake    chan struct{} // ends the loop's sleep
	sleep   int64         // until when the loop sleeps; 0: it does not
	stop    chan struct{}
	stopped sync.WaitGroup
}

// NewManager makes a manager. It opens no device before one is needed.
func NewManager(opts ...Option) *Manager {
	m := &Manager{
		ports: make(map[PortSpace]map[uint16][]*ID), ids: make(map[*ID]struct{}),
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	for _, o := range opts {
		o(&m.cfg)
	}
	if m.log = m.cfg.log; m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.clock = m.cfg.clock; m.clock == nil {
		begin := time.Now()
		m.clock = func() int64 { return int64(time.Since(begin)) + 1 }
	}
	if m.cfg.seed != 0 {
		m.rand = mathrand.New(mathrand.NewPCG(m.cfg.seed, 0x9E3779B97F4A7C15)).Uint64
	} else {
		var seed [32]byte
		rand.Read(seed[:]) // never fails
		m.rand = mathrand.NewChaCha8(seed).Uint64
	}
	return m
}

// Close ends the manager and closes the devices that it has opened. EBUSY: an ID or an
// event channel is left, and nothing has changed; or the application has objects on one of these
// devices, which then stays open: close it yourself.
func (m *Manager) Close() error {
	m.openMu.Lock() // no device is being opened, or will be
	defer m.openMu.Unlock()
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	if n := len(m.ids); n > 0 {
		m.mu.Unlock()
		return opErr("close", fmt.Errorf("%d IDs are left: %w", n, syscall.EBUSY))
	}
	if n := m.channels; n > 0 {
		m.mu.Unlock()
		return opErr("close", fmt.Errorf("%d event channels are left: %w", n, syscall.EBUSY))
	}
	m.closed = true
	devs := m.devs
	m.mu.Unlock()
	close(m.stop)
	m.stopped.Wait()
	var errs []error
	for _, d := range devs {
		errs = append(errs, d.close())
	}
	return opErr("close", errors.Join(errs...))
}

// Turn makes the progress of a manager made with WithManual and returns the time at
// which the next turn is needed, 0 for none. It is to be called too after what a
// device's turn may have brought.
func (m *Manager) Turn(now int64) (next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.step(now)
	return m.deadline()
}

// Devices lists the devices, open (rdma_get_devices). They are the manager's: to be
// used, not closed. ENODEV: there is none.
func (m *Manager) Devices(ctx context.Context) ([]*verbs.Context, error) {
	if err := m.open(ctx); err != nil {
		return nil, opErr("get_devices", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*verbs.Context, 0, len(m.devs))
	for _, d := range m.devs {
		if !d.gone {
			list = append(list, d.ctx)
		}
	}
	return list, nil
}

// NewID makes an ID (rdma_create_id): asynchronous with an event channel, synchronous
// without. Its queue pair is of type ib.RC in PSTCP and PSIB, ib.UD in the others. user
// is what ID.UserContext returns. EINVAL: no such port space, or the channel is closed or
// another manager's.
func (m *Manager) NewID(ch *EventChannel, ps PortSpace, user any) (*ID, error) {
	typ := ib.RC
	if ps == PSIPoIB || ps == PSUDP {
		typ = ib.UD
	}
	return m.newID("create_id", ch, ps, typ, user)
}

// NewIDType is NewID for queue pairs of another type: ib.RC, ib.UC, ib.UD, ib.XRCSend or
// ib.XRCRecv in PSIB; ib.RC and ib.UC in PSTCP; ib.UD in the others.
// EINVAL: the type is not for the port space.
func (m *Manager) NewIDType(ch *EventChannel, ps PortSpace, typ ib.QPType, user any) (*ID, error) {
	return m.newID("create_id", ch, ps, typ, user)
}

func (m *Manager) newID(op string, ch *EventChannel, ps PortSpace, typ ib.QPType, user any) (*ID, error) {
	ok := false
	switch ps {
	case PSTCP:
		ok = typ == ib.RC || typ == ib.UC
	case PSUDP, PSIPoIB:
		ok = typ == ib.UD
	case PSIB:
		ok = typ == ib.RC || typ == ib.UC || typ == ib.UD || typ == ib.XRCSend || typ == ib.XRCRecv
	default:
		return nil, paramErr(op, "ps", ps.String()+" is no port space", syscall.EINVAL)
	}
	if !ok {
		return nil, paramErr(op, "typ", fmt.Sprintf("%v is not for %v", typ, ps), syscall.EINVAL)
	}
	if ch != nil && ch.m != m {
		return nil, paramErr(op, "channel", "is another manager's", syscall.EINVAL)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, opErr(op, errManagerClosed)
	case ch != nil && ch.closed:
		return nil, opErr(op, errChannelClosed)
	}
	return m.addID(ch, ps, typ, user), nil
}

// addID makes an ID; ch nil: a synchronous one. The caller holds mu.
func (m *Manager) addID(ch *EventChannel, ps PortSpace, typ ib.QPType, user any) *ID {
	id := &ID{m: m, ps: ps, typ: typ, user: user, ch: ch, sync: ch == nil, seq: uint32(m.rand() & 0xFFFFFF)}
	if ch == nil {
		id.ch = newChannel(m)
	}
	id.ch.ids++
	m.ids[id] = struct{}{}
	return id
}
