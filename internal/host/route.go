package host

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// route finds the member to which a management datagram goes.
func (c *claims) route(local, remote netip.Addr, b []byte) (int, bool) {
	var p mad.Packet
	if mad.Parse(b, &p) == nil {
		// The first word of all messages is the sender's ID, or the request's of SIDR; the
		// second of those that answer something is ours.
		theirs, ours := binary.BigEndian.Uint32(p.Data), binary.BigEndian.Uint32(p.Data[4:])
		switch p.Attr {
		case mad.AttrREQ:
			// A repetition belongs to who has answered it, even if somebody else listens now.
			if slot, ok := c.d.lookup(remote, theirs); ok {
				return slot, true
			}
			if slot, ok := c.service(mad.REQ(p.Data).ServiceID(), local); ok {
				return slot, true
			}
		case mad.AttrSIDRREQ:
			if slot, ok := c.service(mad.SIDRREQ(p.Data).ServiceID(), local); ok {
				return slot, true
			}
		case mad.AttrSIDRREP:
			if slot := int(theirs >> CommBits); c.d.servesMADs(slot) {
				return slot, true
			}
		default:
			if slot := int(ours >> CommBits); c.d.servesMADs(slot) {
				return slot, true
			}
			if ours == 0 { // as in a REJ or DREQ of who does not know our ID
				if slot, ok := c.d.lookup(remote, theirs); ok && c.d.servesMADs(slot) {
					return slot, true
				}
			}
		}
	}
	// Who asks has received it, and so has the socket of its address to refuse it from, which
	// others need not have.
	if c.d.servesMADs(c.slot) {
		return c.slot, true
	}
	for slot := range Slots {
		if c.d.servesMADs(slot) {
			return slot, true
		}
	}
	return 0, false
}

// service finds who listens.
func (c *claims) service(id uint64, local netip.Addr) (int, bool) {
	space, port, ok := mad.SplitServiceID(id)
	if !ok {
		return 0, false
	}
	slot, ok := c.listener(space, port, local)
	return slot, ok && c.d.servesMADs(slot)
}
