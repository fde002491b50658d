package cm

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// staleREJ is the reject of a REQ as stale, without ids of ours.
func staleREJ(id uint32) *msg { return newMsg(mad.AttrREJ, peerTID).ids(0, id).u16(10, 10) }

// The rows of the table of duplicates and strays.
func TestREQAgain(t *testing.T) {
	for _, s := range []State{StateRepSent, StateMRARepRcvd, StateEstablished, StateDreqSent, StateDreqRcvd} {
		r := newRig(t)
		c := r.reach(s, true)
		r.recv(peerREQ(peerTID, peerID, peerQPN))
		r.quiet()
		r.state(c, s)
		if r.m.counters.Dup(mad.AttrREQ) != 1 {
			t.Error(s, "not counted")
		}
	}
	r := newRig(t)
	c := r.reach(StateReqRcvd, true)
	mra := newMsg(mad.AttrMRA, peerTID).ids(c.localID, peerID).at(9, "c0")
	for range 3 { // one for each
		r.recv(peerREQ(peerTID, peerID, peerQPN))
		r.sentIs(mra)
	}
	r.ok(r.m.Accept(r.now, c, repParams()))
	r.sent(mad.AttrREP)

	r = newRig(t)
	r.reach(StateTimewait, true)
	r.recv(peerREQ(peerTID, peerID, peerQPN))
	r.sentIs(staleREJ(peerID))
	// TIMEWAIT is over: the same REQ opens a connection.
	r.due(512 * ms)
	r.events(EventTimewaitExit)
	r.recv(peerREQ(peerTID, peerID, peerQPN))
	r.events(EventREQReceived)
}

// A known queue pair with a new communication id: the peer was restarted.
func TestCase93_StaleConnection(t *testing.T) {
	r := newRig(t)
	old := r.reach(StateEstablished, true)
	r.recv(peerREQ(peerTID, peerID+1, peerQPN))
	out := r.sent(mad.AttrREJ, mad.AttrDREQ)
	if out[0].MAD != staleREJ(peerID+1).b {
		t.Fatalf("%x", out[0].MAD)
	}
	tid := mad.Header(out[1].MAD[:]).TID()
	if out[1].MAD != newMsg(mad.AttrDREQ, tid).ids(old.localID, peerID).u24(8, peerQPN).b {
		t.Fatalf("%x", out[1].MAD)
	}
	r.events()
	r.state(old, StateDreqSent)
	// The restarted peer knows nothing of it and says so: the owner hears that the connection is over, and the next REQ succeeds.
	r.recv(newMsg(mad.AttrDREP, tid).ids(peerID, old.localID))
	r.events(EventDREPReceived)
	r.recv(peerREQ(peerTID, peerID+1, peerQPN))
	r.events(EventREQReceived)
	r.sent()

	// One that is not established yet ends with a reject.
	for _, s := range []State{StateReqRcvd, StateMRAReqSent, StateRepSent, StateMRARepRcvd} {
		r := newRig(t)
		old := r.reach(s, true)
		r.recv(peerREQ(peerTID, peerID+1, peerQPN))
		r.sentIs(staleREJ(peerID + 1))
		if e := r.events(EventREJReceived)[0]; e.Conn != old || e.Reason != mad.RejectStaleConnection {
			t.Fatalf("%+v", e)
		}
		isErrno(t, r.m.Accept(r.now, old, repParams()), einval)
		r.recv(peerREQ(peerTID, peerID+1, peerQPN))
		r.events(EventREQReceived)
	}

	// The same queue pair number of another adapter is another one.
	r = newRig(t)
	r.reach(StateEstablished, true)
	r.recv(peerREQ(peerTID, peerID, peerQPN).u64(16, guidB+1))
	r.events(EventREQReceived)

	// The communication id of a living connection with another queue pair.
	r = newRig(t)
	old = r.reach(StateEstablished, true)
	r.recv(peerREQ(peerTID, peerID, peerQPN+1))
	if out := r.sent(mad.AttrREJ, mad.AttrDREQ); out[0].MAD != newMsg(mad.AttrREJ, peerTID).ids(0, peerID).u16(10, 30).b {
		t.Fatalf("%x", out[0].MAD)
	}
	r.state(old, StateDreqSent)
}

