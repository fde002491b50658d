package cm

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

var (
	addrA = netip.MustParseAddr("192.0.2.1") // the manager under test when it is active
	addrB = netip.MustParseAddr("192.0.2.2")
)

const (
	guidA = 0x000000FFFE000001
	guidB = 0x000000FFFE000002
	ms    = int64(millisecond)
	sidT  = uint64(0x01061D2F) // PS_TCP, port 7471
)

func newManager(seed, guid uint64) *Manager {
	return New(Config{Rand: rand.New(rand.NewPCG(seed, guid)).Uint64, CAGUID: guid})
}

// peer is the other side of a manager under test, played by hand.
type rig struct {
	t   testing.TB
	m   *Manager
	now int64
}

func newRig(t testing.TB) *rig { return &rig{t: t, m: newManager(1, guidA), now: 1} }

// msg is a message built from bytes at offsets, as the tables of the wire format list them: independent of package mad's setters.
type msg struct {
	attr mad.AttrID
	b    [mad.Len]byte
}

func newMsg(attr mad.AttrID, tid uint64) *msg {
	g := &msg{attr: attr}
	copy(g.b[:], []byte{1, 7, 2, 3})
	binary.BigEndian.PutUint64(g.b[8:], tid)
	binary.BigEndian.PutUint16(g.b[16:], uint16(attr))
	return g
}

// at sets bytes of the data, given in hex.
func (g *msg) at(off int, h string) *msg {
	b, err := hex.DecodeString(strings.ReplaceAll(h, " ", ""))
	if err != nil {
		panic(err)
	}
	copy(g.b[mad.HeaderLen+off:], b)
	return g
}

func (g *msg) u32(off int, v uint32) *msg { return g.at(off, fmt.Sprintf("%08x", v)) }
func (g *msg) u24(off int, v uint32) *msg { return g.at(off, fmt.Sprintf("%06x", v)) }
func (g *msg) u16(off int, v uint16) *msg { return g.at(off, fmt.Sprintf("%04x", v)) }
func (g *msg) u64(off int, v uint64) *msg { return g.at(off, fmt.Sprintf("%016x", v)) }
func (g *msg) mod(v uint32) *msg          { binary.BigEndian.PutUint32(g.b[20:], v); return g }

// ids sets the two communication ids of a short message.
func (g *msg) ids(local, remote uint32) *msg { return g.u32(0, local).u32(4, remote) }

// peerREQ is a REQ of a peer to addrA as Linux sends it.
func peerREQ(tid uint64, id, qpn uint32) *msg {
	return newMsg(mad.AttrREQ, tid).u32(0, id).u64(8, sidT).u64(16, guidB).u24(32, qpn).at(35, "05").at(39, "09").
		at(43, "a0").u24(44, 0x000777).at(47, "a3").at(48, "ffff 36 f0").at(52, "ffffffff").
		at(56, "00000000000000000000ffffc0000202").at(72, "00000000000000000000ffffc0000201").
		at(88, "308ef000").at(93, "40").at(95, "88").
		at(140, "0040 9c40 000000000000000000000000c0000202 000000000000000000000000c0000201")
}

// peerREP is a REP of a peer to a REQ of ours.
func peerREP(tid uint64, id, ours, qpn uint32) *msg {
	return newMsg(mad.AttrREP, tid).ids(id, ours).u24(12, qpn).u24(20, 0x000888).at(24, "04").at(25, "06").at(26, "78").
		at(27, "e0").u64(28, guidB)
}

func (r *rig) recv(g *msg) { r.m.Receive(r.now, addrA, addrB, g.b[:]) }

// sent returns the messages that the manager wants to send, and fails unless they have these kinds.
func (r *rig) sent(want ...mad.AttrID) []Out {
	r.t.Helper()
	out := slices.Clone(r.m.Outgoing())
	got := []mad.AttrID{}
	for i := range out {
		got = append(got, mad.Header(out[i].MAD[:]).AttrID())
		if out[i].Local != addrA || out[i].Remote != addrB {
			r.t.Fatalf("%v goes from %v to %v", got, out[i].Local, out[i].Remote)
		}
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("sent %v, want %v", got, want)
	}
	return out
}

// sentIs fails unless exactly this message is sent.
func (r *rig) sentIs(want *msg) {
	r.t.Helper()
	out := r.sent(want.attr)
	if out[0].MAD != want.b {
		for i := range want.b {
			if out[0].MAD[i] != want.b[i] {
				r.t.Fatalf("%v: byte %d (data %d) is %#x, want %#x\n%x\n%x", want.attr, i, i-24, out[0].MAD[i], want.b[i], out[0].MAD, want.b)
			}
		}
	}
}

// events fails unless exactly these kinds have happened.
func (r *rig) events(want ...EventKind) []Event {
	r.t.Helper()
	ev := slices.Clone(r.m.Events())
	got := []EventKind{}
	for _, e := range ev {
		got = append(got, e.Kind)
	}
	if !slices.Equal(got, want) {
		r.t.Fatalf("events %v, want %v", got, want)
	}
	return ev
}

