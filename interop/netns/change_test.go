//go:build interop && linux

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// eventTime is how long an event may take on a busy machine; silence is how long none is expected.
const (
	eventTime = 20 * time.Second
	silence   = 300 * time.Millisecond
)

func (n *node) event(want ib.EventType) Event {
	n.t.Helper()
	var e Event
	n.call("Event", eventTime, &e)
	if e.Failure.Text != "" || e.Type != want {
		n.t.Fatalf("%s: event %v %v, want %v; %+v", n.name, e.Type, e.Failure, want, n.look())
	}
	return e
}

func (n *node) noEvent() {
	n.t.Helper()
	var e Event
	n.call("Event", silence, &e)
	if e.Failure.Text == "" {
		n.t.Fatalf("%s: unexpected event %v", n.name, e.Type)
	}
}

func (n *node) look() (l Look) {
	n.t.Helper()
	n.call("Look", struct{}{}, &l)
	return l
}

// wantGIDs compares the table with addresses by their index.
func (n *node) wantGIDs(want map[int]string) {
	n.t.Helper()
	if l := n.look(); l.Failure.Text != "" || !reflect.DeepEqual(l.GIDs, want) {
		n.t.Errorf("%s: GIDs %v %v, want %v", n.name, l.GIDs, l.Failure, want)
	}
}

func (n *node) close() {
	n.t.Helper()
	var f Failure
	n.call("Close", struct{}{}, &f)
	if f.Text != "" {
		n.t.Errorf("%s: close: %v", n.name, f)
	}
}

// eth is the interface of a namespace.
func (ns *namespace) eth(t testing.TB) netlink.Link {
	t.Helper()
	l, err := ns.link.LinkByName(interfaceName)
	must(t, err)
	return l
}

// addr adds or removes addresses.
func (ns *namespace) addr(t testing.TB, add bool, prefixes ...string) {
	t.Helper()
	for _, p := range prefixes {
		a, err := netlink.ParseAddr(p)
		must(t, err)
		if add {
			err = ns.link.AddrAdd(ns.eth(t), a)
		} else {
			err = ns.link.AddrDel(ns.eth(t), a)
		}
		if err != nil {
			t.Fatalf("address %s: %v", p, err)
		}
	}
}

// dad switches the duplicate address detection of an interface.
func (ns *namespace) dad(t testing.TB, on string) {
	t.Helper()
	must(t, ns.do(func() error {
		return os.WriteFile(fmt.Sprintf("/proc/sys/net/ipv6/conf/%s/accept_dad", interfaceName), []byte(on), 0o644)
	}))
}

// shortTimeout is 4 ms: where a loss is the point, the retries should not take long.
const shortTimeout = 10

// TestCase76_AddressesFollow: addresses that are added and removed under an open device.
func TestCase76_AddressesFollow(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	a, b := na.open(t, "a"), nb.open(t, "b")
	l := a.look()
	if len(l.GIDs) != 3 || l.GIDs[0] != "10.99.0.1" || l.GIDs[1] != "fd99::1" {
		t.Fatalf("%+v", l)
	}
	local := l.GIDs[2]
	a.noEvent() // nothing has changed since

	na.addr(t, true, "10.99.0.11/24")
	a.event(ib.EventGIDChange)
	a.wantGIDs(map[int]string{0: "10.99.0.1", 1: "fd99::1", 2: local, 3: "10.99.0.11"})
	na.addr(t, false, addrA)
	a.event(ib.EventGIDChange)
	// With its first address an interface may lose the others of the network.
	l = a.look()
	if l.GIDs[0] != "" || l.GIDs[1] != "fd99::1" || l.GIDs[2] != local {
		t.Errorf("%+v", l)
	}
	if l.GIDs[3] == "" {
		na.addr(t, true, "10.99.0.11/24")
		a.event(ib.EventGIDChange)
	}
	a.noEvent()

	// A new connection uses an address that came later.
	a.port.GIDs = []string{"::1", "fd99::1", local, "10.99.0.11"}
	if l = a.look(); l.GIDs[0] == "10.99.0.11" {
		a.port.GIDs = []string{"10.99.0.11", "fd99::1", local}
	}
	c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 20, timeout: shortTimeout})
	c.write(10000, 4, 4, 1)
	c.message(1000, 4, 4, 2)

	// Without its address the packets of a queue pair vanish, as those of a device would.
	na.addr(t, false, "10.99.0.11/24")
	a.event(ib.EventGIDChange)
	var d Done
	a.call("Send", WorkArgs{QP: c.ea.Index, Len: 100, Count: 1, Op: ib.WRRDMAWrite}, &d)
	if len(d.WCs) != 1 || d.WCs[0].Status != ib.WCRetryExcErr {
		t.Errorf("WRITE from an address that is gone: %+v", d)
	}
	if e := a.counters()["send_err"]; e == 0 {
		t.Error("the port counted no error")
	}
	// When it returns it can be used again: the socket was kept.
	na.addr(t, true, "10.99.0.11/24")
	a.event(ib.EventGIDChange)
	if l = a.look(); l.GIDs[0] != "10.99.0.11" {
		t.Errorf("not in the first empty entry: %+v", l)
	}
	a.port.GIDs = []string{"10.99.0.11", "fd99::1", local}
	c = connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 20})
	c.write(10000, 4, 4, 3)

	// Several at once are one event.
	na.addr(t, true, "10.99.0.21/24", "10.99.0.22/24", "10.99.0.23/24")
	a.event(ib.EventGIDChange)
	a.wantGIDs(map[int]string{0: "10.99.0.11", 1: "fd99::1", 2: local, 3: "10.99.0.21", 4: "10.99.0.22", 5: "10.99.0.23"})
	a.noEvent()
	a.close()
	b.close()
}

