package rdmacm_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// same wants a list.
func sameList(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Which addresses two processes may bind together: the table of one process.
func TestCase98_PortPairsOfTwoProcesses(t *testing.T) {
	const none, inuse, wild = 0, 1, 2
	for _, c := range []struct {
		a, b         string
		only, reuse  bool
		want, listen int
	}{
		{"192.0.2.1", "192.0.2.1", false, false, inuse, 0},
		{"192.0.2.1", "192.0.2.9", false, false, none, none},
		{"192.0.2.1", "0.0.0.0", false, false, wild, 0},
		{"0.0.0.0", "192.0.2.1", false, false, wild, 0},
		{"0.0.0.0", "0.0.0.0", false, false, wild, 0},
		{"0.0.0.0", "::", false, false, wild, 0},
		{"0.0.0.0", "::", true, false, none, none},
		{"::", "0.0.0.0", true, false, none, none},
		{"::", "192.0.2.1", false, false, wild, 0},
		{"::", "192.0.2.1", true, false, none, none},
		{"::", "2001:db8::1", true, false, wild, 0},
		{"2001:db8::1", "192.0.2.1", false, false, none, none},
		{"2001:db8::1", "2001:db8::1", false, false, inuse, 0},
		{"fe80::1%d1", "fe80::1%d1", false, false, inuse, 0},
		{"192.0.2.1", "192.0.2.1", false, true, none, inuse},
		{"0.0.0.0", "192.0.2.1", false, true, none, wild},
		{"192.0.2.1", "192.0.2.9", false, true, none, none},
	} {
		dir := new(fakeDirectory)
		device := sharing{"d1", dir, []string{"192.0.2.1", "192.0.2.9", "2001:db8::1", "fe80::1%d1"}}
		p := sharingProcess(t, "P", 1, nil, device)
		q := sharingProcess(t, "Q", 2, nil, device)
		bind := func(h *cmHost, addr string) (*rdmacm.ID, error) {
			id := h.id(rdmacm.PSTCP)
			a := netip.MustParseAddr(addr)
			if c.only && a.Is6() {
				h.must(id.SetAFOnly(true))
			}
			if c.reuse {
				h.must(id.SetReuseAddr(true))
			}
			return id, id.Bind(netip.AddrPortFrom(a, 4000))
		}
		check := func(what string, err error, want int) {
			t.Helper()
			if (err == nil) != (want == none) || want != none && !errors.Is(err, syscall.EADDRINUSE) ||
				errors.Is(err, syscall.EADDRNOTAVAIL) != (want == wild) {
				t.Errorf("%+v: %s: %v", c, what, err)
			}
			if err != nil && !strings.HasSuffix(err.Error(), netip.AddrPortFrom(netip.MustParseAddr(c.b), 4000).String()+": address already in use by process P") {
				t.Errorf("%+v: %s: %v", c, what, err)
			}
		}
		one, err := bind(p, c.a)
		p.must(err)
		two, err := bind(q, c.b)
		check("bind", err, c.want)
		if err == nil {
			check("listen", two.Listen(0), c.listen)
			if c.listen == none && !c.reuse {
				p.must(one.Listen(0))
			}
		} else if a := two.LocalAddr(); a.IsValid() {
			t.Errorf("%+v: bound to %v", c, a)
		}
		p.gone(one)
		again, err := bind(q, c.a)
		if c.want != none { // free again; else both processes' claims stand
			q.must(err)
		}
		q.gone(two)
		q.gone(again)
		sameList(t, "left", dir.held())
		other := q.id(rdmacm.PSUDP)
		q.must(other.Bind(netip.AddrPortFrom(netip.MustParseAddr(c.a), 4000)))
	}
}

// A port in another space is another port.
func TestPortSpacesOfTwoProcesses(t *testing.T) {
	dir := new(fakeDirectory)
	device := sharing{"d1", dir, []string{"192.0.2.1"}}
	p, q := sharingProcess(t, "P", 1, nil, device), sharingProcess(t, "Q", 2, nil, device)
	for _, ps := range []rdmacm.PortSpace{rdmacm.PSTCP, rdmacm.PSUDP, rdmacm.PSIB, rdmacm.PSIPoIB} {
		p.must(p.id(ps).Bind(ap("192.0.2.1:4000")))
		if err := q.id(ps).Bind(ap("192.0.2.1:4000")); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%v: %v", ps, err)
		}
	}
	for _, c := range dir.claims {
		if rdmacm.PortSpace(c.space) != rdmacm.PSTCP && rdmacm.PortSpace(c.space) != rdmacm.PSUDP &&
			rdmacm.PortSpace(c.space) != rdmacm.PSIB && rdmacm.PortSpace(c.space) != rdmacm.PSIPoIB {
			t.Errorf("claimed in space %#x", c.space)
		}
	}
}

