package cm

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// Giving up in each state.
func TestDestroy(t *testing.T) {
	type row struct {
		s       State
		passive bool
		next    State
		sends   mad.AttrID
		kind    byte
		reason  uint16
	}
	for _, k := range []row{
		{StateReqSent, false, StateIdle, mad.AttrREJ, 0x80, 4},
		{StateMRAReqRcvd, false, StateIdle, mad.AttrREJ, 0x80, 4},
		{StateReqRcvd, true, StateIdle, mad.AttrREJ, 0, 28},
		{StateMRAReqSent, true, StateIdle, mad.AttrREJ, 0, 28},
		{StateRepSent, true, StateTimewait, mad.AttrREJ, 0x80, 28},
		{StateMRARepRcvd, true, StateTimewait, mad.AttrREJ, 0x80, 28},
		{StateRepRcvd, false, StateIdle, mad.AttrREJ, 0x40, 28},
		{StateMRARepSent, false, StateIdle, mad.AttrREJ, 0x40, 28},
		{StateEstablished, false, StateDreqSent, mad.AttrDREQ, 0, 0},
		{StateDreqSent, false, StateDreqSent, 0, 0, 0},
		{StateDreqRcvd, false, StateTimewait, mad.AttrDREP, 0, 0},
		{StateTimewait, false, StateTimewait, 0, 0, 0},
		{StateIdle, false, StateIdle, 0, 0, 0},
		{StateSidrReqSent, false, StateIdle, 0, 0, 0},
		{StateSidrReqRcvd, true, StateIdle, mad.AttrSIDRREP, 0, 0},
	} {
		t.Run(k.s.String(), func(t *testing.T) {
			r := newRig(t)
			r.listen()
			c := r.reach(k.s, k.passive)
			r.m.Destroy(r.now, c)
			if k.sends == 0 {
				r.sent()
			} else {
				out := r.sent(k.sends)
				d := out[0].MAD[mad.HeaderLen:]
				if k.sends == mad.AttrREJ && (d[8] != k.kind || uint16(d[10])<<8|uint16(d[11]) != k.reason) {
					t.Errorf("%x", d[:32])
				}
				if k.sends == mad.AttrSIDRREP && d[4] != 2 {
					t.Errorf("SIDR status %d", d[4])
				}
			}
			r.state(c, k.next)
			r.m.Destroy(r.now, c)
			r.quiet()
			for r.m.Deadline() != 0 { // all ends, and nobody hears of it
				r.now = r.m.Deadline()
				r.m.Timer(r.now)
			}
			r.events()
			if r.m.Conns() != 0 || r.m.pending != 0 {
				t.Error("left over")
			}
		})
	}
}

// Events that wait when their connection is destroyed are not delivered.
func TestNoEventAfterDestroy(t *testing.T) {
	r := newRig(t)
	c := r.reach(StateReqSent, false)
	other := r.reach(StateReqSent, false)
	r.recv(peerREP(c.tid, peerID, c.localID, peerQPN))
	r.recv(peerREP(other.tid, peerID+1, other.localID, peerQPN+1))
	r.m.Destroy(r.now, c)
	if e := r.events(EventREPReceived); e[0].Conn != other {
		t.Fatal("of the destroyed one")
	}
}

// Both disconnect at once.
func TestCase85_SimultaneousDisconnect(t *testing.T) {
	r := newRig(t)
	c := r.reach(StateEstablished, false)
	r.ok(r.m.Disconnect(r.now, c, nil))
	r.sent(mad.AttrDREQ)
	r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN))
	r.sentIs(newMsg(mad.AttrDREP, 0x99).ids(c.localID, peerID))
	r.events(EventDREQReceived)
	r.recv(newMsg(mad.AttrDREP, 1).ids(peerID, c.localID)) // the peer's answer to ours
	r.quiet()                                              // told once
	isErrno(t, r.m.Disconnect(r.now, c, nil), einval)
	isErrno(t, r.m.SendDREP(r.now, c, nil), einval)
	r.due(512 * ms)
	r.events(EventTimewaitExit)
}

