package rdmacm_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

var (
	stormSeed   = flag.Uint64("rdmacm.seed", 0, "replay the storm of this seed")
	stormTrace  = flag.Int("rdmacm.trace", 60, "how many lines to show of a failed storm's trace")
	stormStorms = flag.Int("rdmacm.storms", 8, "how many storms, each of a random seed but the first six")
)

const (
	stormConns = 120            // connections that are tried in a storm
	stormTime  = 40_000_000_000 // within that time, ns
	stormMsgs  = 8              // messages that an end can receive
	stormLen   = 16             // bytes of a message: the sender's token and a count
	ms         = 1_000_000
)

// Storms of connections that are made, refused, ended, given up and lost with their
// host, over a network that loses, doubles and delays, by the calls that programs use.
// Held against a model of who may see which event when: what an end is told must
// follow from what its other end, or its host, has done. Messages that were acknowledged before
// a disconnect have been received before the event tells of it.
func TestConnectionStorm(t *testing.T) {
	seeds := []uint64{*stormSeed}
	if *stormSeed == 0 {
		seeds = []uint64{1, 2, 3, 4, 5, 6}
		for len(seeds) < *stormStorms {
			seeds = append(seeds, rand.Uint64()>>1)
		}
	}
	seen := map[string]int{}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { // -rdmacm.seed replays it
			newStorm(t, seed, seen).run()
		})
	}
	if *stormSeed != 0 || t.Failed() {
		return
	}
	for _, e := range []rdmacm.EventType{
		rdmacm.EventConnectRequest, rdmacm.EventUnreachable, rdmacm.EventRejected, rdmacm.EventEstablished,
		rdmacm.EventDisconnected, rdmacm.EventTimewaitExit,
	} {
		if seen[e.String()] == 0 {
			t.Error("no", e, "in any storm")
		}
	}
	for _, what := range []string{"received", "received before the end", "lost its host", "sent in vain"} {
		if seen[what] == 0 {
			t.Error("none of any storm", what)
		}
	}
	t.Log(seen)
}

// stormEnd is one ID as its program sees it, with what the program has done: from it
// follows what the other end may be told.
type stormEnd struct {
	host   *stormHost
	id     *rdmacm.ID
	mr     *verbs.MR
	token  uint64
	active bool
	nobody bool       // active: there is no peer
	target *stormHost // active: who was asked, in the life that it had then
	peer   *stormEnd  // passive: whose request it was; active: who has accepted

	accepted, established bool // Accept was called; the event came
	rejected, leaving     bool // Reject, Disconnect was called
	destroyed             bool
	ending                rdmacm.EventType // the event that ended it
	over, exited          bool

	early             bool // has sent before ESTABLISHED
	posted, sent, got int  // messages
}

// gone reports whether the end does not take part any more, by its own doing or since
// its host died.
func (n *stormEnd) gone() bool {
	return n.rejected || n.leaving || n.destroyed || n.over || n.host.dead
}

// lost reports whether a host has died that had to do with the end.
func (n *stormEnd) lost() bool {
	if n.active {
		return n.target.dead || n.peer != nil && n.peer.host.dead
	}
	return n.peer.host.dead
}

// stormHost is one life of a host.
type stormHost struct {
	*cmHost
	number int
	life   int
	ends   []*stormEnd
	byID   map[*rdmacm.ID]*stormEnd
}

type storm struct {
	*cmRig
	rnd     *rand.Rand
	hosts   []*stormHost // those that live
	all     []*stormEnd
	tokens  map[uint64]*stormEnd
	stopped bool // the network runs on when the test has failed
	seen    map[string]int
	trace   []string
	event   *rdmacm.Event // the one that is dealt with
}

func newStorm(t *testing.T, seed uint64, seen map[string]int) *storm {
	s := &storm{
		cmRig: &cmRig{t: t, net: simnet.New(seed)}, rnd: rand.New(rand.NewPCG(seed, 99)), tokens: map[uint64]*stormEnd{}, seen: seen,
	}
	for i := range 3 {
		s.hosts = append(s.hosts, nil)
		s.birth(i, 0)
	}
	return s
}

