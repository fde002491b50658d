package rdmacm

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// handle makes the application's event of one of the protocol, and moves the queue
// pair. The caller holds the manager's mu.
func (d *device) handle(now int64, e *cm.Event) {
	if e.Kind == cm.EventREQReceived || e.Kind == cm.EventSIDRREQReceived {
		d.request(now, e)
		return
	}
	id, ok := e.Conn.Context.(*ID)
	if !ok || id.state == stateDestroyed {
		return
	}
	ev := &Event{ID: id}
	switch e.Kind {
	case cm.EventREPReceived, cm.EventREJReceived, cm.EventSIDRREPReceived:
		ev.Conn, ev.UD.PrivateData = connParam(e), e.PrivateData
	default: // no call sends private data with RTU, DREQ or DREP, and no event has it (rdma_get_cm_event(3))
	}
	switch e.Kind {
	case cm.EventREPReceived:
		id.response(now, e, ev)
		return
	case cm.EventRTUReceived:
		ev.Type = EventEstablished
		ev.silent()
	case cm.EventREQError, cm.EventREPError, cm.EventSIDRREQError:
		ev.Type, ev.Status = EventUnreachable, negative(e.Err)
	case cm.EventREJReceived:
		ev.Type, ev.Status = EventRejected, int(e.Reason)
		id.toErr()
	case cm.EventDREQReceived, cm.EventDREPReceived:
		ev.Type, id.ended = EventDisconnected, true
		ev.silent()
	case cm.EventDREQError:
		ev.Type, ev.Status, id.ended = EventDisconnected, negative(e.Err), true
	case cm.EventTimewaitExit:
		ev.Type = EventTimewaitExit
	case cm.EventSIDRREPReceived:
		id.service(e, ev)
	default:
		return
	}
	id.push(ev)
}

// silent takes the private data out: rdma_cm gives its users none with these messages,
// and tells them of none.
func (e *Event) silent() { e.Conn.PrivateData, e.UD.PrivateData = nil, nil }

// connParam is what a message says of the peer, as its receiver wants it.
func connParam(e *cm.Event) ConnParam {
	p := ConnParam{PrivateData: e.PrivateData}
	if m := e.Peer; m != nil {
		p.ResponderResources, p.InitiatorDepth = m.ResponderResources, m.InitiatorDepth
		p.FlowControl, p.RetryCount, p.RNRRetryCount = m.FlowControl, m.RetryCount, m.RNRRetryCount
		p.SRQ, p.QPNum = m.SRQ, ib.QPN(m.QPN)
	}
	return p
}

// response handles a REP. The caller holds mu.
func (id *ID) response(now int64, e *cm.Event, ev *Event) {
	id.remoteECE = e.Peer.ECE
	if id.qp == nil {
		ev.Type = EventConnectResponse
		id.push(ev)
		return
	}
	// What the peer serves and will ask for is what counts.
	p := id.conn.QPParams()
	id.respRes, id.initDepth = p.MaxDestRDAtomic, p.MaxRDAtomic
	if err := id.ready(); err != nil {
		id.m.log.Debug("connection not completed", "peer", id.dst, "err", err)
		_ = id.dev.cm.Reject(now, id.conn, mad.RejectConsumer, nil, nil)
		id.toErr()
		ev.Type, ev.Status = EventConnectError, negative(errnoOf(err))
		id.push(ev)
		return
	}
	if err := id.dev.cm.RTU(now, id.conn, nil); err != nil {
		return // it is over already, and that has its own event
	}
	ev.Type = EventEstablished
	id.push(ev)
}

// errnoOf finds the errno in an error.
func errnoOf(err error) syscall.Errno {
	errno := syscall.EINVAL
	errors.As(err, &errno)
	return errno
}

// service handles a SIDR_REP. The caller holds mu.
func (id *ID) service(e *cm.Event, ev *Event) {
	p := e.Peer
	id.remoteECE = p.ECE
	switch {
	case p.SIDRStatus != mad.SIDROK:
		ev.Type, ev.Status = EventUnreachable, int(p.SIDRStatus)
	case p.QKey == 0, id.qkey != 0 && id.qkey != ib.QKey(p.QKey):
		// The ID has a Q_Key since it has a queue pair, which can have one only.
		ev.Type, ev.Status = EventAddrError, negative(syscall.EINVAL)
	default:
		id.qkey = ib.QKey(p.QKey)
		ev.Type = EventEstablished
		ev.UD.AHAttr = id.vector(cm.Path{TrafficClass: id.route[0].TrafficClass, HopLimit: id.route[0].HopLimit, FlowLabel: id.route[0].FlowLabel})
		ev.UD.QPNum, ev.UD.QKey = ib.QPN(p.QPN), id.qkey
	}
}