// What the messages settle for the queue pairs.
func TestQPParams(t *testing.T) {
	r := newRig(t)
	p := reqParams()
	p.ResponderResources, p.InitiatorDepth, p.RetryCount, p.RNRRetryCount = 10, 11, 9, 3
	p.ECE = ECE{VendorID: 0xA1B2C3, Options: 5}
	c, err := r.m.Connect(r.now, p)
	r.ok(err)
	b := r.sent(mad.AttrREQ)[0].MAD
	d := b[mad.HeaderLen:]
	if d[5] != 0xA1 || d[7] != 0xC3 || b[23] != 5 || d[35] != 10 || d[39] != 11 || d[47]&7 != 7 || d[50]&7 != 3 {
		t.Fatalf("%x", b)
	}
	r.recv(peerREP(c.tid, peerID, c.localID, peerQPN).mod(77).at(23, "c3").at(27, "a0"))
	e := r.events(EventREPReceived)[0]
	if e.Peer.ResponderResources != 6 || e.Peer.InitiatorDepth != 4 || e.Peer.ECE != (ECE{0xC3, 77}) || len(e.PrivateData) != 196 {
		t.Fatalf("%+v", e.Peer)
	}
	// REP: responder resources 4, initiator depth 6, RNR retry 5, ACK delay 15.
	if q := c.QPParams(); q != (QPParams{
		LocalQPN: 0x11, RemoteQPN: peerQPN, SQPSN: 0x888, RQPSN: 0xABCDEF, PathMTU: ib.MTU1024, PKey: 0xFFFF, Path: c.path,
		MaxRDAtomic: 4, MaxDestRDAtomic: 6, RetryCnt: 7, RNRRetry: 5, Timeout: 17,
	}) {
		t.Fatalf("%+v", q)
	}
}

// The passive side's queue pair; row 4: the rnr_retry_count of the REQ is for the acceptor's sender.
func TestCase04_RNRRetryIsForThePeer(t *testing.T) {
	r := newRig(t)
	r.listen()
	r.recv(peerREQ(peerTID, peerID, peerQPN))
	e := r.events(EventREQReceived)[0]
	if e.Peer.ResponderResources != 9 || e.Peer.InitiatorDepth != 5 || e.Peer.RNRRetryCount != 6 || e.Peer.RetryCount != 3 {
		t.Fatalf("%+v", e.Peer)
	}
	c := e.Conn
	want := QPParams{
		RemoteQPN: peerQPN, SQPSN: 0x777, PathMTU: ib.MTU1024, PKey: 0xFFFF, Path: Path{FlowLabel: 0x308EF, HopLimit: 64},
		MaxRDAtomic: 5, MaxDestRDAtomic: 9, RetryCnt: 3, RNRRetry: 6, Timeout: 17,
	}
	if q := c.QPParams(); q != want {
		t.Fatalf("%+v", q)
	}
	r.ok(r.m.Accept(r.now, c, repParams()))
	want.LocalQPN, want.RQPSN, want.MaxRDAtomic, want.MaxDestRDAtomic = ourQPN, 0x123456, 2, 3
	if q := c.QPParams(); q != want {
		t.Fatalf("%+v", q)
	}
}

// An ACK timeout of 0 in a REQ means none, not a packet lifetime of 255; a lifetime of 0 means the default.
func TestCase26_NoACKTimeout(t *testing.T) {
	r := newRig(t)
	r.listen()
	r.recv(peerREQ(peerTID, peerID, peerQPN).at(95, "00"))
	if q := r.events(EventREQReceived)[0].Conn.QPParams(); q.Timeout != 17 {
		t.Fatal(q.Timeout)
	}
	p := reqParams()
	p.PacketLifetime = 0
	_, err := r.m.Connect(r.now, p)
	r.ok(err)
	if d := r.sent(mad.AttrREQ)[0].MAD; d[24+95] != 17<<3 {
		t.Fatal(d[24+95])
	}
	p.PacketLifetime = 255
	_, err = r.m.Connect(r.now, p)
	r.ok(err)
	if d := r.sent(mad.AttrREQ)[0].MAD; d[24+95] != 31<<3 {
		t.Fatal(d[24+95])
	}
}

