package simtest

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// cq is a completion queue and how it was armed.
type cq struct {
	node      *node
	dq        driver.CQ
	ex        driver.CQEx // the same, if it is an extended one with timestamps
	stamp     uint64      // of the newest completion
	armed     bool
	solicited bool // armed for solicited completions only
	fired     int
	got       int  // by the poll at hand
	sawSolic  bool // the batch at hand had one that counts as solicited

	// Moderation: what happened since it was armed.
	period   int64
	modded   bool // notifications may have been held back
	seen     int
	anySolic bool
	from     int64 // when the poll was that saw what it is armed for; 0: none has

	// A queue that may overrun has one queue pair.
	owner   *qp
	overran bool
	ending  bool
	excused bool // the queue pair may have failed before
}

// addCQ makes a completion queue, half of the time an extended one.
func (s *sim) addCQ(n *node, size int) *cq {
	c := &cq{node: n}
	notify := func() { c.fired++ }
	var err error
	if s.chance(0.5) {
		attr := driver.CQInitAttr{CQE: size, WCFlags: ib.WCExStandard | ib.WCExCompletionTimestamp}
		if s.chance(0.3) {
			attr.Flags = ib.CQSingleThreaded
		}
		c.ex, err = n.dev.(driver.CQExCreator).CreateCQEx(&attr, notify)
		c.dq = c.ex
	} else {
		c.dq, err = n.dev.CreateCQ(size, notify)
	}
	s.must("CQ", err)
	c.dq.Events(func(e ib.EventType) { s.cqEvent(c, e) })
	return c
}

func (s *sim) cqEvent(c *cq, e ib.EventType) {
	q := c.owner
	if q == nil || e != ib.EventCQErr || c.overran {
		s.failf("CQ event %v", e)
	}
	s.note("the completion queue of queue pair %d overran", q.id)
	c.overran, c.excused = true, q.mayErr || q.broken || q.failed || q.peerGone || s.netBad
	q.in.lossy = true
	s.provoke(q)
	s.stats.overruns++
}

// take polls a completion queue empty.
func (s *sim) take(c *cq, all []completion) []completion {
	add := func(wcs []driver.WC) {
		for _, wc := range wcs {
			q := s.qps[qpKey{c.node, wc.QPNum}]
			if q == nil {
				s.failf("completion of unknown queue pair: %+v", wc)
			}
			all = append(all, completion{wc, q, c})
		}
	}
	ended := func(err error) {
		if err != nil && (!c.overran || !errors.Is(err, syscall.EOVERFLOW)) {
			s.failf("poll: %v", err)
		}
	}
	if c.ex == nil || s.chance(0.3) {
		var buf [64]driver.WC
		for {
			k, err := c.dq.Poll(buf[:])
			ended(err)
			if add(buf[:k]); k < len(buf) {
				return all
			}
		}
	}
	for {
		wcs, ts, err := c.ex.Look()
		ended(err)
		for len(wcs) > 0 {
			n := len(wcs)
			part := s.chance(0.2)
			if part {
				n = s.between(1, n)
			}
			for _, t := range ts[:n] {
				if t < c.stamp || t > uint64(s.net.Now()) {
					s.failf("node %d: completion at tick %d after one at %d, it is %d", c.node.id, t, c.stamp, s.net.Now())
				}
				c.stamp = t
			}
			if add(wcs[:n]); part {
				c.ex.Done(n)
				break
			}
			if wcs, ts = c.ex.Next(); len(wcs) == 0 {
				c.ex.Done(0)
				return all
			}
		}
		if len(wcs) == 0 {
			return all
		}
	}
}

// told checks the notifications after a poll that got completions, and arms again.
func (s *sim) told(c *cq, got int) {
	c.seen += got
	c.anySolic = c.anySolic || c.sawSolic
	what := c.seen > 0
	if c.solicited {
		what = c.anySolic
	}
	if what && c.from == 0 {
		c.from = s.net.Now() // not before: milliseconds may lie between two polls
	}
	// A device that was paused tells later.
	late := what && s.net.Now() > c.from+c.period+5_000_000
	if !c.armed && c.fired > 0 || c.fired > 1 || c.fired > 0 && !what || c.armed && what && c.fired == 0 && (!c.modded || late) {
		s.failf("node %d: %d completions, armed %v (solicited only %v), solicited: %v, notified %d times, moderated: %v (%d ns)",
			c.node.id, c.seen, c.armed, c.solicited, c.anySolic, c.fired, c.modded, c.period)
	}
	if c.fired > 0 {
		c.armed, c.fired = false, 0
	}
	if !c.armed && s.chance(0.3) {
		c.armed, c.solicited = true, s.chance(0.5)
		c.seen, c.anySolic, c.modded, c.from = 0, false, c.period > 0, 0
		if c.dq.Arm(c.solicited) {
			s.failf("arming an empty completion queue told of missed completions")
		}
	} else if !c.armed {
		c.seen, c.anySolic = 0, false
	}
}

// moderate lets notifications wait, or not any more.
func (s *sim) moderate(c *cq) {
	period := int64(pick(s, 0, 0, 5, 50, 200)) * 1000
	s.must("moderate", c.dq.(driver.CQModerator).Moderate(s.rng.IntN(20), time.Duration(period)))
	c.period = max(period, c.period)
	c.modded = true
	if period == 0 && !c.armed {
		c.period = 0
	}
}

