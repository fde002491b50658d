package soft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// namePrefix stands before the interface's name in that of its device.
const namePrefix = "soft_"

// Provider offers a device for every network interface that is up and has an
// address. It implements driver.Provider.
type Provider struct {
	addrs  map[string][]netip.Addr
	log    *slog.Logger
	shards int
	spin   time.Duration
	trace  trace.Recorder
	limits Limits

	capture *Capture

	alone, unsteered bool
	private          string // of tests: groups that nobody else is in
	noHanding        bool   // of tests: see udp.Config
}

// Option sets an option of a Provider.
type Option func(*Provider)

// WithAddrs sets the GID table of the device of an interface, instead of the
// interface's own addresses. On the loopback interface any address of
// 127.0.0.0/8 will do.
func WithAddrs(netdev string, addrs ...netip.Addr) Option {
	return func(p *Provider) { p.addrs[netdev] = addrs }
}

// WithLogger sets where devices log what they do on their own.
func WithLogger(l *slog.Logger) Option { return func(p *Provider) { p.log = l } }

// WithShards sets the number of locks over which the queue pairs of a device
// are spread; 1 if not set.
func WithShards(n int) Option { return func(p *Provider) { p.shards = n } }

// WithWaitSpin sets how long CQ.Wait polls before it sleeps, see Config.WaitSpin.
func WithWaitSpin(d time.Duration) Option { return func(p *Provider) { p.spin = d } }

// WithTrace sets who is shown every packet of the devices.
func WithTrace(r trace.Recorder) Option { return func(p *Provider) { p.trace = r } }

// NewProvider makes a provider.
func NewProvider(opts ...Option) *Provider {
	p := &Provider{addrs: make(map[string][]netip.Addr)}
	for _, o := range opts {
		o(p)
	}
	return p
}

// Devices implements driver.Provider. The loopback interface comes last.
func (p *Provider) Devices(context.Context) ([]driver.DeviceInfo, error) {
	cfgs, err := p.configs()
	if err != nil {
		return nil, err
	}
	list := make([]driver.DeviceInfo, len(cfgs))
	for i, c := range cfgs {
		list[i] = driver.DeviceInfo{
			Name: c.Name, GUID: c.GUID, NodeType: p.limits.nodeType(), Transport: p.limits.transport(), NetDev: c.NetDev,
		}
	}
	return list, nil
}

// Open implements driver.Provider. ENODEV: there is no such device; EADDRNOTAVAIL: one
// of the addresses that were chosen for it is not of this host.
func (p *Provider) Open(ctx context.Context, name string) (driver.Device, error) {
	cfgs, err := p.configs()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(cfgs, func(c Config) bool { return c.Name == name })
	if i < 0 {
		names := make([]string, len(cfgs))
		for i, c := range cfgs {
			names[i] = c.Name
		}
		return nil, fmt.Errorf("no device %s (there are: %s): %w", name, strings.Join(names, ", "), syscall.ENODEV)
	}
	cfg := cfgs[i]
	if cfg.FixedAddrs {
		if err := onThisHost(cfg.Addrs, cfg.NetDev); err != nil {
			return nil, err
		}
	}
	if err = p.openPort(ctx, &cfg); err != nil {
		return nil, err
	}
	d, err := NewDevice(cfg)
	if err != nil {
		cfg.Port.Close()
		if cfg.sharing != nil {
			err = errors.Join(err, cfg.sharing.close())
		}
		return nil, err
	}
	if cfg.sharing != nil {
		cfg.sharing.opened(cfg.Port.(*udp.Port), d)
		cfg.sharing.port.Look()
	}
	if err := d.alive(); err != nil { // the interface went away since it was listed
		d.Close()
		return nil, fmt.Errorf("device %s: %w", name, syscall.ENODEV)
	}
	return d, nil
}

// onThisHost refuses addresses that the host does not have: without, the first that
// would show it is a queue pair that goes to RTR. What the host has only the kernel
// knows (all of 127.0.0.0/8, addresses of other interfaces, net.ipv4.ip_nonlocal_bind):
// it is asked with a socket that is thrown away.
func onThisHost(addrs []netip.Addr, netdev string) error {
	for _, a := range addrs {
		if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
			a = a.WithZone(netdev)
		}
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Unmap(), 0)))
		switch {
		case err == nil:
			_ = c.Close()
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			bits := 24
			if a.Unmap().Is6() {
				bits = 64
			}
			return fmt.Errorf("%s is not an address of this host: choose another, or add it (as root: ip addr add %s/%d dev %s): %w",
				a, a.Unmap().WithZone(""), bits, netdev, syscall.EADDRNOTAVAIL)
		}
	}
	return nil
}

// configs describes a device for each usable interface.
func (p *Provider) configs() ([]Config, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var cfgs, loop []Config
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, fixed := p.addrs[i.Name]
		if !fixed {
			if addrs, err = usable(&i); err != nil {
				return nil, err
			}
		}
		if len(addrs) == 0 {
			continue
		}
		c := Config{
			Name: namePrefix + i.Name, NetDev: i.Name, IfIndex: i.Index, GUID: guid(&i),
			LinkMTU: i.MTU, Addrs: addrs, Shards: p.shards, WaitSpin: p.spin, Logger: p.log, Limits: p.limits,
			Trace: p.trace, Capture: p.capture, FixedAddrs: fixed, Watch: watchNetdev(i.Index),
		}
		// By the interface, not by its addresses, which may have been replaced.
		if i.Flags&net.FlagLoopback != 0 {
			loop = append(loop, c)
		} else {
			cfgs = append(cfgs, c)
		}
	}
	return append(cfgs, loop...), nil
}

// usable lists an interface's unicast addresses, the ones that reach furthest
// first: GID 0 is one that works.
func usable(i *net.Interface) ([]netip.Addr, error) {
	if addrs, ok := addresses(i); ok {
		return addrs, nil
	}
	list, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of %s: %w", i.Name, err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		if pfx, err := netip.ParsePrefix(a.String()); err == nil {
			addrs = append(addrs, pfx.Addr())
		}
	}
	return order(i.Name, addrs), nil
}

// order picks the unicast addresses among those of an interface, gives link-local
// ones their zone, and sorts the ones that reach furthest first.
func order(ifname string, list []netip.Addr) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range list {
		a = a.Unmap()
		if a.IsMulticast() || a.IsUnspecified() {
			continue
		}
		if a.Is6() && a.IsLinkLocalUnicast() {
			a = a.WithZone(ifname)
		}
		addrs = append(addrs, a)
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return rank(a) - rank(b) })
	return addrs
}

func rank(a netip.Addr) int {
	switch {
	case a.IsLinkLocalUnicast():
		return 2
	case a.Is4():
		return 0
	}
	return 1
}

// guid is the EUI-64 of the interface's hardware address, as Linux's soft RoCE
// has it, or one made from its name.
func guid(i *net.Interface) uint64 {
	m := i.HardwareAddr
	if len(m) != 6 {
		return guidFromName(i.Name)
	}
	return uint64(m[0]^2)<<56 | uint64(m[1])<<48 | uint64(m[2])<<40 | 0xFFFE<<24 |
		uint64(m[3])<<16 | uint64(m[4])<<8 | uint64(m[5])
}
