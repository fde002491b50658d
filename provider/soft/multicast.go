package soft

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Limits of multicast. Each group takes a descriptor of the process, whose own
// limit may be lower.
const (
	maxMcastGrp           = 8192
	maxMcastQPAttach      = 4096
	maxTotalMcastQPAttach = 1 << 18
)

// mcastTable counts the queue pairs of each group: the first to attach joins the
// IP group, the last to detach leaves it.
type mcastTable struct {
	mu     sync.Mutex
	groups map[netip.Addr]int
	total  int
}

// mcastQP is a queue pair's part in multicast.
type mcastQP struct {
	groups    map[netip.Addr]struct{} // under the queue pair's mu
	blockSelf bool
}

var _ driver.Multicaster = (*qp)(nil)

// AttachMcast implements driver.Multicaster. RoCE has no LIDs.
func (q *qp) AttachMcast(gid ib.GID, _ uint16) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	group, err := q.group(gid)
	if err != nil {
		return err
	}
	if _, ok := q.mcast.groups[group]; ok {
		return nil // as Linux: one copy for each queue pair, whatever it called
	}
	if err := q.dev.alive(); err != nil {
		return err
	}
	if err := q.dev.joinGroup(group); err != nil {
		return err
	}
	var own func(netip.Addr) bool
	if q.mcast.blockSelf {
		own = q.dev.isOwn
	}
	if err := q.dev.eng.Attach(&q.QP, group, own); err != nil {
		q.dev.leaveGroup(group)
		return err
	}
	if q.mcast.groups == nil {
		q.mcast.groups = make(map[netip.Addr]struct{})
	}
	q.mcast.groups[group] = struct{}{}
	return nil
}

// DetachMcast implements driver.Multicaster.
func (q *qp) DetachMcast(gid ib.GID, _ uint16) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	group, err := q.group(gid)
	if err != nil {
		return err
	}
	if _, ok := q.mcast.groups[group]; !ok {
		return invalid("gid", "the queue pair is not attached to %s", group)
	}
	delete(q.mcast.groups, group)
	q.dev.eng.Detach(&q.QP, group)
	q.dev.leaveGroup(group)
	return nil
}

// group checks the queue pair and the group. The caller holds mu.
func (q *qp) group(gid ib.GID) (netip.Addr, error) {
	group := gid.Addr()
	if _, dead := q.state(); dead {
		return group, fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
	}
	switch {
	case q.Type != ib.UD:
		return group, invalid("qp", "is of type %v, groups are for UD", q.Type)
	case !group.IsMulticast():
		return group, invalid("gid", "%s is no multicast group", group)
	}
	return group, nil
}

// idle refuses to destroy a queue pair that is attached, as Linux does: a group
// left without a word would look like loss. The caller holds mu.
func (m *mcastQP) idle() error {
	for g := range m.groups {
		more := ""
		if n := len(m.groups) - 1; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		return fmt.Errorf("queue pair is attached to the group %s%s, DetachMcast first: %w", g, more, syscall.EBUSY)
	}
	return nil
}

// joinGroup counts one more queue pair of a group and joins it if it is the
// first. A device that is being closed leaves what is joined with its port.
func (d *Device) joinGroup(group netip.Addr) error {
	t := &d.mcast
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.groups[group]
	full := func(what string, most int) error {
		return fmt.Errorf("%s: the device has its %d already: %w", what, most, syscall.ENOMEM)
	}
	switch {
	case d.closed.Load():
		return fmt.Errorf("multicast group: %w", shard.ErrClosed)
	case n == 0 && len(t.groups) >= maxMcastGrp:
		return full("multicast groups", maxMcastGrp)
	case n >= maxMcastQPAttach:
		return full("queue pairs of a group", maxMcastQPAttach)
	case t.total >= maxTotalMcastQPAttach:
		return full("queue pairs of groups", maxTotalMcastQPAttach)
	}
	if n == 0 {
		m, ok := d.cfg.Port.(port.Multicaster)
		if !ok {
			return notOffered("gid", "there is no multicast on this system")
		}
		on, err := d.addrLike(group)
		if err != nil {
			return err
		}
		if err := m.Join(group, on); err != nil {
			return fmt.Errorf("multicast group %s: %w", group, err)
		}
	}
	if t.groups == nil {
		t.groups = make(map[netip.Addr]int)
	}
	t.groups[group] = n + 1
	t.total++
	return nil
}

// leaveGroup ends what joinGroup began.
func (d *Device) leaveGroup(group netip.Addr) {
	t := &d.mcast
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total--
	if t.groups[group]--; t.groups[group] > 0 {
		return
	}
	delete(t.groups, group)
	if m, ok := d.cfg.Port.(port.Multicaster); ok {
		m.Leave(group)
	}
}

// addrLike is an address of the device of the group's family.
func (d *Device) addrLike(group netip.Addr) (netip.Addr, error) {
	for _, a := range d.gids.all() {
		if a.Is4() == group.Is4() {
			return a, nil
		}
	}
	family := "IPv6"
	if group.Is4() {
		family = "IPv4"
	}
	return netip.Addr{}, &paramError{"gid", "the device has no " + family + " address to be in " + group.String() + " with", syscall.EADDRNOTAVAIL}
}

// isOwn tells whether an address is one of the device, or was a short while ago:
// what was sent from it may come back when it is gone.
func (d *Device) isOwn(a netip.Addr) bool {
	d.gids.mu.RLock()
	defer d.gids.mu.RUnlock()
	is := func(b netip.Addr) bool { return b.IsValid() && same(a, b) }
	return slices.ContainsFunc(d.gids.addrs, is) || slices.ContainsFunc(d.gids.past[:], is)
}

// reach asks the port whether a group can be sent to.
func (d *Device) reach(local int, group netip.Addr) error {
	m, ok := d.cfg.Port.(port.Multicaster)
	if !ok {
		return notOffered("AHAttr.DGID", "there is no multicast on this system")
	}
	return m.Reach(local, group)
}