// endOverrun ends the queue pairs that lost completions.
func (s *sim) endOverruns(n *node) {
	for i, c := range n.risky {
		if !c.overran || c.ending {
			continue
		}
		c.ending = true
		q := c.owner
		if q.up {
			if st := s.state(q); st != ib.QPStateErr {
				s.failf("queue pair %d lost completions and is in %v", q.id, st)
			}
			if !c.excused && !q.broken && q.rnr == 7 && q.told[ib.EventQPFatal] != 1 {
				s.failf("queue pair %d lost completions: QP_FATAL %d times", q.id, q.told[ib.EventQPFatal])
			}
			s.kill(q, wayDestroy)
		} else if q.dq != nil {
			num := q.dq.Num()
			s.destroy(q)
			s.unbound(q)
			s.forget(q)
			delete(s.qps, qpKey{n, num})
			q.dq = nil
		}
		s.must("destroy CQ", c.dq.Destroy())
		next := s.addCQ(n, s.between(1, 40))
		next.owner = q
		q.send, q.recv = next, next
		n.risky[i] = next
	}
}

// counting is what counts a queue pair's completions, and the model of it.
type counting struct {
	c         driver.CompCntr
	ops       ib.CompCntrOps
	ok, bad   uint64
	ok0, bad0 uint64 // what they were set to
	vague     bool   // some ended without a completion that we saw
}

// count attaches a counter to a queue pair in Reset.
func (s *sim) count(q *qp) {
	q.counts = nil
	sends := ib.CompCntrSend | ib.CompCntrRDMARead | ib.CompCntrRDMAWrite
	for _, ops := range []ib.CompCntrOps{sends, ib.CompCntrRecv} {
		if !s.chance(0.3) {
			continue
		}
		c, err := q.node.dev.(driver.CompCntrCreator).CreateCompCntr()
		s.must("CreateCompCntr", err)
		k := &counting{c: c, ops: ops, ok0: s.rng.Uint64(), bad0: s.rng.Uint64()}
		c.Set(k.ok0)
		c.SetErr(k.bad0)
		s.must("AttachCompCntr", q.dq.(driver.CompCntrAttacher).AttachCompCntr(c, ops))
		q.counts = append(q.counts, k)
	}
}

// counted notes the end of a request.
func (q *qp) counted(op ib.CompCntrOps, st ib.WCStatus) {
	for _, k := range q.counts {
		if k.ops&op == 0 {
			continue
		}
		if st == ib.WCSuccess {
			k.ok++
		} else {
			k.bad++
		}
	}
}

func countedAs(c ib.WROpcode) ib.CompCntrOps {
	switch {
	case isSend(c):
		return ib.CompCntrSend
	case rightFor(c) == ib.AccessRemoteWrite:
		return ib.CompCntrRDMAWrite
	case c == ib.WRRDMARead:
		return ib.CompCntrRDMARead
	}
	return 0
}

// checkCounts compares the counters when nothing is outstanding.
func (s *sim) checkCounts(q *qp) {
	for _, k := range q.counts {
		done, failed := k.c.Read()
		if done, failed = done-k.ok0, failed-k.bad0; !k.vague && (done != k.ok || failed != k.bad) {
			s.failf("queue pair %d: counter of %v says %d and %d, the model %d and %d", q.id, k.ops, done, failed, k.ok, k.bad)
		}
	}
}

// endCounts takes the counters away; gone: their queue pair is.
func (s *sim) endCounts(q *qp, gone bool) {
	for _, k := range q.counts {
		if err := k.c.Destroy(); (err == nil) != gone {
			s.failf("queue pair %d: destroying its counter gives %v", q.id, err)
		}
	}
}

// resizeSRQ changes size and limit of a shared receive queue under load.
func (s *sim) resizeSRQ(r *srq) {
	attr := ib.SRQAttr{MaxWR: uint32(s.between(max(r.posted, 4), max(r.posted, 4)+30))}
	attr.SRQLimit = uint32(s.rng.IntN(int(attr.MaxWR)))
	s.arm(r, attr.SRQLimit)
	s.must("SRQ resize", r.dq.Modify(&attr, ib.SRQMaxWR|ib.SRQLimit))
	r.cap = int(attr.MaxWR)
}

// arm notes the limit of a shared receive queue.
func (s *sim) arm(r *srq, limit uint32) {
	r.armed, r.limit, r.from, r.since = limit > 0, int(limit), uint64(len(s.recvs)), 0
}

// checkSRQs compares the limits. A receive that was posted and taken after a limit
// was armed, and fewer than that left, must have raised the event.
func (s *sim) checkSRQs(n *node) {
	for _, r := range slices.Concat(n.srqs, n.xsrqs) {
		if r.armed && r.since > 0 && r.posted < r.limit {
			s.failf("node %d: a shared receive queue holds %d, its limit is %d, and nothing was said", n.id, r.posted, r.limit)
		}
		if a := r.dq.Query(); (a.SRQLimit > 0) != r.armed || int(a.MaxWR) != r.cap {
			s.failf("node %d: shared receive queue is %+v, want %d and a limit: %v", n.id, a, r.cap, r.armed)
		}
	}
}

// postAll posts the requests by the new post interface: all of them or none.
func (s *sim) postAll(q *qp, wrs []driver.SendWR, good int) {
	p := q.dq.(driver.BatchPoster)
	if len(wrs) > good {
		if n, err := p.PostSendAll(wrs); n != good || !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOPNOTSUPP) {
			s.failf("queue pair %d: request %d of %d is bad, but it says %d: %v", q.id, good, len(wrs), n, err)
		}
		wrs = wrs[:good]
	}
	if n, err := p.PostSendAll(wrs); n != good || err != nil {
		s.failf("queue pair %d: %d requests posted at once: %d, %v", q.id, good, n, err)
	}
}
