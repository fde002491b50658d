package udp

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// newNetwork gives the test's thread a network of its own, with a pair of
// interfaces whose IPv6 addresses work at once. It goes away with the test.
func newNetwork(t *testing.T, names [2]string, addrs [2]netip.Addr) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: names[0]})
	veth.PeerName = names[1]
	if err := netlink.LinkAdd(veth); err != nil {
		t.Skipf("no pair of interfaces: %v", err)
	}
	for i, name := range names {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0o644)
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.AddrAdd(l, &netlink.Addr{
				IPNet: &net.IPNet{IP: addrs[i].AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD,
			})
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Skipf("%s: %v", name, err)
		}
	}
}

// Two ports are in one IPv6 group on different interfaces: each takes what comes
// over its own. The kernel gives both everything.
func TestGroupOtherInterface(t *testing.T) {
	addrs := [2]netip.Addr{netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:2::2")}
	newNetwork(t, [2]string{"mc0", "mc1"}, addrs)
	for _, group := range []netip.Addr{netip.MustParseAddr("ff0e::79"), netip.MustParseAddr("ff02::79")} {
		ports := [2]*Port{open(t, Config{}), open(t, Config{})}
		var locals [2]int
		for i, p := range ports {
			var err error
			for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				if locals[i], err = p.AddLocal(addrs[i]); err == nil || time.Now().After(end) {
					break // the interface is up a moment after it was told to be
				}
			}
			if err == nil {
				err = p.Join(group, addrs[i])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		const n = 5
		for i := range n {
			multicast(t, ports[0], addrs[0], group, locals[0], i)
		}
		// mc0 loops its copy back, and the pair brings the other one to mc1.
		for i, p := range ports {
			from := 0
			collect(t, p, n, func(d *pkt.Datagram, _ int, packet []byte) {
				if psnOf(packet) != from || d.Dst.WithZone("") != group || d.Src.Addr() != addrs[0] {
					t.Errorf("port %d got packet %d: %+v", i, psnOf(packet), d)
				}
				from++
			})
			rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
			for end := time.Now().Add(10 * time.Second); p.Stats().RxForeign < wantForeign(group) && time.Now().Before(end); {
				if p.Recv(&rx) != 0 {
					t.Fatalf("port %d got more than %d: %+v", i, n, rx.Dgrams[0])
				}
				p.Wait(time.Millisecond)
			}
			if got := p.Stats().RxForeign; got != wantForeign(group) {
				t.Errorf("%v: port %d took no notice of %d, want %d", group, i, got, wantForeign(group))
			}
			_ = p.Close()
		}
	}
}

// wantForeign is how many datagrams come over the wrong interface: a socket that
// is bound to a link-local group belongs to its interface for the kernel too.
func wantForeign(group netip.Addr) uint64 {
	if group.IsLinkLocalMulticast() {
		return 0
	}
	return 5
}