// Port 0 is one that no process has, on all devices for a wildcard, and only on its own for
// a client.
func TestPortZeroOfTwoProcesses(t *testing.T) {
	one, two := new(fakeDirectory), new(fakeDirectory)
	d1, d2 := sharing{"d1", one, []string{"192.0.2.1"}}, sharing{"d2", two, []string{"192.0.2.9"}}
	q := sharingProcess(t, "Q", 2, nil, d1, d2)

	one.free = 45678
	id := q.id(rdmacm.PSTCP)
	q.must(id.Bind(ap("192.0.2.1:0")))
	if id.SrcPort() != 45678 {
		t.Errorf("port %d", id.SrcPort())
	}
	wild := q.id(rdmacm.PSTCP)
	if err := wild.Bind(ap("0.0.0.0:0")); !errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EADDRINUSE) || wild.LocalAddr().IsValid() {
		t.Errorf("%v", err)
	}
	one.free, two.free = 45679, 45679
	q.must(wild.Bind(ap("0.0.0.0:0")))
	if wild.SrcPort() != 45679 {
		t.Errorf("port %d", wild.SrcPort())
	}
	sameList(t, "d1", one.held(), "Q 192.0.2.1:45678", "Q 0.0.0.0:45679")
	sameList(t, "d2", two.held(), "Q 0.0.0.0:45679")
	two.free = 45680
	one.free = 1
	if err := q.id(rdmacm.PSTCP).Bind(ap("0.0.0.0:0")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("%v", err)
	}
	sameList(t, "d2", two.held(), "Q 0.0.0.0:45679") // undone each time

	// What is not a conflict ends the search.
	one.claimErr = syscall.ENOMEM
	n := len(one.asked)
	if err := q.id(rdmacm.PSTCP).Bind(ap("192.0.2.1:0")); !errors.Is(err, syscall.ENOMEM) || len(one.asked) != n+1 {
		t.Errorf("%v after %d claims", err, len(one.asked)-n)
	}
	if err := q.id(rdmacm.PSTCP).Bind(ap("192.0.2.1:77")); !errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v", err)
	}
	one.claimErr = nil
	one.free = 0

	client := q.id(rdmacm.PSTCP)
	two.free = 50001
	q.must(client.ResolveAddr(t.Context(), netip.AddrPort{}, ap("192.0.2.9:1"), 0))
	q.event(rdmacm.EventAddrResolved)
	if client.LocalAddr() != ap("192.0.2.9:50001") {
		t.Errorf("%v", client.LocalAddr())
	}
	sameList(t, "d1", one.held(), "Q 192.0.2.1:45678", "Q 0.0.0.0:45679")
	sameList(t, "d2", two.held(), "Q 0.0.0.0:45679", "Q 192.0.2.9:50001")
	q.gone(client)
	sameList(t, "d2", two.held(), "Q 0.0.0.0:45679")
}

// A wildcard is claimed on all devices, in an order that all processes have, or on none; who is
// resolved needs it on one.
func TestWildcardOfTwoProcesses(t *testing.T) {
	one, two := new(fakeDirectory), new(fakeDirectory)
	d1, d2 := sharing{"d1", one, []string{"192.0.2.1"}}, sharing{"d2", two, []string{"192.0.2.9"}}
	p, q := sharingProcess(t, "P", 1, nil, d2), sharingProcess(t, "Q", 2, nil, d2, d1)
	l := p.listen(rdmacm.PSTCP, ap("192.0.2.9:4000"), 0)
	id := q.id(rdmacm.PSTCP)
	err := id.Bind(ap("0.0.0.0:4000"))
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "process P") {
		t.Errorf("%v", err)
	}
	sameList(t, "d1 was asked", one.asked, "Q 0.0.0.0:4000") // first, although the manager has it second
	sameList(t, "d1", one.held())
	sameList(t, "d2", two.held(), "P 192.0.2.9:4000")

	p.gone(l)
	q.must(id.Bind(ap("0.0.0.0:4000")))
	sameList(t, "d1", one.held(), "Q 0.0.0.0:4000")
	sameList(t, "d2", two.held(), "Q 0.0.0.0:4000")
	sameList(t, "d1 listening", one.listens())
	q.must(id.Listen(0))
	sameList(t, "d1 listening", one.listens(), "Q 0.0.0.0:4000")
	sameList(t, "d2 listening", two.listens(), "Q 0.0.0.0:4000")
	if err := p.id(rdmacm.PSTCP).Bind(ap("192.0.2.9:4000")); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v", err)
	}
	q.gone(id)
	sameList(t, "d1", one.held())
	sameList(t, "d2", two.held())

	client := q.id(rdmacm.PSTCP)
	q.must(client.ResolveAddr(t.Context(), ap("0.0.0.0:4000"), ap("192.0.2.9:1"), 0))
	q.event(rdmacm.EventAddrResolved)
	sameList(t, "d1", one.held())
	if len(two.held()) != 1 || client.LocalAddr() != ap("192.0.2.9:4000") {
		t.Errorf("%v, %v", two.held(), client.LocalAddr())
	}
}

