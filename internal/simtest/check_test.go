package simtest

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// completion is a WC with the queue pair that it is about.
type completion struct {
	driver.WC
	q  *qp
	cq *cq
}

// poll takes all completions there are and checks them. Receives come first:
// what a send's success promises about the far end must be seen then.
func (s *sim) poll() {
	all := s.wcs[:0]
	for _, n := range s.nodes {
		for _, c := range n.cqs {
			c.sawSolic = false
			before := len(all)
			all = s.take(c, all)
			c.got = len(all) - before
		}
		for _, c := range n.risky {
			all = s.take(c, all)
		}
	}
	s.wcs = all
	for _, c := range all {
		if c.Status != ib.WCSuccess {
			s.fails(c.q, c.Status)
		}
	}
	for _, c := range all {
		if c.WRID&recvBit != 0 {
			s.received(c)
		}
	}
	for _, c := range all {
		if c.WRID&recvBit == 0 {
			s.sent(c)
		}
	}
	for _, n := range s.nodes {
		for _, c := range n.cqs {
			s.told(c, c.got)
		}
	}
	for _, n := range s.nodes {
		s.endOverruns(n)
		s.checkSRQs(n)
	}
}

// fails takes note that a queue pair has failed, before single completions are
// judged: what the far end sees is a consequence.
func (s *sim) fails(q *qp, st ib.WCStatus) {
	q.failed = true
	q.broken = q.broken || st != ib.WCWRFlushErr
	if q.rel() {
		q.peer.peerGone = true
	}
	if !q.rel() && st != ib.WCWRFlushErr {
		q.sqe = true
	}
}

// sent handles the completion of a send request.
func (s *sim) sent(c completion) {
	q := c.q
	if c.Status != ib.WCSuccess {
		c.cq.sawSolic = true
	}
	for {
		if len(q.sendq) == 0 {
			s.failf("queue pair %d: completion of a request that is not outstanding: %+v", q.id, c.WC)
		}
		o := q.sendq[0]
		q.sendq = q.sendq[1:]
		if o.id == c.WRID {
			if c.Status == ib.WCSuccess && !o.signal {
				s.failf("op %d was not signaled: %+v", o.id, c.WC)
			}
			s.judge(o, c.WC)
			s.retire(o, c.Status)
			return
		}
		if o.signal {
			s.failf("queue pair %d: completion %+v overtakes op %d", q.id, c.WC, o.id)
		}
		s.judge(o, driver.WC{Opcode: wcOpcode(o.code)})
		s.retire(o, ib.WCSuccess)
	}
}

// judge checks that the status is one that the request may have.
func (s *sim) judge(o *op, wc driver.WC) {
	q := o.q
	allowed := slices.Contains(o.fault.statuses(o), wc.Status)
	switch wc.Status {
	case ib.WCSuccess:
		// By somebody else, before; whose completion need not have come.
		allowed = allowed || o.aims != nil && (o.aims.dead || o.aims.dying)
		if q.gotFlush {
			s.failf("op %d of queue pair %d succeeds behind a request that was flushed", o.id, q.id)
		}
		if wc.Opcode != wcOpcode(o.code) {
			s.failf("op %d (%v): completion says %v", o.id, o.code, wc.Opcode)
		}
	case ib.WCWRFlushErr:
		allowed = q.mayErr || q.broken || s.netBad
		q.gotFlush = true
	case ib.WCRetryExcErr:
		allowed = allowed || q.rel() && (q.peerGone || s.netBad)
	case ib.WCRNRRetryExcErr:
		allowed = q.rel() && takesRecv(o.code) && (q.peer.starved || q.peerGone) && q.rnr < 7
	case ib.WCRemOpErr:
		allowed = q.rel() && isSend(o.code) && q.peerGone
	case ib.WCRemInvReqErr:
		allowed = allowed || o.srqGone
	case ib.WCRemAccessErr, ib.WCLocProtErr, ib.WCMWBindErr:
	default:
		allowed = false
	}
	if !allowed {
		s.failf("op %d of queue pair %d (%v, %v, %d bytes, fault %d) ends with %v", o.id, q.id, q.typ, o.code, o.n, o.fault, wc.Status)
	}
	if wc.Status != ib.WCSuccess {
		if q.gotFlush && wc.Status != ib.WCWRFlushErr {
			s.failf("op %d of queue pair %d ends with %v although the queue pair had failed", o.id, q.id, wc.Status)
		}
		q.gotFlush = true
	}
}

