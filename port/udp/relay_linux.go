package udp

import (
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Where the kernel has no filter for groups of sockets everything comes to the control
// socket. The steward receives it into buffers of the pool, which all processes see, and
// passes the buffers on: nothing is copied for another process but by itself, out of
// memory that its neighbours can write to. What is the steward's own is copied for the
// same reason.

// relayBufs is how many buffers of the pool the steward receives into.
const relayBufs = 32

// relay is what it receives with.
type relay struct {
	bufs  [relayBufs]int // of the pool, and 1; 0: none
	hdrs  [relayBufs]unix.Mmsghdr
	iovs  [relayBufs]unix.Iovec
	names [relayBufs]rawAddr
	ctls  [relayBufs][rxCtlLen]byte
}

// fill has all headers ready, those with a buffer first, and returns their number.
func (r *relay) fill(g Group, want int) int {
	n := 0
	for n < want {
		if r.bufs[n] == 0 {
			buf, ok := g.PoolGet()
			if !ok {
				break
			}
			m := g.PoolBytes(buf)
			if len(m) < datagramMax {
				g.PoolPut(buf)
				break
			}
			r.bufs[n] = buf + 1
			r.iovs[n].Base = &m[0]
			r.iovs[n].SetLen(datagramMax)
		}
		h := &r.hdrs[n].Hdr
		h.Name, h.Namelen = &r.names[n][0], uint32(len(rawAddr{}))
		h.Iov = &r.iovs[n]
		h.SetIovlen(1)
		h.Control = &r.ctls[n][0]
		h.SetControllen(rxCtlLen)
		h.Flags = 0
		n++
	}
	return n
}

// close gives the buffers back.
func (r *relay) close(g Group) {
	for i, b := range r.bufs {
		if b != 0 {
			g.PoolPut(b - 1)
			r.bufs[i] = 0
		}
	}
}

// relayFrom receives from a control socket to which everything comes. What is for one
// other process goes there; what is ours, for queue pair 1, or several processes' is
// delivered, into the buffers from at on.
func (p *Port) relayFrom(s *socket, b *pkt.Rx, at, limit int) int {
	r, g := &p.share.relay, p.share.group
	want := min(relayBufs, limit-at)
	n := r.fill(g, want)
	if n == 0 {
		return p.recvFrom(s, b, at, limit) // no memory to share: one by one over the mailbox
	}
	var errno unix.Errno
	for try := 0; try < 2; try++ {
		if p.noMMsg.Load() {
			if errno = recvmsg(s.fd, &r.hdrs[0]); errno == 0 {
				n = 1
			}
		} else {
			var got int
			if got, errno = recvmmsg(s.fd, r.hdrs[:n]); errno == 0 {
				n = got
			} else if errno == unix.ENOSYS {
				p.noMMsg.Store(true)
				continue
			}
		}
		if errno == 0 || errno == unix.EAGAIN {
			break
		}
	}
	if errno != 0 {
		return at
	}
	bytes := 0
	for i := range n {
		bytes += int(r.hdrs[i].Len)
		if p.relay(s, b, at, i) {
			at++
		}
	}
	add(&p.counters.rxDgrams, uint64(n))
	add(&p.counters.rxBytes, uint64(bytes))
	p.Flush()
	return at
}

// relay sees to the datagram in header i; true: it was delivered into buffer at.
func (p *Port) relay(s *socket, b *pkt.Rx, at, i int) bool {
	r, g := &p.share.relay, p.share.group
	h := &r.hdrs[i].Hdr
	n := int(r.hdrs[i].Len)
	if h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > p.cfg.bufBytes {
		p.counters.rxTrunc.Add(1)
		return false
	}
	if n == 0 {
		return false
	}
	a := parseAncillary(r.ctls[i][:min(int(h.Controllen), rxCtlLen)])
	if a.segSize <= 0 || a.segSize > n {
		a.segSize = n
	}
	if r.names[i] != s.lastRaw {
		s.lastRaw = r.names[i]
		s.last = r.names[i].addrPort(s.addr.Zone())
	}
	data := g.PoolBytes(r.bufs[i] - 1)[:n]
	d := pkt.Datagram{Data: data, SegSize: a.segSize, Src: s.last, Dst: s.addr, Local: s.index, TOS: a.tos, TTL: a.ttl}
	if qpn, ok := p.oneMember(data, a.segSize); ok {
		if slot, ok := g.SlotOf(qpn); ok && slot != g.Slot() {
			if p.pass(slot, r.bufs[i]-1, &d) {
				r.bufs[i] = 0
				p.counters.relayed.Add(1)
			} else {
				p.counters.relayLost.Add(1)
			}
			return false
		}
	}
	size := p.cfg.bufBytes
	d.Data = p.rx.bufs[at*size : at*size+n : at*size+n]
	copy(d.Data, data)
	b.Dgrams = append(b.Dgrams, d)
	return true
}

// oneMember gives a queue pair number of the one process that all segments are for; ok is
// false if there is none, and for queue pair 1 and multicast, which are for whoever serves them.
func (p *Port) oneMember(data []byte, segSize int) (n ib.QPN, ok bool) {
	_, mask := p.share.group.Numbers()
	for first := true; len(data) > 0; first = false {
		if len(data) < roce.BTHLen {
			return 0, false
		}
		q := destQP(data)
		if first {
			n = q
		}
		if q&mask != n&mask || q == ib.QPNGSI || q == ib.QPNMulticast {
			return 0, false
		}
		data = data[min(segSize, len(data)):]
	}
	return n, true
}

// destQP is the queue pair number that a packet is for.
func destQP(b []byte) ib.QPN {
	return ib.QPN(b[5])<<16 | ib.QPN(b[6])<<8 | ib.QPN(b[7])
}