// Who shares a port with another process cannot listen, and neither takes requests then.
func TestReuseOfTwoProcesses(t *testing.T) {
	one, two := new(fakeDirectory), new(fakeDirectory)
	d1, d2 := sharing{"d1", one, []string{"192.0.2.1"}}, sharing{"d2", two, []string{"192.0.2.9"}}
	p, q := sharingProcess(t, "P", 1, nil, d2), sharingProcess(t, "Q", 2, nil, d1, d2)
	bind := func(h *cmHost, at string) *rdmacm.ID {
		id := h.id(rdmacm.PSTCP)
		h.must(id.SetReuseAddr(true))
		h.must(id.Bind(ap(at)))
		return id
	}
	a, b := bind(p, "192.0.2.9:4000"), bind(q, "0.0.0.0:4000")
	if err := b.Listen(0); !errors.Is(err, syscall.EADDRINUSE) || !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("%v", err)
	}
	sameList(t, "d1 listening", one.listens())
	sameList(t, "d2 listening", two.listens())
	p.gone(a)
	q.must(b.Listen(0))
	sameList(t, "d1 listening", one.listens(), "Q 0.0.0.0:4000")
	sameList(t, "d2 listening", two.listens(), "Q 0.0.0.0:4000")
	late := p.id(rdmacm.PSTCP)
	p.must(late.SetReuseAddr(true))
	if err := late.Bind(ap("192.0.2.9:4000")); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v", err)
	}
}

