package soft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/port"
)

// Netdev is what a network interface is at one moment.
type Netdev struct {
	// Gone: the interface is no more, or in another network namespace. The other
	// fields mean nothing then.
	Gone bool
	// Up: it is administratively up and has a carrier.
	Up bool
	// Enabled: it is administratively up.
	Enabled bool
	// MTU in bytes.
	MTU int
	// Addrs are its usable unicast addresses, link-local ones with their zone.
	// Tentative ones are not there: nobody can send from them yet.
	Addrs []netip.Addr
	// Local are networks of which every address is this host's own, as the loopback
	// interface has them.
	Local []netip.Prefix
}

// has reports whether the host has the address by this interface.
func (n *Netdev) has(a netip.Addr) bool {
	return slices.ContainsFunc(n.Addrs, func(b netip.Addr) bool { return same(a, b) }) ||
		slices.ContainsFunc(n.Local, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
}

// same compares two addresses of one interface: the zone says nothing.
func same(a, b netip.Addr) bool { return a.Unmap().WithZone("") == b.Unmap().WithZone("") }

// A Watch tells report what the interface under a device is, once before it
// returns and again after every change, by one goroutine. What happens together
// may be one report. stop, called once, ends that; when it returns no report is
// running or will come.
type Watch func(report func(Netdev)) (stop func(), err error)

// follow begins to follow the interface. A device that cannot works as it is.
func (d *Device) follow() {
	d.link.Store(&Netdev{Up: true, Enabled: true, MTU: d.cfg.LinkMTU})
	d.removed = make(chan struct{})
	if d.cfg.Watch == nil {
		return
	}
	stop, err := d.cfg.Watch(d.changed)
	if err != nil {
		d.log.Warn("changes of the network interface are not followed", "device", d.cfg.Name, "netdev", d.cfg.NetDev, "err", err)
		return
	}
	d.unfollow = stop
}

// changed takes over what the interface is now. Each event is raised once for
// all that changed: GID_CHANGE as Linux does when an entry is added or removed,
// PORT_ERR and PORT_ACTIVE with the link. A new MTU has no event, as with rdma_rxe
// and NICs: QueryPort tells it, queue pairs keep their path MTU.
func (d *Device) changed(n Netdev) {
	if d.gone.Load() {
		return
	}
	if n.Gone {
		d.vanish()
		return
	}
	was := d.link.Swap(&n)
	added, removed := d.gids.change(&n, d.cfg.FixedAddrs, d.cfg.NetDev, d.cfg.IfIndex)
	if p, ok := d.cfg.Port.(port.Dropper); ok {
		// The address may come to another interface, whose device must be able to
		// have it.
		for _, a := range removed {
			p.DropLocal(a)
		}
	}
	for _, a := range added {
		// Datagram queue pairs receive on every address; on one that returns there may
		// be others.
		if _, before := d.opened.Load(a.Unmap().WithZone("")); before || d.listening.Load() {
			d.listen(a)
		}
	}
	if was.MTU != n.MTU {
		d.log.Info("MTU changed", "device", d.cfg.Name, "mtu", n.MTU, "active", d.activeMTU())
	}
	// The order of an interface that goes down with its addresses, or comes up.
	if was.Up && !n.Up {
		d.raise(ib.EventPortErr)
	}
	if len(added)+len(removed) > 0 {
		d.log.Info("GID table changed", "device", d.cfg.Name, "added", added, "removed", removed)
		d.raise(ib.EventGIDChange)
	}
	if !was.Up && n.Up {
		d.raise(ib.EventPortActive)
	}
}

// vanish ends the device: its interface is gone for good. DEVICE_FATAL comes
// first, then what the queue pairs have to say of their work, which is flushed.
// Objects remain until they are destroyed; who waits for completions gets EIO when
// there are no more.
func (d *Device) vanish() {
	if d.gone.Swap(true) {
		return
	}
	d.log.Error("the network interface was removed", "device", d.cfg.Name, "netdev", d.cfg.NetDev)
	d.raise(ib.EventDeviceFatal)
	d.eng.Fail()
	close(d.removed)
	d.over.Store(true)
	d.eng.Free() // of those who wait for completions none may wait for ever
}

// raise gives the application an event of the device.
func (d *Device) raise(t ib.EventType) {
	if t == ib.EventPortErr {
		d.linkDowned.Add(1)
	}
	if s := d.events.Load(); s != nil && *s != nil {
		(*s)(t)
	}
}

// Removed implements driver.Remover.
func (d *Device) Removed() <-chan struct{} { return d.removed }

// errGone is what every call that needs the interface answers when it is gone.
var errGone = fmt.Errorf("the network interface under the device was removed: %w", syscall.EIO)

// alive is EIO once the interface is gone.
func (d *Device) alive() error {
	if d.gone.Load() {
		return errGone
	}
	return nil
}

// portState is the state of the port as Linux has it for Ethernet devices.
func (d *Device) portState() (ib.PortState, ib.PortPhysState) {
	switch n := d.link.Load(); {
	case n.Up:
		return ib.PortActive, ib.PhysLinkUp
	case n.Enabled:
		return ib.PortDown, ib.PhysPolling
	}
	return ib.PortDown, ib.PhysDisabled
}

// linkMTU is the interface's MTU in bytes.
func (d *Device) linkMTU() int {
	if n := d.link.Load(); n != nil {
		return n.MTU
	}
	return d.cfg.LinkMTU
}

// listen opens an address that came to the table. That may fail for a moment,
// or because somebody else has it: queue pairs that need it fail then.
func (d *Device) listen(a netip.Addr) {
	if _, err := d.localIndex(a); err != nil && !errors.Is(err, syscall.EIO) {
		d.log.Warn("address left out", "device", d.cfg.Name, "addr", a, "err", err)
	}
}

// change makes the table hold what the interface has: an address that is new
// goes to the first empty entry, one that is gone leaves its entry empty, all
// others keep their index. Linux does the same, but leaves an entry alone while a
// queue pair or an address handle refers to it; here these hold the address
// itself, and go on when it returns. In a table that somebody has chosen (fixed)
// an address keeps its entry, empty while the interface has lost it; one that the
// interface never had stays, it may be the host's by a route.
func (t *gidTable) change(n *Netdev, fixed bool, netdev string, ifindex int) (added, removed []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, a := range t.addrs {
		switch {
		case !a.IsValid():
			continue
		case n.has(a):
			t.seen[i] = true
			if t.entries[i].GID.IsZero() {
				t.put(i, a, netdev, ifindex)
				added = append(added, a)
			}
		case (t.seen[i] || !fixed) && !t.entries[i].GID.IsZero():
			t.entries[i] = ib.GIDEntry{}
			removed = append(removed, a)
			if !fixed {
				t.past[t.leave], t.addrs[i] = a, netip.Addr{}
				t.leave = (t.leave + 1) % pastAddrs
			}
		}
	}
	if fixed {
		return added, removed
	}
	for _, a := range n.Addrs {
		if slices.ContainsFunc(t.addrs, func(b netip.Addr) bool { return same(a, b) }) {
			continue
		}
		i := slices.IndexFunc(t.addrs, func(a netip.Addr) bool { return !a.IsValid() })
		if i < 0 {
			if i = len(t.addrs); i == gidTableLen {
				break // what does not fit waits for a free entry and a change
			}
			t.addrs, t.entries, t.seen = append(t.addrs, a), append(t.entries, ib.GIDEntry{}), append(t.seen, false)
		}
		t.put(i, a, netdev, ifindex)
		added = append(added, a)
	}
	return added, removed
}
