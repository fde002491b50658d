package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
)

// A port whose addresses other processes share has for each of them the socket of its
// slot, which it reads as a port alone would, and the one of slot 0, the control socket.
// That is read by one process, the steward. It and the mailbox hang on the epoll
// descriptor of the multicast groups, and are looked at now and then while the own
// socket is polled, and at once when a sleeper was woken for them.
//
// Where the kernel does not steer there is the control socket alone: see relay.

// retryMail is how long messages to full mailboxes wait while nothing else happens.
const retryMail = time.Millisecond

// sharing is what such a port has besides.
type sharing struct {
	group Group

	extra map[netip.Addr]*socket // control sockets of addresses that only others have in use; under Port.mu

	look chan struct{} // the addresses or the steward changed
	stop chan struct{}
	done sync.WaitGroup

	// For the receiver alone.
	mail    []byte // the message that is being read
	rest    []byte // what is left of it
	out     [slotCount]*outbox
	dirty   []int // slots whose outbox has something
	relay   relay
	release atomic.Bool // the buffers that relay has are not needed any more
	sideHot bool        // the last look at the control sockets and the mailbox found something
	free    []*outbox
}

var _ port.Sharer = (*Port)(nil)

// Numbers implements port.Sharer.
func (p *Port) Numbers() (bits, mask ib.QPN) {
	if p.share == nil {
		return 0, 0
	}
	return p.share.group.Numbers()
}

// openSharing prepares a port that shares.
func (p *Port) openSharing() error {
	p.share = &sharing{
		group: p.cfg.Share, extra: make(map[netip.Addr]*socket), look: make(chan struct{}, 1), stop: make(chan struct{}),
		mail: make([]byte, mailMax),
	}
	p.groups.joining.Lock()
	defer p.groups.joining.Unlock()
	if err := p.openEpoll(); err != nil {
		return err
	}
	if err := p.watch(&socket{fd: p.share.group.Mailbox(), kind: mailbox}); err != nil {
		p.groups.close()
		return err
	}
	p.share.done.Add(1)
	go p.tend()
	return nil
}

// tend looks at what the steward has to read, whenever there is a reason to.
func (p *Port) tend() {
	defer p.share.done.Done()
	for {
		select {
		case <-p.share.look:
			p.steward()
		case <-p.share.stop:
			return
		}
	}
}

// Look has the port see that it is the steward now, or is not any more, or that the addresses
// in use have changed.
func (p *Port) Look() {
	if p.share != nil {
		p.share.again()
	}
}

func (s *sharing) again() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// watch hangs a socket on the epoll descriptor, where a receiver finds it.
func (p *Port) watch(s *socket) error {
	g := &p.groups
	g.set(int32(s.fd), s)
	err := unix.EpollCtl(g.fd(), unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)})
	if err != nil {
		g.set(int32(s.fd), nil)
		return fmt.Errorf("udp: watch the socket of %v: %w", s.addr, err)
	}
	s.watched = true
	return nil
}

// unwatch takes it off. Closing would not: others have the same socket.
func (p *Port) unwatch(s *socket) {
	if s.watched {
		_ = unix.EpollCtl(p.groups.fd(), unix.EPOLL_CTL_DEL, s.fd, nil)
		p.groups.set(int32(s.fd), nil)
		s.watched = false
	}
}

// openShared makes the socket of a local address out of the group's. The caller holds
// Port.mu.
func (p *Port) openShared(addr netip.Addr) (*socket, error) {
	s := &socket{addr: addr, scope: scopeID(addr.Zone())}
	if addr.Zone() != "" && s.scope == 0 {
		return nil, fmt.Errorf("udp: local address %v: no interface %q: %w", addr, addr.Zone(), unix.EADDRNOTAVAIL)
	}
	fds, err := p.share.group.Sockets(addr, func(netip.Addr) ([]int, error) { return p.makeSlots(addr) })
	if err != nil {
		return nil, err
	}
	s.fd = fds.Own
	c := &socket{fd: fds.Control, kind: control, addr: addr, scope: s.scope, index: -1}
	if s.fd < 0 {
		s.blind.Store(true)
		c.unsteered = true
		p.handing.Store(!p.cfg.NoHanding)
		// Sent from here as well; one descriptor each makes both alike.
		if s.fd, err = unix.FcntlInt(uintptr(c.fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			_ = unix.Close(c.fd)
			return nil, fmt.Errorf("udp: socket for %v: %w", addr, err)
		}
	}
	s.control = c
	for _, o := range []*socket{s, c} {
		if err := o.setup(&p.cfg); err != nil {
			_ = unix.Close(s.fd)
			_ = unix.Close(c.fd)
			return nil, err
		}
		o.lost.Store(socketDrops(o.fd)) // of those who had it before
	}
	p.share.again() // the steward reads the control socket now
	return s, nil
}

// makeSlots makes them where the caller is the first.
func (p *Port) makeSlots(addr netip.Addr) ([]int, error) {
	n := slotCount
	if p.cfg.Unsteered {
		n = 1
	}
	fds, err := openSlots(addr, n)
	if n > 1 && errors.Is(err, errNoFilter) {
		fds, err = openSlots(addr, 1)
	}
	if errors.Is(err, unix.EADDRINUSE) && ghost(addr) {
		// The sockets of the last members live on for a moment until the kernel has found out that
		// nobody can receive them any more.
		err = &ghostError{err}
	}
	return fds, err
}

// ghostError is EADDRINUSE that will pass.
type ghostError struct{ error }

func (e *ghostError) Is(target error) bool { return target == unix.EAGAIN }
func (e *ghostError) Unwrap() error        { return e.error }

// ghost reports whether the port of the address is held by sockets of this user that no
// process has open.
func ghost(addr netip.Addr) bool {
	list := holders(addr)
	if len(list) == 0 {
		return true // it has gone meanwhile
	}
	for _, h := range list {
		if h.uid != os.Getuid() {
			return false
		}
	}
	_, pid, _ := processOf(list)
	return pid == 0
}

// steward brings what is read in line with whether this process is the steward.
func (p *Port) steward() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.enter() {
		return
	}
	defer p.leave()
	sh := p.share
	on := sh.group.Steward()
	if !on {
		sh.release.Store(true) // the next steward needs them
	}
	have := make(map[netip.Addr]bool)
	for _, s := range *p.socks.Load() {
		if s.control == nil || s.dropped {
			continue
		}
		have[s.addr.WithZone("")] = true
		if on && !s.control.watched {
			_ = p.watch(s.control)
		} else if !on {
			p.unwatch(s.control)
		}
	}
	used := make(map[netip.Addr]bool)
	if on {
		for _, a := range sh.group.Addrs() {
			if used[a] = true; !have[a] && sh.extra[a] == nil {
				if s, err := p.openControl(a); err == nil {
					sh.extra[a] = s
				}
			}
		}
	}
	for a, s := range sh.extra {
		if !used[a] || have[a] {
			p.unwatch(s)
			_ = unix.Close(s.fd)
			delete(sh.extra, a)
		}
	}
	p.wait.kick()
}

