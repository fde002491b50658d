package rdmacm_test

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// Two processes connect to each other: over an address that both have, another one of
// the same interface, the loopback addresses, another interface's, each with the server on
// the address and on a wildcard.
func TestCase97_TwoProcesses(t *testing.T) {
	n := newNetwork(t)
	addrs := []string{"127.0.0.1", "::1"}
	if n.own {
		link(t, n, newNetwork(t))
		n.address(t, "eth0", "192.0.2.1/24")
		n.address(t, "eth0", "192.0.2.9/24")
		n.address(t, "eth0", "2001:db8::1/64")
		n.address(t, "lo", "127.0.0.2/32")
		addrs = append(addrs, "127.0.0.2", "192.0.2.1", "192.0.2.9", "2001:db8::1")
	}
	s, c := n.spawn(t, "all"), n.spawn(t, "all")
	for _, a := range addrs {
		to := netip.MustParseAddr(a)
		wild := "0.0.0.0:0"
		if to.Is6() {
			wild = "[::]:0"
		}
		for _, at := range []string{netip.AddrPortFrom(to, 0).String(), wild} {
			t.Run(a+" at "+at, func(t *testing.T) {
				s.t, c.t = t, t
				l, where := s.listen("tcp", at)
				cn := c.connect(netip.AddrPortFrom(to, where.Port()))
				sn := l + ".1"
				s.event(sn, "CONNECT_REQUEST")
				s.event(sn, "ESTABLISHED")
				talkOver(c, cn, s, sn)
				c.do("disconnect %s", cn)
				s.event(sn, "DISCONNECTED")
				c.event(cn, "DISCONNECTED")
				s.do("destroy %s", l)
				// Nobody listens any more: whoever is asked says so at once.
				id := c.id("tcp")
				c.do("resolve %s %v", id, netip.AddrPortFrom(to, where.Port()))
				if e := c.event(id, ""); !strings.HasPrefix(e, "REJECTED 8 ") {
					t.Errorf("%s", e)
				}
				id = c.id("udp")
				c.do("resolve %s %v", id, netip.AddrPortFrom(to, where.Port()))
				if e := c.event(id, ""); !strings.HasPrefix(e, "UNREACHABLE 1 ") {
					t.Errorf("%s", e)
				}
			})
		}
	}
	s.t, c.t = t, t
	s.end()
	c.end()
}

// Ports of two processes are those of one host.
func TestCase98_PortsOfProcesses(t *testing.T) {
	n := newNetwork(t)
	a := loopAddr()
	dev := fmt.Sprintf("lo=%v+%v", a, loopAddr())
	p, q := n.spawn(t, dev), n.spawn(t, dev)
	l, at := p.listen("tcp", netip.AddrPortFrom(a, 0).String())
	if text := q.refused(syscall.EADDRINUSE, "bind %s %v", q.id("tcp"), at); !strings.Contains(text, fmt.Sprintf("%v: address already in use by process %d", at, p.pid)) ||
		strings.Count(text, at.String()) != 1 {
		t.Errorf("%s", text)
	}
	q.refused(syscall.EADDRINUSE, "bind %s 0.0.0.0:%d", q.id("tcp"), at.Port())
	q.refused(syscall.EADDRINUSE, "bind %s [::]:%d", q.id("tcp"), at.Port())
	q.do("bind %s [::]:%d only", q.id("tcp"), at.Port())
	q.do("bind %s %v", q.id("udp"), at)
	q.refused(syscall.EADDRINUSE, "bind %s %v reuse", q.id("tcp"), at)
	// Ports that are drawn are never the other one's.
	drawn := map[netip.AddrPort]bool{at: true}
	for range 50 {
		for _, x := range []*process{p, q} {
			got := netip.MustParseAddrPort(x.do("bind %s %v:0", x.id("tcp"), a))
			if drawn[got] {
				t.Errorf("%v twice", got)
			}
			drawn[got] = true
		}
	}
	// Shared until one listens.
	shared := netip.AddrPortFrom(a, at.Port()-1).String()
	for drawn[netip.MustParseAddrPort(shared)] {
		shared = netip.AddrPortFrom(a, netip.MustParseAddrPort(shared).Port()-1).String()
	}
	one, two := p.id("tcp"), q.id("tcp")
	p.do("bind %s %s reuse", one, shared)
	q.do("bind %s %s reuse", two, shared)
	q.refused(syscall.EADDRINUSE, "listen %s 0", two)
	p.do("destroy %s", one)
	q.do("listen %s 0", two)
	p.refused(syscall.EADDRINUSE, "bind %s %s reuse", p.id("tcp"), shared)

	p.do("destroy %s", l)
	q.do("bind %s %v", q.id("tcp"), at)
	// What a process has had is free when it has died, at once.
	q.kill()
	again := p.id("tcp")
	p.do("bind %s %s", again, shared)
	p.do("listen %s 0", again)
	p.do("bind %s %v", p.id("tcp"), at)
	p.end()
	// And when all have.
	r := n.spawn(t, dev)
	r.listen("tcp", shared)
	r.kill()
	r = n.spawn(t, dev)
	r.listen("tcp", shared)
	r.end()
}