func (s *storm) fail(format string, args ...any) {
	s.t.Helper()
	for _, l := range s.trace[max(0, len(s.trace)-*stormTrace):] {
		s.t.Log(l)
	}
	s.t.Errorf(format, args...)
	s.stopped = true
	if s.event != nil { // who destroys its ID would wait
		_ = s.event.Ack()
	}
	for _, n := range s.all { // pinned memory that nobody has would end the process
		if !n.destroyed && n.mr != nil && !n.host.dead {
			_ = n.mr.Dereg()
		}
	}
	s.t.FailNow()
}

func (s *storm) log(n *stormEnd, format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%6d ms %d.%d %x ", s.net.Now()/ms, n.host.number, n.host.life, n.token)+fmt.Sprintf(format, args...))
}

// birth starts a host, again after a crash.
func (s *storm) birth(i, life int) {
	seed := uint64(i + 1)
	h := s.hostWith(string(rune('a'+i)), seed, seed+uint64(life)*1000+s.rnd.Uint64()>>20<<20, fmt.Sprintf("192.0.2.%d", i+1))
	h.listen(rdmacm.PSTCP, h.at(), 0)
	s.hosts[i] = &stormHost{cmHost: h, number: i, life: life, byID: map[*rdmacm.ID]*stormEnd{}}
}

func (s *storm) crash() {
	i := s.rnd.IntN(len(s.hosts))
	h := s.hosts[i]
	s.trace = append(s.trace, fmt.Sprintf("%6d ms %d dies", s.net.Now()/ms, i))
	h.die()
	s.seen["lost its host"] += len(h.ends)
	// Its programs are gone; it is back at once, with another process.
	s.birth(i, h.life+1)
}

// upTo is a time of at most d ms, in ns.
func (s *storm) upTo(d int64) int64 { return s.rnd.Int64N(d+1) * ms }

// after has something happen.
func (s *storm) after(d int64, do func()) {
	s.net.After(d, func() {
		if !s.stopped {
			do()
		}
	})
}

// later has the program do something with an end, if both are still there.
func (s *storm) later(n *stormEnd, d int64, do func()) {
	s.after(d, func() {
		if !n.host.dead && !n.destroyed {
			do()
			s.net.Kick(n.host.port)
		}
	})
}

func (s *storm) newEnd(h *stormHost, id *rdmacm.ID) *stormEnd {
	n := &stormEnd{host: h, id: id, token: uint64(len(s.all) + 1)}
	s.all = append(s.all, n)
	s.tokens[n.token] = n
	h.ends = append(h.ends, n)
	h.byID[id] = n
	return n
}

// prepare makes an end's queue pair and posts its receives.
func (s *storm) prepare(n *stormEnd) {
	h := n.host
	h.must(n.id.CreateQP(nil, cmAttr()))
	if st := n.id.QP().State(); st != ib.QPStateInit {
		s.fail("new queue pair in %v", st)
	}
	n.mr = cmOK(n.id.PD().RegMR(make([]byte, stormMsgs*stormLen), ib.AccessLocalWrite))(s.t)
	for i := range stormMsgs {
		h.must(n.id.QP().PostRecvOne(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{n.mr.SGE(i*stormLen, stormLen)}}))
	}
}

