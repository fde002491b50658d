package cm

import (
	"container/heap"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

var addrNobody = netip.MustParseAddr("192.0.2.3")

var (
	simSeed   = flag.Uint64("cm.seed", 0, "replay the storm of this seed")
	simTrace  = flag.Int("cm.trace", 60, "how many lines to show of a failed storm's trace")
	simStorms = flag.Int("cm.storms", 12, "how many storms, each of a random seed but the first ten")
)

// node is one connection as its application sees it, with what the application has done: from it follows what the other side may see.
type node struct {
	side    *side
	gen     int // of the side: a crash ends it
	c       *Conn
	token   uint64
	active  bool
	nobody  bool  // active: there is no peer
	partner *node // passive: whose REQ it was; active: whose REP came

	accepted, rtu           bool // Accept, RTU was called
	established             bool // RTU was called or received
	rejected, disconnecting bool // Reject, Disconnect was called
	destroyed               bool
	over                    bool // an event has ended it
	exited                  bool // TIMEWAIT_EXIT
}

// gone reports whether the node's side has ended it or forgets it.
func (n *node) gone() bool { return n.rejected || n.destroyed || n.over || n.gen != n.side.gen }

type side struct {
	m     *Manager
	addr  netip.Addr
	guid  uint64
	gen   int
	qpn   uint32
	nodes map[*Conn]*node
}

// step is what happens at a time: a message arrives, or something is done.
type step struct {
	at  int64
	seq int
	do  func()
}

type steps []step

func (s steps) Len() int { return len(s) }
func (s steps) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].seq < s[j].seq
}
func (s steps) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *steps) Push(x any)   { *s = append(*s, x.(step)) }
func (s *steps) Pop() any     { x := (*s)[len(*s)-1]; *s = (*s)[:len(*s)-1]; return x }

type storm struct {
	t       *testing.T
	rnd     *rand.Rand
	now     int64
	seq     int
	queue   steps
	sides   [2]*side
	tokens  map[uint64]*node
	lossy   bool
	loss    float64
	crashes int
	seen    map[string]int
	trace   []string
}

func (s *storm) fail(format string, args ...any) {
	s.t.Helper()
	for _, l := range s.trace[max(0, len(s.trace)-*simTrace):] {
		s.t.Log(l)
	}
	s.t.Fatalf(format, args...)
}

func (s *storm) after(d int64, do func()) {
	s.seq++
	heap.Push(&s.queue, step{s.now + d, s.seq, do})
}

func (s *storm) ms(most int) int64 { return s.rnd.Int64N(int64(most)+1) * ms }

// start begins a side, or begins it anew after a crash: queue pair numbers are given out again from the first one on.
func (s *storm) start(sd *side) {
	sd.gen++
	sd.qpn = 0x100
	sd.m = newManager(s.rnd.Uint64(), sd.guid)
	sd.nodes = map[*Conn]*node{}
	if _, err := sd.m.Listen(ListenParams{ServiceID: sidT, Backlog: 20}); err != nil {
		s.fail("%v", err)
	}
}

func (s *storm) nextQPN(sd *side) uint32 { sd.qpn++; return sd.qpn }

// settle sends what a side wants to send and hands out its events.
func (s *storm) settle(sd *side) {
	for _, e := range sd.m.Events() {
		s.event(sd, e)
	}
	for _, o := range sd.m.Outgoing() {
		to := s.sides[0]
		switch o.Remote {
		case s.sides[1].addr:
			to = s.sides[1]
		case addrNobody:
			continue
		}
		copies := 1
		if s.lossy && s.rnd.Float64() < s.loss {
			copies = 0
		} else if s.lossy && s.rnd.IntN(8) == 0 {
			copies = 2
		}
		for range copies {
			d := int64(1000)
			if s.lossy {
				d += s.ms(20)
				if s.rnd.IntN(20) == 0 {
					d += s.ms(6000) // much later than its repetition
				}
			}
			o := o
			s.after(d, func() {
				to.m.Receive(s.now, o.Remote, o.Local, o.MAD[:])
				s.settle(to)
			})
		}
	}
}

