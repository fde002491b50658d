package udp

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

const (
	iovMax      = 1024 // UIO_MAXIOV: the kernel's limit for one message
	scratchIovs = 2048
	scratchHdrs = 64

	// chunkBytes bounds one sendmmsg, during which Go's scheduler and garbage
	// collector wait for this thread: some 100 us over the loopback.
	chunkBytes = 512 << 10
)

// scratch is what one call of Send hands to the kernel. It is too large for
// the stack and pooled.
type scratch struct {
	hdrs [scratchHdrs]unix.Mmsghdr
	msgs [scratchHdrs]*pkt.Msg // what hdrs[i] sends
	ctls [scratchHdrs][txCtlLen]byte
	iovs [scratchIovs]unix.Iovec
	n    int // headers in use
	used int // iovs in use
	size int // bytes

	parcel parcel
}

// getScratch takes one from the pool. A sync.Pool would be emptied by every
// second garbage collection and allocate again.
func (p *Port) getScratch() *scratch {
	for i := range p.free {
		if sc := p.free[i].Swap(nil); sc != nil {
			return sc
		}
	}
	return new(scratch)
}

func (p *Port) putScratch(sc *scratch) {
	sc.reset()
	for i := range p.free {
		if p.free[i].CompareAndSwap(nil, sc) {
			return
		}
	}
}

// reset lets go of the payload.
func (sc *scratch) reset() {
	clear(sc.iovs[:sc.used])
	clear(sc.msgs[:sc.n])
	sc.n, sc.used, sc.size = 0, 0, 0
}

// dest is a Flow prepared for a socket: the port's part of the Flow.
type dest struct {
	to               netip.AddrPort
	tclass, hopLimit uint8
	label            uint32

	name    rawAddr
	nameLen uint32
	ctl     [3 * cmsgSpace]byte // traffic class, hop limit and flow label, those that are set
	ctlLen  int
}

// dest returns the prepared form of a flow. It stays with the flow, so that a
// packet costs four comparisons.
func (s *socket) dest(f *pkt.Flow) *dest {
	label := f.FlowLabel
	if label != 0 && s.noLabel.Load() {
		label = 0
	}
	if d, ok := f.Port.(*dest); ok && d.to == f.To && d.tclass == f.TClass && d.hopLimit == f.HopLimit && d.label == label {
		return d
	}
	d := &dest{to: f.To, tclass: f.TClass, hopLimit: f.HopLimit, label: label}
	scope := scopeID(f.To.Addr().Zone())
	if scope == 0 && f.To.Addr().IsLinkLocalUnicast() {
		scope = s.scope
	}
	d.nameLen = putRawAddr(&d.name, f.To, scope)
	level, tclass, hops := int32(unix.SOL_IP), int32(unix.IP_TOS), int32(unix.IP_TTL)
	if s.addr.Is6() {
		level, tclass, hops = unix.SOL_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
	}
	if f.TClass != 0 {
		d.ctlLen += putInt(d.ctl[d.ctlLen:], level, tclass, int(f.TClass))
	}
	if f.HopLimit != 0 {
		d.ctlLen += putInt(d.ctl[d.ctlLen:], level, hops, int(f.HopLimit))
	}
	if label != 0 && s.addr.Is6() {
		d.ctlLen += putInt(d.ctl[d.ctlLen:], level, ipv6FlowInfo, int(nativeLabel(label)))
	}
	f.Port = d
	return d
}

// Send implements port.Port. Messages that follow each other on the same socket
// go out in one system call. On a full socket buffer it waits once for
// at most 100 us. If offload was switched off it lowers b.Caps.MaxSegs.
func (p *Port) Send(b *pkt.Tx) {
	if len(b.Msgs) == 0 || !p.enter() {
		return
	}
	s := sender{p: p, b: b, sc: p.getScratch()}
	for i := 0; i < len(b.Msgs); {
		f := b.Msgs[i].Flow
		local, source := f.Local, f.Source
		j := i + 1
		for j < len(b.Msgs) && b.Msgs[j].Flow.Local == local && b.Msgs[j].Flow.Source == source {
			j++
		}
		if sock := p.sender(local, source); sock != nil {
			s.sendOn(sock, b.Msgs[i:j])
		} else {
			s.sent.errors += uint64(j - i)
		}
		i = j
	}
	p.putScratch(s.sc)
	p.counters.add(&s.sent)
	b.Caps.MaxSegs = min(b.Caps.MaxSegs, int(p.maxSegs.Load()))
	p.leave()
}