func TestCase93_RandomIDs(t *testing.T) {
	seen := map[uint64]bool{0: true}
	for seed := range uint64(3) {
		r := newRig(t)
		r.m = newManager(seed, guidA)
		for range 100 {
			c, err := r.m.Connect(r.now, reqParams())
			r.ok(err)
			if seen[uint64(c.localID)] || seen[c.tid] {
				t.Fatal("an id or 0 again")
			}
			seen[uint64(c.localID)], seen[c.tid] = true, true
		}
	}
	// A source that repeats itself, and gives 0.
	r := newRig(t)
	r.m = New(Config{Rand: fixed(0), CAGUID: guidA})
	for i := range uint32(5) {
		c, err := r.m.Connect(r.now, reqParams())
		r.ok(err)
		if c.localID != i+1 || c.tid == 0 {
			t.Fatal(c.localID, c.tid)
		}
	}
}

func TestREPAgain(t *testing.T) {
	r := newRig(t)
	c := r.reach(StateRepRcvd, false)
	r.ok(r.m.RTU(r.now, c, []byte("first")))
	rtu := newMsg(mad.AttrRTU, c.tid).ids(c.localID, peerID).at(8, "6669727374")
	r.sentIs(rtu)
	for range 2 {
		r.recv(peerREP(c.tid, peerID, c.localID, peerQPN))
		r.sentIs(rtu)
	}
	r.events()

	r = newRig(t)
	c = r.reach(StateRepRcvd, false)
	r.recv(peerREP(c.tid, peerID, c.localID, peerQPN))
	r.sentIs(newMsg(mad.AttrMRA, c.tid).ids(c.localID, peerID).at(8, "40c0"))
	r.state(c, StateMRARepSent)

	// Unknown ids.
	r.recv(peerREP(1, peerID+1, c.localID, peerQPN))
	r.quiet()
	// There is no such request any more.
	r.recv(peerREP(3, peerID, c.localID+1, peerQPN))
	r.sentIs(newMsg(mad.AttrREJ, 3).ids(c.localID+1, peerID).at(8, "40").u16(10, 6))
	r.events()
	// A passive connection does not take one.
	r = newRig(t)
	c = r.reach(StateEstablished, true)
	r.recv(peerREP(1, peerID, c.localID, peerQPN))
	r.quiet()
}

// A REP whose queue pair is connected here already.
func TestStaleREP(t *testing.T) {
	r := newRig(t)
	old := r.reach(StateEstablished, false)
	c, err := r.m.Connect(r.now, reqParams())
	r.ok(err)
	r.sent(mad.AttrREQ)
	r.recv(peerREP(c.tid, peerID+1, c.localID, peerQPN))
	out := r.sent(mad.AttrREJ, mad.AttrDREQ)
	if out[0].MAD != newMsg(mad.AttrREJ, c.tid).ids(c.localID, peerID+1).at(8, "40").u16(10, 10).b {
		t.Fatalf("%x", out[0].MAD)
	}
	r.state(old, StateDreqSent)
	r.state(c, StateReqSent) // and goes on
	r.recv(newMsg(mad.AttrDREP, 1).ids(peerID, old.localID))
	r.events(EventDREPReceived)
	// The id of another connection: a REP of long ago.
	r.recv(peerREP(c.tid, peerID, c.localID, peerQPN+1))
	r.quiet()
	r.recv(peerREP(c.tid, peerID+1, c.localID, peerQPN))
	r.events(EventREPReceived)
}

