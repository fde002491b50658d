package soft

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/udp"
)

// Case 24: the active MTU is that of rdma_rxe, 80 bytes below the link's.
func TestCase24_ActiveMTU(t *testing.T) {
	for link, want := range map[int]ib.MTU{
		1103: ib.MTU512, 1104: ib.MTU1024, 1500: ib.MTU1024, 4175: ib.MTU2048, 4176: ib.MTU4096, 9000: ib.MTU4096, 0: ib.MTU4096,
	} {
		p, err := udp.Open(udp.Config{})
		must(t, err)
		d, err := NewDevice(Config{Name: "soft_test", LinkMTU: link, Port: p})
		must(t, err)
		a, err := d.QueryPort(1)
		must(t, err)
		if a.ActiveMTU != want {
			t.Errorf("link MTU %d: active MTU %v, want %v", link, a.ActiveMTU, want)
		}
		must(t, d.Close())
	}
}

// Over IPv6 the longest packet needs four bytes more than the active MTU counts.
func TestCase24_PathMTUOverIPv6(t *testing.T) {
	for _, c := range []struct {
		link int
		dst  string
		ok   bool
	}{
		{4176, "192.0.2.2", true},
		{4176, "2001:db8::2", false},
		{4179, "2001:db8::2", false},
		{4180, "2001:db8::2", true},
	} {
		src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr(c.dst)
		if dst.Is6() {
			src = netip.MustParseAddr("2001:db8::1")
		}
		d := &Device{cfg: Config{LinkMTU: c.link}}
		err := d.checkPathMTU(ib.MTU4096, &pkt.Flow{Path: roce.NewPath(src, dst, roce.Port)}, ib.RC)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("link MTU %d to %s: %v", c.link, c.dst, err)
		}
	}
}