// A device that is removed takes its claims and records with it.
func TestRemovalOfASharedDevice(t *testing.T) {
	one, two := new(fakeDirectory), new(fakeDirectory)
	d1, d2 := sharing{"d1", one, []string{"192.0.2.1"}}, sharing{"d2", two, []string{"192.0.2.9"}}
	var report func(soft.Netdev)
	q := sharingProcess(t, "Q", 2, func(f func(soft.Netdev)) (func(), error) {
		report = f
		f(soft.Netdev{Up: true, Enabled: true, MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
		return func() {}, nil
	}, d1, d2)
	wild := q.listen(rdmacm.PSTCP, ap("0.0.0.0:4000"), 0)
	on1 := q.listen(rdmacm.PSTCP, ap("192.0.2.1:4001"), 0)
	q.listen(rdmacm.PSTCP, ap("192.0.2.9:4002"), 0)
	report(soft.Netdev{Gone: true})
	if e := q.event(rdmacm.EventDeviceRemoval); e.ID != on1 {
		t.Error(e)
	}
	sameList(t, "d1", one.held())
	sameList(t, "d2", two.listens(), "Q 0.0.0.0:4000", "Q 192.0.2.9:4002")
	q.gone(wild)
	sameList(t, "d2", two.listens(), "Q 192.0.2.9:4002")
}

// Ids of messages are those that were fixed, and the others know of a connection before a
// message leaves that makes the peer believe in it, until its end.
func TestRecordsOfConnections(t *testing.T) {
	r := newCMRig(t)
	da, db := new(fakeDirectory), new(fakeDirectory)
	sent := map[mad.AttrID]int{}
	watch := func(dir *fakeDirectory, slot uint32) func(*driver.MAD) {
		return func(m *driver.MAD) {
			attr := mad.Header(m.Data[:]).AttrID()
			sent[attr]++
			local, remote := sentIDs(m)
			if local>>25 != slot && attr != mad.AttrSIDRREP && (attr != mad.AttrREJ || local != 0) {
				t.Errorf("%v from the id %#x, the slot is %d", attr, local, slot)
			}
			known := slices.ContainsFunc(dir.records, func(f *fakeRecord) bool { return f.r.LocalID == local && f.r.RemoteID == remote })
			switch attr {
			case mad.AttrREP, mad.AttrRTU, mad.AttrDREQ:
				if !known {
					t.Errorf("%v leaves, and nobody knows of the connection", attr)
				}
			default:
				if known {
					t.Errorf("%v leaves, and there is a connection still, or already", attr)
				}
			}
		}
	}
	r.a.shares(da, "P", 5).sent = watch(da, 5)
	r.b.shares(db, "Q", 127).sent = watch(db, 127)

	c, s := r.connect(nil, nil)
	qa, _, err := c.QP().Query()
	r.a.must(err)
	qb, _, err := s.QP().Query()
	r.b.must(err)
	if len(da.records) != 1 || len(db.records) != 1 {
		t.Fatalf("%d and %d records", len(da.records), len(db.records))
	}
	ra, rb := da.records[0].r, db.records[0].r
	want := driver.ConnRecord{
		Local: r.a.addr, Remote: r.b.addr, LocalID: ra.LocalID, RemoteID: rb.LocalID, LocalQPN: c.QP().Num(), RemoteQPN: s.QP().Num(),
		LocalPSN: qa.RQPSN, RemotePSN: qa.SQPSN, State: uint8(cm.StateEstablished),
	}
	if ra != want {
		t.Errorf("%+v, want %+v", ra, want)
	}
	want = driver.ConnRecord{
		Local: r.b.addr, Remote: r.a.addr, LocalID: rb.LocalID, RemoteID: ra.LocalID, LocalQPN: s.QP().Num(), RemoteQPN: c.QP().Num(),
		LocalPSN: qb.RQPSN, RemotePSN: qb.SQPSN, State: uint8(cm.StateEstablished),
	}
	if rb != want {
		t.Errorf("%+v, want %+v", rb, want)
	}
	r.exchange(c, s)

	r.a.must(c.Disconnect(t.Context()))
	if len(da.records) != 1 || da.records[0].r.State != uint8(cm.StateDreqSent) {
		t.Errorf("%+v", da.records)
	}
	r.b.event(rdmacm.EventDisconnected)
	if len(db.records) != 1 || db.records[0].r.State != uint8(cm.StateDreqRcvd) {
		t.Errorf("%+v", db.records)
	}
	r.b.must(s.Disconnect(t.Context()))
	if len(db.records) != 0 { // before the DREP left
		t.Errorf("%+v", db.records)
	}
	r.a.event(rdmacm.EventDisconnected)
	if len(da.records) != 0 {
		t.Errorf("%+v", da.records)
	}

	// Refused, by either side: never anything to end.
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c = r.a.active(rdmacm.PSTCP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil))
	r.b.must(r.b.event(rdmacm.EventConnectRequest).ID.Reject(nil))
	r.a.event(rdmacm.EventRejected)
	// Accepted, and destroyed before the peer has confirmed.
	r.net.SetPartition(r.a.addr, r.b.addr, true)
	r.a.gone(c)

	// Datagrams: no connection.
	r.net.SetPartition(r.a.addr, r.b.addr, false)
	r.b.listen(rdmacm.PSUDP, r.b.at(), 0)
	u := r.a.active(rdmacm.PSUDP, r.b.at())
	r.a.must(u.Connect(t.Context(), nil))
	us := r.b.event(rdmacm.EventConnectRequest).ID
	r.b.must(us.CreateQP(nil, cmAttr()))
	r.b.must(us.Accept(t.Context(), nil))
	r.a.event(rdmacm.EventEstablished)
	if len(da.records)+len(db.records) != 0 {
		t.Errorf("%v %v", da.records, db.records)
	}
	for _, a := range []mad.AttrID{mad.AttrREQ, mad.AttrREP, mad.AttrRTU, mad.AttrDREQ, mad.AttrDREP, mad.AttrREJ, mad.AttrSIDRREQ, mad.AttrSIDRREP} {
		if sent[a] == 0 {
			t.Errorf("no %v", a)
		}
	}
}

// Without room for records connections work; and what is under way when a manager is
// closed is nobody's business any more.
func TestNoRoomForRecords(t *testing.T) {
	r := newCMRig(t)
	da, db := new(fakeDirectory), new(fakeDirectory)
	r.a.shares(da, "P", 1).sent = func(*driver.MAD) {}
	r.b.shares(db, "Q", 2).sent = func(*driver.MAD) {}
	da.recordErr = fmt.Errorf("full: %w", syscall.ENOMEM)
	c, s := r.connect(nil, nil)
	r.exchange(c, s)
	if len(da.records) != 0 || len(db.records) != 1 {
		t.Errorf("%d and %d records", len(da.records), len(db.records))
	}
	da.recordErr = nil
	r.net.SetPartition(r.a.addr, r.b.addr, true)
	r.a.gone(c) // the DREQ gets nowhere: now there is room
	r.b.gone(s)
	if len(da.records) != 1 || len(db.records) != 1 {
		t.Errorf("%d and %d records", len(da.records), len(db.records))
	}
	r.a.must(errors.Join(r.a.ch.Close(), r.a.m.Close()))
	if len(da.records) != 0 {
		t.Errorf("%+v", da.records)
	}
	r.a.dead = true
	r.a.must(r.a.ctx.Close())
	if q := c.QP(); q != nil && q.State() != ib.QPStateErr {
		t.Error(q.State())
	}
}
