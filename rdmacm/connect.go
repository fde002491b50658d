package rdmacm

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
	"github.com/verbena-rdma/verbena/verbs"
)

// checkParam is what librdmacm checks of parameters of Connect and Accept. The caller
// holds mu.
func (id *ID) checkParam(p *ConnParam, most int) error {
	if p == nil {
		if id.qp == nil && (id.typ != ib.UD || id.passive) {
			return fmt.Errorf("p: is nil and the ID has no queue pair: %w", syscall.EINVAL)
		}
		return nil
	}
	if n := len(p.PrivateData); n > most {
		return fmt.Errorf("PrivateData: %d bytes, want at most %d: %w", n, most, syscall.EINVAL)
	}
	if id.typ == ib.UD {
		return nil
	}
	a := &id.dev.attr
	switch {
	case p.ResponderResources != MaxRespRes && int(p.ResponderResources) > int(a.MaxQPRDAtom):
		return fmt.Errorf("ResponderResources: %d, the device has %d: %w", p.ResponderResources, a.MaxQPRDAtom, syscall.EINVAL)
	case p.InitiatorDepth != MaxInitDepth && int(p.InitiatorDepth) > int(a.MaxQPInitRDAtom):
		return fmt.Errorf("InitiatorDepth: %d, the device has %d: %w", p.InitiatorDepth, a.MaxQPInitRDAtom, syscall.EINVAL)
	case p.QPNum > ib.QPNMax:
		return fmt.Errorf("QPNum: %#x has more than 24 bits: %w", uint32(p.QPNum), syscall.EINVAL)
	}
	return nil
}

// limit is a device's limit as the messages have it.
func limit(n int) uint8 { return uint8(min(max(n, 0), 254)) }

// endpoint is the queue pair that messages tell of. The caller holds mu.
func (id *ID) endpoint(p *ConnParam) (qpn uint32, srq bool) {
	switch {
	case id.qp != nil:
		return uint32(id.qp.Num()), id.qp.SRQ() != nil
	case p != nil:
		return uint32(p.QPNum), p.SRQ
	}
	return 0, false
}

// Connect asks the peer for a connection, or for its datagram service (rdma_connect):
// EventEstablished, EventConnectResponse where the ID has no queue pair, or
// EventRejected, EventUnreachable, EventConnectError. nil parameters: what the device
// has, 7 retries of both kinds; for connections they need a queue pair on the ID
// (EINVAL). The queue pair is in RTS when the event comes.
//
// EINVAL: the route is not resolved, private data too long (the ID can try again with
// less), or more resources than the device has. Synchronous: *RejectError,
// *SIDRError, ETIMEDOUT.
func (id *ID) Connect(ctx context.Context, p *ConnParam) error {
	const op = "connect"
	if err := ctx.Err(); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	err := id.connect(p)
	id.m.mu.Unlock()
	if err != nil {
		return opErr(op, err)
	}
	return opErr(op, id.complete(ctx, EventEstablished, EventConnectResponse))
}

// connect sends the request. The caller holds mu.
func (id *ID) connect(p *ConnParam) error {
	if err := id.alive(); err != nil {
		return err
	}
	if id.state != stateRouteResolved {
		return syscall.EINVAL
	}
	most := MaxPrivateConnect
	if id.typ == ib.UD {
		most = MaxPrivateConnectDatagram
	}
	if err := id.checkParam(p, most-len(id.prefix)); err != nil {
		return err
	}
	if err := id.dev.agent.Listen(id.src.Addr()); err != nil { // the answer must get through
		return err
	}
	now := id.m.clock()
	var c *cm.Conn
	var err error
	if id.typ == ib.UD {
		c, err = id.dev.cm.SIDRRequest(now, id.sidrRequest(p))
	} else {
		c, err = id.dev.cm.Connect(now, id.request(p))
	}
	if err != nil {
		return err
	}
	c.Context = id
	id.conn, id.datagram, id.state = c, id.typ == ib.UD, stateConnect
	id.dev.after(now)
	return nil
}

func (id *ID) private(p *ConnParam) []byte {
	if p == nil {
		return id.prefix
	}
	return append(slices.Clone(id.prefix), p.PrivateData...)
}

