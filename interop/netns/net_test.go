//go:build interop && linux

package netns

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace without a name: it is gone with its last process and descriptor.
type namespace struct {
	fd   netns.NsHandle
	link *netlink.Handle
}

// onThread runs f on a thread that nobody uses afterwards.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// newNamespace makes a namespace, with the loopback interface up.
func newNamespace(t testing.TB) *namespace {
	t.Helper()
	ns := emptyNamespace(t)
	lo, err := ns.link.LinkByName("lo")
	must(t, err)
	must(t, ns.link.LinkSetUp(lo))
	return ns
}

func emptyNamespace(t testing.TB) *namespace {
	t.Helper()
	ns := &namespace{}
	err := onThread(func() (err error) {
		if ns.fd, err = netns.New(); err != nil {
			return err
		}
		for _, f := range []string{"all", "default"} {
			// Without duplicate address detection link-local addresses work at once.
			_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_dad", []byte("0"), 0o644)
			_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_ra", []byte("0"), 0o644)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cannot make a network namespace (CAP_SYS_ADMIN is needed): %v", err)
	}
	t.Cleanup(func() { _ = ns.fd.Close() })
	ns.link, err = netlink.NewHandleAt(ns.fd)
	must(t, err)
	t.Cleanup(ns.link.Close)
	return ns
}

// do runs f in the namespace.
func (ns *namespace) do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(ns.fd); err != nil {
			return err
		}
		return f()
	})
}

// address gives an interface an address with prefix, and sets it up.
func (ns *namespace) address(t testing.TB, ifname string, prefixes ...string) {
	t.Helper()
	l, err := ns.link.LinkByName(ifname)
	must(t, err)
	for _, p := range prefixes {
		a, err := netlink.ParseAddr(p)
		must(t, err)
		if a.IP.To4() == nil {
			a.Flags |= unix.IFA_F_NODAD
		}
		if err := ns.link.AddrAdd(l, a); err != nil {
			t.Fatalf("address %s: %v", p, err)
		}
	}
	must(t, ns.link.LinkSetUp(l))
}

// Addresses of the two hosts.
const (
	addrA, addrB     = "10.99.0.1/24", "10.99.0.2/24"
	addrA6, addrB6   = "fd99::1/64", "fd99::2/64"
	interfaceName    = "eth0"
	segmentationFlag = "tx-udp-segmentation"
	checksumFlag     = "tx-checksum-ip-generic"
)

// newVeth joins two hosts that have no addresses.
func newVeth(t testing.TB, mtu int) (a, b *namespace) {
	t.Helper()
	a, b = newNamespace(t), newNamespace(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = interfaceName, mtu
	err := a.link.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: interfaceName, PeerNamespace: netlink.NsFd(b.fd)})
	if err != nil {
		t.Fatalf("veth pair: %v", err)
	}
	return a, b
}

// vethPair makes two hosts that a veth pair of the MTU joins. Datagrams are segmented before they reach it.
func vethPair(t testing.TB, mtu int, checksums bool) (a, b *namespace) {
	t.Helper()
	a, b = newVeth(t, mtu)
	p6, q6 := []string{addrA6}, []string{addrB6}
	if mtu < 1280 { // of IPv6
		p6, q6 = nil, nil
	}
	a.address(t, interfaceName, append(p6, addrA)...)
	b.address(t, interfaceName, append(q6, addrB)...)
	if mtu >= 1280 {
		a.settle(t, interfaceName)
		b.settle(t, interfaceName)
	}
	off := []string{segmentationFlag}
	if checksums {
		off = append(off, checksumFlag)
	}
	for _, ns := range []*namespace{a, b} {
		if err := ns.do(func() error { return featuresOff(interfaceName, off...) }); err != nil {
			t.Fatalf("ethtool -K %s: %v", interfaceName, err)
		}
	}
	return a, b
}

// settle waits until the interface's IPv6 addresses work, the link-local one too: neighbour discovery repeats what it sent
// too early only after a second, and by then a queue pair has given up.
func (ns *namespace) settle(t testing.TB, ifname string) {
	t.Helper()
	l, err := ns.link.LinkByName(ifname)
	must(t, err)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		list, err := ns.link.AddrList(l, netlink.FAMILY_V6)
		must(t, err)
		local, tentative := false, false
		for _, a := range list {
			local = local || a.IP.IsLinkLocalUnicast()
			tentative = tentative || a.Flags&unix.IFA_F_TENTATIVE != 0
		}
		l, err := ns.link.LinkByName(ifname)
		must(t, err)
		if local && !tentative && l.Attrs().OperState == netlink.OperUp {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not come up: %v, addresses %v", ifname, l.Attrs().OperState, list)
		}
	}
}

// featuresOff is ethtool -K off, in the namespace of the thread.
func featuresOff(ifname string, names ...string) error {
	family, err := netlink.GenlFamilyGet("ethtool")
	if err != nil {
		return fmt.Errorf("netlink family ethtool: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: unix.ETHTOOL_MSG_FEATURES_SET, Version: 1})
	header := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(ifname))
	req.AddData(header)
	wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
	bits := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil)
	for _, name := range names {
		bit := bits.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(name))
	}
	req.AddData(wanted)
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}