func TestCase81_PrivateDataLengths(t *testing.T) {
	b := func(n int) []byte { return make([]byte, n) }
	calls := map[string]struct {
		most int
		do   func(n int) error
	}{
		"REQ with header": {56, func(n int) error {
			p := reqParams()
			p.PrivateData = b(n)
			_, err := newRig(t).m.Connect(1, p)
			return err
		}},
		"REQ": {92, func(n int) error {
			p := reqParams()
			p.IPHeader, p.PrivateData = false, b(n)
			_, err := newRig(t).m.Connect(1, p)
			return err
		}},
		"REP": {196, func(n int) error {
			r := newRig(t)
			p := repParams()
			p.PrivateData = b(n)
			return r.m.Accept(1, r.reach(StateReqRcvd, true), p)
		}},
		"REJ": {148, func(n int) error {
			r := newRig(t)
			return r.m.Reject(1, r.reach(StateReqRcvd, true), mad.RejectConsumer, nil, b(n))
		}},
		"ARI": {72, func(n int) error {
			r := newRig(t)
			return r.m.Reject(1, r.reach(StateReqRcvd, true), mad.RejectConsumer, b(n), nil)
		}},
		"RTU": {224, func(n int) error {
			r := newRig(t)
			return r.m.RTU(1, r.reach(StateRepRcvd, false), b(n))
		}},
		"MRA": {222, func(n int) error {
			r := newRig(t)
			return r.m.MRA(1, r.reach(StateRepRcvd, false), 1, b(n))
		}},
		"DREQ": {220, func(n int) error {
			r := newRig(t)
			return r.m.Disconnect(1, r.reach(StateEstablished, false), b(n))
		}},
		"DREP": {224, func(n int) error {
			r := newRig(t)
			return r.m.SendDREP(1, r.reach(StateDreqRcvd, false), b(n))
		}},
		"SIDR_REQ": {180, func(n int) error {
			_, err := newRig(t).m.SIDRRequest(1, &SIDRREQParams{Local: addrA, Remote: addrB, IPHeader: true, PrivateData: b(n)})
			return err
		}},
		"SIDR_REQ without header": {216, func(n int) error {
			_, err := newRig(t).m.SIDRRequest(1, &SIDRREQParams{Local: addrA, Remote: addrB, PrivateData: b(n)})
			return err
		}},
		"SIDR_REP": {136, func(n int) error {
			r := newRig(t)
			r.listen()
			return r.m.SIDRReply(1, r.reach(StateSidrReqRcvd, true), &SIDRREPParams{PrivateData: b(n)})
		}},
	}
	for name, c := range calls {
		for _, n := range []int{0, 1, c.most} {
			if err := c.do(n); err != nil {
				t.Error(name, n, err)
			}
		}
		if err := c.do(c.most + 1); err == nil {
			t.Error(name, c.most+1, "fits")
		} else {
			isErrno(t, err, einval)
		}
	}
}

func TestBadParameters(t *testing.T) {
	for name, change := range map[string]func(p *REQParams){
		"QPN":          func(p *REQParams) { p.QPN = 1 << 24 },
		"StartingPSN":  func(p *REQParams) { p.StartingPSN = 1 << 24 },
		"ECE.VendorID": func(p *REQParams) { p.ECE.VendorID = 1 << 24 },
		"PathMTU":      func(p *REQParams) { p.PathMTU = 6 },
		"Transport":    func(p *REQParams) { p.Transport = mad.TransportRD },
		"Local":        func(p *REQParams) { p.Local = netip.Addr{} },
		"Remote":       func(p *REQParams) { p.Remote = netip.MustParseAddr("2001:db8::1") },
		"PrivateData":  func(p *REQParams) { p.PrivateData = make([]byte, 57) },
	} {
		r := newRig(t)
		p := reqParams()
		change(p)
		_, err := r.m.Connect(r.now, p)
		names(t, err, name)
		r.quiet()
		if r.m.Conns() != 0 {
			t.Error(name, "left over")
		}
	}
	r := newRig(t)
	c := r.reach(StateReqRcvd, true)
	p := repParams()
	p.QPN = 1 << 24
	names(t, r.m.Accept(r.now, c, p), "QPN")
	r.state(c, StateReqRcvd) // still usable
}

