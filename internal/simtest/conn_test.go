package simtest

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/ib"
)

// ways in which an end goes down.
const (
	wayErr = iota
	wayReset
	wayDestroy
)

// kill takes a queue pair down.
func (s *sim) kill(q *qp, way int) {
	if q.dq == nil || !q.up {
		return
	}
	s.poll()
	if (q.srq != nil || q.typ == ib.XRCRecv) && s.chance(0.8) {
		way = wayErr // else the receive in progress is gone for the model
	}
	if !q.up {
		return // it has lost completions
	}
	if q.send.owner != nil && way == wayErr {
		way = wayReset // else what is flushed may be lost
	}
	if q.send.overran {
		way = wayDestroy // its completion queue is of no use any more
	}
	s.note("kill queue pair %d, way %d", q.id, way)
	s.provoke(q)
	switch way {
	case wayErr:
		s.must("ERR", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
		s.poll()
		s.flushed(q)
		if s.chance(0.3) {
			// What is posted in Error is flushed at once.
			s.post(q)
			s.postRecvs(q)
			s.poll()
			s.flushed(q)
		}
	case wayReset:
		q.reset = true
		s.must("RESET", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState))
		s.unbound(q)
		s.poll()
		s.forget(q)
	case wayDestroy:
		num := q.dq.Num()
		s.destroy(q)
		s.unbound(q)
		s.poll()
		s.forget(q)
		delete(s.qps, qpKey{q.node, num})
		q.dq = nil
	}
	q.up = false
	s.net.Kick(q.node.port)
	for _, d := range s.dirs(q) {
		d.down++
	}
}

// dirs are the directions that a queue pair has an end of, once for each end.
func (s *sim) dirs(q *qp) []*dir {
	if q.typ == ib.UD {
		return nil
	}
	return []*dir{q.out, q.in}
}

// flushed checks that nothing is outstanding at a queue pair in Error. What
// was not signaled may have succeeded in silence.
func (s *sim) flushed(q *qp) {
	for _, o := range q.sendq {
		if o.signal {
			s.failf("op %d is outstanding at queue pair %d in Error", o.id, q.id)
		}
		s.judge(o, success(o))
		s.retire(o, ib.WCSuccess)
	}
	q.sendq = nil
	if len(q.recvq) > 0 {
		s.failf("%d receives are outstanding at queue pair %d in Error", len(q.recvq), q.id)
	}
	s.checkCounts(q)
	if q.srq != nil && q.lastWQE != 1 {
		s.failf("queue pair %d is in Error: LAST_WQE_REACHED %d times", q.id, q.lastWQE)
	}
}

// forget drops what was outstanding at a queue pair that was reset or
// destroyed: it completes no more and touches no memory of ours.
func (s *sim) forget(q *qp) {
	for _, k := range q.counts {
		k.vague = true
	}
	for _, o := range q.sendq {
		s.retire(o, ib.WCWRFlushErr)
	}
	for _, r := range q.recvq {
		r.done = true
		r.slot.release()
	}
	q.sendq, q.recvq = nil, nil
	if q.srq != nil {
		q.srq.lost++
	}
	if q.typ == ib.XRCRecv {
		for _, r := range q.node.xsrqs {
			r.lost++
		}
	}
}

// revive makes a new incarnation of a connection.
func (s *sim) revive(c *conn) {
	for _, q := range s.ends(c) {
		s.kill(q, s.rng.IntN(3))
	}
	if c.a.typ == ib.UC {
		s.step(3_000_000) // late packets of this incarnation would count in the next
	}
	s.poll()
	s.settleConn(c)
	if s.chance(0.5) {
		s.net.RunFor(int64(s.between(0, 500_000)))
		s.poll()
	}
	for _, q := range s.ends(c) {
		switch {
		case q.dq == nil:
			s.createQP(q)
		default:
			s.must("RESET", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState))
			s.unbound(q)
		}
	}
	s.stats.revived++
	s.connect(c)
}

// settleConn settles both directions of an incarnation that is over.
func (s *sim) settleConn(c *conn) {
	s.settleDir(c.a.out)
	if c.a != c.b {
		s.settleDir(c.b.out)
	}
}