func (id *ID) sidrRequest(p *ConnParam) *cm.SIDRREQParams {
	return &cm.SIDRREQParams{
		Local: id.src.Addr(), Remote: id.dst.Addr(), TrafficClass: id.route[0].TrafficClass, ServiceID: id.serviceID(id.dst.Port()),
		PKey: uint16(id.route[0].PKey), ECE: id.localECE, IPHeader: true, SrcPort: id.src.Port(), PrivateData: id.private(p),
	}
}

// request makes the parameters of a REQ. The caller holds mu.
func (id *ID) request(p *ConnParam) *cm.REQParams {
	r := &id.route[0]
	q := &cm.REQParams{
		Local: id.src.Addr(), Remote: id.dst.Addr(),
		Path: cm.Path{
			FlowLabel: r.FlowLabel, TrafficClass: r.TrafficClass, HopLimit: r.HopLimit, SL: r.SL, PacketRate: uint8(r.Rate),
		},
		ServiceID: id.serviceID(id.dst.Port()), StartingPSN: id.seq, PathMTU: r.MTU, PKey: uint16(r.PKey), PacketLifetime: r.PacketLifeTime,
		RetryCount: connectRetries, RNRRetryCount: connectRetries, ECE: id.offerECE(),
		IPHeader: true, SrcPort: id.src.Port(), PrivateData: id.private(p),
	}
	switch id.typ {
	case ib.UC:
		q.Transport = mad.TransportUC
	case ib.XRCSend, ib.XRCRecv:
		q.Transport, q.ExtendedTransport = mad.TransportExtended, mad.ExtendedXRC
	}
	id.respRes, id.initDepth = limit(int(id.dev.attr.MaxQPRDAtom)), limit(int(id.dev.attr.MaxQPInitRDAtom))
	if p != nil {
		if p.ResponderResources != MaxRespRes {
			id.respRes = p.ResponderResources
		}
		if p.InitiatorDepth != MaxInitDepth {
			id.initDepth = p.InitiatorDepth
		}
		q.FlowControl, q.RetryCount, q.RNRRetryCount = p.FlowControl, min(p.RetryCount, 7), min(p.RNRRetryCount, 7)
	}
	q.ResponderResources, q.InitiatorDepth = id.respRes, id.initDepth
	q.QPN, q.SRQ = id.endpoint(p)
	return q
}

// offerECE is what the ID tells the peer: the options of its queue pair, or what the
// application has set. The caller holds mu.
func (id *ID) offerECE() cm.ECE {
	if id.qp == nil {
		return id.localECE
	}
	e, err := id.qp.QueryECE()
	if err != nil || e.VendorID == 0 {
		return cm.ECE{}
	}
	return cm.ECE{VendorID: e.VendorID, Options: e.Options}
}

// Accept accepts a request (rdma_accept): EventEstablished when the peer has confirmed;
// none for datagrams. The queue pair is in RTS before the answer leaves, so that sends may
// be posted when Accept has returned. nil parameters: what the peer asked for, as
// far as the device has it, and an RNR retry count of 7; they need a queue pair on
// the ID. EINVAL: no request, the peer has given up, private data too long, or more resources than the
// device has.
func (id *ID) Accept(ctx context.Context, p *ConnParam) error {
	const op = "accept"
	if err := ctx.Err(); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	err := id.accept(p)
	id.m.mu.Unlock()
	if err != nil {
		return opErr(op, err)
	}
	if id.typ == ib.UD {
		id.m.mu.Lock()
		if id.last != nil {
			id.last.ack()
			id.last = nil
		}
		id.m.mu.Unlock()
		return nil
	}
	return opErr(op, id.complete(ctx, EventEstablished))
}

// undecided reports whether the ID has a request to accept or to reject. The caller
// holds mu.
func (id *ID) undecided() bool {
	if id.conn == nil || !id.passive {
		return false
	}
	switch id.conn.State() {
	case cm.StateReqRcvd, cm.StateMRAReqSent, cm.StateSidrReqRcvd:
		return true
	}
	return false
}