// readPiece is how much one READ request of the device asks for at most.
const readPiece = 64 << 10

// retire checks what the request did and gives back its local memory.
func (s *sim) retire(o *op, st ib.WCStatus) {
	o.done, o.status, o.ok = true, st, st == ib.WCSuccess
	o.q.counted(countedAs(o.code), st)
	s.note("op %d of queue pair %d: %v", o.id, o.q.id, st)
	switch {
	case o.ok:
		s.stats.success++
		s.succeeded(o)
	case st == ib.WCWRFlushErr:
		s.stats.flushed++
	default:
		s.stats.failed++
	}
	// A long READ is several: of one that goes too far the first ones read what is there.
	far := (o.fault == faultRKey || o.stray) && o.n > readPiece
	if !o.ok && o.dst != nil && !isAtomic(o.code) && !far {
		if err := o.dst.mixes(o.id32); err != nil {
			s.failf("op %d, a READ that failed: %v", o.id, err)
		}
	}
	if o.key != nil {
		o.key.unuse(o)
	}
	if !o.ok && (o.key != nil || o.xsrq != nil) {
		o.q.peer.mayErr = true // what it sent may arrive when key or queue are gone
	}
	s.changed(o)
	o.dst.settleIf()
	o.src.release()
	o.dst.release()
	if o.code == ib.WRRDMARead || isAtomic(o.code) || o.ok && o.q.rel() {
		o.rem.release()
		o.rem = nil
	}
}

func (s *slot) settleIf() {
	if s != nil {
		s.settle()
	}
}

// succeeded checks the effects of a request that succeeded.
func (s *sim) succeeded(o *op) {
	fail := func(err error) {
		if err != nil {
			s.failf("op %d of queue pair %d (%v) succeeded: %v", o.id, o.q.id, o.code, err)
		}
	}
	switch {
	case o.code == ib.WRRDMARead:
		fail(o.dst.holds(o.id32, 0, o.n, 0))
	case o.counter != nil:
		c, v := o.counter, binary.NativeEndian.Uint64(o.dst.gather())
		if c.seen[v] || v-c.init >= uint64(c.posted) {
			s.failf("op %d of queue pair %d: counter was %d, seen before: %v, %d additions of 1 to %d", o.id, o.q.id, v, c.seen[v], c.posted, c.init)
		}
		c.seen[v] = true
		c.success++
	case isAtomic(o.code):
		got := binary.NativeEndian.Uint64(o.dst.gather())
		if got != o.expect {
			s.failf("op %d of queue pair %d (%v): found %#x, the model %#x", o.id, o.q.id, o.code, got, o.expect)
		}
	case o.q.rel() && o.rem != nil:
		fail(o.rem.holds(o.id32, 0, o.n, 0))
		o.rem.settle()
	}
	if o.q.rel() && !o.q.out.lossy && o.msg >= o.q.out.got {
		s.failf("op %d of queue pair %d succeeded, and the far end got %d messages of %d before it", o.id, o.q.id, o.q.out.got, o.msg)
	}
}