func stormToken(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// connect begins a connection.
func (s *storm) connect() {
	from := s.rnd.IntN(len(s.hosts))
	h, target := s.hosts[from], s.hosts[(from+1+s.rnd.IntN(len(s.hosts)-1))%len(s.hosts)]
	to := target.at()
	n := s.newEnd(h, cmOK(h.m.NewID(h.ch, rdmacm.PSTCP, nil))(s.t))
	n.active, n.target = true, target
	if n.nobody = s.rnd.IntN(25) == 0; n.nobody {
		to = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.99"), testPort)
	}
	h.must(n.id.ResolveAddr(s.t.Context(), netip.AddrPort{}, to, 1e9))
	if s.rnd.IntN(6) == 0 {
		s.destroyLater(n, s.upTo(12000))
	}
}

func (s *storm) destroyLater(n *stormEnd, d int64) {
	s.later(n, d, func() { s.destroy(n) })
}

func (s *storm) destroy(n *stormEnd) {
	s.log(n, "destroy")
	s.poll(n)
	n.destroyed = true
	n.host.must(n.id.DestroyEP(s.t.Context()))
	if n.mr != nil {
		n.host.must(n.mr.Dereg())
	}
}

func (s *storm) disconnect(n *stormEnd) {
	s.poll(n)
	may := n.established || n.accepted || n.over && n.ending == rdmacm.EventDisconnected
	if n.over && n.ending != rdmacm.EventDisconnected || !may {
		return
	}
	s.log(n, "disconnect")
	n.leaving = true
	n.host.must(n.id.Disconnect(s.t.Context()))
	if st := n.id.QP().State(); st != ib.QPStateErr {
		s.fail("queue pair in %v after Disconnect", st)
	}
}

// live is what an end does with a connection.
func (s *storm) live(n *stormEnd) {
	count := s.rnd.IntN(stormMsgs + 1)
	for range count {
		s.later(n, s.upTo(3000), func() { s.send(n) })
	}
	for d := int64(100 * ms); d < 12000*ms; d += 1500 * ms {
		s.later(n, d, func() { s.poll(n) })
	}
	switch s.rnd.IntN(5) {
	case 0, 1:
		s.later(n, s.upTo(8000), func() { s.disconnect(n) })
	case 2:
		s.destroyLater(n, s.upTo(8000))
	}
}

// send posts a message, if the connection is there.
func (s *storm) send(n *stormEnd) {
	if n.leaving || n.over || n.rejected || n.posted == stormMsgs || n.id.QP().State() != ib.QPStateRTS {
		return
	}
	// Inline data may lie anywhere in a region: what was received is in the other half.
	buf := make([]byte, stormLen)
	binary.BigEndian.PutUint64(buf, n.token)
	binary.BigEndian.PutUint64(buf[8:], uint64(n.posted))
	mr := cmOK(n.id.PD().RegMR(buf, ib.AccessLocalWrite))(s.t)
	n.host.must(n.id.QP().PostSendOne(&verbs.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, SGList: []verbs.SGE{mr.SGE(0, stormLen)},
	}))
	n.host.must(mr.Dereg())
	n.posted++
	n.early = n.early || !n.established
}

// poll takes completions.
func (s *storm) poll(n *stormEnd) {
	if n.id.QP() == nil {
		return
	}
	var wcs [16]verbs.WC
	count := cmOK(n.id.RecvCQ().Poll(wcs[:]))(s.t)
	for _, wc := range wcs[:count] {
		if wc.Status == ib.WCWRFlushErr && n.id.QP().State() == ib.QPStateErr {
			continue
		}
		if wc.Status != ib.WCSuccess || wc.ByteLen != stormLen || wc.WRID != uint64(n.got) {
			s.fail("received %+v by %+v", wc, n)
		}
		b := n.mr.Bytes()[n.got*stormLen:][:stormLen]
		from, i := s.tokens[binary.BigEndian.Uint64(b)], binary.BigEndian.Uint64(b[8:])
		// An active end can hear from its peer before it knows who that is.
		if from == nil || from.peer != n && n.peer != from || i != uint64(n.got) {
			s.fail("received message %d of %+v by %+v as its number %d", i, from, n, n.got)
		}
		n.got++
		s.seen["received"]++
	}
	count = cmOK(n.id.SendCQ().Poll(wcs[:]))(s.t)
	for _, wc := range wcs[:count] {
		switch wc.Status {
		case ib.WCSuccess:
			n.sent++
		case ib.WCWRFlushErr:
		default:
			s.seen["sent in vain"]++
			s.log(n, "%v", wc.Status)
			// The peer does not answer: it has ended, or died, or the passive end has sent before
			// the active one was ready, whose REP was lost again and again.
			if p := n.peer; p == nil || !p.gone() && !n.early {
				s.fail("%v: %+v, with %+v", wc.Status, n, n.peer)
			}
			s.later(n, s.upTo(3000), func() { s.disconnect(n) }) // as programs do
		}
	}
}

// turn gives programs their events.
func (s *storm) turn() {
	for _, h := range s.hosts {
		for {
			e, err := h.ch.Poll()
			if err != nil {
				break
			}
			s.event = e
			s.told(h, e)
			h.must(e.Ack())
			s.event = nil
			s.net.Kick(h.port)
		}
	}
}

