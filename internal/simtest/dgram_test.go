package simtest

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// group is a multicast group with the queue pairs that are in it.
type group struct {
	addr    netip.Addr
	members []*qp
	surplus map[*node]uint64 // copies that who came later may have got
}

func (s *sim) addGroups() {
	for range s.rng.IntN(3) {
		if s.prof.family != 6 {
			s.groups = append(s.groups, &group{surplus: map[*node]uint64{}, addr: netip.AddrFrom4([4]byte{239, 7, 7, byte(len(s.groups))})})
		}
		if s.prof.family != 4 {
			s.groups = append(s.groups, &group{surplus: map[*node]uint64{}, addr: netip.AddrFrom16([16]byte{0: 0xFF, 1: 0x05, 15: byte(1 + len(s.groups))})})
		}
	}
	s.qkey = ib.QKey(s.rng.Uint32() >> 1)
}

// isLossless says that datagrams can be accounted for.
func (s *sim) isLossless() bool { return s.lossless && s.prof.killRate == 0 }

// isCalm says that nothing happens but work.
func (s *sim) isCalm() bool {
	p := &s.prof
	return p.name == "perfect" && p.faultRate == 0 && p.killRate == 0 && p.pauseRate == 0
}

// enlist attaches a queue pair to a group, or detaches it.
func (s *sim) enlist(q *qp) {
	if q.dq == nil || q.typ != ib.UD {
		return
	}
	var fit []*group
	for _, g := range s.groups {
		if g.addr.Is4() == q.addr.Is4() {
			fit = append(fit, g)
		}
	}
	if len(fit) == 0 {
		return
	}
	g := pick(s, fit...)
	m := q.dq.(driver.Multicaster)
	gid := ib.GIDFromAddr(g.addr)
	in := slices.Contains(g.members, q)
	switch {
	case in && s.chance(0.3) && !s.isLossless():
		s.poll()
		s.leave(q, g)
	case in:
		s.must("attach again", m.AttachMcast(gid, 0))
	default:
		if err := m.DetachMcast(gid, 0); !errors.Is(err, syscall.EINVAL) {
			s.failf("queue pair %d leaves a group that it is not in: %v", q.id, err)
		}
		s.note("queue pair %d is in %v", q.id, g.addr)
		s.must("attach", m.AttachMcast(gid, 0))
		g.members = append(g.members, q)
		for i := len(s.ops) - 1; i >= 0 && s.ops[i].at > s.net.Now()-10_000_000; i-- {
			if s.ops[i].group == g {
				g.surplus[q.node]++
			}
		}
	}
}

// leave ends a membership; what has come is polled.
func (s *sim) leave(q *qp, g *group) {
	s.note("queue pair %d is not in %v any more", q.id, g.addr)
	s.must("detach", q.dq.(driver.Multicaster).DetachMcast(ib.GIDFromAddr(g.addr), 0))
	g.members = slices.DeleteFunc(g.members, func(m *qp) bool { return m == q })
}

// leaveAll is for a queue pair that is to be destroyed.
func (s *sim) leaveAll(q *qp) {
	for _, g := range s.groups {
		if slices.Contains(g.members, q) {
			if err := q.dq.Destroy(); !errors.Is(err, syscall.EBUSY) {
				s.failf("queue pair %d is in a group, and destroying it gives %v", q.id, err)
			}
			s.leave(q, g)
		}
	}
}

// datagram makes a SEND to another queue pair, or to a group.
func (s *sim) datagram(o *op, fault bool) (driver.SendWR, bool) {
	var wr driver.SendWR
	var to *qp
	for range 10 {
		if to = pick(s, s.dgrams...); to.dq != nil && to.addr.Is4() == o.q.addr.Is4() {
			break
		}
		to = nil
	}
	if to == nil {
		return wr, false
	}
	o.to = to
	if len(s.groups) > 0 && s.chance(0.4) {
		if g := pick(s, s.groups...); g.addr.Is4() == o.q.addr.Is4() {
			o.to, o.group, o.members = nil, g, slices.Clone(g.members)
		}
	}
	o.n = min(max(s.msgSize(1024), 4), 4096)
	if !s.source(o, &wr) {
		return wr, false
	}
	if o.group != nil {
		wr.AH = s.ah(o.q.node, o.q.addr, o.group.addr)
		wr.RemoteQPN, wr.RemoteQKey = ib.QPNMulticast, s.qkey
	} else {
		wr.AH = s.ah(o.q.node, o.q.addr, to.addr)
		wr.RemoteQPN, wr.RemoteQKey = to.dq.Num(), to.qkey
	}
	if fault {
		switch {
		case s.chance(0.3):
			wr.RemoteQKey++
			o.fault = faultNowhere
		case s.chance(0.3) && o.group == nil:
			wr.RemoteQPN ^= 0x5555
			o.fault = faultNowhere
		case o.flags&ib.SendInline == 0:
			s.spoilLocal(o, &wr)
		}
	}
	return s.immediate(o, wr), true
}

// copied judges that a member has received a datagram to its group.
func (s *sim) copied(q *qp, m *op) {
	if !slices.Contains(m.group.members, q) {
		s.failf("queue pair %d received op %d to %v, where it is not", q.id, m.id, m.group.addr)
	}
	if q.blockSelf && m.num == q.dq.Num() && m.q == q { // another number: who was there before sent it
		s.failf("queue pair %d received its own op %d", q.id, m.id)
	}
	if m.copies == nil {
		m.copies = map[*qp]int{}
	}
	if m.copies[q]++; m.copies[q] > 1 && !s.dups {
		s.failf("queue pair %d received op %d %d times, the network duplicates nothing", q.id, m.id, m.copies[q])
	}
	s.stats.copies++
}

// checkCopies accounts for every datagram of a run in which nothing was lost: it
// came, or its receiver had no receive that was posted or large enough.
func (s *sim) checkCopies() {
	if !s.isLossless() {
		return
	}
	missing := map[*node]uint64{}
	for _, o := range s.ops {
		switch {
		case o.q.typ != ib.UD || o.fault != faultNone || o.done && !o.ok:
		case o.group != nil:
			for _, q := range o.members {
				if o.copies[q] == 0 && (!q.blockSelf || o.q != q) {
					missing[q.node]++
				}
			}
		case o.delivered == 0:
			missing[o.to.node]++
		}
	}
	exact := !s.dups && !slices.ContainsFunc(s.conns, func(c *conn) bool { return c.a.typ == ib.UC })
	for _, n := range s.nodes {
		st := n.dev.Stats()
		late := uint64(0)
		for _, g := range s.groups {
			late += g.surplus[n]
		}
		if drops := st.DropNoRecv + st.DropLength; missing[n] > drops || exact && missing[n]+late < drops {
			s.failf("node %d: %d datagrams are missing, %d were dropped for want of a receive: %+v", n.id, missing[n], drops, st)
		}
	}
}

// handles lists the node's address handles in a fixed order.
func (n *node) handles(s *sim) (l []driver.AH) {
	to := []netip.Addr{}
	for _, m := range s.nodes {
		to = append(to, m.addrs...)
	}
	for _, g := range s.groups {
		to = append(to, g.addr)
	}
	for _, from := range n.addrs {
		for _, a := range to {
			if h := n.ahs[[2]netip.Addr{from, a}]; h != nil {
				l = append(l, h)
			}
		}
	}
	return l
}
