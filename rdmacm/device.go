package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// device is an open device with its part of the protocol.
type device struct {
	m     *Manager
	ctx   *verbs.Context
	own   bool // the manager has opened it
	attr  ib.DeviceAttr
	agent driver.MADAgent
	names driver.NameSharer // nil: no other process has the addresses
	cm    *cm.Manager
	mad   driver.MAD // scratch

	gone    bool            // the device was removed
	removed <-chan struct{} // nil: it cannot be
	pd      *verbs.PD       // default domain
	xrcd    *verbs.XRCD     // default XRC domain
}

// open opens the devices, once. ENODEV: there is none, or none works: then the error
// tells why.
func (m *Manager) open(ctx context.Context) error {
	m.openMu.Lock()
	defer m.openMu.Unlock()
	m.mu.Lock()
	opened, closed := m.opened, m.closed
	m.mu.Unlock()
	switch {
	case closed:
		return errManagerClosed
	case opened:
		return nil
	}
	var devs []*device
	var errs []error
	add := func(c *verbs.Context, own bool) {
		d, err := m.newDevice(c, own)
		if err != nil {
			errs = append(errs, err)
			m.log.Warn("device left out", "device", c.Device().Name(), "err", err)
			if own {
				c.Close()
			}
			return
		}
		devs = append(devs, d)
	}
	for _, c := range m.cfg.contexts {
		add(c, false)
	}
	providers := m.cfg.providers
	if !m.cfg.given {
		providers = []driver.Provider{soft.NewProvider()}
	}
	if len(providers) > 0 {
		list, err := verbs.Devices(ctx, providers...)
		if err != nil {
			errs = append(errs, err)
		}
		for _, v := range list {
			c, err := v.Open(ctx)
			if err != nil {
				errs = append(errs, err)
				m.log.Warn("device left out", "device", v.Name(), "err", err)
				continue
			}
			add(c, true)
		}
	}
	if err := ctx.Err(); err != nil && len(errs) > 0 {
		// The rest may work: who is less impatient tries again, and finds all of them.
		for _, d := range devs {
			err = errors.Join(err, d.close())
		}
		return err
	}
	if len(devs) == 0 {
		if len(errs) > 0 {
			return fmt.Errorf("no device can be used: %w", errors.Join(errs...))
		}
		return fmt.Errorf("there is no device: %w", syscall.ENODEV)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened, m.devs, m.leftOut = true, devs, errors.Join(errs...)
	if !m.cfg.manual {
		m.stopped.Add(1)
		go m.run()
	}
	return nil
}

func (m *Manager) newDevice(c *verbs.Context, own bool) (*device, error) {
	d := &device{m: m, ctx: c, own: own}
	var err error
	if d.attr, err = c.QueryDevice(); err != nil {
		return nil, err
	}
	md, ok := c.Driver().(driver.MADDevice)
	if !ok {
		return nil, fmt.Errorf("device %s has no queue pair 1: %w", c.Device().Name(), syscall.EOPNOTSUPP)
	}
	if d.agent, err = md.OpenMAD(m.arrived); err != nil {
		return nil, err
	}
	if r, ok := c.Driver().(driver.Remover); ok {
		d.removed = r.Removed()
		if !m.cfg.manual {
			m.stopped.Add(1)
			go func() {
				defer m.stopped.Done()
				select {
				case <-d.removed:
					m.nudge()
				case <-m.stop:
				}
			}()
		}
	}
	if d.pd, err = c.AllocPD(); err != nil {
		return nil, errors.Join(err, d.agent.Close())
	}
	cfg := cm.Config{Rand: m.rand, CAGUID: d.attr.NodeGUID, ACKDelay: d.attr.LocalCAAckDelay}
	if d.names, ok = d.agent.(driver.NameSharer); ok {
		cfg.IDBits, cfg.IDMask = d.names.CommIDs()
		cfg.Record = d.record
	}
	d.cm = cm.New(cfg)
	return d, nil
}

// close ends the device's part; the manager is not running any more.
func (d *device) close() error {
	d.forget()
	err := d.agent.Close()
	if d.xrcd != nil {
		err = errors.Join(err, d.xrcd.Close())
	}
	err = errors.Join(err, d.pd.Dealloc())
	if d.own {
		err = errors.Join(err, d.ctx.Close())
	}
	return err
}

// defaultXRCD is the XRC domain of IDs without one of their own. The caller holds the
// manager's mu.
func (d *device) defaultXRCD() (*verbs.XRCD, error) {
	if d.xrcd == nil {
		x, err := d.ctx.OpenXRCD(&verbs.XRCDInitAttr{})
		if err != nil {
			return nil, err
		}
		d.xrcd = x
	}
	return d.xrcd, nil
}

// cmPort is the port of a device that is served: RoCE devices have one.
const cmPort = 1

// gid finds an address in the device's GID table.
func (d *device) gid(a netip.Addr) (index int, ok bool) {
	a = a.Unmap()
	i, ok := d.agent.Index(a)
	if !ok || a.Zone() == "" {
		return i, ok
	}
	e, err := d.ctx.QueryGIDEntry(cmPort, i)
	return i, err == nil && zoneIs(a.Zone(), &e)
}

// zoneIs reports whether a zone names the interface of a GID.
func zoneIs(zone string, e *ib.GIDEntry) bool {
	if zone == e.NetDev {
		return true
	}
	n, err := strconv.Atoi(zone)
	return err == nil && n == e.IfIndex
}

// addrs lists the device's addresses of a family, link-local ones with their zone.
func (d *device) addrs(is4 bool) (list []netip.Addr) {
	for _, a := range d.agent.Addrs() {
		if a = a.Unmap(); a.Is4() == is4 {
			list = append(list, a)
		}
	}
	return list
}

// withZone completes a link-local address that the device has or hears from.
func (d *device) withZone(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		a = a.WithZone(d.ctx.Device().NetDev())
	}
	return a
}