// SIDR: rejects, duplicates, and the answer.
func TestSIDR(t *testing.T) {
	req := func(id uint32) *msg {
		return newMsg(mad.AttrSIDRREQ, peerTID).mod(3).u32(0, id).u16(4, 0xFFFF).u64(8, sidT).at(16, "0040")
	}
	r := newRig(t)
	r.recv(req(peerID))
	r.sentIs(newMsg(mad.AttrSIDRREP, peerTID).u32(0, peerID).at(4, "01").u64(12, sidT)) // nobody listens
	_, err := r.m.Listen(ListenParams{ServiceID: sidT, Local: addrB})
	r.ok(err)
	r.recv(req(peerID))
	r.sentIs(newMsg(mad.AttrSIDRREP, peerTID).u32(0, peerID).at(4, "02").u64(12, sidT)) // not at this address

	r.listen()
	r.recv(req(peerID))
	e := r.events(EventSIDRREQReceived)[0]
	if e.Peer.ECE.Options != 3 || e.Peer.PKey != 0xFFFF || len(e.PrivateData) != 216 {
		t.Fatalf("%+v", e)
	}
	r.recv(req(peerID)) // undecided
	r.quiet()
	r.ok(r.m.SIDRReply(r.now, e.Conn, &SIDRREPParams{QPN: 0x123456, QKey: 0x01234567, PrivateData: []byte("u")}))
	want := newMsg(mad.AttrSIDRREP, peerTID).u32(0, peerID).u24(8, 0x123456).u64(12, sidT).u32(20, 0x01234567).at(96, "75")
	r.sentIs(want)
	r.recv(req(peerID)) // the answer was lost
	r.sentIs(want)
	r.events()
	if n := r.m.counters.Dup(mad.AttrSIDRREQ); n != 2 {
		t.Fatal(n)
	}
	r.recv(req(peerID + 1))
	r.events(EventSIDRREQReceived)
	r.recv(req(peerID).u64(8, 99)) // the same id, but not the same request
	r.sentIs(newMsg(mad.AttrSIDRREP, peerTID).u32(0, peerID).at(4, "01").u64(12, 99))
	r.now += 3 * 4096 * ms
	r.recv(req(peerID)) // after so long it is another one
	r.events(EventSIDRREQReceived)

	// The active side.
	c := r.reach(StateSidrReqSent, false)
	r.recv(newMsg(mad.AttrSIDRREP, c.tid).mod(8).u32(0, c.localID).at(5, "02 a1b2").u24(8, 0x777).at(11, "c3").u64(12, sidT).u32(20, 0x55).
		at(24, "0908").at(96, "77"))
	e = r.events(EventSIDRREPReceived)[0]
	if *e.Peer != (Peer{Attr: mad.AttrSIDRREP, ServiceID: sidT, QPN: 0x777, QKey: 0x55, ECE: ECE{0xA1B2C3, 8}}) || len(e.PrivateData) != 136 ||
		string(e.ARI) != "\x09\x08" {
		t.Fatalf("%+v %+v", e, e.Peer)
	}
	r.state(c, StateIdle)
	c = r.reach(StateSidrReqSent, false)
	r.recv(newMsg(mad.AttrSIDRREP, c.tid).u32(0, c.localID).at(4, "02"))
	if e := r.events(EventSIDRREPReceived)[0]; e.Peer.SIDRStatus != mad.SIDRRejected {
		t.Fatalf("%+v", e.Peer)
	}
}