// run lets time pass until end, or until nothing is left.
func (s *storm) run(end int64) {
	for {
		next := int64(1<<63 - 1)
		var timed *side
		for _, sd := range s.sides {
			if d := sd.m.Deadline(); d != 0 && d < next {
				next, timed = d, sd
			}
		}
		isStep := len(s.queue) > 0 && s.queue[0].at <= next
		if isStep {
			next = s.queue[0].at
		}
		if next > end || !isStep && timed == nil {
			return
		}
		s.now = max(s.now, next)
		if isStep {
			heap.Pop(&s.queue).(step).do()
		} else {
			timed.m.Timer(s.now)
			s.settle(timed)
		}
	}
}

// act does something with a node later, if it is still there for its application.
func (s *storm) act(n *node, d int64, name string, do func() (may bool, err error)) {
	s.after(d, func() {
		if n.gen != n.side.gen || n.destroyed {
			return
		}
		may, err := do()
		s.trace = append(s.trace, fmt.Sprintf("%d %x %s: %v", s.now/ms, n.token, name, err))
		if may != (err == nil) {
			s.fail("%s of %x (%v, over %v): %v", name, n.token, n.c.State(), n.over, err)
		}
		s.settle(n.side)
	})
}

func (s *storm) destroy(n *node, d int64) {
	s.act(n, d, "destroy", func() (bool, error) {
		n.disconnecting = n.disconnecting || n.established && !n.over
		n.destroyed = true
		n.side.m.Destroy(s.now, n.c)
		delete(n.side.nodes, n.c)
		return true, nil
	})
}

func (s *storm) newNode(sd *side, c *Conn) *node {
	n := &node{side: sd, gen: sd.gen, c: c, token: s.rnd.Uint64()>>40<<8 | uint64(len(s.tokens)&0xFF)}
	for s.tokens[n.token] != nil {
		n.token++
	}
	s.tokens[n.token] = n
	return n
}

