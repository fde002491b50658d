package cm

import (
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// checkTables fails unless the manager's tables agree with each other and hold to the limits.
func checkTables(t testing.TB, m *Manager) {
	t.Helper()
	pending, ids, qpns, timed := 0, 0, 0, 0
	m.Each(func(c *Conn) {
		if c.state == StateIdle {
			t.Fatal("an idle connection is in a table")
		}
		if c.pending {
			pending++
			if !c.state.undecided() {
				t.Fatal(c.state, "counts as undecided")
			}
		}
		if c.hasID {
			ids++
			if m.remoteIDs[remoteID{bare(c.remote), c.guid, c.remoteID}] != c {
				t.Fatal("id")
			}
		}
		if c.hasQPN {
			qpns++
			if m.remoteQPs[remoteQPN{bare(c.remote), c.guid, c.remoteQPN}] != c {
				t.Fatal("QPN")
			}
		}
		if c.timer.At() != 0 {
			timed++
			if c.msg == nil && c.state != StateTimewait {
				t.Fatal(c.state, "nothing to repeat")
			}
		}
		if c.backlog && !c.pending {
			t.Fatal("a place in the backlog of what is decided")
		}
	})
	if pending != m.pending || ids != len(m.remoteIDs) || qpns != len(m.remoteQPs) || timed != m.timers.Len() {
		t.Fatalf("%d of %d undecided, %d of %d ids, %d of %d queue pairs, %d of %d timers",
			pending, m.pending, ids, len(m.remoteIDs), qpns, len(m.remoteQPs), timed, m.timers.Len())
	}
	if m.pending > m.cfg.MaxPending || m.Conns() > m.cfg.MaxConns || len(m.replies.order) > sidrReplies || len(m.free) > 256 {
		t.Fatal("over a limit")
	}
}

// Whatever comes, in whatever order, mixed with the owner's calls: no panic, tables that agree, bounded memory, and never more answers
// than twice what came in.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25})
	f.Add([]byte{20, 0, 0, 21, 22, 2, 23, 9, 9, 24, 6, 25})
	f.Add([]byte("\x14\x14\x00\x15\x01\x16\x05\x17\x06\x18\x19\x1a\x1b"))
	f.Add(append([]byte{28, 0}, peerREQ(1, 2, 3).b[:]...))
	f.Fuzz(func(t *testing.T, in []byte) { anything(t, in) })
}

// The same with random input, longer than what a fuzzer begins with.
func TestAnything(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, rand.Uint64()} {
		rnd := rand.New(rand.NewPCG(seed, 5))
		for i := range 60 {
			in := make([]byte, 1500)
			for k := range in {
				in[k] = byte(rnd.Uint32())
			}
			if !t.Run("", func(t *testing.T) { anything(t, in) }) {
				t.Fatal("seed", seed, "round", i)
			}
		}
	}
}

