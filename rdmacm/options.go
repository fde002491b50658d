package rdmacm

// SetTOS sets the traffic class of connections, IP's type of service
// (RDMA_OPTION_ID_TOS). It counts from ResolveRoute, Accept and JoinMulticast on; an ID from a
// request has that of the listening one.
func (id *ID) SetTOS(tos uint8) error { return errNotBuilt }

// TOS is what SetTOS has set.
func (id *ID) TOS() uint8 { return 0 }

// SetReuseAddr allows other IDs that allow it too to be bound to the same address and
// port (RDMA_OPTION_ID_REUSEADDR); one of them may listen. EINVAL: the ID listens.
func (id *ID) SetReuseAddr(on bool) error { return errNotBuilt }

// ReuseAddr tells whether it is allowed.
func (id *ID) ReuseAddr() bool { return false }

// SetAFOnly keeps an ID that is bound to :: from IPv4 (RDMA_OPTION_ID_AFONLY). EINVAL: it
// listens or is resolved already.
func (id *ID) SetAFOnly(on bool) error { return errNotBuilt }

// AFOnly tells whether it is kept from it.
func (id *ID) AFOnly() bool { return false }

// SetAckTimeout sets the ACK timeout of the queue pair, 4.096 us to the power of two,
// 0 to 31; 0: none (RDMA_OPTION_ID_ACK_TIMEOUT). The peer is told in the request, where 0
// stands for a default. It counts from ResolveRoute and Accept on. EINVAL: beyond 31, or the type of
// queue pair acknowledges nothing.
func (id *ID) SetAckTimeout(timeout uint8) error { return errNotBuilt }

// AckTimeout is what was set; ok is false if nothing was.
func (id *ID) AckTimeout() (timeout uint8, ok bool) { return 0, false }

// SetIBPath sets the route in place of ResolveRoute (RDMA_OPTION_IB_PATH):
// EventRouteResolved. The first path counts. EINVAL: ResolveAddr has not succeeded, or
// the path is not between the ID's addresses.
func (id *ID) SetIBPath(paths ...PathRecord) error { return errNotBuilt }
