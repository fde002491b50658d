package udp

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// onLinkLocal calls f with a link-local address that nobody has.
func onLinkLocal(t *testing.T, f func(p *Port, addr netip.Addr, local int)) {
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
			f(p, addr, local)
			return
		}
	}
	t.Skip("no interface has a link-local address")
}

// A link-local address works with its zone, which sources carry as well.
func TestLinkLocal(t *testing.T) {
	onLinkLocal(t, func(p *Port, addr netip.Addr, local int) { exchange(t, p, p, addr, addr, local) })
}

// What members hand each other carries the zone too, wherever it stands.
func TestHandedLinkLocal(t *testing.T) {
	onLinkLocal(t, func(p *Port, addr netip.Addr, _ int) {
		_ = p.Close()
		s := newShared(t, addr, 64, true, 1, 2, 3)
		for _, to := range []netip.Addr{addr, addr.WithZone("")} {
			for _, size := range []int{64, 4096} {
				tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
				toQP(t, tx, flow(addr, to, s.index[2]), qpnOf(3, 5), 0, make([]byte, size))
				s.ports[2].Send(tx)
				s.receive(t, map[int]int{3: 1}, func(_ int, d *pkt.Datagram, _ []byte) {
					if !d.Relayed || d.Src != netip.AddrPortFrom(addr, roce.Port) || d.Dst != addr {
						t.Errorf("to %v, %d bytes: %+v", to, size, d)
					}
				})
			}
		}
		if n := s.ports[1].Stats().Relayed; n != 0 {
			t.Errorf("the steward handed over %d", n)
		}
	})
}
