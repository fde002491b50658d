package cm

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

func (m *Manager) onREQ(now int64, local, remote netip.Addr, p *mad.Packet) {
	r := mad.REQ(p.Data)
	guid := r.LocalCAGUID()
	if old := m.remoteIDs[remoteID{bare(remote), guid, r.LocalCommID()}]; old != nil {
		m.onREQAgain(now, local, remote, p, old)
		return
	}
	if old := m.remoteQPs[remoteQPN{bare(remote), guid, r.LocalQPN()}]; old != nil {
		m.refuse(local, remote, p, mad.RejectStaleConnection, nil)
		m.stale(now, old)
		return
	}
	l, known := m.listeners.find(r.ServiceID(), local)
	gid := ib.GIDFromAddr(local)
	switch {
	case !known:
		m.refuse(local, remote, p, mad.RejectBadServiceID, nil)
		return
	case l == nil: // the service is there, but at another address
		m.refuse(local, remote, p, mad.RejectConsumer, nil)
		return
	case !supported(r):
		m.refuse(local, remote, p, mad.RejectBadTransport, nil)
		return
	case r.PathMTU() < uint8(ib.MTU256) || r.PathMTU() > uint8(ib.MTU4096):
		m.refuse(local, remote, p, mad.RejectBadMTU, nil)
		return
	case local.IsValid() && r.PrimaryPath().RemoteGID() != gid:
		m.refuse(local, remote, p, mad.RejectBadGID, gid[:])
		return
	case !m.room(l):
		return
	}
	c, err := m.newConn(local, remote)
	if err != nil { // room has looked
		return
	}
	m.fillFromREQ(c, r, p.Hdr.TID())
	m.learn(c)
	m.admit(c, l)
	m.emit(Event{
		Kind: EventREQReceived, Conn: c, Listener: l, Peer: peerOfREQ(c, r, p.Hdr.AttrMod()), PrivateData: clone(r.PrivateData()),
	})
}

// supported reports whether there are queue pairs of the service that a REQ wants.
func supported(r mad.REQ) bool {
	switch r.TransportService() {
	case mad.TransportRC, mad.TransportUC:
		return true
	case mad.TransportExtended:
		return r.ExtendedTransport() == mad.ExtendedXRC
	}
	return false
}

// onREQAgain handles a REQ whose communication id is known.
func (m *Manager) onREQAgain(now int64, local, remote netip.Addr, p *mad.Packet, old *Conn) {
	m.dup(p.Attr)
	r := mad.REQ(p.Data)
	switch {
	case old.state == StateTimewait:
		m.refuse(local, remote, p, mad.RejectStaleConnection, nil)
	case r.LocalQPN() != old.remoteQPN: // not the same REQ: its sender has begun to count anew
		m.refuse(local, remote, p, mad.RejectDuplicateCommID, nil)
		m.stale(now, old)
	case old.state.undecided():
		_ = m.sendMRA(old, m.cfg.MRATimeout, nil)
	}
}

func (m *Manager) fillFromREQ(c *Conn, r mad.REQ, tid uint64) {
	w := r.PrimaryPath()
	c.state, c.passive = StateReqRcvd, true
	c.tid, c.guid, c.remoteID, c.remoteQPN = tid, r.LocalCAGUID(), r.LocalCommID(), r.LocalQPN()
	c.serviceID, c.service, c.extended = r.ServiceID(), r.TransportService(), r.ExtendedTransport()
	c.sqPSN, c.mtu, c.pkey = r.StartingPSN(), r.PathMTU(), r.PKey()
	c.path = pathOf(w)
	c.depth, c.resources = r.ResponderResources(), r.InitiatorDepth()
	c.retry, c.rnrRetry = r.RetryCount(), r.RNRRetryCount()
	c.maxRetries = r.MaxCMRetries()
	c.base = m.duration(min(r.LocalCMResponseTimeout(), m.cfg.MaxTimeoutCode))
	// An ACK timeout of 0 means none: the lifetime is not known, and TIMEWAIT still needs one.
	c.lifetime = DefaultPacketLifetime
	if t := w.LocalACKTimeout(); t > 0 {
		c.lifetime = t - 1
	}
	c.ackTimeout = c.lifetime + 1
}

func pathOf(w mad.Path) Path {
	return Path{
		FlowLabel: w.FlowLabel(), TrafficClass: w.TrafficClass(), HopLimit: w.HopLimit(), SL: w.SL(), PacketRate: w.PacketRate(),
	}
}

