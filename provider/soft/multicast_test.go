package soft

import (
	"fmt"
	"net/netip"
	"testing"
)

// A datagram that a queue pair sent itself is its own though the address that it
// was sent from has gone meanwhile; which addresses those are is forgotten in time.
func TestOwnAddressThatWent(t *testing.T) {
	at := netip.MustParseAddr
	d := &Device{}
	d.gids.set(Config{Addrs: []netip.Addr{at("192.0.2.1"), at("fe80::1")}, NetDev: "eth0"})
	now := func(addrs ...string) {
		n := Netdev{Up: true}
		for _, a := range addrs {
			n.Addrs = append(n.Addrs, at(a))
		}
		d.gids.change(&n, false, "eth0", 1)
	}
	want := func(addr string, own bool) {
		t.Helper()
		if got := d.isOwn(at(addr)); got != own {
			t.Errorf("own is %s: %v", addr, got)
		}
	}
	want("192.0.2.1", true)
	want("fe80::1", true)
	want("192.0.2.2", false)
	now("192.0.2.2")
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "fe80::1"} { // from the wire: without a zone
		want(a, true)
	}
	if all := d.gids.all(); len(all) != 1 || all[0] != at("192.0.2.2") {
		t.Errorf("the table holds %v", all)
	}
	for i := range pastAddrs {
		now("192.0.2.2", fmt.Sprintf("192.0.2.%d", 100+i))
	}
	now("192.0.2.2")
	want("192.0.2.1", false)
	want("192.0.2.2", true)
	want("192.0.2.100", true)
	want("192.0.2.115", true)
}