// Prepare implements port.Preparer.
func (p *Port) Prepare(f *pkt.Flow) {
	if s := p.sender(f.Local, f.Source); s != nil {
		s.dest(f)
	}
}

// sender is the socket that a flow's packets leave from, nil if there is none.
func (p *Port) sender(local, source int) *socket {
	list := *p.socks.Load()
	at := local
	if source > 0 {
		list, at = *p.sources.Load(), source-1
	}
	if uint(at) >= uint(len(list)) {
		return nil
	}
	return list[at]
}

// sender is one call of Send.
type sender struct {
	p      *Port
	b      *pkt.Tx
	sc     *scratch
	sent   sent
	waited bool // for room in a socket buffer
}

// sendOn sends consecutive messages of one socket.
func (s *sender) sendOn(sock *socket, msgs []pkt.Msg) {
	sc := s.sc
	maxSegs := int(s.p.maxSegs.Load())
	handing := s.p.handing.Load()
	for i := range msgs {
		m := &msgs[i]
		if handing && s.hand(sock, m) {
			continue
		}
		if m.Count > iovMax {
			s.sent.errors++
			continue
		}
		if sc.n == scratchHdrs || sc.used+m.Count > scratchIovs || sc.size+m.Bytes > chunkBytes && sc.n > 0 {
			s.flush(sock)
			maxSegs = int(s.p.maxSegs.Load())
		}
		if m.Segs > maxSegs {
			// Built before offload was switched off.
			s.flush(sock)
			s.singly(sock, m)
			continue
		}
		s.prepare(sock, m)
	}
	s.flush(sock)
	if handing {
		s.deliver()
	}
}

// prepare adds a message to the scratch, which has room for it.
func (s *sender) prepare(sock *socket, m *pkt.Msg) {
	sc := s.sc
	first := sc.used
	for _, f := range s.b.Frags[m.First : m.First+m.Count] {
		sc.addIov(f)
	}
	sc.addHdr(sock.dest(m.Flow), m, first, m.Segs)
}

func (sc *scratch) addIov(b []byte) {
	if len(b) == 0 {
		return
	}
	v := &sc.iovs[sc.used]
	v.Base = &b[0]
	v.SetLen(len(b))
	sc.used++
}

// addHdr adds the header of a message whose bytes are iovs[first:used].
func (sc *scratch) addHdr(d *dest, m *pkt.Msg, first, segs int) {
	h := &sc.hdrs[sc.n].Hdr
	h.Name, h.Namelen = &d.name[0], d.nameLen
	h.Iov = &sc.iovs[min(first, scratchIovs-1)]
	h.SetIovlen(sc.used - first)
	ctl := &sc.ctls[sc.n]
	n := copy(ctl[:], d.ctl[:d.ctlLen])
	if segs > 1 {
		n += putSegment(ctl[n:], m.SegSize)
	}
	if n > 0 {
		h.Control = &ctl[0]
	} else {
		h.Control = nil
	}
	h.SetControllen(n)
	sc.msgs[sc.n] = m
	sc.n++
	sc.size += m.Bytes
}

// flush sends what is in the scratch and empties it.
func (s *sender) flush(sock *socket) {
	sc := s.sc
	retried := false
	for at := 0; at < sc.n; {
		n, errno := s.p.sendHdrs(sock.fd, sc.hdrs[at:sc.n])
		if errno == 0 && n > 0 {
			for _, m := range sc.msgs[at : at+n] {
				s.sent.packets += uint64(m.Segs)
				s.sent.bytes += uint64(m.Bytes)
			}
			s.sent.msgs += uint64(n)
			at += n
			retried = false
			continue
		}
		switch s.failed(sock, sc.msgs[at], errno, retried) {
		case again:
			retried = true
		case skip:
			at++
			retried = false
		case drop:
			s.sent.again += uint64(sc.n - at)
			at = sc.n
		}
	}
	sc.reset()
}

