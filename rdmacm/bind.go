package rdmacm

import (
	"context"
	"net/netip"
	"time"
)

// Bind gives the ID a local address and port (rdma_bind_addr). Port 0: one that is
// free. With the address of a device the ID is bound to the device; with 0.0.0.0 or ::
// to all of them, for Listen. :: takes IPv4 in too, unless SetAFOnly says otherwise.
// A link-local address needs its zone (interface name or index).
//
// EINVAL: it is bound already, or the zone is missing; EADDRNOTAVAIL: no device has
// the address, or no port is free; EADDRINUSE: the port is in use (with a wildcard it
// matches EADDRNOTAVAIL too, which is what Linux says then); EAFNOSUPPORT: not an IP
// address; ENODEV: there is no device.
func (id *ID) Bind(addr netip.AddrPort) error { return errNotBuilt }

// ResolveAddr finds the device and address from which dst is reached, and binds the
// ID to them (rdma_resolve_addr): EventAddrResolved or EventAddrError. src may be the zero
// value: then the routing table tells, as it does with an ID that is bound to a
// wildcard. 0.0.0.0 and :: as dst are this host. Nothing is asked of the peer: one
// that does not exist shows in Connect. timeout is the most that it may take; 0: no
// limit but ctx, which is for synchronous IDs.
//
// EINVAL: it was resolved before, the families differ, or a zone is missing. Errors of
// Bind are those of src; ENETUNREACH, EHOSTUNREACH (in the event): no way there;
// ENODEV (in the event): the way is over an interface without a device.
func (id *ID) ResolveAddr(ctx context.Context, src, dst netip.AddrPort, timeout time.Duration) error {
	return errNotBuilt
}

// ResolveRoute finds the way to the peer (rdma_resolve_route): EventRouteResolved or
// EventRouteError. On RoCE that needs no packets. EINVAL: ResolveAddr has not succeeded.
func (id *ID) ResolveRoute(ctx context.Context, timeout time.Duration) error { return errNotBuilt }

// Listen has the ID get requests to its address and port (rdma_listen), on all devices
// if it is bound to a wildcard, also those addresses that devices get later. An ID that
// is not bound gets 0.0.0.0 and a free port. backlog is the number of requests
// that may wait to be accepted or rejected; 0: 1,024. What comes beyond is not
// refused: the peer tries again. EINVAL: wrong state; EADDRINUSE: another ID listens
// there (of IDs with SetReuseAddr one may), or another process has the address of
// the device.
func (id *ID) Listen(backlog int) error { return errNotBuilt }

// GetRequest waits for the next request to a synchronous ID (rdma_get_request) and
// returns its ID, which is synchronous too. It has the queue pair that was described
// to CreateEP. EINVAL: the ID is asynchronous.
func (id *ID) GetRequest(ctx context.Context) (*ID, error) { return nil, errNotBuilt }
