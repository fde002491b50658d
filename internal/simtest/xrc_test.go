package simtest

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// rel reports whether the queue pair is reliable: XRC is RC with receive queues
// that the peer names.
func (q *qp) rel() bool { return q.typ == ib.RC || q.typ == ib.XRCSend || q.typ == ib.XRCRecv }

// addXRC gives a node an XRC domain with receive queues.
func (s *sim) addXRC(n *node) {
	var err error
	n.xrcd, err = n.dev.(driver.XRCDevice).OpenXRCD(&driver.XRCDInitAttr{Create: true})
	s.must("XRC domain", err)
	for range s.between(1, 3) {
		s.addXSRQ(n)
	}
}

func (s *sim) addXSRQ(n *node) {
	r := &srq{node: n, size: s.between(256, 4096), xrc: true, cq: pick(s, n.cqs...)}
	attr := ib.SRQAttr{MaxWR: uint32(s.between(4, 96<<10/r.size)), MaxSGE: 4}
	var err error
	r.dq, err = n.dev.(driver.XRCDevice).CreateXRCSRQ(n.pd, n.xrcd, r.cq.dq, &attr, func(e ib.EventType) { s.srqEvent(r, e) })
	s.must("XRC SRQ", err)
	r.cap = int(attr.MaxWR)
	n.xsrqs = append(n.xsrqs, r)
	s.note("node %d: XRC receive queue %d of %d bytes", n.id, r.dq.Num(), r.size)
}

func (s *sim) srqEvent(r *srq, e ib.EventType) {
	if e != ib.EventSRQLimitReached || !r.armed {
		s.failf("SRQ event %v, limit armed: %v", e, r.armed)
	}
	s.stats.limits++
	r.armed = false
}

// addXRCConn connects an initiator with a target.
func (s *sim) addXRCConn() {
	n := pick(s, s.nodes...)
	addr := pick(s, n.addrs...)
	m, far := s.fellow(n, addr)
	if m.xrcd == nil {
		s.addXRC(m)
	}
	c := &conn{id: len(s.conns)}
	c.a, c.b = s.newQP(n, addr, ib.XRCSend), s.newQP(m, far, ib.XRCRecv)
	c.a.conn, c.b.conn, c.a.peer, c.b.peer = c, c, c.b, c.a
	s.conns = append(s.conns, c)
	s.connect(c)
}

// createTarget makes an XRCRecv queue pair, perhaps with a second handle, which
// gets the same events.
func (s *sim) createTarget(q *qp) {
	init := driver.QPInitAttr{Type: ib.XRCRecv, XRCD: q.node.xrcd}
	var dq, more driver.QP
	first, second := map[ib.EventType]int{}, map[ib.EventType]int{}
	dq, err := q.node.dev.CreateQP(nil, &init, func(e ib.EventType) {
		first[e]++
		s.event(q, dq, e)
	})
	s.must("XRC target", err)
	q.dq, q.more = dq, nil
	if s.chance(0.5) {
		more, err = q.node.dev.(driver.XRCDevice).OpenXRCTarget(q.node.xrcd, dq.Num(), func(e ib.EventType) { second[e]++ })
		s.must("open QP", err)
		q.more = more
		q.moreEvents = func() {
			for e, n := range first {
				if second[e] != n {
					s.failf("queue pair %d: event %v %d times at one handle, %d at the other", q.id, e, n, second[e])
				}
			}
		}
	}
	s.qps[qpKey{q.node, dq.Num()}] = q
}

// destroy destroys the queue pair, all handles of it.
func (s *sim) destroy(q *qp) {
	s.leaveAll(q)
	s.endCounts(q, false)
	if q.more != nil {
		q.moreEvents()
		if s.chance(0.5) {
			q.dq, q.more = q.more, q.dq
		}
		s.must("destroy a handle", q.more.Destroy())
		if _, err := q.more.Query(); err == nil {
			s.failf("a handle of queue pair %d lives on", q.id)
		}
		if _, err := q.dq.Query(); err != nil {
			s.failf("queue pair %d is gone with one of two handles: %v", q.id, err)
		}
		q.more = nil
	}
	s.must("destroy", q.dq.Destroy())
	s.must("destroy again", q.dq.Destroy())
	s.endCounts(q, true)
	q.counts = nil
}

// nextMsg is the message that must be received next: with XRC, the next for the
// completion queue of the receive.
func (q *qp) nextMsg(r *recv) *op {
	for _, m := range q.in.msgs[q.in.got:] {
		if q.typ == ib.RC || m.delivered == 0 && m.xsrq.cq == r.srq.cq {
			return m
		}
	}
	return nil
}

// arrived notes that a message was received.
func (d *dir) arrived(m *op) {
	m.delivered++
	for d.got < len(d.msgs) && d.msgs[d.got].delivered > 0 {
		d.got++
	}
}

// endXSRQ destroys an XRC receive queue under traffic and makes another one:
// who sends to it learns that, or is done already.
func (s *sim) endXSRQ(n *node) {
	s.poll()
	i := s.rng.IntN(len(n.xsrqs))
	r := n.xsrqs[i]
	s.note("node %d: XRC receive queue %d goes", n.id, r.dq.Num())
	s.must("destroy XRC SRQ", r.dq.Destroy())
	for _, v := range s.recvs {
		if v.srq == r && !v.done {
			v.done = true
			v.slot.release()
		}
	}
	for _, c := range s.conns {
		for _, o := range c.a.sendq {
			if o.xsrq == r {
				o.srqGone = true
				s.provoke(c.a)
				s.provoke(c.b) // which is in Error then, and silent if its NAK is lost
			}
		}
	}
	n.xsrqs = append(n.xsrqs[:i], n.xsrqs[i+1:]...)
	s.addXSRQ(n)
	s.stats.srqs++
}