// 64 clients in 8 processes at once, to one that takes one request at a time: all are
// connected.
func TestCase91_BacklogOfProcesses(t *testing.T) {
	n := newNetwork(t)
	a := loopAddr()
	dev := fmt.Sprintf("lo=%v", a)
	s := n.spawn(t, dev)
	l := s.id("tcp")
	at := netip.MustParseAddrPort(s.do("bind %s %v:0", l, a))
	s.do("listen %s 1", l)
	var clients []*process
	for range 8 {
		clients = append(clients, n.launch(t, dev))
	}
	for _, c := range clients {
		if r := c.reply(); !strings.HasPrefix(r, "ready") {
			t.Fatal(r)
		}
	}
	names := make([][]string, len(clients))
	for i, c := range clients {
		for range 8 {
			names[i] = append(names[i], c.id("tcp"))
		}
	}
	for k := range 8 {
		for i, c := range clients {
			c.do("resolve %s %v", names[i][k], at)
		}
	}
	for i, c := range clients {
		for _, name := range names[i] {
			if e := c.event(name, ""); !strings.HasPrefix(e, "ESTABLISHED 0") {
				t.Errorf("client %d: %s", i, e)
			}
		}
	}
	for i := range 64 {
		s.event(fmt.Sprintf("%s.%d", l, i+1), "ESTABLISHED")
	}
	// Half of them die, the others say goodbye: the server hears of each.
	for i, c := range clients {
		if i%2 == 0 {
			c.kill()
		} else {
			c.end()
		}
	}
	for i := range 64 {
		s.event(fmt.Sprintf("%s.%d", l, i+1), "DISCONNECTED")
	}
	s.end()
}

// A client that is killed with connections and started again connects at once, twenty
// times; the server hears of each end although nobody said goodbye.
func TestCase93_ClientProcessKilled(t *testing.T) {
	n := newNetwork(t)
	a := loopAddr()
	dev := fmt.Sprintf("lo=%v", a)
	s := n.spawn(t, dev)
	l, at := s.listen("tcp", netip.AddrPortFrom(a, 0).String())
	for i := range 20 {
		c := n.spawn(t, dev)
		for k := range 2 {
			cn := c.connect(at)
			sn := fmt.Sprintf("%s.%d", l, 2*i+k+1)
			s.event(sn, "ESTABLISHED")
			talkOver(c, cn, s, sn)
		}
		c.kill()
		for k := range 2 {
			if e := s.event(fmt.Sprintf("%s.%d", l, 2*i+k+1), "DISCONNECTED"); !strings.HasPrefix(e, "0 ") {
				t.Errorf("start %d: DISCONNECTED %s", i, e)
			}
		}
	}
	s.end()
}

// A server that is killed: its clients hear of it at once, its port is free at once for
// the next one, to which they connect at once.
func TestServerProcessKilled(t *testing.T) {
	n := newNetwork(t)
	a := loopAddr()
	dev := fmt.Sprintf("lo=%v", a)
	c, d := n.spawn(t, dev), n.spawn(t, dev)
	at := netip.AddrPortFrom(a, 4000).String()
	for range 5 {
		s := n.spawn(t, dev)
		l, where := s.listen("tcp", at)
		cn, dn := c.connect(where), d.connect(where)
		s.event(l+".1", "ESTABLISHED")
		s.event(l+".2", "ESTABLISHED")
		s.kill()
		next := n.spawn(t, dev)
		nl, _ := next.listen("tcp", at)
		if e := c.event(cn, "DISCONNECTED"); !strings.HasPrefix(e, "0 ") {
			t.Errorf("DISCONNECTED %s", e)
		}
		if e := d.event(dn, "DISCONNECTED"); !strings.HasPrefix(e, "0 ") {
			t.Errorf("DISCONNECTED %s", e)
		}
		cn = c.connect(where)
		next.event(nl+".1", "ESTABLISHED")
		talkOver(c, cn, next, nl+".1")
		next.end()
		c.event(cn, "DISCONNECTED")
	}
	c.end()
	d.end()
}

