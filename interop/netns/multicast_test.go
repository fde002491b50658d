//go:build interop && linux

package netns

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// A second process on host a has addresses of its own.
const addrA2, addrA26 = "10.99.0.3/24", "fd99::3/64"

// ear is a queue pair of a process that hears groups.
type ear struct {
	n    *node
	e    Endpoint
	name string
}

// openWith opens a process with the addresses given.
func (ns *namespace) openWith(t testing.TB, name, netdev string, uid int, addrs ...string) *node {
	t.Helper()
	n := ns.start(t, name, uid)
	for i, a := range addrs {
		addrs[i] = strings.Split(a, "/")[0]
	}
	n.call("OpenWith", OpenArgs{netdev, addrs}, &n.port)
	if n.port.Failure.Text != "" {
		t.Fatalf("%s: %v", name, n.port.Failure)
	}
	return n
}

func (n *node) ear(block bool) *ear {
	n.t.Helper()
	r := &ear{n: n}
	n.call("Listen", ListenArgs{Block: block}, &r.e)
	r.name = fmt.Sprintf("%s/%d", n.name, r.e.Index)
	return r
}

func (r *ear) attach(group string) error {
	r.n.t.Helper()
	return r.attachment(GroupArgs{QP: r.e.Index, Group: group})
}

func (r *ear) detach(group string) error {
	r.n.t.Helper()
	return r.attachment(GroupArgs{QP: r.e.Index, Group: group, Detach: true})
}

func (r *ear) attachment(args GroupArgs) error {
	r.n.t.Helper()
	var f Failure
	r.n.call("Attach", args, &f)
	if f.Text != "" {
		return f
	}
	return nil
}

func (r *ear) say(args SayArgs) {
	r.n.t.Helper()
	args.QP = r.e.Index
	if args.QPN == 0 {
		args.QPN = ib.QPNMulticast
	}
	args.Count = max(args.Count, 1)
	var f Failure
	r.n.call("Say", args, &f)
	if f.Text != "" {
		r.n.t.Fatalf("%s: %v", r.name, f)
	}
}

// fence is the mark of a datagram that says that nothing more comes.
const fence = 0xFF

// heard has every one of the ears told by from, over unicast, that all is said, and gives what each received before.
func heard(from *ear, sgid int, ears ...*ear) [][]Heard {
	from.n.t.Helper()
	list := make([][]Heard, len(ears))
	for i, r := range ears {
		from.say(SayArgs{SGID: sgid, To: r.n.port.GIDs[sgid], QPN: r.e.Num, Len: 1, Hop: 64, Mark: fence})
		r.n.call("Hear", HearArgs{r.e.Index, fence}, &list[i])
	}
	return list
}

// inGroup tells whether the kernel of a namespace has joined the group on the interface.
func inGroup(n *node, netdev, group string) bool {
	n.t.Helper()
	a := netip.MustParseAddr(group)
	name, want := "/proc/net/igmp6", hex.EncodeToString(a.AsSlice())
	if a.Is4() {
		b := a.As4()
		name, want = "/proc/net/igmp", fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b[:]))
	}
	var table string
	n.call("ReadFile", name, &table)
	dev := ""
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if a.Is4() && !strings.HasPrefix(line, "\t") || a.Is6() {
			dev = strings.TrimSuffix(f[1], ":")
		}
		if dev == netdev && strings.Contains(line, want) {
			return true
		}
	}
	return false
}

// reports counts the IGMP or MLD reports about a group that a capture has.
func reports(packets [][]byte, group string) (n int) {
	a := netip.MustParseAddr(group)
	for _, b := range packets {
		if a.Is4() && len(b) > 20 && b[9] == unix.IPPROTO_IGMP || a.Is6() && len(b) > 40 && b[0]>>4 == 6 && b[6] == 0 {
			if strings.Contains(string(b[20:]), string(a.AsSlice())) {
				n++
			}
		}
	}
	return n
}

var mcastFamilies = []struct {
	name   string
	sgid   int
	groups []string
	other  string
}{
	{"ipv4", 0, []string{"239.27.0.1", "239.27.0.2", "224.0.0.200"}, "239.27.0.9"},
	{"ipv6", 1, []string{"ff0e::27:1", "ff0e::27:2", "ff02::27:3"}, "ff0e::27:9"},
}

