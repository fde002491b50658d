package soft

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// An address that was chosen and is not of this host is refused when the device is
// opened, with what to do, not when a queue pair is to use it.
func TestOpenWithForeignAddress(t *testing.T) {
	for _, addr := range []string{"203.0.113.9", "2001:db8::9"} {
		p := NewProvider(WithAddrs("lo", netip.MustParseAddr("127.0.0.77"), netip.MustParseAddr(addr)))
		_, err := p.Open(t.Context(), "soft_lo")
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), addr+" is not an address of this host") ||
			!strings.Contains(err.Error(), "ip addr add "+addr+"/") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}
