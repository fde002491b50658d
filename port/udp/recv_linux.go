package udp

import (
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// turnBytes is about what one system call should receive: more would push what
// it received first out of the cache before it is used.
const turnBytes = 256 << 10

// manyAfter receives of one datagram in a row that found something, several are asked for.
const manyAfter = 2

// receiver is what Recv works with. Only the goroutine in Recv touches it.
type receiver struct {
	bufs  []byte // turn buffers, one behind the other
	hdrs  [turn]unix.Mmsghdr
	iovs  [turn]unix.Iovec
	names [turn]rawAddr
	ctls  [turn][rxCtlLen]byte
	dirty int // headers from the start that the kernel changed
	vec   int // buffers offered in one call

	hot   *socket       // the one that delivered last, when there are several
	calls uint          // of Recv
	polls []unix.PollFd // of the local addresses, and of all groups in one
	socks int           // local addresses in polls
	ep    int           // descriptor of the groups in polls, -1 for none
	stamp uint32        // Port.renewed when polls was made
}

// Recv implements port.Port. It takes at most 64 datagrams. A poll of a port
// with one local address is one system call, with any more two.
func (p *Port) Recv(b *pkt.Rx) int {
	b.Dgrams = b.Dgrams[:0]
	if !p.enter() {
		return 0
	}
	socks := *p.socks.Load()
	r := &p.rx
	limit := min(cap(b.Dgrams), turn)
	ep := p.groups.fd()
	switch {
	case limit == 0 || len(socks) == 0 && ep < 0:
	case p.share != nil && len(socks) <= 1:
		p.recvShared(socks, b, limit)
	case len(socks) == 1 && ep < 0:
		p.recvFrom(socks[0], b, 0, limit)
	default:
		if r.bufs == nil {
			r.init(p.cfg.bufBytes)
		}
		p.recvMany(socks, ep, b, limit)
	}
	p.leave()
	return len(b.Dgrams)
}

// recvMany receives from several sockets: from the one that delivered last
// without asking, from the others, and from those of groups, if they have
// something.
func (p *Port) recvMany(socks []*socket, ep int, b *pkt.Rx, limit int) {
	r := &p.rx
	if n := p.renewed.Load(); r.socks != len(socks) || r.ep != ep || r.stamp != n {
		r.polls, r.socks, r.ep, r.stamp = pollList(r.polls[:0], socks, ep), len(socks), ep, n
	}
	// Every fourth time the others come first, wherever they start, so that a
	// socket that always has more starves none.
	r.calls++
	hot, at := r.hot, 0
	if p.share != nil && (len(p.share.rest) > 0 || len(p.share.dirty) > 0) {
		at = p.recvSide(b, at, limit)
	}
	if r.calls%4 == 0 {
		hot = nil
	}
	if hot != nil {
		at = p.recvFrom(hot, b, at, limit)
	}
	if at >= limit {
		return
	}
	if n, _ := pollNow(r.polls); n <= 0 {
		return
	}
	start := int(r.calls % uint(len(r.polls)))
	for i := range r.polls {
		k := (start + i) % len(r.polls)
		if r.polls[k].Revents == 0 {
			continue
		}
		if k == len(socks) {
			if at = p.recvEpoll(b, at, limit); at >= limit {
				return
			}
			continue
		}
		if socks[k] == hot {
			continue
		}
		if next := p.recvFrom(socks[k], b, at, limit); next > at {
			at = next
			r.hot = socks[k]
		}
		if at >= limit {
			return
		}
	}
}

// pollList appends what is to be looked at: the sockets, and ep if it is not -1.
func pollList(list []unix.PollFd, socks []*socket, ep int) []unix.PollFd {
	for _, s := range socks {
		fd := int32(s.fd)
		if s.blind.Load() {
			fd = -1 // is passed over
		}
		list = append(list, unix.PollFd{Fd: fd, Events: unix.POLLIN})
	}
	if ep >= 0 {
		list = append(list, unix.PollFd{Fd: int32(ep), Events: unix.POLLIN})
	}
	return list
}

// init makes the buffers. Memory that no datagram has reached costs nothing:
// the system provides pages on first touch.
func (r *receiver) init(size int) {
	r.bufs = make([]byte, turn*size)
	for i := range r.hdrs {
		r.iovs[i].Base = &r.bufs[i*size]
		r.iovs[i].SetLen(size)
		h := &r.hdrs[i].Hdr
		h.Name = &r.names[i][0]
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = &r.ctls[i][0]
	}
	r.dirty = turn
	r.vec = turn
}

// recvFrom receives from a socket into the buffers from at on, up to limit,
// and returns the first buffer that is still free.
func (p *Port) recvFrom(s *socket, b *pkt.Rx, at, limit int) int {
	r := &p.rx
	if r.bufs == nil {
		r.init(p.cfg.bufBytes)
	}
	r.clean()
	one := p.noMMsg.Load()
	// Where one datagram comes at a time, asking for several costs half a microsecond:
	// the kernel looks a second time. Some calls in a row with something change that.
	single := !one && s.streak < manyAfter
	end := min(limit, at+r.vec)
	for retried := false; at < end; {
		n, errno := 1, unix.Errno(0)
		if one || single {
			errno = recvmsg(s.fd, &r.hdrs[at])
		} else {
			n, errno = recvmmsg(s.fd, r.hdrs[at:end])
			if errno == unix.ENOSYS {
				one = true
				p.noMMsg.Store(true)
				continue
			}
		}
		if errno != 0 {
			// Anything but EAGAIN is an ICMP error of a packet sent earlier, and is
			// gone now that it was reported.
			if errno == unix.EAGAIN || retried {
				s.streak = 0
				return at
			}
			retried = true
			continue
		}
		r.dirty = max(r.dirty, at+n)
		bytes := 0
		for i := at; i < at+n; i++ {
			bytes += int(r.hdrs[i].Len)
			p.deliver(s, b, i)
		}
		add(&p.counters.rxDgrams, uint64(n))
		add(&p.counters.rxBytes, uint64(bytes))
		at += n
		if single {
			s.streak++
			return at
		}
		if !one {
			if n == 1 {
				s.streak = 0
			}
			r.vec = max(4, min(turn, turnBytes*n/(bytes+1)))
			return at
		}
	}
	return at
}

// clean makes the headers ready that the kernel has changed.
func (r *receiver) clean() {
	for i := range r.hdrs[:r.dirty] {
		h := &r.hdrs[i].Hdr
		h.Namelen = uint32(len(rawAddr{}))
		h.SetControllen(rxCtlLen)
		h.Flags = 0
	}
	r.dirty = 0
}

// deliver appends the datagram in buffer i, if it is whole, to the batch.
func (p *Port) deliver(s *socket, b *pkt.Rx, i int) {
	r := &p.rx
	h := &r.hdrs[i].Hdr
	n := int(r.hdrs[i].Len)
	size := p.cfg.bufBytes
	if h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || n > size {
		p.counters.rxTrunc.Add(1)
		return
	}
	if n == 0 {
		return // not a packet of any kind
	}
	ctl := r.ctls[i][:min(int(h.Controllen), rxCtlLen)]
	if s.kind == ofGroup && s.index < 0 && s.addr.Is6() && arrivedOn(ctl) != s.scope {
		p.counters.rxForeign.Add(1)
		return
	}
	a := parseAncillary(ctl)
	if a.segSize <= 0 || a.segSize > n {
		a.segSize = n
	}
	if r.names[i] != s.lastRaw {
		s.lastRaw = r.names[i]
		s.last = r.names[i].addrPort(s.addr.Zone())
	}
	at := i * size
	b.Dgrams = b.Dgrams[:len(b.Dgrams)+1]
	b.Dgrams[len(b.Dgrams)-1] = pkt.Datagram{
		Data:    r.bufs[at : at+n : at+n],
		SegSize: a.segSize,
		Src:     s.last,
		Dst:     s.addr,
		Local:   s.index,
		TOS:     a.tos,
		TTL:     a.ttl,
	}
}