// received handles the completion of a receive.
func (s *sim) received(c completion) {
	q, i := c.q, c.WRID&^recvBit
	if i >= uint64(len(s.recvs)) || s.recvs[i].done {
		s.failf("queue pair %d: receive completed that is not posted: %+v", q.id, c.WC)
	}
	r := s.recvs[i]
	r.done = true
	q.counted(ib.CompCntrRecv, c.Status)
	if r.srq != nil && r.id >= r.srq.from {
		r.srq.since++
	}
	if q.typ == ib.XRCRecv {
		if r.srq == nil || r.srq.node != q.node || r.srq.cq != c.cq {
			s.failf("queue pair %d: completion at the wrong queue: %+v", q.id, c.WC)
		}
		r.srq.posted--
	} else if q.srq != nil {
		if r.srq != q.srq {
			s.failf("queue pair %d: receive of another queue: %+v", q.id, c.WC)
		}
		r.srq.posted--
	} else {
		if len(q.recvq) == 0 || q.recvq[0] != r {
			s.failf("queue pair %d: receive %d completes out of order", q.id, i)
		}
		q.recvq = q.recvq[1:]
	}
	if c.Status != ib.WCSuccess {
		c.cq.sawSolic = true
		s.receiveFailed(q, r, c.WC)
	} else {
		s.stats.received++
		m := s.message(q, r, c.WC)
		if m.flags&ib.SendSolicited != 0 {
			c.cq.sawSolic = true
		}
		s.checkMessage(q, r, m, c.WC)
	}
	r.slot.settle()
	r.slot.release()
}

func (s *sim) receiveFailed(q *qp, r *recv, wc driver.WC) {
	ok := false
	var next *op
	if q.rel() && q.in.got < len(q.in.msgs) {
		next = q.nextMsg(r)
	}
	switch wc.Status {
	case ib.WCWRFlushErr:
		ok = q.mayErr || s.netBad || q.broken && q.rel()
	case ib.WCLocLenErr:
		ok = next != nil && next.fault == faultTooLong
	case ib.WCLocProtErr:
		ok = r.bad && next != nil && isSend(next.code) || next != nil && next.code == ib.WRRDMAWriteWithImm && next.fault == faultRKey
	case ib.WCRemInvReqErr:
		ok = next != nil && (next.fault == faultInv || next.dies != nil && next.dies.dead)
	case ib.WCLocAccessErr:
		ok = next != nil && next.code == ib.WRRDMAWriteWithImm && (next.fault == faultRKey || next.fault == faultVictim || next.fault == faultKeyRace ||
			next.done && !next.ok && next.key != nil && next.key.dead) // who sent it is gone, and did not hold the key any more
	}
	if !ok {
		s.failf("queue pair %d (%v): receive %d ends with %v", q.id, q.typ, r.id, wc.Status)
	}
	s.note("receive %d of queue pair %d: %v", r.id, q.id, wc.Status)
}

// message finds out which message a receive is for.
func (s *sim) message(q *qp, r *recv, wc driver.WC) *op {
	if q.rel() {
		m := q.nextMsg(r)
		if m == nil || m.xsrq != r.srq && q.typ == ib.XRCRecv {
			s.failf("queue pair %d received more messages than were sent, or at another queue: %+v", q.id, wc)
		}
		q.in.arrived(m)
		return m
	}
	var m *op
	skip := 0
	if q.typ == ib.UD {
		skip = 40
	}
	if wc.Flags&ib.WCWithImm != 0 {
		if i := wc.ImmData ^ 0x5EED0000; int(i) < len(s.ops) {
			m = s.ops[i]
		}
	} else if id := r.slot.first(skip); int(id) < len(s.byID) {
		m = s.byID[id]
	}
	if m == nil || q.typ == ib.UD && m.to != q && m.group == nil || q.typ == ib.UC && m.q != q.peer {
		s.failf("queue pair %d received what nobody sent to it: %+v", q.id, wc)
	}
	if m.group != nil {
		s.copied(q, m)
		return m
	}
	m.delivered++
	if m.delivered > 1 && !s.dups {
		s.failf("queue pair %d received op %d %d times, the network duplicates nothing", q.id, m.id, m.delivered)
	}
	if q.typ == ib.UC {
		if m.msg < q.in.got && !s.late {
			s.failf("queue pair %d received message %d after %d", q.id, m.msg, q.in.got-1)
		}
		q.in.got = m.msg + 1
	}
	return m
}

