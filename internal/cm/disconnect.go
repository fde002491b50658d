package cm

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// Disconnect sends a DREQ: the connection is in StateDreqSent until it is answered or has timed out. EINVAL: it is not established;
// in StateDreqRcvd SendDREP is what disconnects.
func (m *Manager) Disconnect(now int64, c *Conn, private []byte) error {
	if err := tooLong("private data", len(private), DREQPrivateLen); err != nil {
		return err
	}
	if c.state != StateEstablished {
		return syscall.EINVAL
	}
	m.enter(c, StateDreqSent)
	_, data := m.keep(c, mad.AttrDREQ, m.newTID())
	r := mad.DREQ(data)
	r.SetLocalCommID(c.localID)
	r.SetRemoteCommID(c.remoteID)
	r.SetRemoteQPN(c.remoteQPN)
	copy(r.PrivateData(), private)
	m.start(now, c)
	return nil
}

// SendDREP answers a DREQ: the connection is in TIMEWAIT. EINVAL: in another state than StateDreqRcvd.
func (m *Manager) SendDREP(now int64, c *Conn, private []byte) error {
	if err := tooLong("private data", len(private), DREPPrivateLen); err != nil {
		return err
	}
	if c.state != StateDreqRcvd {
		return syscall.EINVAL
	}
	m.timewait(now, c)
	c.saved = append([]byte(nil), private...)
	m.sendDREP(c)
	return nil
}

func (m *Manager) sendDREP(c *Conn) {
	m.drep(c.local, c.remote, c.path.TrafficClass, c.dreqTID, c.localID, c.remoteID, c.saved)
}

func (m *Manager) drep(local, remote netip.Addr, tc uint8, tid uint64, localID, remoteID uint32, private []byte) {
	r := mad.DREP(m.begin(local, remote, tc, mad.AttrDREP, tid))
	r.SetLocalCommID(localID)
	r.SetRemoteCommID(remoteID)
	copy(r.PrivateData(), private)
}

// Destroy ends a connection whatever its state is, telling the peer: no event of it comes any more. What has to go on (an unanswered
// DREQ, TIMEWAIT) goes on without the owner. Calling it again does nothing.
func (m *Manager) Destroy(now int64, c *Conn) {
	if c.destroyed {
		return
	}
	c.destroyed = true
	c.Context = nil
	switch c.state {
	case StateReqSent, StateMRAReqRcvd:
		var guid [8]byte
		binary.BigEndian.PutUint64(guid[:], m.cfg.CAGUID)
		_ = m.Reject(now, c, mad.RejectTimeout, guid[:], nil)
	case StateReqRcvd, StateMRAReqSent, StateRepSent, StateMRARepRcvd, StateRepRcvd, StateMRARepSent:
		_ = m.Reject(now, c, mad.RejectConsumer, nil, nil)
	case StateEstablished:
		if c.service == mad.TransportExtended && c.passive {
			m.idle(c) // an XRC target outlives who made it; Linux does not disconnect it either
			return
		}
		_ = m.Disconnect(now, c, nil)
	case StateDreqRcvd:
		_ = m.SendDREP(now, c, nil)
	case StateSidrReqSent:
		m.idle(c)
	case StateSidrReqRcvd:
		_ = m.SIDRReply(now, c, &SIDRREPParams{Status: mad.SIDRRejected})
	}
}