func anything(t *testing.T, in []byte) {
	r := newRig(t)
	r.m = New(Config{Rand: newManager(1, 1).cfg.Rand, CAGUID: guidA, MaxPending: 6, MaxConns: 12})
	if _, err := r.m.Listen(ListenParams{ServiceID: sidT, Backlog: 4}); err != nil {
		t.Fatal(err)
	}
	var conns []*Conn
	pick := func(b byte) *Conn {
		if len(conns) == 0 {
			return &Conn{localID: uint32(b)}
		}
		return conns[int(b)%len(conns)]
	}
	next := func() byte {
		if len(in) == 0 {
			return 0
		}
		b := in[0]
		in = in[1:]
		return b
	}
	m := r.m
	for len(in) > 0 {
		op := next() % 30
		sent := 0
		switch {
		case op < 20: // a message, as it would belong to a connection, and perhaps bent
			b := next()
			c := pick(b)
			peer, qpn := uint32(peerID)+uint32(b>>4), uint32(peerQPN)+uint32(b>>6)
			if c.knowsPeer {
				peer = c.remoteID
			}
			var g *msg
			switch op {
			case 0, 1, 2:
				g = peerREQ(peerTID, peer, qpn)
			case 3:
				g = newMsg(mad.AttrSIDRREQ, 1).u32(0, peer).u64(8, sidT)
			case 4:
				g = newMsg(mad.AttrSIDRREP, 1).u32(0, c.localID).at(4, "0148")
			case 5, 6:
				g = peerREP(c.tid, peer, c.localID, qpn)
			case 7, 8:
				g = newMsg(mad.AttrRTU, c.tid).ids(peer, c.localID)
			case 9, 10:
				g = newMsg(mad.AttrDREQ, 1).ids(peer, c.localID).u24(8, c.localQPN)
			case 11:
				g = newMsg(mad.AttrDREP, 1).ids(peer, c.localID)
			case 12, 13:
				g = newMsg(mad.AttrMRA, 1).ids(peer, c.localID).at(8, []string{"0010", "4010"}[op-12])
			case 14, 15:
				g = newMsg(mad.AttrREJ, 1).ids(peer, c.localID).at(8, []string{"0000", "4010"}[op-14]).u16(10, uint16(next()%36))
			case 16:
				g = newMsg(mad.AttrREJ, 1).ids(peer, c.localID).at(8, "8010").u16(10, 4).u64(12, guidB)
			default:
				g = newMsg(mad.AttrREQ+mad.AttrID(op-16), 1)
			}
			if flip := next(); flip > 0x80 {
				g.b[next()] ^= flip
			}
			m.Receive(r.now, addrA, addrB, g.b[:])
			sent = 2
		case op == 20:
			if c, err := m.Connect(r.now, reqParams()); err == nil {
				conns = append(conns, c)
			}
		case op == 21:
			_ = m.Accept(r.now, pick(next()), repParams())
		case op == 22:
			_ = m.RTU(r.now, pick(next()), nil)
		case op == 23:
			_ = m.Disconnect(r.now, pick(next()), nil)
		case op == 24:
			_ = m.SendDREP(r.now, pick(next()), nil)
		case op == 25:
			_ = m.Reject(r.now, pick(next()), mad.RejectConsumer, nil, nil)
		case op == 26:
			m.Destroy(r.now, pick(next()))
		case op == 27:
			if next()&1 == 0 {
				m.Taken(pick(next()))
			} else if c, err := m.SIDRRequest(r.now, &SIDRREQParams{Local: addrA, Remote: addrB}); err == nil {
				conns = append(conns, c)
			}
		case op == 28: // any bytes at all
			n := min(len(in), int(next())+1)
			n = min(n, len(in))
			m.Receive(r.now, addrA, addrB, in[:n])
			in = in[n:]
			sent = 2
		default:
			_ = m.SIDRReply(r.now, pick(next()), &SIDRREPParams{})
			r.now += int64(next()) * 100 * ms
			m.Timer(r.now)
		}
		if out := m.Outgoing(); sent != 0 && len(out) > sent {
			t.Fatalf("%d answers", len(out))
		}
		for _, e := range m.Events() {
			if e.Kind == EventREQReceived || e.Kind == EventSIDRREQReceived {
				conns = append(conns, e.Conn)
			}
		}
		checkTables(t, m)
	}
	for _, c := range conns {
		m.Destroy(r.now, c)
	}
	for m.Deadline() != 0 {
		r.now = max(r.now, m.Deadline())
		m.Timer(r.now)
		m.Outgoing()
	}
	if m.Conns() != 0 {
		t.Fatal(m.Conns(), "left over")
	}
}

// A flood of requests costs what the limits allow, and answers to strays cost nothing.
func TestFlood(t *testing.T) {
	r := newRig(t)
	r.m = New(Config{Rand: newManager(1, 1).cfg.Rand, CAGUID: guidA, MaxPending: 100})
	r.listen()
	for i := range uint32(20000) {
		r.recv(peerREQ(peerTID, i, i&0xFFFFFF|1<<22))
		r.recv(newMsg(mad.AttrDREQ, 1).ids(i, i))
		r.recv(newMsg(mad.AttrSIDRREQ, 1).u32(0, i).u64(8, sidT))
		if i%64 == 0 {
			r.m.Outgoing()
			r.m.Events()
		}
	}
	checkTables(t, r.m)
	if r.m.Conns() != 100 || r.drops(DropPending) != 2*20000-100 {
		t.Fatal(r.m.Conns(), r.drops(DropPending))
	}
}