func tokenBytes(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func (s *storm) connect(sd, to *side) {
	n := s.newNode(sd, nil)
	n.active = true
	remote := to.addr
	if n.nobody = s.rnd.IntN(30) == 0; n.nobody {
		remote = addrNobody
	}
	c, err := sd.m.Connect(s.now, &REQParams{
		Local: sd.addr, Remote: remote, ServiceID: sidT, QPN: s.nextQPN(sd), StartingPSN: s.rnd.Uint32() >> 8, PathMTU: ib.MTU1024,
		ResponderResources: uint8(s.rnd.IntN(10)), InitiatorDepth: uint8(s.rnd.IntN(10)), IPHeader: true, PrivateData: tokenBytes(n.token),
	})
	if err != nil {
		s.fail("%v", err)
	}
	n.c = c
	sd.nodes[c] = n
	s.settle(sd)
	if s.rnd.IntN(5) == 0 {
		s.destroy(n, s.ms(20000))
	}
}

// live begins the life of an established connection.
func (s *storm) live(n *node) {
	n.established = true
	switch s.rnd.IntN(3) {
	case 0:
		s.act(n, s.ms(10000), "disconnect", func() (bool, error) {
			may := !n.over && n.c.State() == StateEstablished // a stale one is disconnecting already
			n.disconnecting = n.disconnecting || may
			return may, n.side.m.Disconnect(s.now, n.c, nil)
		})
	case 1:
		s.destroy(n, s.ms(20000))
	}
}

func (s *storm) event(sd *side, e Event) {
	n := sd.nodes[e.Conn]
	if e.Kind == EventREQReceived {
		if n != nil {
			s.fail("a second REQ_RECEIVED")
		}
		s.requested(sd, e)
		return
	}
	if n == nil || n.exited || n.over && e.Kind != EventTimewaitExit {
		s.fail("%v after the end of %+v", e.Kind, n)
	}
	s.seen[e.Kind.String()]++
	s.trace = append(s.trace, fmt.Sprintf("%d %x %v %v", s.now/ms, n.token, e.Kind, e.Reason))
	crashed := s.crashes > 0
	switch e.Kind {
	case EventREPReceived:
		p := s.tokens[binary.BigEndian.Uint64(e.PrivateData)]
		if !n.active || n.partner != nil || p == nil || p.partner != n || !p.accepted {
			s.fail("REP_RECEIVED: %+v, from %+v", n, p)
		}
		n.partner = p
		a, b := n.c.QPParams(), p.c.QPParams()
		if a.SQPSN != b.RQPSN || a.RQPSN != b.SQPSN || a.LocalQPN != b.RemoteQPN || a.RemoteQPN != b.LocalQPN ||
			a.MaxRDAtomic != b.MaxDestRDAtomic || a.MaxDestRDAtomic != b.MaxRDAtomic || a.Timeout != b.Timeout || a.PathMTU != b.PathMTU {
			s.fail("queue pairs do not fit: %+v %+v", a, b)
		}
		if s.rnd.IntN(12) == 0 {
			s.act(n, s.ms(8000), "reject REP", func() (bool, error) {
				n.rejected = !n.over
				return n.rejected, sd.m.Reject(s.now, n.c, mad.RejectConsumer, nil, tokenBytes(n.token))
			})
			return
		}
		s.act(n, s.ms(8000), "RTU", func() (bool, error) {
			if n.over {
				return false, sd.m.RTU(s.now, n.c, nil)
			}
			n.rtu = true
			s.live(n)
			return true, sd.m.RTU(s.now, n.c, tokenBytes(n.token))
		})
		return
	case EventRTUReceived:
		if n.active || n.established || !n.accepted || !n.partner.rtu || binary.BigEndian.Uint64(e.PrivateData) != n.partner.token {
			s.fail("RTU_RECEIVED: %+v", n)
		}
		s.live(n)
		return
	case EventREJReceived:
		n.over = true
		s.rejectedEvent(n, e)
	case EventREQError:
		n.over = true
		// The loss is too small for 16 attempts.
		if !n.active || n.partner != nil || !n.nobody {
			s.fail("REQ_ERROR: %+v", n)
		}
	case EventREPError:
		n.over = true
		// The active side has gone, or it has taken a late REP of another connection that its REQ had opened here before.
		if n.active || n.established || !n.partner.gone() && (n.partner.partner == nil || n.partner.partner == n) {
			s.fail("REP_ERROR: %+v, of %+v", n, n.partner)
		}
	case EventDREQReceived:
		if !n.active && !n.accepted || n.active && !n.rtu || !n.partner.disconnecting && !crashed {
			s.fail("DREQ_RECEIVED: %+v, from %+v", n, n.partner)
		}
		n.over = true
		s.act(n, s.ms(8000), "DREP", func() (bool, error) {
			return n.c.State() == StateDreqRcvd, sd.m.SendDREP(s.now, n.c, nil)
		})
		return
	case EventDREPReceived:
		n.over = true
		if !n.established || !n.disconnecting && !crashed {
			s.fail("DREP_RECEIVED: %+v", n)
		}
	case EventTimewaitExit:
		n.exited = true
		if !n.over && !n.rejected {
			s.fail("TIMEWAIT_EXIT: %+v", n)
		}
	default:
		s.fail("%v: %+v", e.Kind, n)
	}
	s.destroy(n, s.ms(2000))
}

func (s *storm) rejectedEvent(n *node, e Event) {
	ended := false
	for _, p := range s.tokens {
		ended = ended || (p.partner == n || n.partner == p) && p.gone()
	}
	if !ended && s.crashes == 0 {
		s.fail("REJ_RECEIVED %v: %+v", e.Reason, n)
	}
	if e.PrivateData == nil { // the manager itself has found it stale
		if e.Reason != mad.RejectStaleConnection {
			s.fail("no private data: %v", e.Reason)
		}
		return
	}
	if tok := binary.BigEndian.Uint64(e.PrivateData); e.Reason == mad.RejectConsumer && tok != 0 {
		if p := s.tokens[tok]; p == nil || !p.rejected {
			s.fail("a reject of nobody's: %+v", p)
		}
	}
}

func (s *storm) requested(sd *side, e Event) {
	_, user, err := SplitPrivate(e.PrivateData)
	if err != nil {
		s.fail("%v", err)
	}
	a := s.tokens[binary.BigEndian.Uint64(user)]
	if a == nil || !a.active || a.side == sd {
		s.fail("REQ_RECEIVED of nobody: %+v", a)
	}
	for c, o := range sd.nodes { // only one at a time
		if o.partner == a && c.State() != StateIdle {
			s.fail("two connections of one REQ: %v", c.State())
		}
	}
	n := s.newNode(sd, e.Conn)
	n.partner = a
	sd.nodes[e.Conn] = n
	s.seen[e.Kind.String()]++
	s.trace = append(s.trace, fmt.Sprintf("%d %x REQ_RECEIVED of %x", s.now/ms, n.token, a.token))
	switch s.rnd.IntN(10) {
	case 0:
		s.act(n, s.ms(9000), "reject REQ", func() (bool, error) {
			n.rejected = !n.over
			return n.rejected, sd.m.Reject(s.now, n.c, mad.RejectConsumer, nil, tokenBytes(n.token))
		})
		s.destroy(n, 20000*ms)
	case 1:
		s.destroy(n, s.ms(9000))
	default:
		s.act(n, s.ms(9000), "accept", func() (bool, error) {
			n.accepted = !n.over
			err := sd.m.Accept(s.now, n.c, &REPParams{
				QPN: s.nextQPN(sd), StartingPSN: s.rnd.Uint32() >> 8, ResponderResources: uint8(s.rnd.IntN(10)),
				InitiatorDepth: uint8(s.rnd.IntN(10)), PrivateData: tokenBytes(n.token),
			})
			if s.rnd.IntN(10) == 0 {
				s.destroy(n, s.ms(9000))
			}
			return n.accepted, err
		})
	}
}

// Storms of connects, rejects, disconnects and crashes over a network that loses, doubles and reorders, against a model of who may see
// which event in which order.
func TestStorm(t *testing.T) {
	seeds := []uint64{*simSeed}
	if *simSeed == 0 {
		seeds = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
		for len(seeds) < *simStorms {
			seeds = append(seeds, rand.Uint64())
		}
	}
	seen := map[string]int{}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { // -cm.seed replays it
			runStorm(t, seed, seen)
		})
	}
	if *simSeed == 0 && !t.Failed() {
		for k := EventREQReceived; k <= EventTimewaitExit; k++ {
			if k != EventDREQError && k != EventREPError && seen[k.String()] == 0 { // which need a dead network: see the tests of timers
				t.Error("no", k, "in any storm")
			}
		}
		t.Log(seen)
	}
}

