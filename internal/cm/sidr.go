package cm

import (
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// sidrKey tells SIDR_REQs apart: request ids are their senders'.
type sidrKey struct {
	remote netip.Addr
	id     uint32
}

// sidrReply is an answer that is kept for duplicates of its request.
type sidrReply struct {
	key       sidrKey
	serviceID uint64
	until     int64
	msg       message
}

// sidrReplyStore keeps the newest answers, each for a while.
type sidrReplyStore struct {
	byKey map[sidrKey]*sidrReply
	order []*sidrReply // oldest first
}

func (s *sidrReplyStore) add(now int64, r *sidrReply) {
	for len(s.order) > 0 && (s.order[0].until <= now || len(s.order) >= sidrReplies) {
		if old := s.order[0]; s.byKey[old.key] == old {
			delete(s.byKey, old.key)
		}
		s.order[0] = nil
		s.order = s.order[1:]
	}
	s.byKey[r.key] = r
	s.order = append(s.order, r)
}

func (s *sidrReplyStore) find(now int64, k sidrKey, serviceID uint64) *sidrReply {
	if r := s.byKey[k]; r != nil && r.until > now && r.serviceID == serviceID {
		return r
	}
	return nil
}

// SIDRRequest asks who serves a service id by datagrams: the connection is in StateSidrReqSent. EINVAL names the parameter; ENOMEM:
// Config.MaxConns.
func (m *Manager) SIDRRequest(now int64, p *SIDRREQParams) (*Conn, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	c, err := m.newConn(p.Local, p.Remote)
	if err != nil {
		return nil, err
	}
	c.state, c.tid, c.serviceID = StateSidrReqSent, m.newTID(), p.ServiceID
	c.path.TrafficClass = p.TrafficClass
	c.pkey = p.PKey
	if c.pkey == 0 {
		c.pkey = 0xFFFF
	}
	c.maxRetries = cmRetries(p.MaxCMRetries)
	c.base = m.duration(min(orDefault8(p.Timeout, DefaultCMResponseTimeout), 31))
	h, data := m.keep(c, mad.AttrSIDRREQ, c.tid)
	h.SetAttrMod(p.ECE.Options)
	r := mad.SIDRREQ(data)
	r.SetRequestID(c.localID)
	r.SetPKey(c.pkey)
	r.SetServiceID(p.ServiceID)
	private := r.PrivateData()
	if p.IPHeader {
		private = putIPHeader(private, p.Local, p.Remote, p.SrcPort)
	}
	copy(private, p.PrivateData)
	m.start(now, c)
	return c, nil
}

// SIDRReply answers a SIDR_REQ: the connection is idle. EINVAL names the parameter, or is plain in another state than
// StateSidrReqRcvd.
func (m *Manager) SIDRReply(now int64, c *Conn, p *SIDRREPParams) error {
	if err := p.check(); err != nil {
		return err
	}
	if c.state != StateSidrReqRcvd {
		return syscall.EINVAL
	}
	rep := &sidrReply{key: sidrKey{c.remote, c.remoteID}, serviceID: c.serviceID}
	data := mad.Put(rep.msg[:], mad.AttrSIDRREP, c.tid)
	mad.Header(rep.msg[:]).SetAttrMod(p.ECE.Options)
	r := mad.SIDRREP(data)
	r.SetRequestID(c.remoteID)
	r.SetStatus(p.Status)
	r.SetVendorID(p.ECE.VendorID & 0xFFFF)
	r.SetQPN(p.QPN)
	r.SetServiceID(c.serviceID)
	r.SetQKey(p.QKey)
	r.SetInfoLength(uint8(len(p.Info)))
	copy(r.Info(), p.Info)
	copy(r.PrivateData(), p.PrivateData)
	*m.put(c.local, c.remote, 0) = rep.msg
	m.counters.TxMsgs[mad.AttrSIDRREP-mad.AttrREQ]++
	// As long as a client with Linux's timer may ask twice more.
	rep.until = now + 3*m.duration(DefaultCMResponseTimeout)
	m.replies.add(now, rep)
	m.idle(c)
	return nil
}

func (m *Manager) onSIDRREQ(now int64, local, remote netip.Addr, p *mad.Packet) {
	r := mad.SIDRREQ(p.Data)
	key := sidrKey{remote, r.RequestID()}
	if m.sidr[key] != nil {
		m.dup(p.Attr) // still undecided
		return
	}
	if old := m.replies.find(now, key, r.ServiceID()); old != nil {
		m.dup(p.Attr)
		*m.put(local, remote, 0) = old.msg
		m.counters.TxMsgs[mad.AttrSIDRREP-mad.AttrREQ]++
		return
	}
	l, known := m.listeners.find(r.ServiceID(), local)
	switch {
	case !known:
		m.sidrStatus(local, remote, p, mad.SIDRBadServiceID)
		return
	case l == nil:
		m.sidrStatus(local, remote, p, mad.SIDRRejected)
		return
	}
	if !m.room(l) {
		return
	}
	c := &Conn{
		state: StateSidrReqRcvd, passive: true, local: local, remote: remote, remoteID: r.RequestID(), knowsPeer: true,
		tid: p.Hdr.TID(), serviceID: r.ServiceID(), pkey: r.PKey(),
	}
	c.timer.Owner = c
	m.sidr[key] = c
	m.admit(c, l)
	m.emit(Event{
		Kind: EventSIDRREQReceived, Conn: c, Listener: l, PrivateData: clone(r.PrivateData()),
		Peer: &Peer{Attr: p.Attr, ServiceID: r.ServiceID(), PKey: r.PKey(), ECE: ECE{Options: p.Hdr.AttrMod()}},
	})
}

// sidrStatus answers without any state.
func (m *Manager) sidrStatus(local, remote netip.Addr, p *mad.Packet, status mad.SIDRStatus) {
	q := mad.SIDRREQ(p.Data)
	r := mad.SIDRREP(m.begin(local, remote, 0, mad.AttrSIDRREP, p.Hdr.TID()))
	r.SetRequestID(q.RequestID())
	r.SetStatus(status)
	r.SetServiceID(q.ServiceID())
}

func (m *Manager) onSIDRREP(remote netip.Addr, p *mad.Packet) {
	r := mad.SIDRREP(p.Data)
	c := m.unheard(remote, r.RequestID())
	if c == nil || c.state != StateSidrReqSent {
		m.stray(p.Attr)
		return
	}
	m.idle(c)
	m.emit(Event{
		Kind: EventSIDRREPReceived, Conn: c, PrivateData: clone(r.PrivateData()),
		ARI: info(r.Info(), r.InfoLength()),
		Peer: &Peer{
			Attr: p.Attr, ServiceID: r.ServiceID(), SIDRStatus: r.Status(), QPN: r.QPN(), QKey: r.QKey(),
			ECE: ECE{VendorID: r.VendorID(), Options: p.Hdr.AttrMod()},
		},
	})
}