func peerOfREQ(c *Conn, r mad.REQ, options uint32) *Peer {
	w := r.PrimaryPath()
	return &Peer{
		Attr: mad.AttrREQ, ServiceID: r.ServiceID(), Transport: r.TransportService(), ExtendedTransport: r.ExtendedTransport(),
		CAGUID: r.LocalCAGUID(), QPN: r.LocalQPN(), QKey: r.LocalQKey(), SRQ: r.SRQ(), StartingPSN: r.StartingPSN(),
		PathMTU: ib.MTU(r.PathMTU()), PKey: r.PKey(),
		ResponderResources: r.InitiatorDepth(), InitiatorDepth: r.ResponderResources(), // swapped
		FlowControl: r.FlowControl(), RetryCount: r.RetryCount(), RNRRetryCount: r.RNRRetryCount(), ACKTimeout: c.ackTimeout,
		LocalGID: w.RemoteGID(), RemoteGID: w.LocalGID(), Path: c.path, AlternatePath: r.AlternatePath().LocalLID() != 0,
		ECE: ECE{VendorID: r.VendorID(), Options: options},
	}
}

func (m *Manager) onREP(now int64, local, remote netip.Addr, p *mad.Packet) {
	r := mad.REP(p.Data)
	c := m.unheard(remote, r.RemoteCommID())
	if c == nil {
		m.onREPAgain(local, remote, p)
		return
	}
	if c.state != StateReqSent && c.state != StateMRAReqRcvd {
		m.drop(DropState)
		return
	}
	qpn := r.LocalQPN()
	if c.service == mad.TransportExtended {
		qpn = r.LocalEECN()
	}
	guid := r.LocalCAGUID()
	if m.remoteIDs[remoteID{bare(remote), guid, r.LocalCommID()}] != nil {
		m.dup(p.Attr) // the id belongs to another connection: a REP of long ago
		return
	}
	if old := m.remoteQPs[remoteQPN{bare(remote), guid, qpn}]; old != nil {
		// The peer has forgotten the old connection. Our REQ goes on: the peer, rejected, will answer its next copy.
		m.rej(local, remote, c.path.TrafficClass, p.Hdr.TID(), r.RemoteCommID(), r.LocalCommID(),
			mad.MessageREP, mad.RejectStaleConnection, nil, nil)
		m.stale(now, old)
		return
	}
	m.stop(c)
	c.state = StateRepRcvd
	c.guid, c.remoteID, c.remoteQPN = guid, r.LocalCommID(), qpn
	m.learn(c)
	c.sqPSN, c.rnrRetry = r.StartingPSN(), r.RNRRetryCount()
	c.depth, c.resources = r.ResponderResources(), r.InitiatorDepth()
	c.ackTimeout = ACKTimeout(r.TargetACKDelay(), c.lifetime)
	m.emit(Event{
		Kind: EventREPReceived, Conn: c, PrivateData: clone(r.PrivateData()),
		Peer: &Peer{
			Attr: p.Attr, ServiceID: c.serviceID, Transport: c.service, ExtendedTransport: c.extended, CAGUID: guid,
			QPN: qpn, QKey: r.LocalQKey(), SRQ: r.SRQ(), StartingPSN: r.StartingPSN(), PathMTU: ib.MTU(c.mtu), PKey: c.pkey,
			ResponderResources: r.InitiatorDepth(), InitiatorDepth: r.ResponderResources(), // swapped
			FlowControl: r.FlowControl(), RNRRetryCount: r.RNRRetryCount(), ACKTimeout: c.ackTimeout,
			ECE: ECE{VendorID: r.VendorID(), Options: p.Hdr.AttrMod()},
		},
	})
}

// onREPAgain handles a REP for a connection whose peer is known: our answer to it was lost, or is still to come.
func (m *Manager) onREPAgain(local, remote netip.Addr, p *mad.Packet) {
	r := mad.REP(p.Data)
	c := m.byIDs(remote, r.RemoteCommID(), r.LocalCommID())
	if c == nil || c.passive {
		m.stray(p.Attr)
		if m.ids[r.RemoteCommID()] == nil {
			// Who has asked is not there any more, and would leave the peer waiting for an RTU.
			m.rej(local, remote, 0, p.Hdr.TID(), r.RemoteCommID(), r.LocalCommID(), mad.MessageREP, mad.RejectBadCommID, nil, nil)
		}
		return
	}
	m.dup(p.Attr)
	switch c.state {
	case StateEstablished:
		m.sendRTU(c)
	case StateRepRcvd, StateMRARepSent:
		_ = m.sendMRA(c, m.cfg.MRATimeout, nil)
	default:
		m.drop(DropState)
	}
}
