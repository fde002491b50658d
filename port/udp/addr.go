package udp

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// checkLocal returns the address as the port keeps it: IPv4 in 4 bytes, IPv6
// with its zone. Only an address of one interface will do: with a wildcard
// nobody would know the source address that the ICRC covers.
func checkLocal(addr netip.Addr) (netip.Addr, error) {
	addr = addr.Unmap()
	switch {
	case !addr.IsValid():
		return addr, fmt.Errorf("udp: local address is missing: %w", syscall.EINVAL)
	case addr.IsUnspecified(), addr.IsMulticast():
		return addr, fmt.Errorf("udp: local address %v is not an address of one interface: %w", addr, syscall.EINVAL)
	case addr.IsLinkLocalUnicast() && addr.Is6() && addr.Zone() == "":
		return addr, fmt.Errorf("udp: link-local address %v needs a zone, as in %v%%eth0: %w", addr, addr, syscall.EINVAL)
	}
	return addr, nil
}

// errClosed is what calls on a closed port return.
var errClosed = fmt.Errorf("udp: port: %w", net.ErrClosed)
