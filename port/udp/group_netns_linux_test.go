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

// inNewNetwork runs f on a thread with a network of its own, which goes away with
// it.
func inNewNetwork(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// What /proc/net shows, to the whole process, is the network of this thread.
			inNewNetwork(t, f)
			runtime.UnlockOSThread()
			return
		}
		// Never unlocked: the thread ends with the goroutine.
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Logf("no network namespace, nothing is tested: %v", err)
			return
		}
		f()
	}()
	<-done
}

// newPair makes a pair of interfaces whose IPv6 addresses work at once.
func newPair(t *testing.T, names [2]string, addrs [2]netip.Addr) {
	t.Helper()
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: names[0]})
	veth.PeerName = names[1]
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatalf("no pair of interfaces: %v", err)
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
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// Two ports are in one IPv6 group on different interfaces: each takes what comes
// over its own. The kernel gives both everything.
func TestGroupOtherInterface(t *testing.T) {
	addrs := [2]netip.Addr{netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:2::2")}
	inNewNetwork(t, func() { testOtherInterface(t, addrs) })
}

func testOtherInterface(t *testing.T, addrs [2]netip.Addr) {
	newPair(t, [2]string{"mc0", "mc1"}, addrs)
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
			for end := time.Now().Add(10 * time.Second); err == nil && !routed(group, ifIndex(t, i)); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the interface has no route to groups")
				}
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

func ifIndex(t *testing.T, i int) int {
	t.Helper()
	l, err := netlink.LinkByName([]string{"mc0", "mc1"}[i])
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Index
}

// routed asks the kernel for a route to an IPv6 group over an interface.
func routed(group netip.Addr, index int) bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, index)
	return unix.Connect(fd, sockaddr(group, uint32(index), 4791)) == nil
}
