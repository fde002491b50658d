package soft

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
)

// states is what a watch reports.
type states struct {
	t *testing.T
	c chan Netdev
}

// until waits for a report that is as wanted.
func (s *states) until(what string, want func(Netdev) bool) Netdev {
	s.t.Helper()
	var last Netdev
	for limit := time.After(patience); ; {
		select {
		case last = <-s.c:
			if want(last) {
				return last
			}
		case <-limit:
			s.t.Fatalf("%s: not reported; last %+v", what, last)
		}
	}
}

// TestWatchNetdev follows an interface of a network namespace of its own.
func TestWatchNetdev(t *testing.T) {
	newNetwork(t)
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "test0", 4000
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer0"}))
	l, err := h.LinkByName("test0")
	must(t, err)
	peer, err := h.LinkByName("peer0")
	must(t, err)
	s := &states{t, make(chan Netdev, 100)}
	stop, err := watchNetdev(l.Attrs().Index)(func(n Netdev) { s.c <- n })
	must(t, err)
	if n := <-s.c; !reflect.DeepEqual(n, Netdev{MTU: 4000}) {
		t.Errorf("at first %+v", n)
	}
	must(t, h.LinkSetUp(l))
	s.until("no carrier", func(n Netdev) bool { return !n.Up && n.Enabled })
	must(t, h.LinkSetUp(peer))
	s.until("up", func(n Netdev) bool { return n.Up && n.Enabled })
	add := func(p string, flags int) {
		t.Helper()
		a, err := netlink.ParseAddr(p)
		must(t, err)
		a.Flags |= flags
		must(t, h.AddrAdd(l, a))
	}
	add("192.0.2.1/24", 0)
	add("192.0.2.2/24", 0)
	n := s.until("two addresses", func(n Netdev) bool {
		return len(n.Addrs) >= 2 && n.Addrs[0] == netip.MustParseAddr("192.0.2.1") && n.Addrs[1] == netip.MustParseAddr("192.0.2.2")
	})
	if n.Local != nil {
		t.Errorf("networks of its own: %v", n.Local)
	}
	must(t, h.LinkSetMTU(l, 1500))
	s.until("MTU", func(n Netdev) bool { return n.MTU == 1500 })
	must(t, h.LinkSetDown(l))
	s.until("down", func(n Netdev) bool { return !n.Up && !n.Enabled && len(n.Addrs) == 2 })
	// Another interface is none of its business.
	must(t, h.LinkSetMTU(peer, 2000))
	must(t, h.LinkDel(l))
	s.until("gone", func(n Netdev) bool { return n.Gone })
	stop()
	select {
	case n := <-s.c:
		t.Errorf("after the end: %+v", n)
	default:
	}
	// An interface that is not there is gone from the beginning.
	stop, err = watchNetdev(1 << 20)(func(n Netdev) { s.c <- n })
	must(t, err)
	if n := <-s.c; !n.Gone {
		t.Errorf("%+v", n)
	}
	stop()
	// The loopback interface has a network, not just an address.
	lo, err := h.LinkByName("lo")
	must(t, err)
	must(t, h.LinkSetUp(lo))
	stop, err = watchNetdev(lo.Attrs().Index)(func(n Netdev) { s.c <- n })
	must(t, err)
	n = <-s.c
	if a := netip.MustParseAddr("127.3.2.1"); !n.has(a) || n.has(netip.MustParseAddr("128.0.0.1")) {
		t.Errorf("%+v", n)
	}
	stop()
}

// The kernel says more than the watch has room for: messages are lost, the state
// that is reported in the end is right.
func TestWatchLosesMessages(t *testing.T) {
	newNetwork(t)
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	defer h.Close()
	must(t, loopbackUp())
	lo, err := h.LinkByName("lo")
	must(t, err)
	s := &states{t, make(chan Netdev, 1000)}
	busy, went := make(chan struct{}), make(chan struct{}, 1)
	stop, err := watchNetdev(lo.Attrs().Index)(func(n Netdev) {
		s.c <- n
		if n.has(netip.MustParseAddr("10.1.0.0")) {
			select {
			case went <- struct{}{}:
			default:
			}
			<-busy
		}
	})
	must(t, err)
	addr := func(i int) *netlink.Addr {
		a, err := netlink.ParseAddr(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String() + "/32")
		must(t, err)
		return a
	}
	const most = 2000
	must(t, h.AddrAdd(lo, addr(0)))
	<-went
	for i := 1; i < most; i++ {
		must(t, h.AddrAdd(lo, addr(i)))
	}
	for i := range most - 1 {
		must(t, h.AddrDel(lo, addr(i)))
	}
	close(busy)
	last := netip.AddrFrom4([4]byte{10, 1, (most - 1) >> 8, (most - 1) & 0xFF})
	s.until("the last address alone", func(n Netdev) bool {
		return n.has(last) && len(n.Addrs) <= 3
	})
	stop()
}

// Addresses that cannot be sent from are left out, and the order is that of use.
func TestUsableAddresses(t *testing.T) {
	var list []netlink.Addr
	for p, flags := range map[string]int{
		"fd00::1/64": 0, "fd00::2/64": unix.IFA_F_TENTATIVE, "fd00::3/64": unix.IFA_F_DADFAILED | unix.IFA_F_TENTATIVE,
		"fd00::4/64": unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC, "fe80::1/64": 0, "192.0.2.1/24": 0, "ff02::1/128": 0,
	} {
		a, err := netlink.ParseAddr(p)
		must(t, err)
		a.Flags = flags
		list = append(list, *a)
	}
	got := usableOf("eth0", list)
	if len(got) != 4 || got[0] != netip.MustParseAddr("192.0.2.1") || got[3] != netip.MustParseAddr("fe80::1%eth0") ||
		!got[1].IsPrivate() || !got[2].IsPrivate() {
		t.Error(got)
	}
}

// A device whose interface cannot be followed works, and says so.
func TestNotFollowed(t *testing.T) {
	var text strings.Builder
	p, err := udp.Open(udp.Config{})
	must(t, err)
	d, err := NewDevice(Config{
		Name: "soft_test", NetDev: "eth9", Port: p, Addrs: []netip.Addr{loopAddr()}, LinkMTU: 1500,
		Logger: slog.New(slog.NewTextHandler(&text, nil)),
		Watch:  func(func(Netdev)) (func(), error) { return nil, syscall.EPERM },
	})
	must(t, err)
	if a, err := d.QueryPort(1); err != nil || a.State != ib.PortActive || a.ActiveMTU != ib.MTU1024 {
		t.Error(a.State, a.ActiveMTU, err)
	}
	must(t, d.Close())
	if s := text.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "eth9") || !strings.Contains(s, syscall.EPERM.Error()) {
		t.Error(s)
	}
}

// Closing a device ends the reports, and waits for one that is under way.
func TestCloseEndsWatch(t *testing.T) {
	newNetwork(t)
	must(t, loopbackUp())
	for range 3 {
		d, err := NewProvider().Open(t.Context(), "soft_lo")
		must(t, err)
		must(t, d.Close()) // the goroutine ends: goleak looks
	}
}

func loopbackUp() error {
	l, err := netlink.LinkByName("lo")
	return errors.Join(err, netlink.LinkSetUp(l))
}