func (r *rig) quiet() {
	r.t.Helper()
	r.sent()
	r.events()
}

func (r *rig) state(c *Conn, want State) {
	r.t.Helper()
	if c.State() != want {
		r.t.Fatalf("state %v, want %v", c.State(), want)
	}
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// due advances to the next deadline, which must be so far away, and runs it.
func (r *rig) due(want int64) {
	r.t.Helper()
	d := r.m.Deadline()
	if d-r.now != want {
		r.t.Fatalf("deadline in %d ms, want %d ms", (d-r.now)/ms, want/ms)
	}
	r.m.Timer(d - 1)
	if len(r.m.out)+len(r.m.events) > 0 {
		r.t.Fatal("too early")
	}
	r.now = d
	r.m.Timer(d)
}

// drop reads a counter of drops.
func (r *rig) drops(d Drop) uint64 { return r.m.counters.Drops[d] }

// reqParams are those of the worked REQ.
func reqParams() *REQParams {
	return &REQParams{
		Local: addrA, Remote: addrB, Path: Path{FlowLabel: 40000*31 + 7471}, ServiceID: sidT, QPN: 0x11, StartingPSN: 0xABCDEF,
		PathMTU: ib.MTU1024, ResponderResources: 16, InitiatorDepth: 16, RetryCount: 7, RNRRetryCount: 7,
		IPHeader: true, SrcPort: 40000, PrivateData: []byte("test"),
	}
}

const (
	peerID  = 0xAABBCCDD
	peerQPN = 0x000222
	peerTID = 0x5500000066
	ourQPN  = 0x000011
)

func repParams() *REPParams {
	return &REPParams{QPN: ourQPN, StartingPSN: 0x123456, ResponderResources: 3, InitiatorDepth: 2, RNRRetryCount: 6}
}

func (r *rig) listen() *Listener {
	r.t.Helper()
	l, err := r.m.Listen(ListenParams{ServiceID: sidT})
	r.ok(err)
	return l
}

// reach brings a new connection into a state, by the shortest way, with nothing left to send or to tell. Passive says which of the two
// ways to take to a state that has two.
func (r *rig) reach(s State, passive bool) *Conn {
	r.t.Helper()
	var c *Conn
	drain := func() { r.m.Outgoing(); r.m.Events() }
	start := func() {
		var err error
		if passive {
			r.recv(peerREQ(peerTID, peerID, peerQPN))
			c = r.events(EventREQReceived)[0].Conn
		} else {
			c, err = r.m.Connect(r.now, reqParams())
			r.ok(err)
		}
		drain()
	}
	rep := func() { r.recv(peerREP(c.tid, peerID, c.localID, peerQPN)); drain() }
	accept := func() { r.ok(r.m.Accept(r.now, c, repParams())); drain() }
	established := func() {
		start()
		if passive {
			accept()
			r.recv(newMsg(mad.AttrRTU, peerTID).ids(peerID, c.localID))
		} else {
			rep()
			r.ok(r.m.RTU(r.now, c, nil))
		}
		drain()
	}
	if passive && len(r.m.listeners.exact) == 0 {
		r.listen()
	}
	switch s {
	case StateIdle:
		start()
		r.ok(r.m.Reject(r.now, c, mad.RejectConsumer, nil, nil))
	case StateReqSent, StateReqRcvd:
		start()
	case StateMRAReqSent:
		start()
		r.recv(peerREQ(peerTID, peerID, peerQPN))
	case StateMRAReqRcvd:
		start()
		r.recv(newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(9, "c0"))
	case StateRepSent:
		start()
		accept()
	case StateMRARepRcvd:
		start()
		accept()
		r.recv(newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(8, "40c0"))
	case StateRepRcvd:
		start()
		rep()
	case StateMRARepSent:
		start()
		rep()
		rep()
	case StateEstablished:
		established()
	case StateDreqSent:
		established()
		r.ok(r.m.Disconnect(r.now, c, nil))
	case StateDreqRcvd:
		established()
		r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN))
	case StateTimewait:
		established()
		r.recv(newMsg(mad.AttrDREQ, 0x99).ids(peerID, c.localID).u24(8, ourQPN))
		r.ok(r.m.SendDREP(r.now, c, nil))
	case StateSidrReqSent:
		var err error
		c, err = r.m.SIDRRequest(r.now, &SIDRREQParams{Local: addrA, Remote: addrB, ServiceID: sidT})
		r.ok(err)
	case StateSidrReqRcvd:
		r.recv(newMsg(mad.AttrSIDRREQ, peerTID).u32(0, peerID).u16(4, 0xFFFF).u64(8, sidT))
		c = r.events(EventSIDRREQReceived)[0].Conn
	}
	drain()
	r.state(c, s)
	return c
}
