package rdmacm

import (
	"context"

	"github.com/verbena-rdma/verbena/ib"
)

// Connect asks the peer for a connection, or for its datagram service (rdma_connect):
// EventEstablished, EventConnectResponse where the ID has no queue pair, or
// EventRejected, EventUnreachable, EventConnectError. nil parameters: what the device
// has, 7 retries of both kinds; they need a queue pair on the ID (EINVAL). The queue
// pair is in RTS when the event comes.
//
// EINVAL: the route is not resolved, private data too long (the ID can try again with
// less), or more resources than the device has. Synchronous: *RejectError,
// *SIDRError, ETIMEDOUT.
func (id *ID) Connect(ctx context.Context, p *ConnParam) error { return errNotBuilt }

// Accept accepts a request (rdma_accept): EventEstablished when the peer has confirmed;
// none for datagrams. The queue pair is in RTS before the answer leaves, so that sends may
// be posted when Accept has returned. nil parameters: what the peer asked for, as
// far as the device has it, and an RNR retry count of 7; they need a queue pair on
// the ID. EINVAL: no request, private data too long, or more resources than the
// device has.
func (id *ID) Accept(ctx context.Context, p *ConnParam) error { return errNotBuilt }

// Reject refuses a request (rdma_reject): the peer gets EventRejected with
// RejectConsumer and the private data; for datagrams EventUnreachable with status 2.
// EINVAL: there is no request to refuse, since the peer has given up for instance, or
// the private data are too long.
func (id *ID) Reject(private []byte) error { return errNotBuilt }

// RejectECE is Reject with the reason RejectVendorOption (rdma_reject_ece): the
// options of enhanced connection establishment do not suit.
func (id *ID) RejectECE(private []byte) error { return errNotBuilt }

// Establish completes a connection after EventConnectResponse, when the application
// has moved its own queue pair to RTS (rdma_establish). EINVAL: the ID has a queue pair, or
// there is no such connection.
func (id *ID) Establish() error { return errNotBuilt }

// Notify tells of an asynchronous event of the queue pair (rdma_notify):
// ib.EventCommEst completes an accepted connection whose confirmation has not come
// yet, since the peer's data show that it is there. EISCONN: the connection is
// established; EINVAL: another event, or no connection.
func (id *ID) Notify(t ib.EventType) error { return errNotBuilt }

// Disconnect moves the queue pair to ERR and ends the connection, or answers the peer's
// disconnect (rdma_disconnect): EventDisconnected. Both sides may call it, in any
// order; when the connection is over already it does nothing and there is no
// second event. EINVAL: there never was a connection.
func (id *ID) Disconnect(ctx context.Context) error { return errNotBuilt }

// SetLocalECE sets the options of enhanced connection establishment that Connect or
// Accept sends, for an application's own queue pair (rdma_set_local_ece). EINVAL:
// the ID has a queue pair, for which they are found out, or ece.VendorID is 0.
func (id *ID) SetLocalECE(ece ib.ECE) error { return errNotBuilt }

// RemoteECE gives the peer's (rdma_get_remote_ece); zero before its message. EINVAL:
// the ID has a queue pair.
func (id *ID) RemoteECE() (ib.ECE, error) { return ib.ECE{}, errNotBuilt }
