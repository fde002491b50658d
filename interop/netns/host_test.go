//go:build interop && linux

package netns

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// TestCase30_NoHardwareAddress: interfaces without hardware address, as of VPNs, connect like others.
func TestCase30_NoHardwareAddress(t *testing.T) {
	r := newRelay(t, 1420, true, nil) // WireGuard's MTU
	for _, ns := range []*namespace{r.a, r.b} {
		l, err := ns.link.LinkByName("tun0")
		must(t, err)
		if hw := l.Attrs().HardwareAddr; len(hw) != 0 {
			t.Fatalf("tun0 has the hardware address %v", hw)
		}
	}
	a, b := r.a.open(t, "a"), r.b.open(t, "b")
	if a.port.Device != "soft_tun0" {
		t.Errorf("the first device is %s, want soft_tun0", a.port.Device)
	}
	for _, f := range families[:2] {
		c := connect(a, b, connArgs{typ: ib.RC, addr: f.is, size: 4 << 20})
		took := c.write(1<<20, 4, 4, 1)
		c.read(1<<20, 1, 1, 2)
		c.message(1000, 50, 10, 3)
		u := connect(a, b, connArgs{typ: ib.UD, addr: f.is, size: 1 << 20})
		u.message(1024, 16, 4, 4)
		t.Logf("%s over %s (GIDs %v): 4 MiB in %v", f.name, a.port.Device, a.port.GIDs, took)
	}
	tally := checkPackets(t, r.captured())
	t.Logf("%v", tally)
	if tally.partial > 0 {
		t.Errorf("%d UDP checksums are incomplete", tally.partial)
	}
}

// TestCase80_NoIPv6: where IPv6 is switched off there are devices with IPv4.
func TestCase80_NoIPv6(t *testing.T) {
	na, nb := newVeth(t, 1500)
	for _, ns := range []*namespace{na, nb} {
		must(t, ns.do(func() error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0o644)
		}))
	}
	na.address(t, interfaceName, addrA)
	nb.address(t, interfaceName, addrB)
	a, b := na.open(t, "a"), nb.open(t, "b")
	var names []string
	a.call("Devices", struct{}{}, &names)
	t.Logf("devices %v, GIDs %v", names, a.port.GIDs)
	if fmt.Sprint(names) != "[soft_eth0 soft_lo]" {
		t.Errorf("devices %v, want soft_eth0 and soft_lo", names)
	}
	if len(a.port.GIDs) != 1 {
		t.Errorf("GIDs %v, want the IPv4 address", a.port.GIDs)
	}
	c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 4 << 20})
	took := c.write(1<<20, 4, 4, 1)
	c.message(100, 10, 10, 2)
	u := connect(a, b, connArgs{typ: ib.UD, addr: is4, size: 1 << 20})
	u.message(1024, 16, 4, 3)
	t.Logf("RC over IPv4: 4 MiB in %v", took)
}

// TestCase122_NoAddress: without addresses there is no device, and opening one says so; with the loopback interface alone there
// is one.
func TestCase122_NoAddress(t *testing.T) {
	ns := emptyNamespace(t)
	n := ns.start(t, "a", 0)
	var names []string
	n.call("Devices", struct{}{}, &names)
	if len(names) != 0 {
		t.Errorf("devices %v in a namespace whose interfaces are down", names)
	}
	for _, name := range []string{"", "eth0"} {
		n.port = Port{}
		n.call("Open", name, &n.port)
		t.Logf("opening %q: %v", name, n.port.Failure)
		if !errors.Is(n.port.Failure, syscall.ENODEV) {
			t.Errorf("opening %q: %v, want ENODEV", name, n.port.Failure)
		}
	}
	lo := newNamespace(t).open(t, "lo")
	if lo.port.Device != "soft_lo" {
		t.Errorf("the device of a host with the loopback interface alone is %q", lo.port.Device)
	}
	c := connect(lo, lo, connArgs{typ: ib.RC, addr: is4, size: 1 << 20})
	c.write(1<<20, 1, 1, 1)
}

// TestForeignHolder: somebody else has the port. The error names who.
func TestForeignHolder(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	a, b := na.open(t, "a"), nb.open(t, "b")
	for _, f := range []struct {
		bind, what string
		uid        int
	}{{"10.99.0.1", "the address", ordinary}, {"0.0.0.0", "all IPv4 addresses", ordinary}, {"::", "all addresses", ordinary}} {
		t.Run(f.what, func(t *testing.T) {
			a.t, b.t = t, t
			holder := na.start(t, "holder", f.uid)
			var failed Failure
			holder.call("Bind", f.bind, &failed)
			if failed.Text != "" {
				t.Fatal(failed)
			}
			c := newConn(a, b, connArgs{typ: ib.RC, addr: is4, size: 4096})
			err := c.join(a, c.ea, c.eb, ib.MTU1024, 0)
			t.Logf("%v", err)
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Fatalf("%v, want EADDRINUSE", err)
			}
			for _, want := range []string{"10.99.0.1", fmt.Sprintf("process %d ", holder.who.PID), fmt.Sprintf("uid %d", f.uid)} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not tell %q", want)
				}
			}
			// An ordinary user cannot see whose socket it is, but which user's.
			user := na.start(t, "user", ordinary-1)
			user.open("")
			c = newConn(user, b, connArgs{typ: ib.RC, addr: is4, size: 4096})
			err = c.join(user, c.ea, c.eb, ib.MTU1024, 0)
			t.Logf("to another user: %v", err)
			if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), fmt.Sprintf("uid %d", f.uid)) {
				t.Errorf("%v, want EADDRINUSE and the uid", err)
			}
		})
	}
	// Once it is gone the same queue pairs connect.
	a.t, b.t = t, t
	c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 20})
	c.write(1<<20, 1, 1, 1)
}

// TestOrdinaryUser: no capability, no right to lock memory.
func TestOrdinaryUser(t *testing.T) {
	na, nb := vethPair(t, 9000, true)
	a, b := na.start(t, "a", ordinary), nb.start(t, "b", ordinary)
	for _, n := range []*node{a, b} {
		if n.who.UID != ordinary || strings.Trim(n.who.Caps, "0") != "" || n.who.MemLock != 0 {
			t.Fatalf("%s runs with %+v", n.name, n.who)
		}
		n.open("")
	}
	for _, f := range families {
		c := connect(a, b, connArgs{typ: ib.RC, addr: f.is, size: 16 << 20})
		wrote := c.write(1<<20, 16, 8, 1)
		read := c.read(1<<20, 16, 8, 2)
		c.message(3000, 50, 10, 3)
		c.atomics()
		t.Logf("%s as uid %d, capabilities %s, RLIMIT_MEMLOCK %d: 16 MiB written in %v, read in %v",
			f.name, a.who.UID, a.who.Caps, a.who.MemLock, wrote, read)
	}
}