func (s *storm) told(h *stormHost, e *rdmacm.Event) {
	s.seen[e.Type.String()]++
	if e.Type == rdmacm.EventConnectRequest {
		s.request(h, e)
		return
	}
	n := h.byID[e.ID]
	if n == nil || n.destroyed || n.exited {
		s.fail("%v of nobody's: %+v", e, n)
	}
	s.log(n, "%v", e)
	if n.over && e.Type != rdmacm.EventTimewaitExit {
		s.fail("%v after %v: %+v", e, n.ending, n)
	}
	ctx := s.t.Context()
	switch e.Type {
	case rdmacm.EventAddrResolved:
		h.must(n.id.ResolveRoute(ctx, 1e9))
		return
	case rdmacm.EventRouteResolved:
		s.prepare(n)
		h.must(n.id.Connect(ctx, &rdmacm.ConnParam{PrivateData: stormToken(n.token), RetryCount: 7, RNRRetryCount: 7}))
		return
	case rdmacm.EventEstablished:
		s.established(n, e)
		return
	case rdmacm.EventRejected:
		s.rejected(n, e)
	case rdmacm.EventUnreachable:
		s.unreachable(n)
	case rdmacm.EventDisconnected:
		s.disconnected(n)
	case rdmacm.EventTimewaitExit:
		if !n.over && !n.rejected {
			s.fail("%v: %+v", e, n)
		}
		n.exited = true
		return
	default:
		s.fail("%v: %+v", e, n)
	}
	n.over, n.ending = true, e.Type
	if q := n.id.QP(); q != nil && e.Type == rdmacm.EventRejected && q.State() != ib.QPStateErr {
		s.fail("%v and the queue pair is in %v", e, q.State())
	}
	if e.Type == rdmacm.EventDisconnected && s.rnd.IntN(2) == 0 {
		s.later(n, s.upTo(1000), func() { s.disconnect(n) })
	}
	if s.rnd.IntN(4) > 0 { // others stay for TIMEWAIT_EXIT
		s.destroyLater(n, s.upTo(4000))
	}
}

func (s *storm) request(h *stormHost, e *rdmacm.Event) {
	a := s.tokens[binary.BigEndian.Uint64(e.Conn.PrivateData)]
	if a == nil || !a.active || a.host.number == h.number || h.byID[e.ID] != nil {
		s.fail("a request of %+v", a)
	}
	n := s.newEnd(h, e.ID)
	n.peer = a
	s.log(n, "request of %x", a.token)
	switch s.rnd.IntN(10) {
	case 0, 1:
		s.later(n, s.upTo(6000), func() { s.reject(n) })
	case 2:
		s.destroyLater(n, s.upTo(6000))
	default:
		s.prepare(n)
		wait := s.upTo(50)
		if s.rnd.IntN(4) == 0 {
			wait = s.upTo(9000) // the peer asks again meanwhile
		}
		s.later(n, wait, func() { s.accept(n) })
	}
}

func (s *storm) reject(n *stormEnd) {
	err := n.id.Reject(stormToken(n.token))
	s.log(n, "reject: %v", err)
	if (err == nil) == n.over { // refused only if the peer has given up
		s.fail("Reject: %v: %+v", err, n)
	}
	n.rejected = err == nil
	s.destroyLater(n, s.upTo(2000))
}

func (s *storm) accept(n *stormEnd) {
	err := n.id.Accept(s.t.Context(), &rdmacm.ConnParam{PrivateData: stormToken(n.token), RNRRetryCount: 7})
	s.log(n, "accept: %v", err)
	if (err == nil) == n.over {
		s.fail("Accept: %v: %+v", err, n)
	}
	if err != nil {
		s.destroyLater(n, s.upTo(2000))
		return
	}
	n.accepted = true
	if st := n.id.QP().State(); st != ib.QPStateRTS {
		s.fail("queue pair in %v after Accept", st)
	}
	if s.rnd.IntN(4) == 0 { // sends before the peer has confirmed
		s.later(n, s.upTo(20), func() { s.send(n) })
	}
	if s.rnd.IntN(10) == 0 {
		s.destroyLater(n, s.upTo(9000))
	}
}

func (s *storm) established(n *stormEnd, e *rdmacm.Event) {
	switch {
	case n.established:
		s.fail("ESTABLISHED again: %+v", n)
	case n.active:
		p := s.tokens[binary.BigEndian.Uint64(e.Conn.PrivateData)]
		if p == nil || p.peer != n || !p.accepted || n.peer != nil && n.peer != p {
			s.fail("ESTABLISHED: %+v, with %+v", n, p)
		}
		n.peer = p
	case !n.accepted || !n.peer.established:
		s.fail("ESTABLISHED: %+v, with %+v", n, n.peer)
	}
	n.established = true
	// Its program may have ended it meanwhile, or a send has failed.
	if st := n.id.QP().State(); st != ib.QPStateRTS && !n.leaving && st != ib.QPStateErr {
		s.fail("ESTABLISHED and the queue pair is in %v", st)
	}
	s.live(n)
}

