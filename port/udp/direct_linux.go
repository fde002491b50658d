package udp

import (
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Where the kernel has no filter for groups of sockets, members that send to each other
// do without the control socket and the steward who reads it: a datagram goes through the
// pool, or when it is short in the message itself, straight into the mailbox of the member
// whose queue pair it is for. What such a member gets is input, as from the steward: the
// checks are the same (unpack). Queue pair 1 stays with the steward, who knows
// whose a management datagram is, and so does what a member sends to itself.

// parcel is the message to a member that one Send fills.
type parcel struct {
	slot int
	outbox
	sent sent // what is in it
}

// hand sends a message to the member that it is for; false: it has to go through the
// socket. It needs no lock: several senders may do so at once.
func (s *sender) hand(sock *socket, m *pkt.Msg) bool {
	to := s.p.localOf(m.Flow.To.Addr())
	if to == nil || !to.blind.Load() || !(*s.p.socks.Load())[sock.index].blind.Load() {
		return false // one of the two may have gone
	}
	g := s.p.share.group
	n := destQP(s.b.Frags[m.First])
	slot, ok := g.SlotOf(n)
	if !ok || slot == g.Slot() || n == ib.QPNGSI || n == ib.QPNMulticast || m.Bytes > datagramMax {
		return false // a buffer cannot be passed to oneself
	}
	d := pkt.Datagram{SegSize: m.SegSize, Src: sock.source(), Dst: to.addr, TOS: m.Flow.TClass, TTL: m.Flow.HopLimit}
	if d.TTL == 0 {
		d.TTL = defaultTTL
	}
	x := s.parcelTo(slot, m.Bytes)
	if m.Bytes <= inlineMax {
		at := len(x.b)
		x.record(kindBytes, &d, m.Bytes)
		x.b = x.b[:len(x.b)+m.Bytes]
		if !s.fill(x.b[at+recordLen:], m) {
			x.b, x.count = x.b[:at], x.count-1
			return true
		}
		if !s.alike(x.b[at+recordLen:], m.SegSize) {
			x.b, x.count = x.b[:at], x.count-1
			return false
		}
		x.pad()
	} else {
		buf, ok := g.PoolGet()
		if !ok {
			return false
		}
		b := g.PoolBytes(buf)
		switch {
		case len(b) < m.Bytes:
			ok = false
		case !s.fill(b[:m.Bytes], m):
			g.PoolPut(buf)
			return true
		default:
			ok = s.alike(b[:m.Bytes], m.SegSize) && g.PoolPass(buf, slot)
		}
		if !ok {
			g.PoolPut(buf)
			return false
		}
		d.Data = b[:m.Bytes]
		x.pool(&d, buf)
	}
	x.sent.msgs++
	x.sent.packets += uint64(m.Segs)
	x.sent.bytes += uint64(m.Bytes)
	return true
}

// fill copies a message; false: its payload is not there any more, which is counted.
func (s *sender) fill(to []byte, m *pkt.Msg) bool {
	if s.b.Gather(to, m) != nil {
		s.sent.fault++
		return false
	}
	return true
}

// alike reports whether all segments are for queue pairs of one member, none for queue pair 1.
func (s *sender) alike(b []byte, segSize int) bool {
	_, mask := s.p.share.group.Numbers()
	first := destQP(b)
	for len(b) > 0 {
		if len(b) < roce.BTHLen {
			return false
		}
		if n := destQP(b); n&mask != first&mask || n == ib.QPNGSI || n == ib.QPNMulticast {
			return false
		}
		b = b[min(segSize, len(b)):]
	}
	return true
}

// destQP is the queue pair number that a packet is for.
func destQP(b []byte) ib.QPN {
	return ib.QPN(b[5])<<16 | ib.QPN(b[6])<<8 | ib.QPN(b[7])
}

// parcelTo gives the message to a slot, with room for a record and n bytes if they go in it.
func (s *sender) parcelTo(slot, n int) *parcel {
	x := &s.sc.parcel
	if x.b == nil {
		x.b = make([]byte, 0, mailMax)
	}
	if n > inlineMax {
		n = 0
	}
	if len(x.b) > 0 && (x.slot != slot || len(x.b)+recordLen+n+7 > cap(x.b)) {
		s.deliver()
	}
	x.slot = slot
	return x
}

// deliver sends the message that was filled. A full mailbox loses it, as a full socket would.
func (s *sender) deliver() {
	x := &s.sc.parcel
	if len(x.b) == 0 {
		return
	}
	switch s.p.share.group.Send(x.slot, x.b) {
	case nil:
		s.sent.msgs += x.sent.msgs
		s.sent.packets += x.sent.packets
		s.sent.bytes += x.sent.bytes
	case unix.EAGAIN:
		s.sent.again += x.sent.msgs
		s.p.takeBack(x.slot, x.b)
	default:
		s.sent.errors += x.sent.msgs
		s.p.takeBack(x.slot, x.b)
	}
	x.b, x.count, x.sent = x.b[:0], 0, sent{}
}