// What answers are kept for duplicates is bounded.
func TestSIDRRepliesBounded(t *testing.T) {
	r := newRig(t)
	r.listen()
	for i := range uint32(3000) {
		r.recv(newMsg(mad.AttrSIDRREQ, 1).u32(0, i+1).u64(8, sidT))
		r.ok(r.m.SIDRReply(r.now, r.events(EventSIDRREQReceived)[0].Conn, &SIDRREPParams{}))
		r.sent(mad.AttrSIDRREP)
	}
	if n := len(r.m.replies.byKey); n > sidrReplies || len(r.m.replies.order) > sidrReplies {
		t.Fatal(n)
	}
}

func TestListeners(t *testing.T) {
	r := newRig(t)
	v6 := netip.MustParseAddr("2001:db8::1")
	mk := func(name string, p ListenParams) {
		t.Helper()
		p.Context = name
		_, err := r.m.Listen(p)
		r.ok(err)
	}
	find := func(id uint64, to netip.Addr, want string, known bool) {
		t.Helper()
		l, k := r.m.listeners.find(id, to)
		got := ""
		if l != nil {
			got = l.Context.(string)
		}
		if got != want || k != known {
			t.Fatalf("%#x at %v: %q %v, want %q %v", id, to, got, k, want, known)
		}
	}
	mk("exact", ListenParams{ServiceID: 1, Local: addrA})
	find(1, addrA, "exact", true)
	find(1, addrB, "", true)
	find(2, addrA, "", false)
	mk("any v4", ListenParams{ServiceID: 1, Local: netip.IPv4Unspecified()})
	find(1, addrA, "exact", true)
	find(1, addrB, "any v4", true)
	find(1, v6, "", true)
	mk("v6 only", ListenParams{ServiceID: 1, Local: netip.IPv6Unspecified(), AFOnly: true})
	find(1, v6, "v6 only", true)
	find(1, addrB, "any v4", true)
	mk("v6 only 2", ListenParams{ServiceID: 2, Local: netip.IPv6Unspecified(), AFOnly: true})
	find(2, addrA, "", true)
	mk("dual", ListenParams{ServiceID: 3, Local: netip.IPv6Unspecified()})
	find(3, addrA, "dual", true)
	find(3, v6, "dual", true)
	mk("range", ListenParams{ServiceID: 0x0106_1234, Mask: 0xFFFF_0000})
	find(0x0106_0001, addrA, "range", true)
	mk("one of it", ListenParams{ServiceID: 0x0106_0001})
	find(0x0106_0001, addrA, "one of it", true)
	mk("scope", ListenParams{ServiceID: 4, Local: netip.MustParseAddr("fe80::1%eth0")})
	find(4, netip.MustParseAddr("fe80::1%eth0"), "scope", true)
	find(4, netip.MustParseAddr("fe80::1"), "scope", true)
	find(4, netip.MustParseAddr("fe80::1%eth1"), "", true)

	_, err := r.m.Listen(ListenParams{ServiceID: 1, Local: addrA})
	isErrno(t, err, syscall.EADDRINUSE)
	_, err = r.m.Listen(ListenParams{ServiceID: 0x0106_0000, Mask: 0xFFFF_0000})
	isErrno(t, err, syscall.EADDRINUSE)
	l := r.m.listeners.exact[1][0]
	if l.State() != StateListen {
		t.Fatal(l.State())
	}
	r.m.Unlisten(l)
	if l.State() != StateIdle {
		t.Fatal(l.State())
	}
	find(1, addrA, "any v4", true)
}

