package cm

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// Communication ids and SIDR request ids have the bits that are fixed, and are all different although the source repeats itself.
func TestFixedIDBits(t *testing.T) {
	for _, c := range []struct{ bits, mask uint32 }{
		{0, 0}, {0, 0xFE000000}, {0x02000000, 0xFE000000}, {0xFE000000, 0xFE000000}, {0x05, 0x7F}, {0x00400000, 0x01C00000},
	} {
		for _, from := range []uint32{0, 1, ^uint32(0), 0x01FFFFF0, 0x12345678} {
			t.Run(fmt.Sprintf("%08x/%08x from %08x", c.bits, c.mask, from), func(t *testing.T) {
				m := New(Config{Rand: func() uint64 { return uint64(from) }, CAGUID: guidA, IDBits: c.bits, IDMask: c.mask})
				seen := map[uint32]bool{0: true}
				for i := range 200 {
					p := reqParams()
					conn, err := m.Connect(1, p)
					if i%2 == 1 {
						conn, err = m.SIDRRequest(1, &SIDRREQParams{Local: addrA, Remote: addrB, ServiceID: sidT})
					}
					if err != nil {
						t.Fatal(err)
					}
					id := conn.LocalCommID()
					if id&c.mask != c.bits || seen[id] {
						t.Fatalf("id %08x, the %d. one", id, i)
					}
					seen[id] = true
					var at [4]byte
					out := m.Outgoing()
					copy(at[:], out[len(out)-1].MAD[mad.HeaderLen:])
					if at != [4]byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)} {
						t.Fatalf("% x is sent, the id is %08x", at, id)
					}
				}
			})
		}
	}
	for _, c := range []Config{{IDBits: 1}, {IDBits: 3, IDMask: 5}, {IDMask: 0xFFFFFF00}, {IDMask: 0xFFFFFFFF}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%08x/%08x was taken", c.IDBits, c.IDMask)
				}
			}()
			c.Rand, c.CAGUID = func() uint64 { return 1 }, guidA
			New(c)
		}()
	}
}