func (id *ID) accept(p *ConnParam) error {
	if err := id.alive(); err != nil {
		return err
	}
	if !id.undecided() {
		return fmt.Errorf("there is no request to accept: %w", syscall.EINVAL)
	}
	most := MaxPrivateAccept
	if id.datagram {
		most = MaxPrivateAcceptDatagram
	}
	if err := id.checkParam(p, most); err != nil {
		return err
	}
	now := id.m.clock()
	qpn, srq := id.endpoint(p)
	var private []byte
	if p != nil {
		private = p.PrivateData
	}
	if id.datagram {
		err := id.dev.cm.SIDRReply(now, id.conn, &cm.SIDRREPParams{
			QPN: qpn, QKey: uint32(id.keyOr()), ECE: id.localECE, PrivateData: private,
		})
		id.dev.after(now)
		return err
	}
	a := &id.dev.attr
	depth, resources := min(id.initDepth, limit(int(a.MaxQPInitRDAtom))), min(id.respRes, limit(int(a.MaxQPRDAtom)))
	rep := &cm.REPParams{QPN: qpn, SRQ: srq, StartingPSN: id.seq, RNRRetryCount: connectRetries, PrivateData: private}
	if p != nil {
		if p.InitiatorDepth != MaxInitDepth {
			depth = p.InitiatorDepth
		}
		if p.ResponderResources != MaxRespRes {
			resources = p.ResponderResources
		}
		rep.FlowControl, rep.RNRRetryCount = p.FlowControl, min(p.RNRRetryCount, 7)
	}
	id.initDepth, id.respRes = depth, resources
	rep.InitiatorDepth, rep.ResponderResources = depth, resources
	if id.qp != nil {
		if id.remoteECE.VendorID != 0 {
			// What the queue pair does not take it does without.
			_ = id.qp.SetECE(&ib.ECE{VendorID: id.remoteECE.VendorID, Options: id.remoteECE.Options})
		}
		if err := id.ready(); err != nil {
			return err
		}
	}
	rep.ECE = id.offerECE()
	if err := id.dev.cm.Accept(now, id.conn, rep); err != nil {
		id.toErr()
		return err
	}
	id.dev.after(now)
	return nil
}

// Reject refuses a request (rdma_reject): the peer gets EventRejected with
// RejectConsumer and the private data; for datagrams EventUnreachable with status 2.
// EINVAL: there is no request to refuse, since the peer has given up for instance, or
// the private data are too long.
func (id *ID) Reject(private []byte) error {
	return opErr("reject", id.reject(private, mad.RejectConsumer))
}

// RejectECE is Reject with the reason RejectVendorOption (rdma_reject_ece): the
// options of enhanced connection establishment do not suit.
func (id *ID) RejectECE(private []byte) error {
	return opErr("reject_ece", id.reject(private, mad.RejectVendorOption))
}

func (id *ID) reject(private []byte, reason mad.RejectReason) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return err
	}
	// An active side without queue pair refuses the response.
	active := id.conn != nil && !id.passive && (id.conn.State() == cm.StateRepRcvd || id.conn.State() == cm.StateMRARepSent)
	if !id.undecided() && !active {
		return fmt.Errorf("there is nothing to reject: %w", syscall.EINVAL)
	}
	most := MaxPrivateReject
	if id.datagram {
		most = MaxPrivateAcceptDatagram
	}
	if n := len(private); n > most {
		return fmt.Errorf("private: %d bytes, want at most %d: %w", n, most, syscall.EINVAL)
	}
	now := id.m.clock()
	var err error
	if id.datagram {
		err = id.dev.cm.SIDRReply(now, id.conn, &cm.SIDRREPParams{Status: mad.SIDRRejected, PrivateData: private})
	} else {
		err = id.dev.cm.Reject(now, id.conn, reason, nil, private)
	}
	id.dev.after(now)
	return err
}

// Establish completes a connection after EventConnectResponse, when the application
// has moved its own queue pair to RTS (rdma_establish). EINVAL: the ID has a queue pair, or
// there is no such connection.
func (id *ID) Establish() error {
	const op = "establish"
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return opErr(op, err)
	}
	if id.qp != nil || id.conn == nil || id.passive || id.datagram {
		return opErr(op, syscall.EINVAL)
	}
	now := id.m.clock()
	err := id.dev.cm.RTU(now, id.conn, nil)
	id.dev.after(now)
	return opErr(op, err)
}