// checkMessage compares a received message with the one that was sent.
func (s *sim) checkMessage(q *qp, r *recv, m *op, wc driver.WC) {
	s.note("receive %d of queue pair %d: op %d", r.id, q.id, m.id)
	fail := func(err error) {
		if err != nil {
			s.failf("queue pair %d (%v) received op %d (%v, %d bytes, content %d): %v", q.id, q.typ, m.id, m.code, m.n, m.id32, err)
		}
	}
	want := driver.WC{WRID: wc.WRID, Opcode: ib.WCRecv, QPNum: wc.QPNum, SrcQP: m.num, ByteLen: uint32(m.n)}
	if m.code == ib.WRRDMAWriteWithImm {
		want.Opcode = ib.WCRecvRDMAWithImm
	}
	if m.code == ib.WRSendWithInv {
		want.Flags, want.InvalidatedRKey = ib.WCWithInv, m.inv
		if m.dies == nil || m.dies.dead {
			s.failf("queue pair %d received op %d, which invalidates what it cannot", q.id, m.id)
		}
		m.dies.kill(s)
		if m.holder.busy == m {
			m.holder.busy = nil
		}
		s.stats.remoteInvs++
	} else if m.code != ib.WRSend {
		want.Flags, want.ImmData = ib.WCWithImm, m.imm
	}
	if q.typ != ib.UD && wc.SrcQP == 0 {
		want.SrcQP = 0 // means something for datagrams only
	}
	at := 0
	if q.typ == ib.UD {
		at = 40
		want.ByteLen += 40
		want.Flags |= ib.WCGRH
		s.checkGRH(r, m)
	}
	if wc != want {
		s.failf("queue pair %d received op %d: %+v, want %+v", q.id, m.id, wc, want)
	}
	if f := m.fault; f != faultNone && f != faultVictim && f != faultKeyRace && f != faultLKey || f == faultLKey && m.n > 0 {
		s.failf("queue pair %d received op %d, which has fault %d", q.id, m.id, m.fault)
	}
	if m.code == ib.WRRDMAWriteWithImm {
		if q.typ != ib.UC {
			fail(r.slot.holds(r.old, 0, r.slot.bytes(), 0))
		}
		if m.rem != nil {
			fail(m.rem.holds(m.id32, 0, m.n, 0))
		}
		return
	}
	if r.bad && m.n > 0 {
		s.failf("queue pair %d: receive %d has a bad key and succeeds", q.id, r.id)
	}
	fail(r.slot.holds(m.id32, at, m.n, 0))
	if q.typ != ib.UC { // a message of which a part was lost may have been there before
		fail(r.slot.holds(r.old, at+m.n, r.slot.bytes()-at-m.n, at+m.n))
	}
}

func (s *sim) checkGRH(r *recv, m *op) {
	g := r.slot.gather()[:40]
	src, dst, _, _, _, ok := roce.ParseGRH(g)
	var to netip.Addr
	if m.group != nil {
		to = m.group.addr
	} else {
		to = m.to.addr
	}
	if !ok || src.Unmap() != m.q.addr || dst.Unmap() != to {
		s.failf("GRH of op %d from %v to %v: %x", m.id, m.q.addr, to, g)
	}
}

func wcOpcode(c ib.WROpcode) ib.WCOpcode {
	switch c {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		return ib.WCRDMAWrite
	case ib.WRRDMARead:
		return ib.WCRDMARead
	case ib.WRAtomicCmpAndSwp:
		return ib.WCCompSwap
	case ib.WRAtomicFetchAndAdd:
		return ib.WCFetchAdd
	case ib.WRBindMW:
		return ib.WCBindMW
	case ib.WRRegMR:
		return ib.WCRegMR
	case ib.WRLocalInv:
		return ib.WCLocalInv
	case ib.WRFlush:
		return ib.WCFlush
	case ib.WRAtomicWrite:
		return ib.WCAtomicWrite
	}
	return ib.WCSend
}