// What to do about a message that could not be sent.
type verdict int

const (
	again verdict = iota // try it again
	skip                 // go on with the next one
	drop                 // give up the rest
)

// failed decides about message m, which failed with errno.
func (s *sender) failed(sock *socket, m *pkt.Msg, errno unix.Errno, retried bool) verdict {
	if errno == unix.EINVAL && m.Flow.FlowLabel != 0 && sock.addr.Is6() && !sock.noLabel.Swap(true) {
		// Where a socket has leased a flow label for itself alone, the kernel takes
		// none from others (IPV6_FL_S_EXCL). This packet is lost, the next ones go without.
		s.sent.errors++
		return skip
	}
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS:
		if !s.waited && errno == unix.EAGAIN {
			s.waited = true
			fds := [1]unix.PollFd{{Fd: int32(sock.fd), Events: unix.POLLOUT}}
			ts := unix.NsecToTimespec(int64(sendPatience))
			if n, _ := pollWait(fds[:], &ts); n > 0 {
				return again
			}
		}
		return drop
	case unix.EINTR:
		return again
	case unix.EFAULT:
		s.sent.fault++
		return skip
	case unix.EIO, unix.EINVAL:
		if m.Segs > 1 {
			return s.offloadFailed(sock, m, errno)
		}
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EPROTO, unix.EMSGSIZE:
		// Perhaps this is the ICMP error of an earlier packet, and reported now.
		if !retried {
			return again
		}
	}
	s.sent.errors++
	return skip
}

// offloadFailed finds out whether it is segmentation that the kernel refuses.
// EIO says so: the device cannot checksum segments. EINVAL may as well mean
// that a segment is larger than the MTU, or the address is wrong: then a lone
// segment fails too.
func (s *sender) offloadFailed(sock *socket, m *pkt.Msg, errno unix.Errno) verdict {
	went := s.singly(sock, m)
	if (errno == unix.EIO || went) && s.p.maxSegs.Swap(1) > 1 {
		s.p.counters.gsoOff.Add(1)
	}
	return skip
}

// singly sends the segments of a GSO message one by one, as far as that makes
// sense: over IPv4 only the first has the identification that its ICRC counts
// on, and the others are lost. It reports whether the first one went.
func (s *sender) singly(sock *socket, m *pkt.Msg) bool {
	segs := m.Segs
	if sock.addr.Is4() {
		segs = 1
	}
	sc := s.p.getScratch()
	defer s.p.putScratch(sc)
	d := sock.dest(m.Flow)
	frags := s.b.Frags[m.First : m.First+m.Count]
	left := m.Bytes
	var rest []byte // of the fragment in which the last segment ended
	first := false
	for k := range segs {
		size := min(m.SegSize, left)
		left -= size
		for need := size; need > 0; {
			if len(rest) == 0 {
				if len(frags) == 0 {
					return first
				}
				rest, frags = frags[0], frags[1:]
				continue
			}
			n := min(need, len(rest))
			sc.addIov(rest[:n])
			rest, need = rest[n:], need-n
		}
		sc.addHdr(d, m, 0, 1)
		errno := sendmsg(sock.fd, &sc.hdrs[0])
		sc.reset()
		if errno == 0 {
			first = first || k == 0
			s.sent.msgs++
			s.sent.packets++
			s.sent.bytes += uint64(size)
		} else if errno == unix.EFAULT {
			s.sent.fault++
		} else {
			s.sent.errors++
		}
	}
	if segs < m.Segs {
		s.sent.errors++
	}
	return first
}

// sendHdrs sends the first of the messages, or as many as go in one call, and
// returns how many went.
func (p *Port) sendHdrs(fd int, hdrs []unix.Mmsghdr) (int, unix.Errno) {
	if len(hdrs) > 1 && !p.noMMsg.Load() {
		n, errno := sendmmsg(fd, hdrs)
		if errno != unix.ENOSYS {
			return n, errno
		}
		p.noMMsg.Store(true)
	}
	return 1, sendmsg(fd, &hdrs[0])
}
