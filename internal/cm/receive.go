package cm

import (
	"errors"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

func clone(b []byte) []byte { return append(make([]byte, 0, len(b)), b...) }

// info returns the bytes of additional information that count, nil if none do.
func info(b []byte, n uint8) []byte {
	if n == 0 {
		return nil
	}
	return clone(b[:min(int(n), len(b))])
}

// Receive handles a management datagram that came from queue pair 1 of remote to local. It keeps nothing of b. Whatever is wrong with
// it is counted.
func (m *Manager) Receive(now int64, local, remote netip.Addr, b []byte) {
	var p mad.Packet
	if err := mad.Parse(b, &p); err != nil {
		m.malformed(local, remote, &p, err)
		return
	}
	m.counters.RxMsgs[p.Attr-mad.AttrREQ]++
	switch p.Attr {
	case mad.AttrREQ:
		m.onREQ(now, local, remote, &p)
	case mad.AttrMRA:
		m.onMRA(now, remote, &p)
	case mad.AttrREJ:
		m.onREJ(now, remote, &p)
	case mad.AttrREP:
		m.onREP(now, local, remote, &p)
	case mad.AttrRTU:
		m.onRTU(remote, &p)
	case mad.AttrDREQ:
		m.onDREQ(now, local, remote, &p)
	case mad.AttrDREP:
		m.onDREP(now, remote, &p)
	case mad.AttrSIDRREQ:
		m.onSIDRREQ(now, local, remote, &p)
	case mad.AttrSIDRREP:
		m.onSIDRREP(remote, &p)
	default:
		m.drop(DropAlternatePath)
	}
}

// malformed counts what Parse refuses. A request of another class version is answered (IBA 12.6.7.2, reason 31; 12.11.2, status 5):
// ids and the transaction id stand where they always do.
func (m *Manager) malformed(local, remote netip.Addr, p *mad.Packet, err error) {
	switch {
	case errors.Is(err, mad.ErrShort):
		m.drop(DropShort)
	case errors.Is(err, mad.ErrVersion):
		m.drop(DropBaseVersion)
	case errors.Is(err, mad.ErrAttr):
		m.drop(DropAttr)
	case p.Hdr.Class() != mad.ClassCM || p.Hdr.Method() != mad.MethodSend:
		m.drop(DropClass)
	default:
		m.drop(DropClassVersion)
		switch p.Attr {
		case mad.AttrREQ:
			m.refuse(local, remote, p, mad.RejectBadClassVersion, []byte{mad.ClassVersionCM})
		case mad.AttrSIDRREQ:
			m.sidrStatus(local, remote, p, mad.SIDRUnsupportedVersion)
		}
	}
}

// refuse rejects a REQ without any state.
func (m *Manager) refuse(local, remote netip.Addr, p *mad.Packet, reason mad.RejectReason, ari []byte) {
	m.rej(local, remote, 0, p.Hdr.TID(), 0, mad.REQ(p.Data).LocalCommID(), mad.MessageREQ, reason, ari, nil)
}

// room says whether another undecided request fits, and counts if not.
func (m *Manager) room(l *Listener) bool {
	switch {
	case l.pending >= l.backlog:
		m.drop(DropBacklog)
	case m.pending >= m.cfg.MaxPending:
		m.drop(DropPending)
	case m.Conns() >= m.cfg.MaxConns:
		m.drop(DropConns)
	default:
		return true
	}
	return false
}

// byIDs finds the connection that both communication ids name. from, where the message came from, must be its peer: a host that has
// guessed or seen the ids does not end the connection of others. Linux does not look.
func (m *Manager) byIDs(from netip.Addr, local, remote uint32) *Conn {
	if c := m.ids[local]; c != nil && c.knowsPeer && c.remoteID == remote && bare(c.remote) == bare(from) {
		return c
	}
	return nil
}

// unheard finds the connection whose peer has not told its id yet. from must be whom it has asked.
func (m *Manager) unheard(from netip.Addr, local uint32) *Conn {
	if c := m.ids[local]; c != nil && !c.knowsPeer && bare(c.remote) == bare(from) {
		return c
	}
	return nil
}

// stale ends a connection whose peer does not know of it any more: it uses the queue pair for another one.
func (m *Manager) stale(now int64, old *Conn) {
	switch old.state {
	case StateEstablished:
		_ = m.Disconnect(now, old, nil)
	case StateReqRcvd, StateMRAReqSent, StateRepSent, StateMRARepRcvd, StateRepRcvd, StateMRARepSent:
		m.timewait(now, old)
		m.emit(Event{Kind: EventREJReceived, Conn: old, Reason: mad.RejectStaleConnection})
	}
}

func (m *Manager) onRTU(remote netip.Addr, p *mad.Packet) {
	r := mad.RTU(p.Data)
	c := m.byIDs(remote, r.RemoteCommID(), r.LocalCommID())
	switch {
	case c == nil:
		m.stray(p.Attr)
	case c.state != StateRepSent && c.state != StateMRARepRcvd:
		m.dup(p.Attr)
		m.drop(DropState)
	default:
		m.stop(c)
		m.enter(c, StateEstablished)
		m.emit(Event{Kind: EventRTUReceived, Conn: c, PrivateData: clone(r.PrivateData())})
	}
}

func (m *Manager) onMRA(now int64, remote netip.Addr, p *mad.Packet) {
	r := mad.MRA(p.Data)
	kind := r.MessageMRAed()
	var c *Conn
	if kind == mad.MessageREQ {
		c = m.unheard(remote, r.RemoteCommID())
	} else {
		c = m.byIDs(remote, r.RemoteCommID(), r.LocalCommID())
	}
	if c == nil {
		m.stray(p.Attr)
		return
	}
	switch {
	case c.state == StateReqSent && kind == mad.MessageREQ:
		c.state = StateMRAReqRcvd
	case c.state == StateRepSent && kind == mad.MessageREP:
		m.enter(c, StateMRARepRcvd)
	case c.state == StateMRAReqRcvd || c.state == StateMRARepRcvd:
		m.dup(p.Attr)
		return
	default:
		m.drop(DropState)
		return
	}
	c.wait = m.duration(min(r.ServiceTimeout(), m.cfg.MaxTimeoutCode)) + m.duration(c.ackTimeout)
	m.timers.Set(&c.timer, now+c.wait)
}

func (m *Manager) onREJ(now int64, remote netip.Addr, p *mad.Packet) {
	r := mad.REJ(p.Data)
	c := m.rejected(remote, r)
	if c == nil {
		m.stray(p.Attr)
		return
	}
	switch c.state {
	case StateReqSent, StateMRAReqRcvd, StateReqRcvd, StateMRAReqSent, StateRepSent, StateMRARepRcvd:
		if r.Reason() == mad.RejectStaleConnection {
			m.timewait(now, c)
		} else {
			m.idle(c)
		}
	case StateRepRcvd, StateMRARepSent, StateEstablished, StateDreqSent:
		m.timewait(now, c)
	default:
		m.drop(DropState)
		return
	}
	m.emit(Event{
		Kind: EventREJReceived, Conn: c, Reason: r.Reason(), ARI: info(r.ARI(), r.ARILength()), PrivateData: clone(r.PrivateData()),
	})
}

// rejected finds the connection that a REJ is about. A peer that has timed out may not know our id: its own and its GUID name the
// connection. A peer that rejects a REQ need not have made an id.
func (m *Manager) rejected(remote netip.Addr, r mad.REJ) *Conn {
	switch {
	case r.Reason() == mad.RejectTimeout:
		if r.ARILength() < 8 {
			return nil
		}
		return m.remoteIDs[remoteID{bare(remote), be64(r.ARI()), r.LocalCommID()}]
	case r.MessageRejected() == mad.MessageREQ:
		return m.unheard(remote, r.RemoteCommID())
	}
	return m.byIDs(remote, r.RemoteCommID(), r.LocalCommID())
}

func (m *Manager) onDREQ(now int64, local, remote netip.Addr, p *mad.Packet) {
	r := mad.DREQ(p.Data)
	c := m.byIDs(remote, r.RemoteCommID(), r.LocalCommID())
	if c == nil {
		// The peer waits for a connection that is over here. Ids are swapped.
		m.stray(p.Attr)
		m.drep(local, remote, 0, p.Hdr.TID(), r.RemoteCommID(), r.LocalCommID(), nil)
		return
	}
	if r.RemoteQPN() != c.localQPN {
		m.drop(DropQPN)
		return
	}
	switch c.state {
	case StateRepSent, StateMRARepRcvd, StateEstablished, StateDreqSent:
		mine := c.state == StateDreqSent
		m.stop(c)
		c.dreqTID = p.Hdr.TID()
		m.forgetQPN(c) // the peer has done with its queue pair, and may use the number again
		m.enter(c, StateDreqRcvd)
		m.emit(Event{Kind: EventDREQReceived, Conn: c, PrivateData: clone(r.PrivateData())})
		if mine {
			_ = m.SendDREP(now, c, nil)
		}
	case StateTimewait:
		m.dup(p.Attr)
		c.dreqTID = p.Hdr.TID()
		m.sendDREP(c)
	case StateDreqRcvd:
		m.dup(p.Attr)
	default:
		m.drop(DropState)
	}
}

func (m *Manager) onDREP(now int64, remote netip.Addr, p *mad.Packet) {
	r := mad.DREP(p.Data)
	c := m.byIDs(remote, r.RemoteCommID(), r.LocalCommID())
	switch {
	case c == nil:
		m.stray(p.Attr)
	case c.state == StateDreqSent:
		m.timewait(now, c)
		m.emit(Event{Kind: EventDREPReceived, Conn: c, PrivateData: clone(r.PrivateData())})
	case c.state == StateDreqRcvd:
		m.timewait(now, c) // the owner knows already that the connection is over
	default:
		m.dup(p.Attr)
		m.drop(DropState)
	}
}
