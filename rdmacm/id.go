package rdmacm

import (
	"context"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// ID is to RDMA what a socket is to TCP and UDP (struct rdma_cm_id). See the package's
// documentation for the order of calls; one that comes at the wrong time fails with
// EINVAL and changes nothing.
type ID struct {
	helpers helpers
}

// UserContext is what was given to NewID; an ID from a request has that of the
// listening one.
func (id *ID) UserContext() any { return nil }

// SetUserContext changes what UserContext returns, as assigning to the field does in C.
func (id *ID) SetUserContext(user any) {}

// PortSpace is the port space of the ID.
func (id *ID) PortSpace() PortSpace { return 0 }

// QPType is the type that a queue pair of the ID has.
func (id *ID) QPType() ib.QPType { return 0 }

// Channel is the event channel; nil for a synchronous ID.
func (id *ID) Channel() *EventChannel { return nil }

// Event is the event that the last call of a synchronous ID got: of an ID from
// GetRequest the request. It is acknowledged by the next call that gets one, and
// by Migrate and Destroy. nil: there was none.
func (id *ID) Event() *Event { return nil }

// Verbs is the device; nil until the ID is bound to one.
func (id *ID) Verbs() *verbs.Context { return nil }

// PD is the domain of the ID: that of its queue pair, or the one that all IDs of the device
// share by default. nil until the ID is bound to a device.
func (id *ID) PD() *verbs.PD { return nil }

// PortNum is the device's port, counted from 1; 0 until the ID is bound to one.
func (id *ID) PortNum() uint8 { return 0 }

// LocalAddr is the own address and port (rdma_get_local_addr). A link-local
// address has its zone. Not valid before Bind or ResolveAddr.
func (id *ID) LocalAddr() netip.AddrPort { return netip.AddrPort{} }

// PeerAddr is the peer's address and port (rdma_get_peer_addr).
func (id *ID) PeerAddr() netip.AddrPort { return netip.AddrPort{} }

// SrcPort is the own port (rdma_get_src_port), 0 for none.
func (id *ID) SrcPort() uint16 { return 0 }

// DstPort is the peer's port (rdma_get_dst_port), 0 for none.
func (id *ID) DstPort() uint16 { return 0 }

// Route is the way to the peer (struct rdma_route): one path after ResolveRoute, and of
// an ID from a request.
func (id *ID) Route() []PathRecord { return nil }

// Migrate moves the ID to another event channel (rdma_migrate_id), with the events that
// nobody has got; nil makes it synchronous. It waits until every event of the ID that
// was got is acknowledged: afterwards nobody deals with one from the old channel.
// EINVAL: it is synchronous and stays so. With ctx's error it has moved, but
// events are not acknowledged.
func (id *ID) Migrate(ctx context.Context, ch *EventChannel) error { return errNotBuilt }

// Destroy ends the ID (rdma_destroy_id): what is under way is withdrawn, a request
// that was neither accepted nor rejected is rejected, a connection is ended as by
// Disconnect but without waiting for the peer, groups are left, events that nobody
// got are discarded. Then it waits until those that were got are acknowledged.
// Its queue pair is not destroyed: call DestroyQP before (or after), or DestroyEP
// instead. With ctx's error the ID is of no use any more; calling again waits
// again.
func (id *ID) Destroy(ctx context.Context) error { return errNotBuilt }

// DestroyEP destroys queue pair, completion queues and shared receive queue, as far as
// this package made them, and the ID (rdma_destroy_ep).
func (id *ID) DestroyEP(ctx context.Context) error { return errNotBuilt }