func runStorm(t *testing.T, seed uint64, seen map[string]int) {
	s := &storm{t: t, rnd: rand.New(rand.NewPCG(seed, 77)), now: 1, tokens: map[uint64]*node{}, lossy: true, seen: seen}
	s.loss = float64(s.rnd.IntN(4)) * 0.08
	crash := s.rnd.IntN(2) == 0
	s.sides = [2]*side{{addr: addrA, guid: guidA}, {addr: addrB, guid: guidB}}
	for _, sd := range s.sides {
		s.start(sd)
	}
	for range 150 {
		i := s.rnd.IntN(2)
		s.after(s.ms(60000), func() { s.connect(s.sides[i], s.sides[1-i]) })
	}
	if crash {
		for range 3 {
			s.after(20000*ms+s.ms(40000), func() {
				s.crashes++
				s.trace = append(s.trace, fmt.Sprint(s.now/ms, " crash"))
				s.start(s.sides[s.rnd.IntN(2)])
			})
		}
	}
	s.run(s.now + 120000*ms)
	s.lossy = false
	s.run(s.now + 200000*ms)

	// In peace both ends agree.
	for _, n := range s.tokens {
		if p := n.partner; p != nil && n.established && !n.gone() && !n.disconnecting && !p.gone() && !p.established {
			s.fail("%+v is established, %+v is not", n, p)
		}
	}
	for _, sd := range s.sides {
		for _, n := range sd.nodes {
			s.destroy(n, 0)
		}
	}
	s.run(1 << 62)
	for _, sd := range s.sides {
		if sd.m.Conns() != 0 || sd.m.pending != 0 || sd.m.Deadline() != 0 || len(sd.m.remoteIDs)+len(sd.m.remoteQPs) != 0 {
			sd.m.Each(func(c *Conn) { t.Log(c.State(), c.passive) })
			s.fail("left over: %d connections, %d undecided", sd.m.Conns(), sd.m.pending)
		}
		for id, ls := range sd.m.listeners.exact {
			if ls[0].pending != 0 {
				s.fail("listener %#x: %d in the backlog", id, ls[0].pending)
			}
		}
	}
}