// Notify tells of an asynchronous event of the queue pair (rdma_notify):
// ib.EventCommEst completes an accepted connection whose confirmation has not come
// yet, since the peer's data show that it is there. EISCONN: the connection is
// established; EINVAL: another event, or no connection.
func (id *ID) Notify(t ib.EventType) error {
	const op = "notify"
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return opErr(op, err)
	}
	switch {
	case id.conn == nil || t != ib.EventCommEst:
		return opErr(op, syscall.EINVAL)
	case id.conn.State() == cm.StateEstablished:
		return opErr(op, syscall.EISCONN)
	}
	now := id.m.clock()
	err := id.dev.cm.Established(now, id.conn)
	id.dev.after(now)
	return opErr(op, err)
}

// Disconnect moves the queue pair to ERR and ends the connection, or answers the peer's
// disconnect (rdma_disconnect): EventDisconnected. Both sides may call it, in any
// order; when the connection is over already it does nothing and there is no
// second event. EINVAL: there never was a connection.
func (id *ID) Disconnect(ctx context.Context) error {
	const op = "disconnect"
	if err := ctx.Err(); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	wait, err := id.disconnect()
	id.m.mu.Unlock()
	if err != nil || !wait {
		return opErr(op, err)
	}
	return opErr(op, id.complete(ctx, EventDisconnected))
}

// disconnect reports whether an event is to come that a synchronous ID waits for. The
// caller holds mu.
func (id *ID) disconnect() (wait bool, err error) {
	if err := id.alive(); err != nil {
		return false, err
	}
	if id.conn == nil {
		return false, syscall.EINVAL
	}
	id.toErr()
	now := id.m.clock()
	switch id.conn.State() {
	case cm.StateEstablished:
		err, wait = id.dev.cm.Disconnect(now, id.conn, nil), true
	case cm.StateDreqRcvd:
		err = id.dev.cm.SendDREP(now, id.conn, nil)
	case cm.StateDreqSent:
		wait = !id.ended
	}
	id.dev.after(now)
	return wait && err == nil || id.waiting(EventDisconnected), err
}

// waiting reports whether an event of a synchronous ID waits to be got. The caller
// holds mu.
func (id *ID) waiting(t EventType) bool {
	return slices.ContainsFunc(id.ch.list, func(e *Event) bool { return e.owner == id && e.Type == t })
}

// SetLocalECE sets the options of enhanced connection establishment that Connect or
// Accept sends, for an application's own queue pair (rdma_set_local_ece). EINVAL:
// the ID has a queue pair, for which they are found out, or ece.VendorID is 0.
func (id *ID) SetLocalECE(ece ib.ECE) error {
	const op = "set_local_ece"
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return opErr(op, err)
	}
	switch {
	case id.qp != nil:
		return paramErr(op, "id", "has a queue pair", syscall.EINVAL)
	case ece.VendorID == 0 || ece.VendorID > 0xFFFFFF:
		return paramErr(op, "VendorID", fmt.Sprintf("%#x, want 24 bits that are not all 0", ece.VendorID), syscall.EINVAL)
	case ece.CompMask != 0:
		return paramErr(op, "CompMask", "is not 0", syscall.EINVAL)
	}
	id.localECE = cm.ECE{VendorID: ece.VendorID, Options: ece.Options}
	return nil
}

// RemoteECE gives the peer's (rdma_get_remote_ece); zero before its message. EINVAL:
// the ID has a queue pair.
func (id *ID) RemoteECE() (ib.ECE, error) {
	const op = "get_remote_ece"
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return ib.ECE{}, opErr(op, err)
	}
	if id.qp != nil {
		return ib.ECE{}, paramErr(op, "id", "has a queue pair", syscall.EINVAL)
	}
	return ib.ECE{VendorID: id.remoteECE.VendorID, Options: id.remoteECE.Options}, nil
}

// modify moves a queue pair to a state with the attributes that the connection gives
// it.
func (id *ID) modify(q *verbs.QP, s ib.QPState) error {
	a := ib.QPAttr{QPState: s}
	mask, err := id.qpAttr(&a)
	if err != nil {
		return err
	}
	return q.Modify(&a, mask)
}
