package udp

import (
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
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
	slot, ok := g.SlotOf(destQP(s.b.Frags[m.First]))
	if !ok || slot == g.Slot() {
		return false // a buffer cannot be passed to oneself
	}
	d := pkt.Datagram{SegSize: m.SegSize, Src: sock.source(), Dst: to.addr, TOS: m.Flow.TClass, TTL: m.Flow.HopLimit}
	if d.TTL == 0 {
		d.TTL = defaultTTL
	}
	x := s.parcelTo(slot, m.Bytes)
	var went, fault bool
	if m.Bytes <= inlineMax {
		went, fault = s.inline(x, &d, m)
	} else {
		went, fault = s.pooled(x, &d, m)
	}
	if fault { // the payload is not there any more: nothing to send
		s.sent.fault++
		return true
	}
	if went {
		x.sent.msgs++
		x.sent.packets += uint64(m.Segs)
		x.sent.bytes += uint64(m.Bytes)
	}
	return went
}

// inline puts a message's bytes into the parcel.
func (s *sender) inline(x *parcel, d *pkt.Datagram, m *pkt.Msg) (went, fault bool) {
	at := len(x.b)
	x.record(kindBytes, d, m.Bytes)
	x.b = x.b[:len(x.b)+m.Bytes]
	b := x.b[at+recordLen:]
	fault = s.b.Gather(b, m) != nil
	if !fault {
		_, went = s.p.oneMember(b, m.SegSize)
	}
	if !went {
		x.b, x.count = x.b[:at], x.count-1
		return false, fault
	}
	x.pad()
	return true, false
}

// pooled puts them into a buffer of the pool, and its number into the parcel.
func (s *sender) pooled(x *parcel, d *pkt.Datagram, m *pkt.Msg) (went, fault bool) {
	g := s.p.share.group
	buf, ok := g.PoolGet()
	if !ok {
		return false, false
	}
	if b := g.PoolBytes(buf); len(b) >= m.Bytes {
		d.Data = b[:m.Bytes]
		fault = s.b.Gather(d.Data, m) != nil
		if !fault {
			_, went = s.p.oneMember(d.Data, m.SegSize)
			went = went && g.PoolPass(buf, x.slot)
		}
	}
	if !went {
		g.PoolPut(buf)
		return false, fault
	}
	x.pool(d, buf)
	return true, false
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