func TestUnmatched(t *testing.T) {
	r := newRig(t)
	for _, g := range []*msg{
		newMsg(mad.AttrRTU, 1).ids(1, 2), newMsg(mad.AttrDREP, 1).ids(1, 2), newMsg(mad.AttrMRA, 1).ids(1, 2),
		newMsg(mad.AttrREJ, 1).ids(1, 2).u16(10, 28), newMsg(mad.AttrSIDRREP, 1).u32(0, 5),
	} {
		r.recv(g)
		r.quiet()
	}
	if n := r.drops(DropUnknownID); n != 5 {
		t.Fatal(n)
	}
	// A DREQ with unknown ids: DREP at once, ids swapped, TID echoed.
	r.recv(newMsg(mad.AttrDREQ, 0xFEED).ids(0x11, 0x22).u24(8, 3))
	r.sentIs(newMsg(mad.AttrDREP, 0xFEED).ids(0x22, 0x11))
	r.events()

	c := r.reach(StateEstablished, false)
	r.recv(newMsg(mad.AttrDREQ, 1).ids(peerID, c.localID).u24(8, ourQPN+1)) // another queue pair
	r.quiet()
	r.recv(newMsg(mad.AttrDREQ, 1).ids(peerID+1, c.localID).u24(8, ourQPN)) // another connection
	r.sent(mad.AttrDREP)
	r.state(c, StateEstablished)
	if r.drops(DropQPN) != 1 {
		t.Fatal("not counted")
	}
	r.recv(newMsg(mad.AttrLAP, 1).ids(peerID, c.localID))
	r.recv(newMsg(mad.AttrAPR, 1).ids(peerID, c.localID))
	r.quiet()
	if r.drops(DropAlternatePath) != 2 {
		t.Fatal("not counted")
	}
}

func TestDREQAgain(t *testing.T) {
	r := newRig(t)
	c := r.reach(StateDreqRcvd, true)
	r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN))
	r.quiet() // undecided
	r.ok(r.m.SendDREP(r.now, c, []byte("end")))
	drep := newMsg(mad.AttrDREP, 0x99).ids(c.localID, peerID).at(8, "656e64")
	r.sentIs(drep)
	r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN))
	r.sentIs(drep) // TIMEWAIT: the same again
	r.events()
	r.recv(newMsg(mad.AttrDREQ, 0x9A).ids(peerID, c.localID).u24(8, ourQPN))
	r.sentIs(newMsg(mad.AttrDREP, 0x9A).ids(c.localID, peerID).at(8, "656e64")) // the TID is the request's
	// TIMEWAIT without a DREQ before, and with private data of the RTU.
	r = newRig(t)
	c = r.reach(StateRepRcvd, false)
	r.ok(r.m.RTU(r.now, c, []byte("rtu")))
	r.sent(mad.AttrRTU)
	r.recv(newMsg(mad.AttrREJ, c.tid).ids(peerID, c.localID).at(8, "80").u16(10, 28))
	r.events(EventREJReceived)
	r.recv(newMsg(mad.AttrDREQ, 0x77).ids(peerID, c.localID).u24(8, ourQPN))
	r.sentIs(newMsg(mad.AttrDREP, 0x77).ids(c.localID, peerID))
	// A DREP that was not asked for ends it as well.
	r = newRig(t)
	c = r.reach(StateDreqRcvd, true)
	r.recv(newMsg(mad.AttrDREP, 0x99).ids(peerID, c.localID))
	r.quiet()
	r.state(c, StateTimewait)
	// "REP sent" is enough: the peer's RTU was lost.
	r = newRig(t)
	c = r.reach(StateRepSent, true)
	r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN).at(12, "62"))
	if e := r.events(EventDREQReceived)[0]; len(e.PrivateData) != DREQPrivateLen || e.PrivateData[0] != 'b' {
		t.Fatalf("%+v", e)
	}
}

// The passive side before it knows: data has come, the RTU has not.
func TestEstablishedByData(t *testing.T) {
	r := newRig(t)
	c := r.reach(StateRepSent, true)
	r.ok(r.m.Established(r.now, c))
	if e := r.events(EventRTUReceived)[0]; e.PrivateData != nil {
		t.Fatalf("%+v", e)
	}
	if r.m.Deadline() != 0 {
		t.Fatal("the REP is still repeated")
	}
	r.recv(newMsg(mad.AttrRTU, c.tid).ids(peerID, c.localID))
	r.quiet()
	isErrno(t, r.m.Established(r.now, c), einval)
}

