package shard

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Multicast. A datagram to a group comes out of the port once, also one that
// this device sent itself: the port loops it back, as the IP stack does. That is
// the only way in which a member gets a copy, so nobody gets two, and members in
// this process, in others of the host and on other hosts are served alike.
//
// The alternative, to hand a sent datagram to the members of the own device at
// once and to drop what the stack loops back, would need to tell such copies
// from those of another process that sends from the same address, and a member
// would miss nothing only if both halves always agreed on who is a member.

// seat is a queue pair's place in a group.
type seat struct {
	m *member
	// own tells whether an address is this device's, for a queue pair that does
	// not want what it sent itself; nil for others.
	own func(netip.Addr) bool
}

// everyone is what parse finds for a datagram to a group with members.
var everyone = new(member)

// Attach adds a queue pair to a group: it gets a copy of each datagram to it.
// With own, which tells whether an address is this device's, it gets none of
// those that it sent itself. EINVAL: the queue pair was removed.
func (e *Engine) Attach(q *transport.QP, group netip.Addr, own func(netip.Addr) bool) error {
	group = group.WithZone("")
	e.rxMu.Lock()
	defer e.rxMu.Unlock()
	m := e.qps.find(q.Num)
	if m == nil || m.qp != q {
		return syscall.EINVAL
	}
	if e.groups == nil {
		e.groups = make(map[netip.Addr][]seat)
	}
	if i := seatOf(e.groups[group], q); i < 0 {
		e.groups[group] = append(e.groups[group], seat{m, own})
	}
	return nil
}

// Detach takes a queue pair out of a group. When it returns the queue pair gets
// no more of it.
func (e *Engine) Detach(q *transport.QP, group netip.Addr) {
	group = group.WithZone("")
	e.rxMu.Lock() // no turn is at work with the list
	defer e.rxMu.Unlock()
	seats := e.groups[group]
	if i := seatOf(seats, q); i >= 0 {
		seats = slices.Delete(seats, i, i+1)
	}
	if len(seats) == 0 {
		delete(e.groups, group)
	} else {
		e.groups[group] = seats
	}
}

func seatOf(seats []seat, q *transport.QP) int {
	return slices.IndexFunc(seats, func(s seat) bool { return s.m.qp == q })
}

// toGroup finds out for whom a datagram is whose destination address or queue
// pair number is a group's. Both must be, else it is dropped: the number stands
// for the members of a group (IBA 3.9.4), and a queue pair that is addressed by
// its own number has not asked for what a group gets. Linux's rdma_rxe lets the
// latter in. nil: dropped.
func (e *Engine) toGroup(n ib.QPN, d *pkt.Datagram) *member {
	if n != ib.QPNMulticast || len(e.groups[d.Dst.WithZone("")]) == 0 {
		e.rxStats.DropMulticast++
		return nil
	}
	if e.pkt.Op.Transport() != roce.TransportUD {
		e.rxStats.DropTransport++
		return nil
	}
	return everyone
}

// multicast gives the datagram in e.pkt to all members of its group, each under
// its own shard's lock. What one of them has against it is its own affair. s is
// as for datagram.
func (e *Engine) multicast(now int64, s *Shard, path *peerPath, seg []byte, id uint16, d *pkt.Datagram) *Shard {
	if !e.intact(&e.rxStats, now, path, seg, id, d) {
		return s
	}
	for _, t := range e.groups[d.Dst.WithZone("")] {
		s = e.enter(now, s, t.m.sh)
		q := t.m.qp
		if t.m.gone {
			e.rxStats.DropNoQP++
			continue
		}
		s.env.Count(&q.Stats)
		if t.own != nil && ib.QPN(e.pkt.DETH().SrcQP()) == q.Num && t.own(path.Src()) {
			q.Stats.DropOwn++
			continue
		}
		q.Stats.RcvdPackets++
		q.Service.Packet(&s.env, &e.pkt)
		s.arm(q)
	}
	return s
}
