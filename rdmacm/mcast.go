package rdmacm

import (
	"context"
	"net/netip"
)

// JoinMulticast joins a multicast group and attaches the ID's queue pair, if it has one
// (rdma_join_multicast): EventMulticastJoin with what is needed to send to the group, or
// EventMulticastError; user is the event's UserContext. The ID must be bound to a
// device. EINVAL: it is not, it is not for datagrams, or addr is no group;
// EADDRINUSE: it has joined the group already.
func (id *ID) JoinMulticast(ctx context.Context, addr netip.Addr, user any) error {
	return errNotBuilt
}

// JoinMulticastEx is JoinMulticast with a choice (rdma_join_multicast_ex): with
// JoinSendOnlyFullMember the queue pair is not attached, and receives nothing. EINVAL also:
// unknown flags.
func (id *ID) JoinMulticastEx(ctx context.Context, addr netip.Addr, flags JoinFlags, user any) error {
	return errNotBuilt
}

// LeaveMulticast detaches the queue pair and leaves the group (rdma_leave_multicast),
// and waits until events of the group that were got are acknowledged. EADDRNOTAVAIL:
// it was not joined.
func (id *ID) LeaveMulticast(ctx context.Context, addr netip.Addr) error { return errNotBuilt }
