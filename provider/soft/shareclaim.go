package soft

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// claims are a wildcard's where the device has chosen addresses: of these only, since
// others of the interface may be another process's alone.
type claims []driver.PortClaim

// portClaimer is who grants claims.
type portClaimer interface {
	ClaimPort(space uint16, at netip.AddrPort, flags driver.ClaimFlags) (driver.PortClaim, error)
}

// claimEach claims a port on each of the addresses that a wildcard stands for, or on none.
func claimEach(g portClaimer, space uint16, at netip.AddrPort, flags driver.ClaimFlags, addrs []netip.Addr) (driver.PortClaim, error) {
	var list claims
	for _, addr := range addrs {
		addr = addr.Unmap().WithZone("")
		if addr.Is4() != at.Addr().Is4() && (at.Addr().Is4() || flags&driver.ClaimAFOnly != 0) {
			continue
		}
		f := flags
		if len(list) > 0 {
			f &^= driver.ClaimUnused // the first has it
		}
		c, err := g.ClaimPort(space, netip.AddrPortFrom(addr, at.Port()), f)
		if err != nil {
			list.Release()
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}

// Listen implements driver.PortClaim.
func (l claims) Listen(on bool) error {
	for i, c := range l {
		if err := c.Listen(on); err != nil {
			for _, c := range l[:i] {
				_ = c.Listen(false) // ending it cannot fail
			}
			return err
		}
	}
	return nil
}

// Release implements driver.PortClaim.
func (l claims) Release() {
	for _, c := range l {
		c.Release()
	}
}
