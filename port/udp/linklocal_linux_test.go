package udp

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A link-local address works with its zone, which sources carry as well.
func TestLinkLocal(t *testing.T) {
	ifis, err := net.Interfaces()
	if err != nil {
		t.Skip(err)
	}
	for _, ifi := range ifis {
		addrs, _ := ifi.Addrs()
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil || !prefix.Addr().Is6() || !prefix.Addr().IsLinkLocalUnicast() {
				continue
			}
			addr := prefix.Addr().WithZone(ifi.Name)
			p := open(t, Config{})
			local, err := p.AddLocal(addr)
			if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EADDRNOTAVAIL) {
				continue // somebody else's, or not ready yet
			}
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, p, p, addr, addr, local)
			return
		}
	}
	t.Skip("no interface has a link-local address")
}
