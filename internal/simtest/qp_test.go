package simtest

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// qp is a queue pair as the model sees it.
type qp struct {
	id   int
	node *node
	addr netip.Addr
	typ  ib.QPType
	dq   driver.QP // nil: destroyed
	send *cq
	recv *cq
	srq  *srq
	conn *conn
	peer *qp // RC, UC, XRC

	more       driver.QP // XRC target: another handle
	moreEvents func()

	cap     ib.QPCap
	sigAll  bool
	recvLen int // bytes of each receive
	starved bool
	psn     uint32 // next to start from
	qkey    ib.QKey

	blockSelf bool // wants nothing of its own from groups

	sendq []*op   // posted and not known to be complete
	recvq []*recv // posted to its own receive queue and not complete
	out   *dir    // this incarnation's direction from here
	in    *dir    // ... and to here

	up       bool // RTS, as far as the test brought it
	mayErr   bool // something was done that may bring it to Error
	peerGone bool // the peer may not answer
	broken   bool // a completion told why it is in Error
	reset    bool // it is in Reset
	failed   bool // a completion told that it is in Error (SQE for UC, UD)
	sqe      bool
	rnr      uint8
	sqd      bool // the test brought it to SQD
	tell     bool // ... and wants to know when it has drained
	drained  int  // SQ_DRAINED events since
	lastWQE  int
	told     map[ib.EventType]int // events of this incarnation
	counts   []*counting
	gotFlush bool
}

// String tells what the model knows of the queue pair.
func (q *qp) String() string {
	if q == nil {
		return "nobody"
	}
	t := fmt.Sprintf("queue pair %d (%v, up %v, failed %v, %d sends, %d receives of %d bytes", q.id, q.typ, q.up, q.failed, len(q.sendq), len(q.recvq), q.recvLen)
	if r := q.srq; r != nil {
		t += fmt.Sprintf(", SRQ with %d of %d, %d lost", r.posted, r.cap, r.lost)
	}
	return t + fmt.Sprintf(", %d bytes free)", q.node.arena.left)
}

// conn is a pair of connected queue pairs; both may be the same queue pair.
type conn struct {
	id   int
	a, b *qp
	attr connAttr
}

type connAttr struct {
	mtu      ib.MTU
	timeout  uint8
	retry    uint8
	rnrTimer uint8
	rdAtomic uint8
	access   ib.Access // that both ends grant
}

// dir is one direction of one incarnation of a connection.
type dir struct {
	from, to *qp
	msgs     []*op // that take a receive, in order
	got      int   // RC: received so far; UC: index after the newest received
	writes   []*op // with a target that is not settled
	cell     *cell
	down     int  // ends that are down
	lossy    bool // completions of messages may have been lost
}

// cell is 8 bytes that one direction works on with atomics.
type cell struct {
	slot *slot
	init uint64
	next uint64 // value after all that are posted
	ops  []*op
}

// recv is a posted receive.
type recv struct {
	id   uint64
	q    *qp // nil: on srq
	srq  *srq
	slot *slot
	old  uint32
	bad  bool // its local key is wrong
	done bool
}

func (s *sim) ends(c *conn) []*qp {
	if c.a == c.b {
		return []*qp{c.a}
	}
	return []*qp{c.a, c.b}
}

func (s *sim) newQP(n *node, addr netip.Addr, typ ib.QPType) *qp {
	q := &qp{told: map[ib.EventType]int{}, id: len(s.qps), node: n, addr: addr, typ: typ, psn: s.rng.Uint32() & 0xFFFFFF}
	q.send, q.recv = pick(s, n.cqs...), pick(s, n.cqs...)
	if typ == ib.RC && s.prof.faultRate > 0 && s.chance(0.15) {
		// It is polled too seldom for its size.
		c := s.addCQ(n, s.between(1, 40))
		q.send, q.recv, c.owner = c, c, q
		n.risky = append(n.risky, c)
	}
	if len(n.srqs) > 0 && typ != ib.XRCSend && typ != ib.XRCRecv && s.chance(0.4) {
		q.srq = pick(s, n.srqs...)
	}
	q.sigAll = s.chance(0.2)
	q.starved = s.chance(0.3) || q.srq != nil || typ == ib.XRCRecv
	if q.qkey = s.qkey; len(s.groups) == 0 {
		q.qkey = ib.QKey(s.rng.Uint32() >> 1)
	}
	q.blockSelf = typ == ib.UD && s.chance(0.3)
	q.cap = ib.QPCap{
		MaxSendWR: uint32(pick(s, 1, 4, 16, 64, 128)), MaxRecvWR: uint32(pick(s, 1, 4, 16, 64, 128)),
		MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: uint32(pick(s, 0, 64, 220, 1024)),
	}
	switch typ {
	case ib.XRCSend:
		q.cap.MaxRecvWR = 0
	case ib.XRCRecv:
		q.cap = ib.QPCap{}
	}
	s.createQP(q)
	return q
}