// A tentative address is no GID until it is known to be nobody else's.
func TestTentativeAddress(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	na.dad(t, "1")
	a := na.open(t, "a")
	before := a.look().GIDs
	na.addr(t, true, "fd99::50/64")
	state := func() (tentative, there bool) {
		t.Helper()
		list, err := na.link.AddrList(na.eth(t), netlink.FAMILY_V6)
		must(t, err)
		for _, x := range list {
			if x.IP.String() == "fd99::50" {
				return x.Flags&unix.IFA_F_TENTATIVE != 0, true
			}
		}
		return false, false
	}
	// Looked at before and after, so that a slow machine does not matter.
	if tentative, _ := state(); tentative {
		gids := a.look().GIDs
		if tentative, _ = state(); tentative && !reflect.DeepEqual(gids, before) {
			t.Errorf("a tentative address is in the table: %v", gids)
		}
	}
	a.event(ib.EventGIDChange)
	if tentative, there := state(); tentative || !there {
		t.Errorf("GID change while the address is tentative (%v) or gone (%v)", tentative, !there)
	}
	if gids := a.look().GIDs; gids[3] != "fd99::50" {
		t.Errorf("%v", gids)
	}
	// The other host's address is a duplicate and never becomes one.
	na.addr(t, true, addrB6)
	var e Event
	a.call("Event", 3*time.Second, &e)
	if gids := a.look().GIDs; e.Failure.Text == "" || len(gids) != 4 {
		t.Errorf("a duplicate address: %v, %v", e.Type, gids)
	}
	_ = nb
	a.close()
}

// The port follows carrier and administrative state; queue pairs survive a short interruption.
func TestLinkDownUp(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	a, b := na.open(t, "a"), nb.open(t, "b")
	c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 20})
	c.write(1000, 4, 4, 1)
	must(t, nb.link.LinkSetDown(nb.eth(t)))
	a.event(ib.EventPortErr) // no carrier
	b.event(ib.EventPortErr)
	for _, n := range []*node{a, b} {
		if l := n.look(); l.State != ib.PortDown {
			t.Errorf("%s: %v", n.name, l.State)
		}
	}
	must(t, nb.link.LinkSetUp(nb.eth(t)))
	for _, n := range []*node{a, b} {
		// Between the two the host that was set down had lost its IPv6 addresses.
		var e Event
		for e.Type != ib.EventPortActive {
			if n.call("Event", eventTime, &e); e.Failure.Text != "" || e.Type != ib.EventPortActive && e.Type != ib.EventGIDChange {
				t.Fatalf("%s: %v %v", n.name, e.Type, e.Failure)
			}
		}
		if l := n.look(); l.State != ib.PortActive || l.GIDs[0] != n.port.GIDs[0] {
			t.Errorf("%s: %+v", n.name, l)
		}
	}
	c.write(10000, 8, 8, 2)
	c.message(1000, 8, 8, 3)
	a.close()
	b.close()
}

// The active MTU follows. A queue pair whose path MTU became too large fails with a retry error, nothing worse.
func TestMTUChange(t *testing.T) {
	na, nb := vethPair(t, 9000, true)
	a, b := na.open(t, "a"), nb.open(t, "b")
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			a.t, b.t = t, t
			c := connect(a, b, connArgs{typ: ib.RC, addr: f.is, size: 1 << 20, timeout: shortTimeout})
			c.write(100000, 2, 2, 1)
			for _, ns := range []*namespace{na, nb} {
				must(t, ns.link.LinkSetMTU(ns.eth(t), 1500))
			}
			for _, n := range []*node{a, b} {
				for end := time.Now().Add(eventTime); n.look().ActiveMTU != 1024; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%s: active MTU %d", n.name, n.look().ActiveMTU)
					}
				}
			}
			before := a.counters()["send_err"]
			// One packet, and many in one segmented send.
			small := connect(a, b, connArgs{typ: ib.RC, addr: f.is, size: 1 << 20, mtu: 1024})
			var d Done
			a.call("Send", WorkArgs{QP: c.ea.Index, Len: 100000, Count: 1, Op: ib.WRRDMAWrite}, &d)
			if len(d.WCs) != 1 || d.WCs[0].Status != ib.WCRetryExcErr {
				t.Errorf("path MTU 4096 on a link of 1500: %+v", d)
			}
			if n := a.counters()["send_err"]; n == before {
				t.Error("the port counted no error")
			}
			small.write(100000, 2, 2, 2)
			if err := newConn(a, b, connArgs{typ: ib.RC, addr: f.is, size: 4096}).tooLarge(); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("path MTU 4096 is not refused: %v", err)
			}
			for _, ns := range []*namespace{na, nb} {
				must(t, ns.link.LinkSetMTU(ns.eth(t), 9000))
			}
			for _, n := range []*node{a, b} {
				for end := time.Now().Add(eventTime); n.look().ActiveMTU != 4096; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%s: active MTU %d", n.name, n.look().ActiveMTU)
					}
				}
			}
			connect(a, b, connArgs{typ: ib.RC, addr: f.is, size: 1 << 20}).write(100000, 2, 2, 3)
		})
	}
	a.t, b.t = t, t
	a.close()
	b.close()
}