// TestCase27_MulticastOverSockets: three queue pairs of a process, one of a second process of the same host, and one of another
// host join a group: each receives exactly once, whoever sends, with and without BlockSelfMcastLB. What goes over the wire is
// right, and the kernel has told the network of the group.
func TestCase27_MulticastOverSockets(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	na.address(t, interfaceName, addrA2, addrA26)
	na.settle(t, interfaceName)
	a := na.openWith(t, "a", interfaceName, 0, addrA, addrA6)
	a2 := na.openWith(t, "a2", interfaceName, 0, addrA2, addrA26)
	b := nb.openWith(t, "b", interfaceName, 0, addrB, addrB6)
	for _, f := range mcastFamilies {
		for _, group := range f.groups {
			for _, block := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/block=%v", group, block), func(t *testing.T) {
					a.t, a2.t, b.t = t, t, t
					cap := nb.capture(t, interfaceName)
					members := []*ear{a.ear(block), a.ear(true), a.ear(false), a2.ear(block), b.ear(block)}
					other, none := a.ear(false), b.ear(false)
					for _, r := range members {
						must(t, r.attach(group))
						must(t, r.attach(group))
					}
					must(t, other.attach(f.other))
					if !inGroup(a, interfaceName, group) || !inGroup(b, interfaceName, group) {
						t.Error("a kernel does not know of the group")
					}
					all := append(members, other, none)
					const count = 20
					for k, from := range []*ear{members[0], members[3], members[4]} {
						mark, hop := byte(k+1), uint8(k) // hop limit 0 is the default: 1
						from.say(SayArgs{SGID: f.sgid, To: group, Len: 1000, Count: count, Hop: hop, Mark: mark})
						for i, list := range heard(from, f.sgid, all...) {
							want := count
							if r := all[i]; r == other || r == none || r == from && block {
								want = 0
							}
							if len(list) != want {
								t.Errorf("%s sends, %s received %d of %d; %v", from.name, all[i].name, len(list), want, nonZero(all[i].n.counters()))
							}
							for j, h := range list {
								if h.WC.SrcQP != from.e.Num || h.WC.ImmData != uint32(j) || h.Len != 1000 || h.Mark != mark ||
									h.Src.String() != from.n.port.GIDs[f.sgid] || h.Dst.String() != group || h.Class != 0x20 || h.Hop != max(hop, 1) {
									t.Fatalf("%s sends, %s received %+v", from.name, all[i].name, h)
								}
							}
						}
					}
					must(t, other.detach(f.other))
					for _, r := range members {
						must(t, r.detach(group))
						if err := r.detach(group); !errors.Is(err, syscall.EINVAL) {
							t.Errorf("detach again: %v", err)
						}
					}
					if inGroup(a, interfaceName, group) || inGroup(b, interfaceName, group) {
						t.Error("a kernel is still in the group")
					}
					members[0].say(SayArgs{SGID: f.sgid, To: group, Len: 10, Hop: 1, Mark: 7})
					for i, list := range heard(members[0], f.sgid, all...) {
						if len(list) != 0 {
							t.Errorf("after leaving %s received %+v", all[i].name, list)
						}
					}
					if !strings.HasPrefix(group, "224.0.0.") { // the network need not know of those
						if packets, _ := cap.stop(); reports(packets, group) == 0 {
							t.Error("no report about the group on the wire")
						}
					}
					c := cap.checked(t)
					t.Logf("on the wire: %v; reports: %d", c, reports(cap.packets, group))
					if c.opcodes[roce.OpUDSendOnlyImm] < 3*count {
						t.Errorf("%d datagrams on the wire", c.opcodes[roce.OpUDSendOnlyImm])
					}
					if !is4(netip.MustParseAddr(group)) {
						return
					}
					if c.maxID != 0 {
						t.Errorf("identification %d: nothing tells whether segmentation works on the way to a group", c.maxID)
					}
				})
			}
		}
	}
}

// secondName is a host's interface to its second network.
const secondName = "eth1"

// second joins the host to a third one, by a second interface.
func (ns *namespace) second(t testing.TB) *namespace {
	t.Helper()
	c := newNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = secondName
	must(t, ns.link.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: interfaceName, PeerNamespace: netlink.NsFd(c.fd)}))
	ns.address(t, secondName, "10.98.0.1/24", "fd98::1/64")
	c.address(t, interfaceName, "10.98.0.2/24", "fd98::2/64")
	ns.settle(t, secondName)
	c.settle(t, interfaceName)
	return c
}

// TestMulticastUsers: processes of different users are in one group too, without rights of any kind.
func TestMulticastUsers(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	na.address(t, interfaceName, addrA2)
	a := na.openWith(t, "a", interfaceName, ordinary, addrA)
	a2 := na.openWith(t, "a2", interfaceName, ordinary-1, addrA2)
	b := nb.openWith(t, "b", interfaceName, ordinary, addrB)
	ears := []*ear{a.ear(false), a2.ear(false), b.ear(false)}
	for _, r := range ears {
		must(t, r.attach("239.27.1.1"))
	}
	for k, from := range ears {
		from.say(SayArgs{To: "239.27.1.1", Len: 100, Count: 10, Mark: byte(k + 1)})
		for i, list := range heard(from, 0, ears...) {
			if len(list) != 10 {
				t.Errorf("%s received %d of 10 from %s", ears[i].name, len(list), from.name)
			}
		}
	}
}