// The dead are spoken for to other hosts too, by whoever is left on theirs.
func TestProcessOfAnotherHostKilled(t *testing.T) {
	a, b := newNetwork(t), newNetwork(t)
	a.need(t)
	link(t, a, b)
	a.address(t, "eth0", "192.0.2.1/24")
	b.address(t, "eth0", "192.0.2.2/24")
	s := a.spawn(t, "all")
	l, at := s.listen("tcp", "192.0.2.1:4000")
	// The peer's host has another process, that has the address in use too.
	c, rest := b.spawn(t, "all"), b.spawn(t, "all")
	rn := rest.connect(at)
	s.event(l+".1", "ESTABLISHED")
	cn := c.connect(at)
	s.event(l+".2", "ESTABLISHED")
	talkOver(c, cn, s, l+".2")
	c.kill()
	if e := s.event(l+".2", "DISCONNECTED"); !strings.HasPrefix(e, "0 ") {
		t.Errorf("DISCONNECTED %s", e)
	}
	talkOver(rest, rn, s, l+".1")

	// Nobody is left: only who sends notices.
	t.Run("Case94_NobodyIsLeft", func(t *testing.T) {
		s.t, rest.t = t, t
		rest.kill()
		if r := s.do("send %s hello", l+".1"); !strings.Contains(strings.ToLower(r), "retr") {
			t.Errorf("%s, want a retry exceeded error", r)
		}
		if r := s.do("state %s", l+".1"); !strings.Contains(strings.ToLower(r), "err") {
			t.Errorf("queue pair in %s", r)
		}
		// The next one of that host connects as if nothing had been.
		again := b.spawn(t, "all")
		an := again.connect(at)
		s.event(l+".3", "ESTABLISHED")
		talkOver(again, an, s, l+".3")
		again.end()
		s.event(l+".3", "DISCONNECTED")
	})
}

// A request that is accepted when its client has died ends at once: whoever gets the answer
// says that nobody knows of it.
func TestClientProcessKilledBeforeAccept(t *testing.T) {
	n := newNetwork(t)
	a := loopAddr()
	dev := fmt.Sprintf("lo=%v", a)
	s, c := n.spawn(t, dev), n.spawn(t, dev)
	l, at := s.listen("tcp", netip.AddrPortFrom(a, 0).String())
	s.do("hold %s", l)
	c.do("resolve %s %v", c.id("tcp"), at)
	s.event(l+".1", "CONNECT_REQUEST")
	c.kill()
	s.do("accept %s.1", l)
	if e := s.event(l+".1", ""); !strings.HasPrefix(e, "REJECTED 6 ") {
		t.Errorf("%s", e)
	}
	s.end()
}

// Who connects to a host without any process goes on trying, connects meanwhile to others, and
// can give up; a server that is started later is found.
func TestCase95_NoProcessThere(t *testing.T) {
	a, b := newNetwork(t), newNetwork(t)
	a.need(t)
	link(t, a, b)
	a.address(t, "eth0", "192.0.2.1/24")
	b.address(t, "eth0", "192.0.2.2/24")
	s, c := a.spawn(t, "all"), a.spawn(t, "all")
	there := netip.MustParseAddrPort("192.0.2.2:4000")
	late, never := c.id("tcp"), c.id("tcp")
	c.do("resolve %s %v", late, there)
	c.do("resolve %s 192.0.2.77:4000", never) // nobody has the address
	l, at := s.listen("tcp", "192.0.2.1:4000")
	cn := c.connect(at)
	s.event(l+".1", "ESTABLISHED")
	talkOver(c, cn, s, l+".1")
	r := b.spawn(t, "all")
	rl, _ := r.listen("tcp", there.String())
	if e := c.event(late, ""); !strings.HasPrefix(e, "ESTABLISHED 0") {
		t.Fatalf("%s", e)
	}
	r.event(rl+".1", "ESTABLISHED")
	talkOver(c, late, r, rl+".1")
	c.do("destroy %s", never)
	for _, p := range []*process{c, s, r} {
		p.end()
	}
}

// All of it where the kernel does not steer: one process receives for the others.
func TestUnsteered(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"Case97", TestCase97_TwoProcesses},
		{"Case98", TestCase98_PortsOfProcesses},
		{"Case91", TestCase91_BacklogOfProcesses},
		{"Case93", TestCase93_ClientProcessKilled},
		{"server killed", TestServerProcessKilled},
		{"on another host", TestProcessOfAnotherHostKilled},
		{"before accept", TestClientProcessKilledBeforeAccept},
	} {
		t.Run(c.name, c.f)
	}
}