// createQP makes the device's queue pair.
func (s *sim) createQP(q *qp) {
	if q.typ == ib.XRCRecv {
		s.createTarget(q)
		return
	}
	init := driver.QPInitAttr{SendCQ: q.send.dq, RecvCQ: q.recv.dq, Cap: q.cap, Type: q.typ, SQSigAll: q.sigAll, BlockSelfMcastLB: q.blockSelf}
	if q.srq != nil {
		init.SRQ = q.srq.dq
	}
	var dq driver.QP
	dq, err := q.node.dev.CreateQP(q.node.pd, &init, func(e ib.EventType) { s.event(q, dq, e) })
	s.must("QP", err)
	if init.Cap.MaxSendWR < q.cap.MaxSendWR || q.srq == nil && init.Cap.MaxRecvWR < q.cap.MaxRecvWR {
		s.failf("queue pair got %+v, asked for %+v", init.Cap, q.cap)
	}
	q.cap.MaxSendWR = init.Cap.MaxSendWR
	if q.srq == nil {
		q.cap.MaxRecvWR = init.Cap.MaxRecvWR
	}
	q.dq = dq
	s.qps[qpKey{q.node, dq.Num()}] = q
	s.count(q)
}

func (s *sim) event(q *qp, dq driver.QP, e ib.EventType) {
	s.note("event %v at queue pair %d", e, q.id)
	if q.told[e]++; q.told[e] > 1 && e != ib.EventSQDrained {
		s.failf("event %v twice at queue pair %d", e, q.id)
	}
	switch e {
	case ib.EventCommEst:
	case ib.EventSQDrained:
		if q.drained++; !q.sqd || !q.tell || q.drained > 1 {
			s.failf("SQ_DRAINED number %d at queue pair %d, asked for: %v", q.drained, q.id, q.sqd && q.tell)
		}
	case ib.EventQPLastWQEReached:
		if q.lastWQE++; q.lastWQE > 1 {
			s.failf("LAST_WQE_REACHED twice at queue pair %d", q.id)
		}
		if q.srq == nil {
			s.failf("LAST_WQE_REACHED at queue pair %d without a shared receive queue", q.id)
		}
	case ib.EventQPAccessErr, ib.EventQPReqErr, ib.EventQPFatal:
		if !q.mayErr {
			s.failf("event %v at queue pair %d without a reason", e, q.id)
		}
	default:
		s.failf("event %v at queue pair %d", e, q.id)
	}
}

// fellow picks the far end for a queue pair on n: any node, n too, with an
// address of the same family.
func (s *sim) fellow(n *node, a netip.Addr) (*node, netip.Addr) {
	for {
		m := pick(s, s.nodes...)
		if m == n && !s.chance(0.3) {
			continue
		}
		b := pick(s, m.addrs...)
		if a.Is4() == b.Is4() {
			return m, b
		}
	}
}

func (s *sim) addConn(typ ib.QPType) {
	n := pick(s, s.nodes...)
	addr := pick(s, n.addrs...)
	m, far := s.fellow(n, addr)
	c := &conn{id: len(s.conns)}
	c.a = s.newQP(n, addr, typ)
	if m == n && s.chance(0.5) {
		c.b = c.a // connected to itself, if the addresses are the same
		c.a.addr = far
	} else {
		c.b = s.newQP(m, far, typ)
	}
	c.a.conn, c.b.conn = c, c
	c.a.peer, c.b.peer = c.b, c.a
	s.conns = append(s.conns, c)
	s.connect(c)
}

