package cm

import (
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// exhaust lets a message time out: it is sent 16 times in all, unchanged, wait apart.
func (r *rig) exhaust(attr mad.AttrID, wait int64, first []byte, want EventKind) {
	r.t.Helper()
	for range 15 {
		r.due(wait)
		if out := r.sent(attr); string(out[0].MAD[:]) != string(first) {
			r.t.Fatalf("%v changed", attr)
		}
		r.events()
	}
	r.due(wait)
	r.sent()
	if e := r.events(want)[0]; e.Err != syscall.ETIMEDOUT || e.PrivateData != nil {
		r.t.Fatalf("%+v", e)
	}
	if r.m.counters.Retries(attr) != 15 {
		r.t.Fatal(r.m.counters.Retries(attr))
	}
}

// The table of timers: Linux 6.12's values.
func TestTimers(t *testing.T) {
	t.Run("REQ", func(t *testing.T) {
		r := newRig(t)
		c, err := r.m.Connect(r.now, reqParams())
		r.ok(err)
		r.exhaust(mad.AttrREQ, 4608*ms, r.sent(mad.AttrREQ)[0].MAD[:], EventREQError)
		r.state(c, StateIdle)
		if r.m.Deadline() != 0 || r.m.Conns() != 0 {
			t.Fatal("left over")
		}
	})
	t.Run("REQ of Linux 6.1", func(t *testing.T) { // packet lifetime 18
		r := newRig(t)
		p := reqParams()
		p.PacketLifetime = 18
		c, err := r.m.Connect(r.now, p)
		r.ok(err)
		if c.QPParams().Timeout != 19 {
			t.Fatal(c.QPParams().Timeout)
		}
		r.exhaust(mad.AttrREQ, 6144*ms, r.sent(mad.AttrREQ)[0].MAD[:], EventREQError)
	})
	t.Run("REP", func(t *testing.T) {
		r := newRig(t)
		c := r.reach(StateReqRcvd, true)
		r.ok(r.m.Accept(r.now, c, repParams()))
		r.exhaust(mad.AttrREP, 4096*ms, r.sent(mad.AttrREP)[0].MAD[:], EventREPError)
		r.state(c, StateIdle)
	})
	t.Run("DREQ passive", func(t *testing.T) {
		r := newRig(t)
		c := r.reach(StateEstablished, true)
		r.ok(r.m.Disconnect(r.now, c, nil))
		r.exhaust(mad.AttrDREQ, 4096*ms, r.sent(mad.AttrDREQ)[0].MAD[:], EventDREQError)
		r.state(c, StateTimewait)
		r.due(512 * ms)
		r.events(EventTimewaitExit)
		r.state(c, StateIdle)
	})
	t.Run("Case87_UnansweredDREQ", func(t *testing.T) {
		r := newRig(t)
		c := r.reach(StateEstablished, false)
		r.ok(r.m.Disconnect(r.now, c, nil))
		r.exhaust(mad.AttrDREQ, 4608*ms, r.sent(mad.AttrDREQ)[0].MAD[:], EventDREQError)
		r.due(512 * ms)
		r.events(EventTimewaitExit)
		if r.m.Conns() != 0 {
			t.Fatal(r.m.Conns())
		}
	})
	t.Run("SIDR_REQ", func(t *testing.T) {
		r := newRig(t)
		c, err := r.m.SIDRRequest(r.now, &SIDRREQParams{Local: addrA, Remote: addrB, ServiceID: sidT})
		r.ok(err)
		r.exhaust(mad.AttrSIDRREQ, 4096*ms, r.sent(mad.AttrSIDRREQ)[0].MAD[:], EventSIDRREQError)
		r.state(c, StateIdle)
	})
	t.Run("no retries", func(t *testing.T) {
		r := newRig(t)
		p := reqParams()
		p.MaxCMRetries = -1
		_, err := r.m.Connect(r.now, p)
		r.ok(err)
		if b := r.sent(mad.AttrREQ)[0].MAD; b[24+51] != 0 {
			t.Fatalf("%x", b)
		}
		r.due(4608 * ms)
		r.events(EventREQError)
	})
	t.Run("retries of the REQ", func(t *testing.T) { // the passive side takes them from the REQ
		r := newRig(t)
		r.listen()
		r.recv(peerREQ(peerTID, peerID, peerQPN).at(50, "3610"))
		r.ok(r.m.Accept(r.now, r.events(EventREQReceived)[0].Conn, repParams()))
		r.sent(mad.AttrREP)
		r.due(4096 * ms)
		r.sent(mad.AttrREP)
		r.due(4096 * ms)
		r.events(EventREPError)
	})
	t.Run("fast", func(t *testing.T) {
		r := newRig(t)
		r.m = New(Config{Rand: fixed(1), CAGUID: guidA, Unit: 1000})
		_, err := r.m.Connect(r.now, reqParams())
		r.ok(err)
		r.sent(mad.AttrREQ)
		r.due(4608 * 1000)
	})
}

// An MRA makes the peer wait for its service timeout and the way; the repetitions go on after that, as far apart.
func TestMRAReceived(t *testing.T) {
	r := newRig(t)
	c := r.reach(StateReqSent, false)
	r.now += 1000 * ms
	r.recv(newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(9, "c0")) // 24
	r.quiet()                                                             // no event
	r.state(c, StateMRAReqRcvd)
	r.recv(newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(9, "f8")) // a second one does not count
	if r.m.counters.Dup(mad.AttrMRA) != 1 {
		t.Fatal("not counted")
	}
	for range 15 {
		r.due((65536 + 512) * ms)
		r.sent(mad.AttrREQ)
	}
	r.due((65536 + 512) * ms)
	r.events(EventREQError)

	r = newRig(t)
	c = r.reach(StateRepSent, true)
	r.recv(newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(8, "4050")) // 10
	r.due((4 + 512) * ms)
	r.sent(mad.AttrREP)
	r.recv(newMsg(mad.AttrRTU, c.tid).ids(peerID, c.localID))
	r.events(EventRTUReceived)
	if r.m.Deadline() != 0 {
		t.Fatal("still repeating")
	}
	r.ok(r.m.Disconnect(r.now, c, nil)) // not as slow as the MRA asked
	r.sent(mad.AttrDREQ)
	r.due(4096 * ms)
}

// Codes of the peer's that would keep state for hours are capped; a code below 8 is 1 ms.
func TestPeersTimeoutsAreCapped(t *testing.T) {
	r := newRig(t)
	r.listen()
	r.recv(peerREQ(peerTID, peerID, peerQPN).at(47, "fb").at(95, "f8")) // 31 and 31
	c := r.events(EventREQReceived)[0].Conn
	r.ok(r.m.Accept(r.now, c, repParams()))
	r.sent(mad.AttrREP)
	r.due(65536 * ms) // 24
	r.sent(mad.AttrREP)
	r.recv(newMsg(mad.AttrRTU, peerTID).ids(peerID, c.localID))
	r.recv(newMsg(mad.AttrDREQ, 1).ids(peerID, c.localID).u24(8, ourQPN))
	r.events(EventRTUReceived, EventDREQReceived)
	r.ok(r.m.SendDREP(r.now, c, nil))
	r.sent(mad.AttrDREP)
	r.due(8192 * ms) // 21
	r.events(EventTimewaitExit)

	r = newRig(t)
	r.listen()
	r.recv(peerREQ(peerTID, peerID, peerQPN).at(47, "03").at(95, "08"))
	c = r.events(EventREQReceived)[0].Conn
	r.ok(r.m.Accept(r.now, c, repParams()))
	r.sent(mad.AttrREP)
	r.due(1 * ms)
}

// Linux's formula: what the driver's tables and wire captures say.
func TestACKTimeout(t *testing.T) {
	for _, c := range []struct{ delay, lifetime, want uint8 }{
		{15, 16, 17},
		{15, 18, 19},
		{0, 16, 17},
		{15, 14, 16},
		{15, 15, 17},
		{16, 15, 17},
		{15, 13, 16},
		{15, 10, 15},
		{31, 31, 31},
		{18, 16, 19},
		{18, 14, 18},
		{31, 2, 31},
	} {
		if got := ACKTimeout(c.delay, c.lifetime); got != c.want {
			t.Errorf("delay %d, lifetime %d: %d, want %d", c.delay, c.lifetime, got, c.want)
		}
	}
}

// A pause of the process moves the deadlines.
func TestShift(t *testing.T) {
	r := newRig(t)
	r.reach(StateReqSent, false)
	r.m.Shift(1000 * ms)
	r.due(5608 * ms)
	r.sent(mad.AttrREQ)
}
