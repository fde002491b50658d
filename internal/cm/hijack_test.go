package cm

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// What another host sends changes no connection, even if it knows ids, GUID and queue pair numbers.
func TestAnotherHostEndsNothing(t *testing.T) {
	type way struct {
		s       State
		passive bool
	}
	var ways []way
	for s := StateReqSent; s <= StateSidrReqRcvd; s++ {
		switch s {
		case StateReqRcvd, StateMRAReqSent, StateRepSent, StateMRARepRcvd, StateSidrReqRcvd:
			ways = append(ways, way{s, true})
		case StateEstablished, StateDreqSent, StateDreqRcvd, StateTimewait:
			ways = append(ways, way{s, true}, way{s, false})
		default:
			ways = append(ways, way{s, false})
		}
	}
	for _, from := range []netip.Addr{netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("::ffff:192.0.2.66"), netip.MustParseAddr("fe80::66%eth0")} {
		for _, w := range ways {
			forge := func(c *Conn) []*msg {
				id := c.localID
				return []*msg{
					newMsg(mad.AttrMRA, c.tid).ids(peerID, id).at(9, "c0"),
					newMsg(mad.AttrMRA, c.tid).ids(peerID, id).at(8, "40c0"),
					newMsg(mad.AttrREJ, c.tid).ids(peerID, id).u16(10, 28),                          // of a REQ
					newMsg(mad.AttrREJ, c.tid).ids(peerID, id).at(8, "40").u16(10, 28),              // of a REP
					newMsg(mad.AttrREJ, c.tid).ids(peerID, 0).at(9, "10").u16(10, 4).u64(12, guidB), // timeout
					peerREP(c.tid, peerID, id, peerQPN),
					newMsg(mad.AttrRTU, c.tid).ids(peerID, id),
					newMsg(mad.AttrDREQ, 0x99).ids(peerID, id).u24(8, c.localQPN),
					newMsg(mad.AttrDREP, 0x99).ids(peerID, id),
					newMsg(mad.AttrSIDRREP, c.tid).u32(0, id),
				}
			}
			for i := range forge(&Conn{}) {
				r := newRig(t)
				c := r.reach(w.s, w.passive)
				deadline := r.m.Deadline()
				g := forge(c)[i]
				r.m.Receive(r.now, addrA, from, g.b[:])
				r.m.Outgoing() // strays are answered, to who has sent them
				r.events()
				r.state(c, w.s)
				if r.m.Deadline() != deadline {
					t.Errorf("%v: %v (%d) from %v moves the deadline", w.s, g.attr, i, from)
				}
			}
			// Its REQs are requests of its own, whatever GUID and queue pair they name.
			for _, g := range []*msg{peerREQ(peerTID, peerID, peerQPN+1), peerREQ(peerTID, peerID+1, peerQPN)} {
				r := newRig(t)
				c := r.reach(w.s, w.passive)
				r.m.Receive(r.now, addrA, from, g.b[:])
				for _, e := range r.m.Events() {
					if e.Conn == c {
						t.Errorf("%v: %v of another host's REQ", w.s, e.Kind)
					}
				}
				for _, o := range r.m.Outgoing() {
					if o.Remote != from {
						t.Errorf("%v: a REQ from %v sends to %v", w.s, from, o.Remote)
					}
				}
				r.state(c, w.s)
			}
		}
	}
}

// A connection over a link-local address is known by whatever zone a message is given.
func TestZonesAreOneInterface(t *testing.T) {
	r := newRig(t)
	p := reqParams()
	p.Local, p.Remote = netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::2%2")
	c, err := r.m.Connect(r.now, p)
	r.ok(err)
	g := peerREP(c.tid, peerID, c.localID, peerQPN)
	r.m.Receive(r.now, p.Local, netip.MustParseAddr("fe80::2%eth0"), g.b[:])
	r.events(EventREPReceived)
	r.state(c, StateRepRcvd)
}