// TestMulticastInterfaces: a host with two networks is in a group on the one whose device a queue pair belongs to, and sends
// there, whatever the routes say.
func TestMulticastInterfaces(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	nc := na.second(t)
	for _, f := range []struct {
		group, a, a1, b, c string
	}{
		{"239.27.2.1", addrA, "10.98.0.1/24", addrB, "10.98.0.2/24"},
		{"ff0e::27:21", addrA6, "fd98::1/64", addrB6, "fd98::2/64"},
		{"ff02::27:22", addrA6, "fd98::1/64", addrB6, "fd98::2/64"},
	} {
		t.Run(f.group, func(t *testing.T) {
			a := na.openWith(t, "a", interfaceName, 0, f.a)
			a1 := na.openWith(t, "a1", secondName, 0, f.a1)
			b, c := nb.openWith(t, "b", interfaceName, 0, f.b), nc.openWith(t, "c", interfaceName, 0, f.c)
			ears := []*ear{a.ear(false), a1.ear(false), b.ear(false), c.ear(false)}
			for _, r := range ears {
				must(t, r.attach(f.group))
			}
			for k, from := range ears {
				from.say(SayArgs{To: f.group, Len: 100, Count: 10, Hop: 2, Mark: byte(k + 1)})
				for i, r := range ears {
					if i%2 != k%2 { // another network: no way for the fence
						continue
					}
					if list := heard(from, 0, r)[0]; len(list) != 10 {
						t.Errorf("%s received %d of 10 from %s; %v", r.name, len(list), from.name, nonZero(r.n.counters()))
					}
				}
			}
			// Nothing crossed over: each ear would have it by now.
			for i, r := range ears {
				from := ears[i]
				if list := heard(from, 0, r)[0]; len(list) != 0 {
					t.Errorf("%s received from the other network: %+v", r.name, list[0])
				}
			}
			for _, r := range ears {
				must(t, r.detach(f.group))
			}
		})
	}
}

// TestMulticastLoopbackInterface: over IPv4 groups work on the loopback interface, over IPv6 the error says why not, and what to
// do about it.
func TestMulticastLoopbackInterface(t *testing.T) {
	ns := newNamespace(t)
	a := ns.openWith(t, "a", "lo", 0, "127.0.0.2", "::1")
	b := ns.openWith(t, "b", "lo", 0, "127.0.0.3")
	ears := []*ear{a.ear(false), a.ear(true), b.ear(false)}
	for _, r := range ears {
		must(t, r.attach("239.27.3.1"))
	}
	for k, from := range ears {
		from.say(SayArgs{To: "239.27.3.1", Len: 100, Count: 10, Mark: byte(k + 1)})
		for i, list := range heard(from, 0, ears...) {
			want := 10
			if k == 1 && i == 1 {
				want = 0
			}
			if len(list) != want {
				t.Errorf("%s received %d of %d from %s", ears[i].name, len(list), want, from.name)
			}
		}
	}
	err := ears[0].attach("ff0e::27:31")
	t.Logf("IPv6: %v", err)
	if !errors.Is(err, syscall.ENETUNREACH) || !strings.Contains(err.Error(), "ip -6 route add local ff00::/8 dev lo") {
		t.Errorf("IPv6 group on the loopback interface: %v, want ENETUNREACH and what to do", err)
	}
	var f Failure
	a.call("Say", SayArgs{SGID: 1, To: "ff0e::27:31", Len: 1, Count: 1}, &f)
	if !errors.Is(f, syscall.ENETUNREACH) {
		t.Errorf("address handle: %v, want ENETUNREACH", f)
	}
	// What it says helps.
	lo, err := ns.link.LinkByName("lo")
	must(t, err)
	_, all, _ := net.ParseCIDR("ff00::/8")
	must(t, ns.link.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}))
	for _, r := range ears[:2] {
		must(t, r.attach("ff0e::27:31"))
	}
	ears[0].say(SayArgs{SGID: 1, To: "ff0e::27:31", Len: 100, Count: 10, Mark: 9})
	for i, list := range heard(ears[0], 1, ears[:2]...) {
		if len(list) != 10 {
			t.Errorf("%s received %d of 10", ears[i].name, len(list))
		}
	}
}

// TestMulticastForeignPort: another program that holds the group's port is named.
func TestMulticastForeignPort(t *testing.T) {
	ns := newNamespace(t)
	must(t, ns.do(func() error { // package net would bind to all addresses
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return unix.Bind(fd, &unix.SockaddrInet4{Port: roce.Port, Addr: [4]byte{239, 27, 4, 1}})
	}))
	a := ns.openWith(t, "a", "lo", 0, "127.0.0.2")
	err := a.ear(false).attach("239.27.4.1")
	t.Logf("%v", err)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), fmt.Sprintf("process %d ", os.Getpid())) {
		t.Errorf("%v, want EADDRINUSE and the holder", err)
	}
}
