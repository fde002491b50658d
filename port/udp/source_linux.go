package udp

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

const (
	// sourcesPerLocal is the number of UDP source ports that the flows from one
	// local address are spread over: enough for the hashes of a network's
	// multipath routing, few enough descriptors.
	sourcesPerLocal = 32

	// sourceBase to sourceBase+sourceSpan-1 are RoCEv2's source ports.
	sourceBase = 0xC000
	sourceSpan = 0x4000

	// sourceTries bounds the search for a port that nobody has.
	sourceTries = 64
)

// sourceKey names a source: equal keys of flows give equal ones.
type sourceKey struct {
	local int
	slot  uint32
}

// Source implements port.Sourcer: sockets that only send, one for each source
// port, opened when the first flow needs it. EINVAL: no such local address.
func (p *Port) Source(local int, key uint32) (src int, udpPort uint16, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.enter() {
		return 0, 0, errClosed
	}
	defer p.leave()
	socks := *p.socks.Load()
	if uint(local) >= uint(len(socks)) {
		return 0, 0, fmt.Errorf("udp: no local address with index %d: %w", local, unix.EINVAL)
	}
	// The upper half of the product depends on all bits of the key.
	k := sourceKey{local, uint32(uint64(key*0x9E3779B1) * sourcesPerLocal >> 32)}
	if i, ok := p.sourceOf[k]; ok {
		return i, (*p.sources.Load())[i-1].udpPort, nil
	}
	s, err := openSource(&p.cfg, socks[local])
	if err != nil {
		return 0, 0, err
	}
	old := *p.sources.Load()
	set := append(old[:len(old):len(old)], s)
	p.sources.Store(&set)
	p.sourceOf[k] = len(set)
	return len(set), s.udpPort, nil
}

// openSource opens a socket that sends from the address of l, from a random
// port of RoCEv2's range.
func openSource(cfg *Config, l *socket) (*socket, error) {
	first := rand.IntN(sourceSpan)
	for i := range sourceTries {
		s := &socket{addr: l.addr, scope: l.scope, index: l.index, udpPort: uint16(sourceBase + (first+i*61)%sourceSpan)}
		err := s.openSender(cfg)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("udp: no free source port in %d tries on %v: %w", sourceTries, l.addr, unix.EADDRINUSE)
}

func (s *socket) openSender(cfg *Config) error {
	b, err := bareSocket(s.addr)
	if err != nil {
		return err
	}
	fd := b.fd
	s.fd = fd
	err = s.options(s.pathOptions())
	if err == nil {
		s.multicastOut(cfg)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, cfg.SendBuf)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // nothing is ever read
		if err = unix.Bind(fd, sockaddr(s.addr, s.scope, int(s.udpPort))); err != nil {
			err = fmt.Errorf("udp: bind source port %d on %v: %w", s.udpPort, s.addr, err)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return err
}
