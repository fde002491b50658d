package udp

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
)

// What one process has received and is another one's travels in messages to mailboxes: a
// message is a sequence of records. Each is a datagram, whose bytes follow or lie in a
// buffer of the pool. A mailbox holds few messages, so all of one turn for a process go
// in one. Messages are input: any process of the user can write them.
//
//	 0  kind: 1 the bytes follow, 2 they are in the pool
//	 1  traffic class
//	 2  hop limit
//	 3  0
//	 4  length of the datagram, 4 bytes
//	 8  length of a segment, 4 bytes
//	12  source port, 2 bytes
//	14  0, 2 bytes
//	16  buffer of the pool, 4 bytes
//	20  0, 4 bytes
//	24  source address
//	40  destination address
//	56  the datagram, padded to 8 bytes
const (
	recordLen   = 56
	kindBytes   = 1
	kindPool    = 2
	mailMax     = host.MaxMail
	inlineMax   = 2 << 10 // from here on bytes go through the pool
	inlineLimit = mailMax - recordLen - 8
)

var order = binary.NativeEndian // both are on this machine

// outbox is the message to a process that is being filled.
type outbox struct {
	b     []byte
	count uint64 // datagrams in it
}

// outboxFor gives the message to a slot with room for a record with n bytes; nil: there is none.
func (p *Port) outboxFor(slot, n int) *outbox {
	sh := p.share
	o := sh.out[slot]
	if o == nil {
		if k := len(sh.free); k > 0 {
			o, sh.free = sh.free[k-1], sh.free[:k-1]
		} else {
			o = &outbox{b: make([]byte, 0, mailMax)}
		}
		sh.out[slot] = o
		sh.dirty = append(sh.dirty, slot)
	}
	if len(o.b)+recordLen+n+7 > cap(o.b) {
		if len(o.b) == 0 || !p.post(slot, o) {
			return nil
		}
	}
	return o
}

// post sends a message; false: the mailbox is full. To a process that is gone everything
// can be sent.
func (p *Port) post(slot int, o *outbox) bool {
	switch p.share.group.Send(slot, o.b) {
	case nil:
	case unix.EAGAIN:
		return false
	default:
		add(&p.counters.relayLost, o.count)
		p.takeBack(slot, o.b)
	}
	o.b, o.count = o.b[:0], 0
	return true
}

// takeBack gets the buffers of the pool that are named in a message that was not sent.
func (p *Port) takeBack(slot int, m []byte) {
	for len(m) >= recordLen {
		used := recordLen
		if m[0] == kindPool {
			p.share.group.PoolTake(int(order.Uint32(m[16:])), slot)
		} else {
			used += (int(order.Uint32(m[4:])) + 7) &^ 7
		}
		m = m[used:]
	}
}

// Flush implements port.Sharer. What does not fit into a mailbox now is tried again.
func (p *Port) Flush() {
	sh := p.share
	if sh == nil || !p.enter() {
		return
	}
	defer p.leave()
	left := sh.dirty[:0]
	for _, slot := range sh.dirty {
		o := sh.out[slot]
		if len(o.b) > 0 && !p.post(slot, o) {
			left = append(left, slot)
			continue
		}
		sh.out[slot] = nil
		sh.free = append(sh.free, o)
	}
	sh.dirty = left
	p.unsent.Store(len(left) > 0)
}

// record appends a record's header.
func (o *outbox) record(kind uint8, d *pkt.Datagram, n int) {
	at := len(o.b)
	o.b = o.b[:at+recordLen]
	h := o.b[at:]
	clear(h)
	h[0], h[1], h[2] = kind, d.TOS, d.TTL
	order.PutUint32(h[4:], uint32(n))
	order.PutUint32(h[8:], uint32(d.SegSize))
	order.PutUint16(h[12:], d.Src.Port())
	src, dst := d.Src.Addr().As16(), d.Dst.As16()
	copy(h[24:], src[:])
	copy(h[40:], dst[:])
	o.count++
}

// pool appends the record of a datagram that lies in a buffer of the pool.
func (o *outbox) pool(d *pkt.Datagram, buf int) {
	at := len(o.b)
	o.record(kindPool, d, len(d.Data))
	order.PutUint32(o.b[at+16:], uint32(buf))
}

// pad ends a record whose datagram was appended.
func (o *outbox) pad() {
	for len(o.b)%8 != 0 {
		o.b = append(o.b, 0)
	}
}

// Forward implements port.Sharer.
func (p *Port) Forward(n ib.QPN, d *pkt.Datagram) port.Forwarded {
	if p.share == nil {
		return port.Nobody
	}
	slot, ok := p.share.group.SlotOf(n)
	if !ok || slot == p.share.group.Slot() {
		return port.Nobody
	}
	return p.hand(slot, d)
}

