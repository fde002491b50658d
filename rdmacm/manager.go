package rdmacm

import (
	"context"
	"log/slog"

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
type Manager struct{}

// NewManager makes a manager. It opens no device before one is needed.
func NewManager(opts ...Option) *Manager { return &Manager{} }

// Close ends the manager and closes the devices that it has opened. EBUSY: an ID is
// left, or an object of the application on one of these devices; nothing has changed
// then but that the manager's own objects may be gone.
func (m *Manager) Close() error { return errNotBuilt }

// Turn makes the progress of a manager made with WithManual and returns the time at
// which the next turn is needed, 0 for none. It is to be called too after what a
// device's turn may have brought.
func (m *Manager) Turn(now int64) (next int64) { return 0 }

// Devices lists the devices, open (rdma_get_devices). They are the manager's: to be
// used, not closed. ENODEV: there is none.
func (m *Manager) Devices(ctx context.Context) ([]*verbs.Context, error) { return nil, errNotBuilt }

// NewID makes an ID (rdma_create_id): asynchronous with an event channel, synchronous
// without. Its queue pair is of type ib.RC in PSTCP and PSIB, ib.UD in the others. user
// is what ID.UserContext returns. EINVAL: no such port space.
func (m *Manager) NewID(ch *EventChannel, ps PortSpace, user any) (*ID, error) {
	return nil, errNotBuilt
}

// NewIDType is NewID for queue pairs of another type: ib.RC, ib.UC, ib.UD, ib.XRCSend or
// ib.XRCRecv in PSIB; ib.RC and ib.UC in PSTCP; ib.UD in the others.
// EINVAL: the type is not for the port space.
func (m *Manager) NewIDType(ch *EventChannel, ps PortSpace, typ ib.QPType, user any) (*ID, error) {
	return nil, errNotBuilt
}
