package udp

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/port"
)

var _ port.Dropper = (*Port)(nil)

// DropLocal implements port.Dropper. Others may be using the socket's descriptor
// at this moment, so it is not closed but replaced: an event descriptor that is
// never readable takes its number, from which nothing can be sent or received.
func (p *Port) DropLocal(addr netip.Addr) {
	addr, err := checkLocal(addr)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.enter() {
		return
	}
	defer p.leave()
	for _, s := range *p.socks.Load() {
		if s.addr == addr && !s.dropped {
			p.drop(s)
		}
	}
}

// drop takes a socket away. The caller holds Port.mu.
func (p *Port) drop(s *socket) {
	none, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return // out of descriptors: the socket stays
	}
	if s.control != nil {
		p.unwatch(s.control)
		_ = p.share.group.Drop(s.addr.WithZone("")) // the last who does makes the group forget it
		_ = unix.Close(s.control.fd)
		s.control = nil
	}
	p.groups.mu.Lock()
	lost := s.drops()
	if s.replace(none) == nil {
		s.dropped = true
		s.blind.Store(false)        // nothing is handed over from it or to it
		p.groups.overflowed += lost // who counts next does not see the socket
	}
	p.groups.mu.Unlock()
	p.wait.kick() // a Wait that is running holds the old socket
}

// reopen makes the socket anew, behind the same descriptor. The caller holds
// Port.mu.
func (p *Port) reopen(s *socket) error {
	n, err := p.openLocal(s.addr)
	if err != nil {
		return err
	}
	if err := s.replace(n.fd); err != nil {
		return err
	}
	if s.control = n.control; s.control != nil {
		s.control.index = s.index
	}
	s.blind.Store(n.blind.Load())
	s.lost.Store(n.lost.Load())
	p.renewed.Add(1)
	s.dropped = false
	p.wait.kick()
	return nil
}

// replace puts another file behind the socket's descriptor, and closes fd.
func (s *socket) replace(fd int) error {
	err := unix.Dup3(fd, s.fd, unix.O_CLOEXEC)
	_ = unix.Close(fd)
	return err
}