// The backlog: what is too much is dropped, never refused.
func TestCase91_Backlog(t *testing.T) {
	r := newRig(t)
	l, err := r.m.Listen(ListenParams{ServiceID: sidT, Backlog: 1})
	r.ok(err)
	for i := range uint32(64) {
		r.recv(peerREQ(peerTID, i+1, i+100))
	}
	r.sent()
	c := r.events(EventREQReceived)[0].Conn
	if r.drops(DropBacklog) != 63 || l.Pending() != 1 || r.m.Conns() != 1 {
		t.Fatal(r.drops(DropBacklog), l.Pending())
	}
	r.m.Taken(c) // fetched, not decided
	r.m.Taken(c)
	r.recv(peerREQ(peerTID, 2, 101))
	r.events(EventREQReceived)
	r.ok(r.m.Accept(r.now, c, repParams()))
	r.sent(mad.AttrREP)
	if l.Pending() != 1 || r.m.pending != 1 {
		t.Fatal(l.Pending(), r.m.pending)
	}
	// The peer gives up: an error, no crash.
	r.recv(newMsg(mad.AttrREJ, 1).ids(2, 0).at(8, "8010").u16(10, 4).u64(12, guidB))
	e := r.events(EventREJReceived)[0]
	if l.Pending() != 0 {
		t.Fatal(l.Pending())
	}
	isErrno(t, r.m.Reject(r.now, e.Conn, mad.RejectConsumer, nil, nil), einval)
	isErrno(t, r.m.Accept(r.now, e.Conn, repParams()), einval)
	if _, err := r.m.Listen(ListenParams{ServiceID: 9}); err != nil {
		t.Fatal(err)
	}
	if d := r.m.listeners.exact[9][0].backlog; d != 1024 {
		t.Fatal(d)
	}
}

func TestLimits(t *testing.T) {
	r := newRig(t)
	r.m = New(Config{Rand: newManager(1, 1).cfg.Rand, CAGUID: guidA, MaxPending: 2, MaxConns: 3})
	r.listen()
	for i := range uint32(4) {
		r.recv(peerREQ(peerTID, i+1, i+100))
	}
	e := r.events(EventREQReceived, EventREQReceived)
	if r.drops(DropPending) != 2 {
		t.Fatal(r.drops(DropPending))
	}
	r.ok(r.m.Accept(r.now, e[0].Conn, repParams()))
	_, err := r.m.Connect(r.now, reqParams())
	r.ok(err)
	_, err = r.m.Connect(r.now, reqParams())
	isErrno(t, err, syscall.ENOMEM)
	_, err = r.m.SIDRRequest(r.now, &SIDRREQParams{Local: addrA, Remote: addrB})
	isErrno(t, err, syscall.ENOMEM)
	r.recv(peerREQ(peerTID, 9, 109))
	if r.drops(DropConns) != 1 {
		t.Fatal(r.drops(DropConns))
	}
}

func TestSplitPrivate(t *testing.T) {
	g := peerREQ(1, 2, 3)
	p := g.b[24+140 : 24+232]
	info, user, err := SplitPrivate(p)
	if err != nil || info != (IPInfo{addrB, addrA, 40000}) || len(user) != 56 {
		t.Fatal(info, err)
	}
	for _, c := range []struct {
		at int
		v  byte
	}{{0, 1}, {0, 0x10}, {1, 0x50}, {1, 0}} {
		b := append([]byte(nil), p...)
		b[c.at] = c.v
		if _, _, err := SplitPrivate(b); err == nil {
			t.Error(c)
		}
	}
	if _, _, err := SplitPrivate(p[:35]); err == nil {
		t.Error("short")
	}
}

func TestCounterNames(t *testing.T) {
	r := newRig(t)
	r.reach(StateEstablished, true)
	got := map[string]uint64{}
	r.m.Counters().Each(func(name string, v uint64) { got[name] = v })
	for name, want := range map[string]uint64{
		"cm_rx_msgs.req": 1, "cm_rx_msgs.rtu": 1, "cm_tx_msgs.rep": 1, "cm_tx_retries.sidr_rep": 0, "cm_rx_duplicates.apr": 0,
		"cm_drops.backlog": 0, "cm_drops.alternate_path": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Error(name, v, ok)
		}
	}
	if len(got) != 4*11+drops {
		t.Error(len(got))
	}
}