// ended reports whether some end that had to do with n does not take part any more.
func (s *storm) ended(n *stormEnd) bool {
	if n.peer != nil && n.peer.gone() {
		return true
	}
	for _, p := range s.all {
		if p.peer == n && p.gone() {
			return true
		}
	}
	return false
}

func (s *storm) rejected(n *stormEnd, e *rdmacm.Event) {
	// The queue pair numbers of a host's next life are those that its peers know: they find
	// the old connection stale and end it.
	stale := rdmacm.RejectReason(e.Status) == rdmacm.RejectStaleConnection && n.host.life > 0
	if !s.ended(n) && !n.lost() && !stale {
		s.fail("%v: %+v, with %+v", e, n, n.peer)
	}
	if rdmacm.RejectReason(e.Status) != rdmacm.RejectConsumer {
		return
	}
	if tok := binary.BigEndian.Uint64(e.Conn.PrivateData); tok != 0 {
		if p := s.tokens[tok]; p == nil || !p.rejected || p.peer != n {
			s.fail("%v: %+v, by %+v", e, n, p)
		}
	}
}

func (s *storm) unreachable(n *stormEnd) {
	// 16 attempts get through the loss. A passive end is not confirmed when the active one has
	// gone, or has taken another answer to the same request.
	ok := n.active && n.nobody || !n.active && n.accepted && !n.established && (n.peer.gone() || n.peer.peer != n)
	if !ok && !n.lost() {
		s.fail("UNREACHABLE: %+v, with %+v", n, n.peer)
	}
}

func (s *storm) disconnected(n *stormEnd) {
	s.poll(n)
	p := n.peer
	if p == nil || !n.established && !n.accepted {
		s.fail("DISCONNECTED: %+v", n)
	}
	if !n.leaving && !p.leaving && !p.destroyed && !n.lost() {
		s.fail("DISCONNECTED: %+v, with %+v", n, p)
	}
	// What was acknowledged has arrived, and stands before the event.
	if n.got > 0 && n.got == p.sent {
		s.seen["received before the end"]++
	}
	if !n.leaving && n.id.QP().State() == ib.QPStateRTS && n.got < p.sent {
		s.fail("DISCONNECTED: %+v, which has not received all of %+v", n, p)
	}
}

func (s *storm) run() {
	defer func() { s.stopped = true }()
	loss := float64(s.rnd.IntN(4)) * 0.02
	s.net.SetDefault(simnet.Link{Loss: loss, Dup: 0.05, Reorder: 0.05, Delay: 50_000, Jitter: 20_000, ReorderBy: 20 * ms})
	for range stormConns {
		s.after(s.rnd.Int64N(stormTime), func() {
			s.connect()
			for _, h := range s.hosts {
				s.net.Kick(h.port)
			}
		})
	}
	if s.rnd.IntN(2) == 0 {
		for range 2 {
			s.after(s.rnd.Int64N(stormTime), s.crash)
		}
	}
	step := func() bool { s.turn(); return false }
	s.net.Run(step, stormTime+40_000*ms)

	// In peace both ends agree.
	s.net.SetDefault(simnet.Link{Delay: 50_000})
	s.net.Run(step, 100_000*ms)
	for _, n := range s.all {
		if n.established && !n.gone() {
			s.poll(n)
			p := n.peer
			if !p.gone() && (!p.established || p.peer != n) {
				s.fail("%+v is connected, %+v is not", n, p)
			}
			if st := n.id.QP().State(); !p.gone() && st != ib.QPStateRTS {
				s.fail("%+v is connected, its queue pair is in %v", n, st)
			}
		}
	}
	for _, n := range s.all {
		if !n.destroyed && !n.host.dead {
			s.destroy(n)
			s.net.Kick(n.host.port)
		}
	}
	s.net.Run(step, 200_000*ms)
	for _, h := range s.hosts {
		// The listener and its port are left: the host's own end looks for all else.
		if ids, ports, conns := h.m.Left(); ids != 1 || ports != 1 || conns != 0 {
			s.fail("host %d: %d IDs, %d ports, %d connections are left", h.number, ids, ports, conns)
		}
	}
}