// deviceOf finds the device that has an address. The caller holds mu. EADDRNOTAVAIL:
// none has it.
func (m *Manager) deviceOf(a netip.Addr) (*device, error) {
	for _, d := range m.devs {
		if d.gone {
			continue
		}
		if _, ok := d.gid(a); ok {
			return d, nil
		}
	}
	if m.leftOut != nil {
		return nil, fmt.Errorf("no device has the address %s (%w), but a device could not be opened: %v", a, syscall.EADDRNOTAVAIL, m.leftOut)
	}
	return nil, fmt.Errorf("no device has the address %s: %w", a, syscall.EADDRNOTAVAIL)
}

// source picks the address from which dst is reached: dst itself if it is one of ours,
// as the local routing table has it, else what the
// routing table says; on an interface whose device has other addresses than the
// interface, one of these. The caller holds mu.
func (m *Manager) source(dst netip.Addr) (netip.Addr, error) {
	if d, err := m.deviceOf(dst); err == nil {
		return d.withZone(dst), nil
	}
	if m.cfg.manual { // no routing table: the first address of the family
		for _, d := range m.devs {
			if list := d.addrs(dst.Is4()); len(list) > 0 && !d.gone {
				return list[0], nil
			}
		}
		return netip.Addr{}, syscall.ENETUNREACH
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 4791)))
	if err != nil {
		return netip.Addr{}, err
	}
	src := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	c.Close()
	if d, err := m.deviceOf(src); err == nil {
		return d.withZone(src), nil
	}
	name := m.loopback
	if !src.IsLoopback() {
		name = netdevOf(src)
	} else if name == "" { // one that has a name keeps it, and asking for it takes long
		name = netdevOf(src)
		m.loopback = name
	}
	for _, d := range m.devs {
		if d.gone || d.ctx.Device().NetDev() != name || name == "" {
			continue
		}
		if list := d.addrs(dst.Is4()); len(list) > 0 {
			return list[0], nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s is reached from %s, which no device has: %w", dst, src, syscall.ENODEV)
}

// netdevOf is the name of the interface that has an address.
func netdevOf(a netip.Addr) string {
	if a.IsLoopback() {
		a = a.WithZone("")
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range ifs {
		if a.IsLoopback() && i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
		list, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, x := range list {
			if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a.WithZone("") {
				return i.Name
			}
		}
	}
	return ""
}