// What makes the manager reject on its own.
func TestRejectReasons(t *testing.T) {
	gid := ib.GIDFromAddr(addrA)
	for _, c := range []struct {
		name   string
		req    *msg
		listen ListenParams
		want   *msg
	}{
		{"nobody listens", peerREQ(peerTID, 5, 6), ListenParams{ServiceID: sidT + 1}, newMsg(mad.AttrREJ, peerTID).ids(0, 5).u16(10, 8)},
		{"another address", peerREQ(peerTID, 5, 6), ListenParams{ServiceID: sidT, Local: addrB}, newMsg(mad.AttrREJ, peerTID).ids(0, 5).u16(10, 28)},
		{"RD", peerREQ(peerTID, 5, 6).at(43, "a4"), ListenParams{ServiceID: sidT}, newMsg(mad.AttrREJ, peerTID).ids(0, 5).u16(10, 9)},
		{"extended, not XRC", peerREQ(peerTID, 5, 6).at(43, "a6"), ListenParams{ServiceID: sidT}, newMsg(mad.AttrREJ, peerTID).ids(0, 5).u16(10, 9)},
		{"MTU 0", peerREQ(peerTID, 5, 6).at(50, "06"), ListenParams{ServiceID: sidT}, newMsg(mad.AttrREJ, peerTID).ids(0, 5).u16(10, 26)},
		{"MTU 6", peerREQ(peerTID, 5, 6).at(50, "66"), ListenParams{ServiceID: sidT}, newMsg(mad.AttrREJ, peerTID).ids(0, 5).u16(10, 26)},
		{
			"GID", peerREQ(peerTID, 5, 6).at(87, "09"),
			ListenParams{ServiceID: sidT},
			newMsg(mad.AttrREJ, peerTID).ids(0, 5).at(9, "20").u16(10, 12).at(12, "00000000000000000000ffffc0000201"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			_, err := r.m.Listen(c.listen)
			r.ok(err)
			r.recv(c.req)
			r.sentIs(c.want)
			r.events()
			if r.m.Conns() != 0 {
				t.Fatal("costs memory")
			}
		})
	}
	if gid.Addr() != addrA {
		t.Fatal(gid)
	}

	// Another class version.
	r := newRig(t)
	r.listen()
	g := peerREQ(peerTID, 5, 6)
	g.b[2] = 1
	r.recv(g)
	r.sentIs(newMsg(mad.AttrREJ, peerTID).ids(0, 5).at(9, "02").u16(10, 31).at(12, "02"))
	g = newMsg(mad.AttrSIDRREQ, peerTID).u32(0, 5).u64(8, sidT)
	g.b[2] = 3
	r.recv(g)
	r.sentIs(newMsg(mad.AttrSIDRREP, peerTID).u32(0, 5).at(4, "05").u64(12, sidT))
	g = newMsg(mad.AttrRTU, peerTID)
	g.b[2] = 3
	r.recv(g)
	r.quiet()
	if r.drops(DropClassVersion) != 3 {
		t.Fatal(r.drops(DropClassVersion))
	}

	// What is no message at all.
	for i, c := range []struct {
		at   int
		v    byte
		want Drop
	}{{0, 2, DropBaseVersion}, {1, 3, DropClass}, {3, 1, DropClass}, {17, 0x0F, DropAttr}, {17, 0x1B, DropAttr}} {
		g := peerREQ(peerTID, 5, 6)
		g.b[c.at] = c.v
		before := r.drops(c.want)
		r.recv(g)
		r.quiet()
		if r.drops(c.want) != before+1 {
			t.Error(i, c)
		}
	}
	r.m.Receive(r.now, addrA, addrB, g.b[:255])
	r.m.Receive(r.now, addrA, addrB, nil)
	if r.drops(DropShort) != 2 {
		t.Fatal("not counted")
	}
}

// The reject of the application, and what the peer's says.
func TestCase83_RejectedEvent(t *testing.T) {
	r := newRig(t)
	c := r.reach(StateReqSent, false)
	r.recv(newMsg(mad.AttrREJ, c.tid).ids(0, c.localID).at(9, "06").u16(10, 28).at(12, "010203").at(84, "30313233343536373839"))
	e := r.events(EventREJReceived)[0]
	if e.Reason != mad.RejectConsumer || len(e.ARI) != 3 || len(e.PrivateData) != 148 || string(e.PrivateData[:11]) != "0123456789\x00" {
		t.Fatalf("%+v", e)
	}
	r.state(c, StateIdle)
	if r.m.Conns() != 0 || r.m.Deadline() != 0 {
		t.Fatal("left over")
	}
	// An ARI length beyond the field.
	c = r.reach(StateReqSent, false)
	r.recv(newMsg(mad.AttrREJ, c.tid).ids(0, c.localID).at(9, "fe").u16(10, 28))
	if e := r.events(EventREJReceived)[0]; len(e.ARI) != ARILen {
		t.Fatal(len(e.ARI))
	}
}