// What is told of a connection's record: in which states it is one, that it is there before the message leaves that makes the peer
// believe in the connection, and that it goes when nothing is left to end.
func TestRecord(t *testing.T) {
	type call struct {
		s        State
		recorded bool
		out      int // messages that would leave after it
	}
	var r *rig
	var calls []call
	record := func(c *Conn) {
		if c.Recorded() && (c.LocalCommID() == 0 || c.RemoteCommID() != peerID || c.QPParams().LocalQPN != ourQPN || c.QPParams().RemoteQPN != peerQPN) {
			t.Errorf("incomplete: %+v", c)
		}
		calls = append(calls, call{c.State(), c.Recorded(), len(r.m.out)})
	}
	want := func(t *testing.T, list ...call) {
		t.Helper()
		if fmt.Sprint(calls) != fmt.Sprint(list) {
			t.Errorf("told %v, want %v", calls, list)
		}
		calls = nil
	}
	begin := func(t *testing.T) {
		r, calls = newRig(t), nil
		r.m.cfg.Record = record
	}
	// Until it is established, and to DREQ_SENT.
	t.Run("active", func(t *testing.T) {
		begin(t)
		c := r.reach(StateRepRcvd, false)
		want(t)
		r.ok(r.m.RTU(r.now, c, nil))
		want(t, call{StateEstablished, true, 0})
		r.sent(mad.AttrRTU)
		r.ok(r.m.Disconnect(r.now, c, nil))
		want(t, call{StateDreqSent, true, 0})
		r.sent(mad.AttrDREQ)
		r.recv(newMsg(mad.AttrDREP, 1).ids(peerID, c.localID))
		want(t, call{StateTimewait, false, 0})
		r.now = r.m.Deadline()
		r.m.Timer(r.now)
		want(t)
	})
	t.Run("passive", func(t *testing.T) {
		begin(t)
		c := r.reach(StateReqRcvd, true)
		want(t)
		r.ok(r.m.Accept(r.now, c, repParams()))
		want(t, call{StateRepSent, true, 0})
		r.sent(mad.AttrREP)
		r.recv(newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(8, "40c0"))
		want(t, call{StateMRARepRcvd, true, 0})
		r.recv(newMsg(mad.AttrRTU, peerTID).ids(peerID, c.localID))
		want(t, call{StateEstablished, true, 0})
		r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN))
		want(t, call{StateDreqRcvd, true, 0})
		r.ok(r.m.SendDREP(r.now, c, nil))
		want(t, call{StateTimewait, false, 0})
	})
	// Each way in which a connection that is recorded ends.
	for _, e := range []struct {
		s       State
		passive bool
		end     func(c *Conn)
		want    []call
	}{
		{StateRepSent, true, func(c *Conn) { r.m.Destroy(r.now, c) }, []call{{StateTimewait, false, 1}}},
		{StateRepSent, true, func(c *Conn) { r.recv(newMsg(mad.AttrREJ, 1).ids(peerID, c.localID).at(8, "40").u16(10, 28)) }, []call{{StateIdle, false, 0}}},
		{StateRepSent, true, func(*Conn) {
			for r.m.Deadline() != 0 {
				r.now = r.m.Deadline()
				r.m.Timer(r.now)
				r.m.Outgoing()
			}
		}, []call{{StateIdle, false, 0}}},
		{StateRepSent, true, func(c *Conn) { r.ok(r.m.Established(r.now, c)) }, []call{{StateEstablished, true, 0}}},
		{StateEstablished, true, func(c *Conn) { r.recv(peerREQ(peerTID, peerID+1, peerQPN)) }, []call{{StateDreqSent, true, 1}}},
		{StateEstablished, false, func(c *Conn) { r.m.Destroy(r.now, c) }, []call{{StateDreqSent, true, 0}}},
		{StateEstablished, false, func(c *Conn) { r.recv(newMsg(mad.AttrREJ, 1).ids(peerID, c.localID).at(8, "80").u16(10, 28)) }, []call{{StateTimewait, false, 0}}},
		{StateDreqSent, false, func(c *Conn) { r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN)) }, []call{{StateDreqRcvd, true, 0}, {StateTimewait, false, 0}}},
		{StateDreqRcvd, false, func(c *Conn) { r.m.Destroy(r.now, c) }, []call{{StateTimewait, false, 0}}},
		{StateReqSent, false, func(c *Conn) { r.m.Destroy(r.now, c) }, nil},
		{StateReqRcvd, true, func(c *Conn) { r.m.Destroy(r.now, c) }, nil},
		{StateRepRcvd, false, func(c *Conn) { r.m.Destroy(r.now, c) }, nil},
		{StateSidrReqRcvd, true, func(c *Conn) { r.m.Destroy(r.now, c) }, nil},
	} {
		begin(t)
		c := r.reach(e.s, e.passive)
		calls = nil
		e.end(c)
		want(t, e.want...)
	}
}

// A peer that has disconnected uses the queue pair's number for a new connection before our
// owner has answered its DREQ: nothing is stale.
func TestNumberAgainAfterDREQ(t *testing.T) {
	for _, passive := range []bool{true, false} {
		r := newRig(t)
		if !passive {
			r.listen()
		}
		c := r.reach(StateDreqRcvd, passive)
		r.recv(peerREQ(peerTID+1, peerID+1, peerQPN))
		next := r.events(EventREQReceived)[0].Conn
		r.sent()
		r.ok(r.m.SendDREP(r.now, c, nil))
		r.sent(mad.AttrDREP)
		rep := repParams()
		rep.QPN++
		r.ok(r.m.Accept(r.now, next, rep))
		r.sent(mad.AttrREP)
		r.recv(newMsg(mad.AttrRTU, peerTID+1).ids(peerID+1, next.localID))
		r.events(EventRTUReceived)
		r.now = r.m.Deadline() // of TIMEWAIT
		r.m.Timer(r.now)
		r.events(EventTimewaitExit)
		// The number is the new one's.
		r.recv(peerREQ(peerTID+2, peerID+2, peerQPN))
		if out := r.sent(mad.AttrREJ, mad.AttrDREQ); out[0].MAD[mad.HeaderLen+11] != byte(mad.RejectStaleConnection) {
			t.Errorf("%x", out[0].MAD)
		}
		r.state(next, StateDreqSent)
	}
}