// connect brings both ends from Reset to RTS: a new incarnation.
func (s *sim) connect(c *conn) {
	c.attr = connAttr{
		mtu: ib.MTU(s.between(1, 5)), timeout: uint8(s.between(9, 12)), retry: uint8(pick(s, 7, 7, 3, 1, 0)),
		rnrTimer: uint8(s.between(1, 10)), rdAtomic: uint8(pick(s, 1, 2, 4, 16)),
	}
	c.attr.access = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | flushRights
	if c.a.rel() && s.chance(0.1) {
		c.attr.access &^= pick(s, ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, flushRights)
	}
	if s.prof.strict {
		c.attr.retry = 7
	}
	ab := &dir{from: c.a, to: c.b}
	ba := ab
	if c.a != c.b {
		ba = &dir{from: c.b, to: c.a}
	}
	c.a.out, c.b.in = ab, ab
	c.b.out, c.a.in = ba, ba
	for _, q := range s.ends(c) {
		q.mayErr, q.peerGone, q.failed, q.sqe, q.gotFlush, q.lastWQE, q.broken, q.sqd = false, false, false, false, false, 0, false, false
		clear(q.told)
		q.recvLen = min(s.msgSize(c.attr.mtu.Bytes()), 9000)
		if q.srq != nil {
			q.recvLen = q.srq.size
		}
		q.rnr = uint8(pick(s, 7, 7, 6, 2, 0))
		// Far from the last incarnation's, so that its late packets do no harm.
		q.psn = (q.psn + 3<<20 + s.rng.Uint32N(1<<20)) & 0xFFFFFF
		s.toInit(q)
		if s.chance(0.5) {
			s.postRecvs(q)
		}
	}
	for _, q := range s.ends(c) {
		p := q.peer
		attr := ib.QPAttr{
			QPState: ib.QPStateRTR, PathMTU: c.attr.mtu, DestQPN: p.dq.Num(), RQPSN: p.psn,
			MaxDestRDAtomic: c.attr.rdAtomic, MinRNRTimer: c.attr.rnrTimer, AHAttr: s.vector(q.node, q.addr, p.addr),
		}
		mask := ib.QPAttrState | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
		if q.typ == ib.RC || q.typ == ib.XRCRecv {
			mask |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
		}
		s.must("RTR", q.dq.Modify(&attr, mask))
	}
	for _, q := range s.ends(c) {
		attr := ib.QPAttr{
			QPState: ib.QPStateRTS, SQPSN: q.psn, Timeout: c.attr.timeout, RetryCnt: c.attr.retry,
			RNRRetry: q.rnr, MaxRDAtomic: c.attr.rdAtomic,
		}
		mask := ib.QPAttrState | ib.QPAttrSQPSN
		if q.typ == ib.XRCRecv {
			mask |= ib.QPAttrTimeout
		} else if q.rel() {
			mask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
		}
		if q.typ != ib.XRCRecv || s.chance(0.5) { // it has nothing to send
			s.must("RTS", q.dq.Modify(&attr, mask))
		}
		q.up = true
		s.net.Kick(q.node.port)
		s.note("connected: %v queue pair %d (%#x on node %d %v) to %d, PSN %#x, %+v, rnr_retry %d, recv %d bytes, srq %v, %+v",
			q.typ, q.id, uint32(q.dq.Num()), q.node.id, q.addr, q.peer.id, q.psn, c.attr, q.rnr, q.recvLen, q.srq != nil, q.cap)
	}
}

func (s *sim) toInit(q *qp) {
	attr := ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: q.qkey}
	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	if q.typ == ib.UD {
		mask |= ib.QPAttrQKey
	} else {
		mask |= ib.QPAttrAccessFlags
		attr.QPAccessFlags = q.conn.attr.access
		if q.typ == ib.UC {
			attr.QPAccessFlags = ib.AccessRemoteWrite
		}
	}
	q.reset = false
	s.must("INIT", q.dq.Modify(&attr, mask))
}

func (s *sim) addDgram() {
	n := pick(s, s.nodes...)
	q := s.newQP(n, pick(s, n.addrs...), ib.UD)
	s.dgrams = append(s.dgrams, q)
	s.startDgram(q)
}

func (s *sim) startDgram(q *qp) {
	q.mayErr, q.failed, q.sqe, q.gotFlush, q.lastWQE, q.broken = false, false, false, false, 0, false
	clear(q.told)
	q.recvLen = 40 + s.between(4, 4096)
	if q.srq != nil {
		q.recvLen = q.srq.size
	}
	s.toInit(q)
	s.must("RTR", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateRTR}, ib.QPAttrState))
	s.must("RTS", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateRTS, SQPSN: q.psn}, ib.QPAttrState|ib.QPAttrSQPSN))
	q.up = true
	s.note("datagrams: queue pair %d (%#x on node %d %v), recv %d bytes, srq %v, %+v",
		q.id, uint32(q.dq.Num()), q.node.id, q.addr, q.recvLen, q.srq != nil, q.cap)
}

