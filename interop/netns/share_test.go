//go:build interop && linux

package netns

import (
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// everyPair moves data between each two of the nodes, and of each with itself, by the service.
func everyPair(t *testing.T, seed uint64, lists ...[]*node) {
	t.Helper()
	var all []*node
	for _, l := range lists {
		all = append(all, l...)
	}
	for _, f := range families {
		for i, x := range all {
			for _, y := range all[i:] {
				seed++
				c := connect(x, y, connArgs{typ: ib.RC, addr: f.is, size: 1 << 18})
				c.write(1<<14, 16, 8, seed)
				c.message(3000, 10, 5, seed)
				connect(x, y, connArgs{typ: ib.UD, addr: f.is, size: 1 << 18}).message(1000, 8, 4, seed)
			}
		}
	}
}

// TestSharedAddresses: processes on one address each of two hosts: each talks to each.
func TestSharedAddresses(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	var as, bs []*node
	for range 3 {
		as = append(as, na.open(t, "a"))
		bs = append(bs, nb.open(t, "b"))
	}
	everyPair(t, 1, as, bs)
	for _, n := range append(as, bs...) {
		c := n.counters()
		t.Logf("%s: strays %d", n.name, c["stray_pkts"])
		for _, name := range []string{"drop_stray", "drop_mailbox", "relayed_datagrams", "drop_no_qp"} {
			if c[name] != 0 {
				t.Errorf("%s: %s is %d", n.name, name, c[name])
			}
		}
	}
	for i := range as {
		as[i].close()
		bs[i].close()
	}
}

// TestSharingStaysInNamespace: the same addresses in two network namespaces are two groups.
func TestSharingStaysInNamespace(t *testing.T) {
	var pairs [2][]*node
	for i := range pairs {
		ns := newNamespace(t)
		for range 2 {
			pairs[i] = append(pairs[i], ns.openWith(t, "lo", "lo", 0, "127.0.0.1", "::1"))
		}
	}
	for i, p := range pairs {
		c := connect(p[0], p[1], connArgs{typ: ib.RC, addr: is4, mtu: 4096, size: 1 << 18})
		c.write(1<<14, 16, 8, uint64(i))
		// The slots are given anew in each.
		if slot := c.ea.Num >> 17; slot != 1 && slot != 2 {
			t.Errorf("namespace %d: slot %d", i, slot)
		}
	}
	for _, p := range pairs {
		p[0].close()
		p[1].close()
	}
}

// TestSharedAddressLost: an address that the interface loses and gets again, under processes that share it. What was
// connected goes on, and who comes later finds the same address.
func TestSharedAddressLost(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	as := []*node{na.open(t, "a0"), na.open(t, "a1")}
	b := nb.open(t, "b")
	var cs []*conn
	for i, a := range as {
		c := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 18, timeout: 18})
		c.write(1<<14, 16, 8, uint64(i))
		cs = append(cs, c)
	}
	cs = append(cs, connect(as[0], as[1], connArgs{typ: ib.RC, addr: is4, size: 1 << 18, timeout: 18}))
	for round := range 3 {
		na.addr(t, false, addrA)
		for _, a := range as {
			a.event(ib.EventGIDChange)
		}
		na.addr(t, true, addrA)
		for _, a := range as {
			a.event(ib.EventGIDChange)
		}
		for i, c := range cs {
			c.a.t, c.a.peer = t, c.b
			c.write(1<<14, 16, 8, uint64(10*round+i))
		}
		late := na.open(t, "late")
		everyPair(t, uint64(100*round), []*node{late}, as)
		late.close()
	}
	for _, n := range append(as, b) {
		n.close()
	}
}

// TestSharedAddressLostWhileStopped: a process is stopped while the address goes and returns, and so has the sockets of
// before. Others get the address all the same, and it goes on with it.
func TestSharedAddressLostWhileStopped(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	stopped, a, b := na.open(t, "stopped"), na.open(t, "a"), nb.open(t, "b")
	c := connect(stopped, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 18, timeout: 18})
	c.write(1<<14, 16, 8, 1)
	d := connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 18, timeout: 18})
	if err := syscall.Kill(stopped.who.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	na.addr(t, false, addrA)
	a.event(ib.EventGIDChange)
	na.addr(t, true, addrA)
	a.event(ib.EventGIDChange)
	d.write(1<<14, 16, 8, 2)
	late := na.open(t, "late")
	everyPair(t, 3, []*node{late}, []*node{a})
	if err := syscall.Kill(stopped.who.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.write(1<<14, 16, 8, 4)
	for _, n := range []*node{late, stopped, a, b} {
		n.close()
	}
}

// TestSharedInterfaceRemoved: every process that shares its addresses learns that the interface went.
func TestSharedInterfaceRemoved(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	as := []*node{na.open(t, "a0"), na.open(t, "a1")}
	b := nb.open(t, "b")
	for i, a := range as {
		connect(a, b, connArgs{typ: ib.RC, addr: is4, size: 1 << 18}).write(1<<14, 16, 8, uint64(i))
	}
	must(t, na.link.LinkDel(na.eth(t)))
	for _, n := range append(as, b) {
		for fatal := false; ; {
			var e Event
			if n.call("Event", eventTime, &e); e.Failure.Text != "" {
				if !fatal || !errors.Is(e.Failure, syscall.EIO) {
					t.Errorf("%s: DEVICE_FATAL seen: %v, then %v", n.name, fatal, e.Failure)
				}
				break
			}
			fatal = fatal || e.Type == ib.EventDeviceFatal
		}
		n.close()
	}
}

// TestSharedMulticast: processes that share an address join a group each, and each receives once, whoever sends.
func TestSharedMulticast(t *testing.T) {
	na, nb := vethPair(t, 1500, true)
	var nodes []*node
	for range 3 {
		nodes = append(nodes, na.openWith(t, "a", interfaceName, 0, addrA, addrA6))
	}
	nodes = append(nodes, nb.openWith(t, "b", interfaceName, 0, addrB, addrB6))
	for _, f := range mcastFamilies {
		var ears []*ear
		for _, n := range nodes {
			ears = append(ears, n.ear(false))
			must(t, ears[len(ears)-1].attach(f.groups[0]))
		}
		for k, from := range ears {
			const count = 10
			from.say(SayArgs{SGID: f.sgid, To: f.groups[0], Len: 500, Count: count, Hop: 1, Mark: byte(k + 1)})
			for i, list := range heard(from, f.sgid, ears...) {
				if len(list) != count {
					t.Errorf("%s: %d sends, %d received %d of %d", f.name, k, i, len(list), count)
				}
				for _, h := range list {
					if h.WC.SrcQP != from.e.Num || h.Mark != byte(k+1) {
						t.Fatalf("%+v", h)
					}
				}
			}
		}
		for _, r := range ears {
			must(t, r.detach(f.groups[0]))
		}
	}
}