// request handles a REQ or SIDR_REQ: it becomes an ID. The caller holds the manager's
// mu.
func (d *device) request(now int64, e *cm.Event) {
	l, ok := e.Listener.Context.(*ID)
	datagram := e.Kind == cm.EventSIDRREQReceived
	if _, ours := d.gid(e.Conn.Local()); !ours {
		// An address of another process: nobody listens there, and somebody has to say so.
		d.refuseWith(now, e, datagram, mad.RejectBadServiceID, mad.SIDRBadServiceID)
		return
	}
	if !ok || l.state != stateListen || !l.takes(e.Peer, datagram) {
		d.refuse(now, e, datagram)
		return
	}
	info, user, err := cm.SplitPrivate(e.PrivateData)
	local, remote := e.Conn.Local(), e.Conn.Remote()
	// The source must be the sender too: it is where the queue pair will send to, and what programs decide by.
	if err != nil || info.Dst.Unmap() != local.WithZone("") || !unicast(info.Src) || info.Src.Unmap() != remote.WithZone("") {
		d.refuse(now, e, datagram)
		return
	}
	ch := l.ch
	if l.sync {
		ch = nil
	}
	id := l.m.addID(ch, l.ps, l.typ, l.user)
	id.passive, id.datagram, id.state, id.conn = true, datagram, stateConnect, e.Conn
	e.Conn.Context = id
	from := info.Src.Unmap()
	if from.Is6() && from.IsLinkLocalUnicast() {
		from = from.WithZone(remote.Zone())
		if from.Zone() == "" {
			from = d.withZone(from)
		}
	}
	id.src = netip.AddrPortFrom(local, l.src.Port())
	id.dst = netip.AddrPortFrom(from, info.SrcPort)
	id.tos, id.afOnly = l.tos, l.afOnly
	id.ackTimeout, id.ackSet = l.ackTimeout, l.ackSet
	id.attach(d)
	id.remoteECE = e.Peer.ECE
	id.respRes, id.initDepth = e.Peer.ResponderResources, e.Peer.InitiatorDepth
	id.route = []PathRecord{id.passivePath(e.Peer)}

	ev := &Event{ID: id, ListenID: l, Type: EventConnectRequest, Conn: connParam(e), request: e.Conn}
	ev.Conn.PrivateData, ev.UD.PrivateData = user, user
	l.pushOn(l, ev)
}

// takes reports whether a request is for the listening ID's type of queue pair. The
// caller holds mu.
func (id *ID) takes(p *cm.Peer, datagram bool) bool {
	switch id.typ {
	case ib.UD:
		return datagram
	case ib.RC:
		return !datagram && p.Transport == mad.TransportRC
	case ib.UC:
		return !datagram && p.Transport == mad.TransportUC
	}
	return !datagram && p.Transport == mad.TransportExtended
}

// refuse answers a request that no listener can take, as Linux does.
func (d *device) refuse(now int64, e *cm.Event, datagram bool) {
	d.refuseWith(now, e, datagram, mad.RejectConsumer, mad.SIDRRejected)
}

func (d *device) refuseWith(now int64, e *cm.Event, datagram bool, reason mad.RejectReason, status mad.SIDRStatus) {
	if datagram {
		_ = d.cm.SIDRReply(now, e.Conn, &cm.SIDRREPParams{Status: status})
	} else {
		_ = d.cm.Reject(now, e.Conn, reason, nil, nil)
	}
}

// unicast reports whether an address can be a peer's. The loopback networks are valid:
// the loopback interface has a device.
func unicast(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// passivePath is the route that a request came by. The caller holds mu.
func (id *ID) passivePath(p *cm.Peer) PathRecord {
	r := id.path()
	if !id.datagram {
		r.FlowLabel, r.TrafficClass, r.HopLimit, r.SL = p.Path.FlowLabel, p.Path.TrafficClass, p.Path.HopLimit, p.Path.SL
		r.MTU, r.PacketLifeTime = p.PathMTU, max(p.ACKTimeout, 1)-1
	}
	return r
}
