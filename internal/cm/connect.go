package cm

import (
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// orDefault8 returns v, or d if v is 0.
func orDefault8(v, d uint8) uint8 {
	if v == 0 {
		return d
	}
	return v
}

func cmRetries(n int) uint8 {
	switch {
	case n == 0:
		return DefaultMaxCMRetries
	case n < 0:
		return 0
	}
	return uint8(min(n, 15)) // the field has 4 bits
}

func putIPHeader(private []byte, src, dst netip.Addr, port uint16) []byte {
	mad.IPHeader(private[:mad.IPHeaderLen:mad.IPHeaderLen]).Put(src, dst, port)
	return private[mad.IPHeaderLen:]
}

// Connect sends a REQ: the connection is in StateReqSent. EINVAL names the parameter (*ib.ParamError); ENOMEM: Config.MaxConns.
func (m *Manager) Connect(now int64, p *REQParams) (*Conn, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	c, err := m.newConn(p.Local, p.Remote)
	if err != nil {
		return nil, err
	}
	c.state, c.tid = StateReqSent, m.newTID()
	c.serviceID, c.service, c.extended = p.ServiceID, p.Transport, p.ExtendedTransport
	c.localQPN, c.rqPSN = p.QPN, p.StartingPSN
	c.path = p.Path
	c.path.HopLimit = orDefault8(p.Path.HopLimit, 64)
	c.pkey, c.mtu = p.PKey, uint8(p.PathMTU)
	if c.pkey == 0 {
		c.pkey = 0xFFFF
	}
	c.depth, c.resources = p.InitiatorDepth, p.ResponderResources
	c.retry = min(p.RetryCount, 7)
	c.maxRetries = cmRetries(p.MaxCMRetries)
	c.lifetime = min(orDefault8(p.PacketLifetime, DefaultPacketLifetime), ib.MaxTimeout)
	c.ackTimeout = ACKTimeout(m.cfg.ACKDelay, c.lifetime)
	response := min(orDefault8(p.RemoteCMResponseTimeout, DefaultCMResponseTimeout), 31)
	c.base = 2*m.duration(c.lifetime) + m.duration(response)
	m.formatREQ(c, p, response)
	m.start(now, c)
	return c, nil
}

func (m *Manager) formatREQ(c *Conn, p *REQParams, response uint8) {
	h, data := m.keep(c, mad.AttrREQ, c.tid)
	h.SetAttrMod(p.ECE.Options)
	r := mad.REQ(data)
	r.SetLocalCommID(c.localID)
	r.SetVendorID(p.ECE.VendorID)
	r.SetServiceID(p.ServiceID)
	r.SetLocalCAGUID(m.cfg.CAGUID)
	r.SetLocalQKey(p.QKey)
	r.SetLocalQPN(p.QPN)
	r.SetInitiatorDepth(p.InitiatorDepth)
	r.SetRemoteCMResponseTimeout(response)
	r.SetTransportService(p.Transport)
	r.SetFlowControl(p.FlowControl)
	r.SetStartingPSN(p.StartingPSN)
	r.SetLocalCMResponseTimeout(min(orDefault8(p.LocalCMResponseTimeout, DefaultCMResponseTimeout), 31))
	r.SetPKey(c.pkey)
	r.SetPathMTU(c.mtu)
	r.SetMaxCMRetries(c.maxRetries)
	if p.Transport == mad.TransportExtended {
		// An XRC initiator has no responder; Linux leaves the same fields 0.
		r.SetExtendedTransport(p.ExtendedTransport)
	} else {
		r.SetResponderResources(p.ResponderResources)
		r.SetRetryCount(c.retry)
		r.SetRNRRetryCount(min(p.RNRRetryCount, 7))
		r.SetSRQ(p.SRQ)
	}
	w := r.PrimaryPath()
	w.SetLocalGID(ib.GIDFromAddr(p.Local))
	w.SetRemoteGID(ib.GIDFromAddr(p.Remote))
	w.SetFlowLabel(p.Path.FlowLabel)
	w.SetPacketRate(p.Path.PacketRate)
	w.SetTrafficClass(p.Path.TrafficClass)
	w.SetHopLimit(c.path.HopLimit)
	w.SetSL(p.Path.SL)
	w.SetLocalACKTimeout(c.ackTimeout)
	if c.path.HopLimit > 1 { // "not on this subnet": permissive LIDs, as Linux has it
		w.SetLocalLID(0xFFFF)
		w.SetRemoteLID(0xFFFF)
	} else {
		w.SetSubnetLocal(true)
	}
	private := r.PrivateData()
	if p.IPHeader {
		private = putIPHeader(private, p.Local, p.Remote, p.SrcPort)
	}
	copy(private, p.PrivateData)
}

// Accept answers a REQ by a REP: the connection is in StateRepSent. The queue pair must be in RTS. EINVAL names the parameter, or is
// plain in other states than StateReqRcvd and StateMRAReqSent: the peer may have given up meanwhile.
func (m *Manager) Accept(now int64, c *Conn, p *REPParams) error {
	if err := p.check(); err != nil {
		return err
	}
	if c.state != StateReqRcvd && c.state != StateMRAReqSent {
		return syscall.EINVAL
	}
	m.decided(c)
	c.localQPN, c.rqPSN = p.QPN, p.StartingPSN
	c.depth, c.resources = p.InitiatorDepth, p.ResponderResources
	m.enter(c, StateRepSent)

	h, data := m.keep(c, mad.AttrREP, c.tid)
	h.SetAttrMod(p.ECE.Options)
	r := mad.REP(data)
	r.SetLocalCommID(c.localID)
	r.SetRemoteCommID(c.remoteID)
	r.SetLocalQKey(p.QKey)
	r.SetVendorID(p.ECE.VendorID)
	r.SetStartingPSN(p.StartingPSN)
	r.SetResponderResources(p.ResponderResources)
	r.SetTargetACKDelay(m.cfg.ACKDelay)
	r.SetRNRRetryCount(min(p.RNRRetryCount, 7))
	r.SetLocalCAGUID(m.cfg.CAGUID)
	if c.service == mad.TransportExtended {
		// The target's number stands where the end-to-end context is; it always receives into shared queues (IBA A14).
		r.SetSRQ(true)
		r.SetLocalEECN(p.QPN)
	} else {
		r.SetInitiatorDepth(p.InitiatorDepth)
		r.SetFlowControl(p.FlowControl)
		r.SetSRQ(p.SRQ)
		r.SetLocalQPN(p.QPN)
	}
	copy(r.PrivateData(), p.PrivateData)
	m.start(now, c)
	return nil
}

// RTU answers a REP: the connection is established. EINVAL: in other states than StateRepRcvd and StateMRARepSent, or more than 224
// bytes of private data.
func (m *Manager) RTU(_ int64, c *Conn, private []byte) error {
	if err := tooLong("private data", len(private), RTUPrivateLen); err != nil {
		return err
	}
	if c.state != StateRepRcvd && c.state != StateMRARepSent {
		return syscall.EINVAL
	}
	m.enter(c, StateEstablished)
	c.saved = append([]byte(nil), private...)
	m.sendRTU(c)
	return nil
}

func (m *Manager) sendRTU(c *Conn) {
	r := mad.RTU(m.begin(c.local, c.remote, c.path.TrafficClass, mad.AttrRTU, c.tid))
	r.SetLocalCommID(c.localID)
	r.SetRemoteCommID(c.remoteID)
	copy(r.PrivateData(), c.saved)
}

// Established is told that the peer's data came in before its RTU, which thereby counts as received: EventRTUReceived. EINVAL: in
// other states than StateRepSent and StateMRARepRcvd.
func (m *Manager) Established(_ int64, c *Conn) error {
	if c.state != StateRepSent && c.state != StateMRARepRcvd {
		return syscall.EINVAL
	}
	m.stop(c)
	m.enter(c, StateEstablished)
	m.emit(Event{Kind: EventRTUReceived, Conn: c})
	return nil
}

// MRA asks the peer to wait for our answer to its REQ or REP: its timer then runs for 2^serviceTimeout x 4.096 us and the way. Without
// it duplicates of the peer's message are answered so. EINVAL: in other states than StateReqRcvd, StateMRAReqSent, StateRepRcvd and
// StateMRARepSent.
func (m *Manager) MRA(_ int64, c *Conn, serviceTimeout uint8, private []byte) error {
	if err := tooLong("private data", len(private), MRAPrivateLen); err != nil {
		return err
	}
	if serviceTimeout > 31 {
		return syscall.EINVAL
	}
	return m.sendMRA(c, serviceTimeout, private)
}

func (m *Manager) sendMRA(c *Conn, serviceTimeout uint8, private []byte) error {
	kind := mad.MessageREQ
	switch c.state {
	case StateReqRcvd, StateMRAReqSent:
		c.state = StateMRAReqSent
	case StateRepRcvd, StateMRARepSent:
		c.state, kind = StateMRARepSent, mad.MessageREP
	default:
		return syscall.EINVAL
	}
	r := mad.MRA(m.begin(c.local, c.remote, c.path.TrafficClass, mad.AttrMRA, c.tid))
	r.SetLocalCommID(c.localID)
	r.SetRemoteCommID(c.remoteID)
	r.SetMessageMRAed(kind)
	r.SetServiceTimeout(serviceTimeout)
	copy(r.PrivateData(), private)
	return nil
}

// Reject refuses: a REQ or REP of the peer, or going on with our own. The connection is idle, or in TIMEWAIT if our REP was out.
// EINVAL: in other states (once established: Disconnect; a peer that has given up has ended the connection already), or ari longer
// than 72 or private longer than 148 bytes.
func (m *Manager) Reject(now int64, c *Conn, reason mad.RejectReason, ari, private []byte) error {
	if err := firstError(tooLong("ARI", len(ari), ARILen), tooLong("private data", len(private), REJPrivateLen)); err != nil {
		return err
	}
	kind, local, remote := mad.MessageOther, c.localID, c.remoteID
	end := m.idle
	switch c.state {
	case StateReqRcvd:
		kind, local = mad.MessageREQ, 0 // the peer has not heard our id
	case StateMRAReqSent:
		kind = mad.MessageREQ
	case StateRepRcvd, StateMRARepSent:
		kind = mad.MessageREP
	case StateReqSent, StateMRAReqRcvd:
	case StateRepSent, StateMRARepRcvd:
		end = func(c *Conn) { m.timewait(now, c) }
	default:
		return syscall.EINVAL
	}
	m.rej(c.local, c.remote, c.path.TrafficClass, c.tid, local, remote, kind, reason, ari, private)
	end(c)
	return nil
}

func (m *Manager) rej(
	local, remote netip.Addr, tc uint8, tid uint64, localID, remoteID uint32,
	kind mad.MessageKind, reason mad.RejectReason, ari, private []byte,
) {
	r := mad.REJ(m.begin(local, remote, tc, mad.AttrREJ, tid))
	r.SetLocalCommID(localID)
	r.SetRemoteCommID(remoteID)
	r.SetMessageRejected(kind)
	r.SetReason(reason)
	r.SetARILength(uint8(len(ari)))
	copy(r.ARI(), ari)
	copy(r.PrivateData(), private)
}