// openControl opens the control socket of an address that only others have in use.
func (p *Port) openControl(addr netip.Addr) (*socket, error) {
	got, err := p.share.group.Sockets(addr, nil)
	if err != nil {
		return nil, err
	}
	if got.Own >= 0 {
		_ = unix.Close(got.Own)
	}
	s := &socket{fd: got.Control, kind: control, addr: addr, index: -1, unsteered: got.Own < 0}
	if addr.Is6() && addr.IsLinkLocalUnicast() && p.cfg.IfIndex != 0 {
		s.addr, s.scope = addr.WithZone(zoneOf(p.cfg.IfIndex)), uint32(p.cfg.IfIndex)
	}
	s.lost.Store(socketDrops(s.fd))
	if err := p.watch(s); err != nil {
		_ = unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

// recvShared is Recv for a port that shares, with one local address at most: the own
// socket as without sharing, and what hangs on the epoll descriptor when something is
// known to be there, when the last look found something, and every eighth time.
func (p *Port) recvShared(socks []*socket, b *pkt.Rx, limit int) {
	r, sh := &p.rx, p.share
	if r.bufs == nil {
		r.init(p.cfg.bufBytes)
	}
	r.calls++
	side := p.side.Load()
	if side != sideUnknown {
		p.side.Store(sideUnknown)
	}
	blind := len(socks) == 0 || socks[0].blind.Load()
	look := side == sideReady || sh.sideHot || blind || len(sh.rest) > 0 || len(sh.dirty) > 0 || side == sideUnknown && r.calls%8 == 0
	at := 0
	first := look && r.calls%4 == 0 // a socket that always has more starves the others
	if first {
		at = p.recvSide(b, at, limit)
	}
	if !blind && at < limit {
		at = p.recvFrom(socks[0], b, at, limit)
	}
	if look && !first && at < limit {
		at = p.recvSide(b, at, limit)
	}
	if look && !first && at >= limit {
		p.side.CompareAndSwap(sideUnknown, sideReady) // not looked at: next time
	}
}

// recvEpoll receives from what hangs on the epoll descriptor.
func (p *Port) recvEpoll(b *pkt.Rx, at, limit int) int {
	if p.share != nil {
		return p.recvSide(b, at, limit)
	}
	return p.recvGroups(b, at, limit)
}

// recvSide is recvEpoll of a port that shares.
func (p *Port) recvSide(b *pkt.Rx, at, limit int) int {
	sh := p.share
	if sh.release.Load() && sh.release.Swap(false) {
		sh.relay.close(sh.group)
	}
	if len(sh.dirty) > 0 {
		p.Flush()
	}
	n := p.recvRest(b, at, limit)
	if n < limit {
		n = p.recvGroups(b, n, limit)
	}
	sh.sideHot = n > at
	return n
}

// States of Port.side: what the last Wait said of the epoll descriptor.
const (
	sideUnknown = iota
	sideReady
	sideIdle
)

// closeSharing closes what only a port that shares has. Nobody uses a descriptor.
func (p *Port) closeSharing() {
	if p.share == nil {
		return
	}
	for _, s := range p.share.extra {
		_ = unix.Close(s.fd)
	}
	for _, s := range *p.socks.Load() {
		if s.control != nil {
			_ = unix.Close(s.control.fd)
		}
	}
	for slot, o := range p.share.out {
		if o != nil { // the mailbox was full: nobody is told of what was passed
			p.takeBack(slot, o.b)
		}
	}
	p.share.relay.close(p.share.group)
}