// Management implements port.Sharer.
func (p *Port) Management(d *pkt.Datagram, data []byte) port.Forwarded {
	if p.share == nil {
		return port.Ours
	}
	slot, ok := p.share.group.Route(d.Dst.WithZone(""), d.Src.Addr().Unmap().WithZone(""), data)
	switch {
	case !ok:
		return port.Nobody
	case slot == p.share.group.Slot():
		return port.Ours
	}
	return p.hand(slot, d)
}

// hand puts a copy of a datagram into the message to a slot.
func (p *Port) hand(slot int, d *pkt.Datagram) port.Forwarded {
	if uint(slot) >= slotCount {
		return port.Nobody
	}
	n := len(d.Data)
	if n > inlineMax {
		if buf, ok := p.share.group.PoolGet(); ok {
			if m := p.share.group.PoolBytes(buf); len(m) >= n {
				copy(m, d.Data)
				if p.pass(slot, buf, d) {
					return port.Handed
				}
			}
			p.share.group.PoolPut(buf)
			return port.Full
		}
	}
	if n > inlineLimit {
		return port.Full
	}
	o := p.outboxFor(slot, n)
	if o == nil {
		return port.Full
	}
	o.record(kindBytes, d, n)
	o.b = append(o.b, d.Data...)
	o.pad()
	return port.Handed
}

// pass puts a buffer of the pool, in which a datagram lies, into the message to a slot;
// false: it stays ours.
func (p *Port) pass(slot, buf int, d *pkt.Datagram) bool {
	o := p.outboxFor(slot, 0)
	if o == nil || !p.share.group.PoolPass(buf, slot) {
		return false
	}
	o.pool(d, buf)
	return true
}

// recvMail reads messages and delivers what is in them.
func (p *Port) recvMail(b *pkt.Rx, at, limit int) int {
	sh := p.share
	for at < limit {
		if at = p.recvRest(b, at, limit); len(sh.rest) > 0 {
			break
		}
		n, err := sh.group.Recv(sh.mail)
		if err != nil || n <= 0 {
			break
		}
		sh.rest = sh.mail[:min(n, len(sh.mail))]
	}
	return at
}

// recvRest delivers what is left of a message.
func (p *Port) recvRest(b *pkt.Rx, at, limit int) int {
	sh := p.share
	for len(sh.rest) > 0 && at < limit {
		used, ok := p.unpack(b, at, sh.rest)
		if used == 0 {
			p.counters.rxGarbage.Add(1)
			sh.rest = nil
			break
		}
		sh.rest = sh.rest[used:]
		if ok {
			at++
		}
	}
	p.more.Store(len(sh.rest) > 0)
	return at
}

// unpack delivers the first record of a message into buffer i, if it is a datagram. It
// returns the record's length, 0 if there is no sense in the message.
func (p *Port) unpack(b *pkt.Rx, i int, m []byte) (used int, ok bool) {
	if len(m) < recordLen {
		return 0, false
	}
	h := m[:recordLen]
	n, seg := order.Uint32(h[4:]), order.Uint32(h[8:])
	if n == 0 || seg == 0 || seg > n || int64(n) > int64(p.cfg.bufBytes) {
		return 0, false
	}
	size := p.cfg.bufBytes
	to := p.rx.bufs[i*size : i*size+int(n) : i*size+int(n)]
	switch h[0] {
	case kindBytes:
		used = recordLen + (int(n)+7)&^7
		if used > len(m) {
			return 0, false
		}
		copy(to, m[recordLen:])
	case kindPool:
		used = recordLen
		buf := int(order.Uint32(h[16:]))
		g := p.share.group
		if !g.PoolMine(buf) {
			p.counters.rxGarbage.Add(1)
			return used, false // as of the slot's owner before; the rest may be ours
		}
		from := g.PoolBytes(buf)
		if int(n) > len(from) {
			g.PoolPut(buf)
			p.counters.rxGarbage.Add(1)
			return used, false
		}
		// Out of memory that others can write to: what is checked must stay as it is.
		copy(to, from)
		g.PoolPut(buf)
	default:
		return 0, false
	}
	src, dst := netip.AddrFrom16([16]byte(h[24:40])).Unmap(), netip.AddrFrom16([16]byte(h[40:56])).Unmap()
	local := p.localOf(dst)
	if local == nil {
		p.counters.rxGarbage.Add(1)
		return used, false
	}
	if z := local.addr.Zone(); z != "" && src.Is6() && src.IsLinkLocalUnicast() {
		src = src.WithZone(z)
	}
	add(&p.counters.rxDgrams, 1)
	add(&p.counters.rxBytes, uint64(n))
	b.Dgrams = append(b.Dgrams, pkt.Datagram{
		Data: to, SegSize: int(seg), Src: netip.AddrPortFrom(src, order.Uint16(h[12:])),
		Dst: local.addr, Local: local.index, TOS: h[1], TTL: h[2], Relayed: true,
	})
	return used, true
}

// localOf finds the socket of a local address.
func (p *Port) localOf(a netip.Addr) *socket {
	for _, s := range *p.socks.Load() {
		if s.addr == a || s.addr.WithZone("") == a {
			return s
		}
	}
	return nil
}
