package driver

import "github.com/verbena-rdma/verbena/ib"

// Multicaster is implemented by queue pairs that can be in multicast groups.
type Multicaster interface {
	// AttachMcast adds the queue pair to the group gid; again does nothing. RoCE
	// ignores the LID. EINVAL: not a datagram queue pair, no group, or destroyed;
	// ENOMEM: a limit of the device; EADDRNOTAVAIL, ENETUNREACH, EADDRINUSE: the
	// interface cannot be in the group; EOPNOTSUPP: the device has no multicast.
	AttachMcast(gid ib.GID, lid uint16) error
	// DetachMcast ends that. When it returns nothing to the group is received any
	// more. EINVAL: it is not attached. A queue pair that is attached cannot be
	// destroyed: EBUSY.
	DetachMcast(gid ib.GID, lid uint16) error
}