func (c *conn) tooLarge() error { return c.join(c.a, c.ea, c.eb, ib.MTU4096, 0) }

// TestCase72_InterfaceRemoved: an interface that is deleted under a running device.
func TestCase72_InterfaceRemoved(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	a, b := na.open(t, "a"), nb.open(t, "b")
	c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 20, timeout: shortTimeout})
	ud := connect(a, b, connArgs{typ: ib.UD, addr: func(x netip.Addr) bool { return isULA(x) }, size: 4096})
	c.write(10000, 4, 4, 1)
	ud.message(100, 1, 1, 2)
	var f Failure
	// Sends that nobody has a receive request for: they are under way when it happens.
	a.call("PostOnly", WorkArgs{QP: c.ea.Index, Len: 100, Count: 3, Op: ib.WRSend}, &f)
	if f.Text != "" {
		t.Fatal(f)
	}
	must(t, na.link.LinkDel(na.eth(t))) // of a veth pair both go
	for _, n := range []*node{a, b} {
		// The kernel takes addresses and link away first; how much of that is seen depends on how fast one looks.
		var e Event
		fatal := 0
		for e.Failure.Text == "" {
			e = Event{}
			if n.call("Event", eventTime, &e); e.Failure.Text != "" {
				break
			}
			switch e.Type {
			case ib.EventDeviceFatal:
				fatal++
			case ib.EventPortErr, ib.EventGIDChange:
				if fatal > 0 {
					t.Errorf("%s: %v after DEVICE_FATAL", n.name, e.Type)
				}
			case ib.EventCommEst:
			default:
				t.Errorf("%s: %v", n.name, e.Type)
			}
		}
		if fatal != 1 || !errors.Is(e.Failure, syscall.EIO) {
			t.Errorf("%s: %d DEVICE_FATAL events, then %v", n.name, fatal, e.Failure)
		}
		if l := n.look(); !errors.Is(l.Failure, syscall.EIO) {
			t.Errorf("%s: query_port: %v", n.name, l.Failure)
		}
		for i := range 2 {
			var s ib.QPState
			if n.call("State", i, &s); s != ib.QPStateErr {
				t.Errorf("%s: queue pair %d is in %v", n.name, i, s)
			}
		}
	}
	var d Done
	a.call("WaitRecv", WorkArgs{QP: c.ea.Index, Count: 3}, &d)
	if len(d.WCs) != 3 {
		t.Fatalf("%+v", d)
	}
	for i, wc := range d.WCs {
		// The RNR wait or the retries may have ended first.
		if ok := wc.Status == ib.WCWRFlushErr || i == 0 && (wc.Status == ib.WCRetryExcErr || wc.Status == ib.WCRNRRetryExcErr); !ok || wc.WRID != uint64(i) {
			t.Errorf("%+v", verbs.WC(wc))
		}
	}
	a.close()
	b.close()
}

// An address that moves to another interface of the host, as into a bridge, is free for the device there, though queue pairs
// of the old one still have it.
func TestAddressMoves(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	a, b := na.open(t, "a"), nb.open(t, "b")
	connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 16}).write(1000, 4, 4, 1)
	connect(a, b, connArgs{typ: ib.UD, addr: isLinkLocal, size: 1 << 16}).message(1000, 4, 4, 2)
	c := na.start(t, "c", 0)
	host, err := netip.ParsePrefix(addrA)
	must(t, err)
	bind := func() Failure {
		var f Failure
		c.call("Bind", host.Addr().String(), &f)
		return f
	}
	if err := bind(); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("bind to an address in use: %v", err)
	}
	na.addr(t, false, addrA)
	na.address(t, "lo", host.Addr().String()+"/32")
	a.event(ib.EventGIDChange)
	for end := time.Now().Add(eventTime); ; time.Sleep(time.Millisecond) {
		f := bind()
		if f.Text == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the address is not free: %v", f)
		}
	}
	a.close()
	b.close()
}