// postRecvs posts a random number of receives to the queue pair.
func (s *sim) postRecvs(q *qp) {
	if q.dq == nil || q.reset {
		return
	}
	switch {
	case q.srq != nil:
		s.postSRQ(q.srq)
		return
	case q.typ == ib.XRCSend:
		return
	case q.typ == ib.XRCRecv:
		for _, r := range q.node.xsrqs {
			s.postSRQ(r)
		}
		return
	}
	room := int(q.cap.MaxRecvWR) - len(q.recvq)
	if room <= 0 {
		return
	}
	// A share of the memory is enough.
	n := s.between(1, min(room, 16, 1+max(0, 16<<10/max(q.recvLen, 64)-len(q.recvq))))
	var wrs []driver.RecvWR
	var rs []*recv
	for range n {
		r := s.newRecv(q.node, q.recvLen)
		if r == nil {
			break
		}
		r.q = q
		wr := s.recvWR(r)
		if q.rel() && s.chance(s.prof.faultRate/4) && r.slot.pieces[0].n > 0 {
			r.bad = true
			wr.SGList[0].LKey = pick(s, q.node.locRO.LKey(), q.node.foreign.LKey(), 0xDEAD)
			s.provoke(q)
		}
		wrs, rs = append(wrs, wr), append(rs, r)
	}
	got, err := q.dq.PostRecv(wrs)
	if err != nil || got != len(wrs) {
		s.failf("queue pair %d: %d of %d receives posted with %d of %d there: %v", q.id, got, len(wrs), len(q.recvq), q.cap.MaxRecvWR, err)
	}
	q.recvq = append(q.recvq, rs...)
	s.net.Kick(q.node.port)
}

func (s *sim) postSRQ(r *srq) {
	for range min(s.between(1, 16), 1+max(0, 32<<10/r.size-(r.posted-r.lost))) {
		rv := s.newRecv(r.node, r.size)
		if rv == nil {
			return
		}
		rv.srq = r
		got, err := r.dq.PostRecv([]driver.RecvWR{s.recvWR(rv)})
		if got == 0 {
			// Receives in progress at queue pairs that were reset are gone without
			// a word, so the model's count is an upper bound.
			if r.posted < r.cap || !errors.Is(err, syscall.ENOMEM) {
				s.failf("SRQ with %d of %d refuses: %v", r.posted, r.cap, err)
			}
			rv.done = true
			rv.slot.release()
			return
		}
		r.posted++
	}
	if s.chance(0.05) {
		s.resizeSRQ(r)
	} else if s.chance(0.2) {
		limit := uint32(s.rng.IntN(r.cap))
		s.must("SRQ limit", r.dq.Modify(&ib.SRQAttr{SRQLimit: limit}, ib.SRQLimit))
		s.arm(r, limit)
	}
}

func (s *sim) newRecv(n *node, size int) *recv {
	slot := n.arena.allocRecv(size, s.between(1, 4))
	if slot == nil {
		return nil
	}
	r := &recv{id: uint64(len(s.recvs)), slot: slot, old: s.newID(nil)}
	slot.fill(r.old)
	slot.unsettle()
	s.recvs = append(s.recvs, r)
	return r
}

const recvBit = 1 << 63 // in WR ids

func (s *sim) recvWR(r *recv) driver.RecvWR {
	return driver.RecvWR{WRID: r.id | recvBit, SGList: sges(r.slot, s.nodeOf(r.slot.a).full.LKey(), s.nodeOf(r.slot.a))}
}

func (s *sim) nodeOf(a *arena) *node {
	for _, n := range s.nodes {
		if n.arena == a {
			return n
		}
	}
	panic("arena of no node")
}

// sges is the scatter/gather list of a slot.
func sges(sl *slot, key ib.LKey, n *node) (l []driver.SGE) {
	if x := sl.a.annex; x != nil {
		for _, p := range sl.pieces {
			l = append(l, driver.SGE{Addr: x.base + uint64(p.off), Length: uint32(p.n), LKey: x.lkey})
		}
		return l
	}
	for _, p := range sl.pieces {
		l = append(l, driver.SGE{Addr: n.va(p.off), Length: uint32(p.n), LKey: key})
	}
	return l
}

// newID gives a content id; o is the message that carries it, if one does.
func (s *sim) newID(o *op) uint32 {
	s.byID = append(s.byID, o)
	return uint32(len(s.byID) - 1)
}

// provoke notes that a queue pair may go to Error because of what the test did.
func (s *sim) provoke(q *qp) {
	q.mayErr = true
	if q.peer != nil {
		q.peer.peerGone = true
		if q.typ == ib.UC {
			return
		}
		q.peer.mayErr = true // its request fails at us
	}
}
