package rdmacm

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/verbs"
)

// group is an ID's membership of a multicast group. It is under the manager's mu.
type group struct {
	ledger
	gid      ib.GID
	attached bool
}

// detach takes the queue pair out of the group. The caller holds mu.
func (g *group) detach(q *verbs.QP) {
	if g.attached && q != nil {
		_ = q.DetachMcast(g.gid, 0)
	}
	g.attached = false
}

// JoinMulticast joins a multicast group and attaches the ID's queue pair, if it has one
// (rdma_join_multicast): EventMulticastJoin with what is needed to send to the group, or
// EventMulticastError; user is the event's UserContext. The ID must be bound to a
// device. EINVAL: it is not, it is not for datagrams, or addr is no group;
// EADDRINUSE: it has joined the group already. In the event: errors of
// verbs.QP.AttachMcast; EADDRNOTAVAIL: the device has no address of the group's family.
func (id *ID) JoinMulticast(ctx context.Context, addr netip.Addr, user any) error {
	return id.join(ctx, "join_multicast", addr, JoinFullMember, user)
}

// JoinMulticastEx is JoinMulticast with a choice (rdma_join_multicast_ex): with
// JoinSendOnlyFullMember the queue pair is not attached, and receives nothing. EINVAL also:
// unknown flags.
func (id *ID) JoinMulticastEx(ctx context.Context, addr netip.Addr, flags JoinFlags, user any) error {
	const op = "join_multicast_ex"
	if flags > JoinSendOnlyFullMember {
		return paramErr(op, "flags", fmt.Sprintf("%d is unknown", flags), syscall.EINVAL)
	}
	return id.join(ctx, op, addr, flags, user)
}

func (id *ID) join(ctx context.Context, op string, addr netip.Addr, flags JoinFlags, user any) error {
	if err := ctx.Err(); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	err := id.enter(addr.Unmap().WithZone(""), flags, user)
	id.m.mu.Unlock()
	if err != nil {
		return opErr(op, err)
	}
	return opErr(op, id.complete(ctx, EventMulticastJoin, EventMulticastError))
}

// enter joins and raises the event. The caller holds mu.
func (id *ID) enter(addr netip.Addr, flags JoinFlags, user any) error {
	if err := id.alive(); err != nil {
		return err
	}
	switch {
	case id.typ != ib.UD:
		return fmt.Errorf("the ID is for queue pairs of type %v, groups are for UD: %w", id.typ, syscall.EINVAL)
	case !addr.IsMulticast():
		return fmt.Errorf("addr: %s is no multicast group: %w", addr, syscall.EINVAL)
	case id.dev == nil || id.state == stateListen:
		return fmt.Errorf("the ID is not bound to a device, or listens: %w", syscall.EINVAL)
	case id.groups[addr] != nil:
		return fmt.Errorf("%s was joined already: %w", addr, syscall.EADDRINUSE)
	}
	g := &group{gid: ib.GIDFromAddr(addr)}
	ev := &Event{ID: id, Type: EventMulticastJoin, UserContext: user, group: g}
	av, err := id.groupVector(addr)
	if err == nil && id.qp != nil && flags == JoinFullMember {
		if err = id.qp.AttachMcast(g.gid, 0); err == nil {
			g.attached = true
		}
	}
	if id.groups == nil {
		id.groups = make(map[netip.Addr]*group)
	}
	if err != nil {
		ev.Type, ev.Status, ev.group = EventMulticastError, negative(errnoOf(err)), nil
	} else {
		id.groups[addr] = g
		ev.UD = UDParam{AHAttr: av, QPNum: ib.QPNMulticast, QKey: id.keyOr()}
	}
	id.push(ev)
	return nil
}

// groupVector is the address vector to a group. The caller holds mu.
func (id *ID) groupVector(addr netip.Addr) (ib.AHAttr, error) {
	from := id.src.Addr()
	if from.Is4() != addr.Is4() {
		list := id.dev.addrs(addr.Is4())
		if len(list) == 0 {
			return ib.AHAttr{}, syscall.EADDRNOTAVAIL
		}
		from = list[0]
	}
	index, ok := id.dev.gid(from)
	if !ok {
		return ib.AHAttr{}, syscall.EADDRNOTAVAIL
	}
	a := id.vector(cm.Path{TrafficClass: id.tos})
	a.DGID, a.SGIDIndex = ib.GIDFromAddr(addr), uint8(index)
	return a, nil
}

// LeaveMulticast detaches the queue pair and leaves the group (rdma_leave_multicast),
// and waits until events of the group that were got are acknowledged. EADDRNOTAVAIL:
// it was not joined.
func (id *ID) LeaveMulticast(ctx context.Context, addr netip.Addr) error {
	const op = "leave_multicast"
	addr = addr.Unmap().WithZone("")
	id.m.mu.Lock()
	g := id.groups[addr]
	if g != nil {
		id.leave(addr)
		if id.last != nil && id.last.group == g { // of a synchronous ID nobody else acknowledges it
			id.last.ack()
			id.last = nil
		}
	}
	id.m.mu.Unlock()
	if g == nil {
		return paramErr(op, "addr", addr.String()+" was not joined", syscall.EADDRNOTAVAIL)
	}
	return opErr(op, g.wait(ctx, id.m))
}

// leave is the part of LeaveMulticast that happens at once. The caller holds mu.
func (id *ID) leave(addr netip.Addr) {
	g := id.groups[addr]
	g.detach(id.qp)
	delete(id.groups, addr)
	id.ch.remove(func(e *Event) bool { return e.group == g })
}
