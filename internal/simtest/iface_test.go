package simtest

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
)

// iface is the interface under a node: it changes while everything runs, which
// the model says is nothing to the traffic. The node's own addresses stay.
type iface struct {
	now    soft.Netdev
	report func(soft.Netdev)
	table  []netip.Addr // the model of the GID table
	events []ib.EventType

	changing bool
}

// watch gives the Watch of a node's interface.
func (n *node) watch() soft.Watch {
	f := &n.iface
	f.now = soft.Netdev{Up: true, Enabled: true, MTU: 65536, Addrs: slices.Clone(n.addrs)}
	f.table = slices.Clone(n.addrs)
	return func(report func(soft.Netdev)) (func(), error) {
		f.report = report
		report(f.now)
		return func() { f.report = nil }, nil
	}
}

// listen collects the device's events, which come with changes alone.
func (s *sim) listen(n *node) {
	f := &n.iface
	n.dev.Events(func(t ib.EventType) {
		if !f.changing {
			s.failf("device event %v", t)
		}
		f.events = append(f.events, t)
	})
}

// tell reports what the interface is, and gives the events of that.
func (f *iface) tell(list ...soft.Netdev) []ib.EventType {
	f.events, f.changing = f.events[:0], true
	for _, n := range list {
		f.report(n)
	}
	f.changing = false
	return f.events
}

// leastMTU carries a path MTU of 4096 over IPv6 for every service: 84 bytes stand around it, and XRC has 4 more.
const leastMTU = 4096 + 84 + 4

// change changes a node's interface and checks what its device makes of it.
func (s *sim) change(n *node) {
	f := &n.iface
	was := f.now
	f.now.Addrs = slices.Clone(f.now.Addrs)
	if s.chance(0.3) {
		f.now.Up = !f.now.Up
	}
	if s.chance(0.3) {
		f.now.MTU = s.between(leastMTU, 65536) // whatever is in use still fits
	}
	changed := false
	for range s.rng.IntN(4) {
		a := netip.AddrFrom4([4]byte{203, 0, 113, byte(s.rng.IntN(12))})
		if i := slices.Index(f.now.Addrs, a); i >= 0 {
			f.now.Addrs = slices.Delete(f.now.Addrs, i, i+1)
		} else {
			f.now.Addrs = append(f.now.Addrs, a)
		}
	}
	for i, a := range f.table {
		if a.IsValid() && !slices.Contains(f.now.Addrs, a) {
			f.table[i], changed = netip.Addr{}, true
		}
	}
	for _, a := range f.now.Addrs {
		if slices.Contains(f.table, a) {
			continue
		}
		changed = true
		if i := slices.Index(f.table, netip.Addr{}); i >= 0 {
			f.table[i] = a
		} else {
			f.table = append(f.table, a)
		}
	}
	var want []ib.EventType
	if was.Up && !f.now.Up {
		want = append(want, ib.EventPortErr)
	}
	if changed {
		want = append(want, ib.EventGIDChange)
	}
	if !was.Up && f.now.Up {
		want = append(want, ib.EventPortActive)
	}
	if got := f.tell(f.now); !slices.Equal(got, want) {
		s.failf("node %d: events %v of a change, want %v", n.id, got, want)
	}
	state := ib.PortActive
	if !f.now.Up {
		state = ib.PortDown
	}
	p, err := n.dev.QueryPort(1)
	if s.must("query port", err); p.State != state || p.ActiveMTU != ib.MTU4096 {
		s.failf("node %d: port %v, active MTU %v", n.id, p.State, p.ActiveMTU)
	}
	for i := range len(f.table) + 1 {
		e, err := n.dev.GIDEntry(1, i)
		switch {
		case i == len(f.table) || !f.table[i].IsValid():
			if !errors.Is(err, ib.ErrNoData) {
				s.failf("node %d: entry %d: %v, %v, want it to be empty", n.id, i, e.GID, err)
			}
		case err != nil || e.GID != ib.GIDFromAddr(f.table[i].WithZone("")):
			s.failf("node %d: entry %d: %v, %v, want %v", n.id, i, e.GID, err, f.table[i])
		}
	}
}

// vanish removes a node's interface: the last thing that happens to it.
func (s *sim) vanish(n *node) {
	f := &n.iface
	if got := f.tell(soft.Netdev{Gone: true}, f.now); !slices.Equal(got, []ib.EventType{ib.EventDeviceFatal}) {
		s.failf("node %d: events %v of a removal", n.id, got)
	}
	if _, err := n.dev.AllocPD(); err == nil {
		s.failf("node %d: a domain on a device that is gone", n.id)
	}
}
