package rdma

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Option changes how devices are found.
type Option func(*config)

type config struct {
	tables    []table
	env       string
	providers []driver.Provider // more than the software one
	logger    *slog.Logger
	shards    int
	spin      time.Duration

	alone     bool // addresses are not shared
	unsteered bool

	capture  soft.Capture
	captured bool // by an option, not by the environment
}

// WithAddrs sets the GID table of an interface's device, in place of the
// interface's own addresses and of what VERBENA_ADDRS says about it. The last
// one for an interface holds.
func WithAddrs(netdev string, addrs ...netip.Addr) Option {
	return func(c *config) {
		c.tables = slices.DeleteFunc(c.tables, func(t table) bool { return t.netdev == netdev })
		c.tables = append(c.tables, table{netdev, addrs})
	}
}

// WithLogger sets where devices log what they do on their own.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// WithShards sets over how many locks a software device spreads its queue pairs;
// 1 if not set.
func WithShards(n int) Option { return func(c *config) { c.shards = n } }

// WithWaitSpin sets how long CQ.Wait of a software device polls before it sleeps:
// 30 us if not set, or not at all with GOMAXPROCS=1. Negative: it sleeps at once,
// which saves processor time and costs a wake-up for every message.
func WithWaitSpin(d time.Duration) Option { return func(c *config) { c.spin = d } }

// WithoutSharing keeps the addresses of software devices to themselves. Without it the
// processes of a user share them, on Linux; with it another process, or another open
// device, that wants one of them gets EADDRINUSE.
func WithoutSharing() Option { return func(c *config) { c.alone = true } }

// WithoutSteering shares addresses without the kernel's help in finding the process that a
// datagram is for, as on systems that have none: one process receives for all what comes
// from elsewhere, which is slower, and what they send to each other goes through memory that
// they share, not over the network. The first process on an address decides for the others.
func WithoutSteering() Option { return func(c *config) { c.unsteered = true } }

// WithProvider adds a provider before the software one.
func WithProvider(p driver.Provider) Option {
	return func(c *config) { c.providers = append(c.providers, p) }
}

// Devices lists the devices that can be opened, those on the loopback interface
// last. A provider that fails does not hide the devices of the others. No device
// is an empty list. EINVAL: bad addresses.
func Devices(ctx context.Context, opts ...Option) ([]*verbs.Device, error) {
	c := config{env: os.Getenv(AddrsEnv)}
	for _, o := range opts {
		o(&c)
	}
	ps, err := c.all()
	if err != nil {
		return nil, err
	}
	return verbs.Devices(ctx, ps...)
}

// all makes the providers.
func (c *config) all() ([]driver.Provider, error) {
	fromEnv, err := parseAddrs(c.env)
	if err != nil {
		return nil, err
	}
	if err := checkTables("WithAddrs", c.tables); err != nil {
		return nil, err
	}
	if len(fromEnv)+len(c.tables) > 0 {
		exist, err := interfaces()
		if err != nil {
			return nil, err
		}
		if err := checkNames(AddrsEnv, fromEnv, exist); err != nil {
			return nil, err
		}
		if err := checkNames("WithAddrs", c.tables, exist); err != nil {
			return nil, err
		}
	}
	var opts []soft.Option
	for _, t := range slices.Concat(fromEnv, c.tables) { // later ones replace earlier ones
		opts = append(opts, soft.WithAddrs(t.netdev, t.addrs...))
	}
	if c.logger != nil {
		opts = append(opts, soft.WithLogger(c.logger))
	}
	if c.shards > 0 {
		opts = append(opts, soft.WithShards(c.shards))
	}
	if c.spin != 0 {
		opts = append(opts, soft.WithWaitSpin(c.spin))
	}
	if c.alone {
		opts = append(opts, soft.WithoutSharing())
	}
	if c.unsteered {
		opts = append(opts, soft.WithoutSteering())
	}
	if o := c.captureOption(); o != nil {
		opts = append(opts, o)
	}
	return append(slices.Clone(c.providers), soft.NewProvider(opts...)), nil
}

func interfaces() ([]string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	names := make([]string, len(ifs))
	for i := range ifs {
		names[i] = ifs[i].Name
	}
	return names, nil
}

// Open opens a device: by its name (soft_eth0), by its interface (eth0), or by
// an IP address that is one of its GIDs. With the empty name it opens the first
// one that works, on an interface that leads to other hosts if there is one. The
// caller closes the Context. ENODEV: there is none; EADDRNOTAVAIL: it was given an
// address that the host does not have; ctx's error if that is done.
//
// An address only selects the device, whose GID table may hold others before it:
// find its index with FindGIDIndex, or use WithAddrs to make it the only GID.
//
// On Linux the Contexts of a device share its addresses, up to 127 in all processes of
// a user. Who does not share them (processes of other users, those on other systems,
// WithoutSharing) cannot have an address that somebody has: RoCE has one UDP port, 4791. It is taken
// when the first queue pair goes to RTR on the address, and kept until Close; EADDRINUSE then tells who has
// it. WithAddrs and VERBENA_ADDRS give a Context other addresses.
func Open(ctx context.Context, name string, opts ...Option) (*verbs.Context, error) {
	list, err := Devices(ctx, opts...)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return openFirst(ctx, list)
	}
	for _, d := range list {
		if d.Name() == name {
			return d.Open(ctx)
		}
	}
	for _, d := range list {
		if d.NetDev() == name {
			return d.Open(ctx)
		}
	}
	if a, err := netip.ParseAddr(name); err == nil {
		return openAddr(ctx, list, a)
	}
	return nil, noDevice("there is no device or interface "+name, list)
}

// openFirst opens the first device that can be opened. If none can, the error is
// that of the first.
func openFirst(ctx context.Context, list []*verbs.Device) (*verbs.Context, error) {
	var first error
	for _, d := range list {
		c, err := d.Open(ctx)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = noDevice("no network interface is up and has an address", nil)
	}
	return nil, first
}

// openAddr opens the device that has the address. Only an open device shows its
// GIDs, so they are opened in turn.
func openAddr(ctx context.Context, list []*verbs.Device, a netip.Addr) (*verbs.Context, error) {
	var first error
	for _, d := range list {
		if a.Zone() != "" && a.Zone() != d.NetDev() {
			continue
		}
		c, err := d.Open(ctx)
		if err == nil {
			var has bool
			if has, err = hasAddr(c, a); has {
				return c, nil
			}
			c.Close()
		}
		if first == nil {
			first = err
		}
	}
	if first != nil {
		return nil, first
	}
	return nil, noDevice("no device has the address "+a.String(), list)
}

func hasAddr(c *verbs.Context, a netip.Addr) (bool, error) {
	gids, err := c.QueryGIDTable()
	for _, g := range gids {
		if g.GID.Addr() == a.Unmap().WithZone("") {
			return true, nil
		}
	}
	return false, err
}

func noDevice(why string, list []*verbs.Device) error {
	if len(list) > 0 {
		names := make([]string, len(list))
		for i, d := range list {
			names[i] = d.Name()
		}
		why += " (there are: " + strings.Join(names, ", ") + ")"
	}
	return &verbs.OpError{Op: "open_device", Err: fmt.Errorf("%s: %w", why, syscall.ENODEV)}
}
