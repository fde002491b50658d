package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// rawAddr is a struct sockaddr_in or sockaddr_in6.
type rawAddr [unix.SizeofSockaddrInet6]byte

// putRawAddr writes an address and returns the length that counts.
func putRawAddr(r *rawAddr, to netip.AddrPort, scope uint32) uint32 {
	*r = rawAddr{}
	binary.BigEndian.PutUint16(r[2:], to.Port())
	if a := to.Addr().Unmap(); a.Is4() {
		binary.NativeEndian.PutUint16(r[:], unix.AF_INET)
		a4 := a.As4()
		copy(r[4:], a4[:])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(r[:], unix.AF_INET6)
	a16 := to.Addr().As16()
	copy(r[8:], a16[:])
	binary.NativeEndian.PutUint32(r[24:], scope)
	return unix.SizeofSockaddrInet6
}

// addrPort reads an address; a link-local one gets the zone. It is the zero
// value if the family is unknown.
func (r *rawAddr) addrPort(zone string) netip.AddrPort {
	port := binary.BigEndian.Uint16(r[2:])
	switch binary.NativeEndian.Uint16(r[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(r[4:8])), port)
	case unix.AF_INET6:
		a := netip.AddrFrom16([16]byte(r[8:24])).Unmap()
		if zone != "" && a.Is6() && a.IsLinkLocalUnicast() {
			a = a.WithZone(zone)
		}
		return netip.AddrPortFrom(a, port)
	}
	return netip.AddrPort{}
}

// scopeID returns the interface index that a zone names; 0: there is none.
func scopeID(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n)
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0
	}
	return uint32(ifi.Index)
}
