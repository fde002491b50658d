package verbs

import (
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// AttachMcast has the queue pair, of type ib.UD, receive what is sent to the
// multicast group gid (ibv_attach_mcast): an IPv6 group, or an IPv4 one in its
// IPv4-mapped form (ib.GIDFromAddr makes either). On RoCE the device also joins
// the IP group on its interface, by IGMP or MLD, for as long as one of its queue
// pairs is attached, and lid is ignored. Attaching again does nothing.
//
// Datagrams to the group are sent with an address handle to gid and
// RemoteQPN ib.QPNMulticast (any other is refused, nobody would receive it); each queue pair of the group gets one copy, on all
// hosts, that of the sender too unless it was created with
// QPInitAttr.BlockSelfMcastLB. A hop limit of 0 or 1 keeps them on the subnet.
//
// EINVAL: not a group, or the queue pair is not of type UD; ENOMEM: more groups or
// queue pairs than the device takes; EADDRNOTAVAIL: the device has no
// address of the group's family; ENETUNREACH: the interface has no multicast
// (IPv6 on the loopback interface); EADDRINUSE: another program has the group's port
// 4791; EMFILE: each group takes a file descriptor; EOPNOTSUPP: the device has no
// multicast.
func (q *QP) AttachMcast(gid ib.GID, lid uint16) error {
	const op = "attach_mcast"
	m, err := q.mcast(op, gid)
	if err != nil {
		return err
	}
	return opErr(op, m.AttachMcast(gid, lid))
}

// DetachMcast ends AttachMcast (ibv_detach_mcast), however often that was called.
// When it returns the queue pair takes nothing to the group any more. Until then it
// cannot be destroyed (EBUSY, as Linux has it: else the application would lose
// the membership without a word). EINVAL: it is not attached to the group.
func (q *QP) DetachMcast(gid ib.GID, lid uint16) error {
	const op = "detach_mcast"
	m, err := q.mcast(op, gid)
	if err != nil {
		return err
	}
	return opErr(op, m.DetachMcast(gid, lid))
}

func (q *QP) mcast(op string, gid ib.GID) (driver.Multicaster, error) {
	m, ok := q.qp.(driver.Multicaster)
	switch {
	case !q.alive():
		return nil, opErr(op, errQPClosed)
	case q.init.Type != ib.UD:
		return nil, paramErr(op, "qp", "is of type "+q.init.Type.String()+", groups are for UD", syscall.EINVAL)
	case !gid.IsMulticast():
		return nil, paramErr(op, "gid", gid.Addr().String()+" is no multicast group", syscall.EINVAL)
	case !ok:
		return nil, paramErr(op, "qp", "the device has no multicast", syscall.EOPNOTSUPP)
	}
	return m, nil
}