// settleDir checks what is left of a direction: nobody at the far end writes
// any more.
func (s *sim) settleDir(d *dir) {
	for _, o := range d.writes {
		if o.rem == nil {
			continue
		}
		if err := o.rem.mixes(o.id32); err != nil && !o.loose {
			s.failf("op %d of queue pair %d (%v) ended with %v: %v", o.id, d.from.id, o.code, o.status, err)
		}
		if o.fault == faultRKey || o.fault == faultRight {
			if err := o.rem.holds(o.rem.old, 0, o.n, 0); err != nil {
				s.failf("op %d of queue pair %d had no right to write: %v", o.id, d.from.id, err)
			}
		}
		o.rem.settle()
		o.rem.release()
		o.rem = nil
	}
	d.writes = nil
	if d.cell != nil {
		s.settleCell(d)
		d.cell = nil
	}
}

// settleCell checks that the cell holds what its atomics made of it: each that
// succeeded was executed once and in order; of those behind, which have no
// answer, some were executed, again in order and once each.
func (s *sim) settleCell(d *dir) {
	c := d.cell
	have := binary.NativeEndian.Uint64(c.slot.a.mem[c.slot.off:])
	sure := 0
	for i, o := range c.ops {
		if o.ok {
			sure = i + 1
		}
	}
	v := c.init
	for _, o := range c.ops[:sure] {
		v = o.apply(v)
	}
	ok := v == have
	for _, o := range c.ops[sure:] {
		v = o.apply(v)
		ok = ok || v == have
	}
	if !ok {
		s.failf("cell of queue pair %d holds %#x: not what %d atomics that succeeded and %d that may have been executed make of %#x",
			d.from.id, have, sure, len(c.ops)-sure, c.init)
	}
	c.slot.settle()
	c.slot.release()
}

// settleCounter checks that each addition that succeeded was executed once,
// and none more than that.
func (s *sim) settleCounter(n *node) {
	c := n.counter
	if v := binary.NativeEndian.Uint64(c.slot.gather()) - c.init; v < uint64(c.success) || v > uint64(c.posted) {
		s.failf("node %d: counter grew by %d; %d additions were posted, %d succeeded", n.id, v, c.posted, c.success)
	}
	c.slot.settle()
}

// resume brings a UC or UD queue pair back from SQE.
func (s *sim) resume(q *qp) {
	if q.dq == nil || !q.sqe || !q.up {
		return
	}
	s.poll()
	a, err := q.dq.Query()
	s.must("query", err)
	if a.QPState != ib.QPStateSQE {
		s.failf("queue pair %d (%v) failed a send and is in %v", q.id, q.typ, a.QPState)
	}
	for _, o := range q.sendq {
		if o.signal {
			s.failf("op %d is outstanding at queue pair %d in SQE", o.id, q.id)
		}
	}
	s.must("RTS from SQE", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState))
	q.sqe, q.failed, q.gotFlush = false, false, false
	s.note("queue pair %d is back in RTS", q.id)
}

// hold stops a queue pair from beginning requests: send queue drain.
func (s *sim) hold(q *qp) {
	if q.sqd || !q.up || !q.rel() || q.typ == ib.XRCRecv || s.state(q) != ib.QPStateRTS {
		return
	}
	q.sqd, q.drained, q.tell = true, 0, s.chance(0.5)
	s.note("hold queue pair %d", q.id)
	s.must("SQD", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateSQD, EnSQDAsyncNotify: q.tell}, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify))
	s.net.Kick(q.node.port)
}

// release ends a hold, unless the queue pair has failed meanwhile.
func (s *sim) release(q *qp) {
	if !q.sqd || !q.up {
		return
	}
	q.sqd = false
	if s.state(q) != ib.QPStateSQD {
		return
	}
	a, err := q.dq.Query()
	s.must("query", err)
	if !a.SQDraining && q.tell && q.drained != 1 {
		s.failf("queue pair %d has drained and told so %d times", q.id, q.drained)
	}
	s.note("release queue pair %d", q.id)
	s.must("RTS from SQD", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState))
	s.net.Kick(q.node.port)
}

func (s *sim) state(q *qp) ib.QPState {
	a, err := q.dq.Query()
	s.must("query", err)
	return a.QPState
}
