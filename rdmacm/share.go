package rdmacm

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// What other processes at the same addresses have to know of this one: which ports its
// IDs hold and listen on, and the connections that somebody has to end when it dies.

// claim is an ID's port as the others who share a device's addresses see it.
type claim struct {
	d *device
	c driver.PortClaim
}

// sharing is the devices in the order in which all processes claim a port on all of
// them: of two that want the same port at the same time one gets it.
func (m *Manager) sharing() []*device {
	list := slices.Clone(m.devs)
	slices.SortStableFunc(list, func(a, b *device) int {
		return cmp.Compare(a.ctx.Device().Name(), b.ctx.Device().Name())
	})
	return list
}

// claim claims a port for the ID: on a device, or with a wildcard on all of them,
// or on none. The caller holds mu.
func (id *ID) claim(d *device, at netip.AddrPort, flags driver.ClaimFlags) error {
	if id.reuse {
		flags |= driver.ClaimReuse
	}
	if id.afOnly {
		flags |= driver.ClaimAFOnly
	}
	devs := []*device{d}
	if d == nil {
		devs = id.m.sharing()
	}
	at = netip.AddrPortFrom(at.Addr().WithZone(""), at.Port())
	for _, d := range devs {
		if d.names == nil || d.gone {
			continue
		}
		c, err := d.names.ClaimPort(uint16(id.ps), at, flags)
		if err != nil {
			id.unclaim(nil)
			return err
		}
		id.claims = append(id.claims, claim{d, c})
	}
	return nil
}

// unclaim gives the ID's port on a device back, nil: on all. The caller holds mu.
func (id *ID) unclaim(d *device) {
	id.claims = slices.DeleteFunc(id.claims, func(c claim) bool {
		if d != nil && c.d != d {
			return false
		}
		c.c.Release()
		return true
	})
}

// narrow gives the ID's port back on all devices but its own, when it has got one. The
// caller holds mu.
func (id *ID) narrow() {
	for _, c := range slices.Clone(id.claims) {
		if c.d != id.dev {
			id.unclaim(c.d)
		}
	}
}

// announce has requests to the ID's port come to this process, on all devices or on
// none. EADDRINUSE: it shares the port with others. The caller holds mu.
func (id *ID) announce() error {
	for _, c := range id.claims {
		if err := c.c.Listen(true); err != nil {
			id.withdraw(nil)
			return claimError(id.src, err)
		}
	}
	return nil
}

// withdraw ends announce, on a device, nil: on all. The caller holds mu.
func (id *ID) withdraw(d *device) {
	for _, c := range id.claims {
		if d == nil || c.d == d {
			_ = c.c.Listen(false) // ending it cannot fail
		}
	}
}

// claimError is the error of a port that another process has.
func claimError(at netip.AddrPort, err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	return &portError{addr: at, wildcard: errors.Is(err, syscall.EADDRNOTAVAIL), why: err}
}

// record is told by the protocol when a connection begins to be one that others have to
// end if this process dies, when that changes, and when it is over. The caller holds mu.
func (d *device) record(c *cm.Conn) {
	h, _ := c.Record.(driver.ConnHandle)
	if !c.Recorded() {
		if h != nil {
			h.Release()
			c.Record = nil
		}
		return
	}
	p := c.QPParams()
	r := driver.ConnRecord{
		Local: c.Local().WithZone(""), Remote: c.Remote().WithZone(""), LocalID: c.LocalCommID(), RemoteID: c.RemoteCommID(),
		LocalQPN: ib.QPN(p.LocalQPN), RemoteQPN: ib.QPN(p.RemoteQPN), LocalPSN: p.RQPSN, RemotePSN: p.SQPSN,
		TrafficClass: c.TrafficClass(), State: uint8(c.State()),
	}
	if h != nil {
		h.Update(&r)
		return
	}
	h, err := d.names.RecordConn(&r)
	if err != nil {
		// It works; only, nobody will end it if this process dies.
		d.m.log.Warn("connection not told to other processes", "device", d.ctx.Device().Name(), "remote", r.Remote, "err", err)
		return
	}
	c.Record = h
}

// forget takes back all that the others know of the device's connections. The caller
// holds mu, or the manager does not run.
func (d *device) forget() {
	d.cm.Each(func(c *cm.Conn) {
		if h, ok := c.Record.(driver.ConnHandle); ok {
			h.Release()
			c.Record = nil
		}
	})
}
