package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// groupEvents is how many sockets of groups one Recv looks at.
const groupEvents = 16

// groups are the multicast groups that a port has joined. Each has a socket
// bound to the group's own address: one bound to a unicast address gets no
// multicast, and one bound to all addresses would get everybody's.
//
// The sockets hang on one epoll descriptor, which is what a receiver or a sleeper
// looks at: joining and leaving change what it is ready for, also under a thread
// that is asleep, and a port with a thousand groups polls no longer than with one.
type groups struct {
	ep atomic.Int32 // the epoll descriptor and 1; 0: none yet

	// joining is held by who joins or leaves. The kernel may take its time with
	// that; receiving goes on.
	joining sync.Mutex
	byAddr  map[netip.Addr]*socket

	mu     sync.Mutex // of what follows; held while a group's socket is read
	byFD   map[int32]*socket
	events [groupEvents]unix.EpollEvent

	overflowed uint64 // dropped for groups that were left
}

// fd is the epoll descriptor, -1 before the first group.
func (g *groups) fd() int { return int(g.ep.Load()) - 1 }

var _ port.Multicaster = (*Port)(nil)

// Join implements port.Multicaster.
func (p *Port) Join(group, on netip.Addr) error {
	group, on = group.Unmap().WithZone(""), on.Unmap()
	if !group.IsMulticast() || group.Is4() != on.Is4() {
		return fmt.Errorf("udp: %v on %v is no multicast group of an interface: %w", group, on, unix.EINVAL)
	}
	// Before the groups' lock: Close waits for whoever entered.
	if !p.enter() {
		return errClosed
	}
	defer p.leave()
	g := &p.groups
	g.joining.Lock()
	defer g.joining.Unlock()
	if g.byAddr[group] != nil {
		return nil
	}
	if err := p.openEpoll(); err != nil {
		return err
	}
	s, err := openGroup(&p.cfg, group, on)
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w; %s", err, whoHolds(group))
	}
	if err != nil {
		return err
	}
	g.set(int32(s.fd), s)
	err = unix.EpollCtl(g.fd(), unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)})
	if err != nil {
		g.set(int32(s.fd), nil)
		_ = unix.Close(s.fd)
		return fmt.Errorf("udp: watch the socket of group %v: %w", group, err)
	}
	g.byAddr[group] = s
	return nil
}

// set notes whose a descriptor is; nil: nobody's any more. When it returns, the
// socket that had it is not read.
func (g *groups) set(fd int32, s *socket) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s != nil {
		g.byFD[fd] = s
		return
	}
	if s := g.byFD[fd]; s != nil {
		g.overflowed += s.drops()
	}
	delete(g.byFD, fd)
}

// openEpoll makes the descriptor of all groups when the first is joined. The
// caller is the one that joins.
func (p *Port) openEpoll() error {
	g := &p.groups
	if g.fd() >= 0 {
		return nil
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("udp: epoll: %w", err)
	}
	g.mu.Lock()
	g.byAddr, g.byFD = make(map[netip.Addr]*socket), make(map[int32]*socket)
	g.mu.Unlock()
	g.ep.Store(int32(ep) + 1)
	p.wait.kick() // a Wait that is running must see it
	return nil
}

// Leave implements port.Multicaster.
func (p *Port) Leave(group netip.Addr) {
	group = group.Unmap().WithZone("")
	if !p.enter() {
		return // Close leaves every group
	}
	defer p.leave()
	g := &p.groups
	g.joining.Lock()
	defer g.joining.Unlock()
	s := g.byAddr[group]
	if s == nil {
		return
	}
	delete(g.byAddr, group)
	g.set(int32(s.fd), nil)
	// Closing would do. But a thread that is just falling asleep on the epoll
	// descriptor may hold the file, and the kernel then ends it only when that
	// thread wakes up.
	_ = s.membership(unix.IP_DROP_MEMBERSHIP, unix.IPV6_LEAVE_GROUP)
	_ = unix.Close(s.fd)
	p.wait.kick()
}

// close closes what is left. Nobody uses a descriptor any more.
func (g *groups) close() {
	for _, s := range g.byAddr {
		_ = unix.Close(s.fd)
	}
	if ep := g.fd(); ep >= 0 {
		_ = unix.Close(ep)
	}
}

// recvGroups receives from the groups' sockets that have something, into the
// buffers from at on. The kernel tells them in turn, so none starves.
func (p *Port) recvGroups(b *pkt.Rx, at, limit int) int {
	g := &p.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := unix.EpollWait(g.fd(), g.events[:], 0)
	if err != nil {
		return at
	}
	for _, e := range g.events[:n] {
		if at >= limit {
			break
		}
		switch s := g.byFD[e.Fd]; {
		case s == nil:
		case s.kind == mailbox:
			at = p.recvMail(b, at, limit)
		case s.kind == control && !p.share.group.Steward():
			p.share.again() // somebody else reads it now
		case s.unsteered:
			at = p.relayFrom(s, b, at, limit)
		default:
			at = p.recvFrom(s, b, at, limit)
		}
	}
	return at
}

// openGroup makes the socket of a group and joins it on the interface.
func openGroup(cfg *Config, group, on netip.Addr) (*socket, error) {
	index, err := interfaceOf(cfg, on)
	if err != nil {
		return nil, err
	}
	s := &socket{addr: group, index: -1, scope: uint32(index), on: on}
	if group.Is6() {
		s.addr = group.WithZone(zoneOf(index)) // senders' link-local addresses get it
		if err := reach6(on, group, index); err != nil {
			return nil, err
		}
	}
	if s.fd, err = unix.Socket(family(group), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("udp: socket for group %v: %w", group, err)
	}
	if err = s.join(cfg); err != nil {
		_ = unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

// join makes the socket of a group ready. Of the processes of the host that do
// the same each gets a copy, whoever runs them: the kernel replicates to all
// sockets that SO_REUSEADDR lets in. On the socket of a unicast address that would
// let others take our packets; here nothing is lost to anybody. SO_REUSEPORT will
// not do: where only one of its sockets is a member on the interface of arrival,
// Linux (seen with 6.18) takes the short way of early demultiplexing, at whose end
// it picks any socket of the group that shares the port, member or not.
func (s *socket) join(cfg *Config) error {
	list := append(s.headerOptions(), option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
	if s.addr.Is6() {
		// Here the kernel does not ask on which interface a socket joined.
		list = append(list, option{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1}, option{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1})
	} else {
		// Else a group that any socket of the host joined on another interface
		// would come in as well.
		list = append(list, option{unix.SOL_IP, unix.IP_MULTICAST_ALL, 0})
	}
	if err := s.options(list); err != nil {
		return err
	}
	if s.addr.Is6() { // kernels before 4.20 have no such option, and no need of it
		_ = unix.SetsockoptInt(s.fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_ALL, 0)
	}
	setBuffers(s.fd, cfg)
	if !cfg.NoGRO {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	if err := unix.Bind(s.fd, sockaddr(s.addr, s.scope, roce.Port)); err != nil {
		return fmt.Errorf("udp: bind to %v: %w", netip.AddrPortFrom(s.addr, roce.Port), err)
	}
	err := s.membership(unix.IP_ADD_MEMBERSHIP, unix.IPV6_JOIN_GROUP)
	if errors.Is(err, unix.ENODEV) {
		err = unix.EADDRNOTAVAIL
	}
	if err != nil {
		return fmt.Errorf("udp: join group %v on the interface of %v: %w", s.addr, s.on, err)
	}
	return nil
}

// membership begins or ends that of a group's socket.
func (s *socket) membership(opt4, opt6 int) error {
	if s.addr.Is6() {
		return unix.SetsockoptIPv6Mreq(s.fd, unix.SOL_IPV6, opt6, &unix.IPv6Mreq{Multiaddr: s.addr.As16(), Interface: s.scope})
	}
	return unix.SetsockoptIPMreqn(s.fd, unix.SOL_IP, opt4,
		&unix.IPMreqn{Multiaddr: s.addr.As4(), Address: s.on.As4(), Ifindex: int32(s.scope)})
}

// interfaceOf finds the index of the interface that has the address; over IPv4
// 0 is right too, the kernel finds it by the address then.
func interfaceOf(cfg *Config, addr netip.Addr) (int, error) {
	switch {
	case cfg.IfIndex != 0:
		return cfg.IfIndex, nil
	case addr.Is4():
		return 0, nil
	case addr.Zone() != "":
		if n := scopeID(addr.Zone()); n != 0 {
			return int(n), nil
		}
	default:
		ifs, err := net.Interfaces()
		if err != nil {
			return 0, fmt.Errorf("udp: list network interfaces: %w", err)
		}
		for _, i := range ifs {
			list, _ := i.Addrs()
			for _, a := range list {
				if n, ok := a.(*net.IPNet); ok && n.IP.Equal(addr.AsSlice()) {
					return i.Index, nil
				}
			}
		}
	}
	return 0, fmt.Errorf("udp: no interface has the address %v: %w", addr, unix.EADDRNOTAVAIL)
}

func zoneOf(index int) string {
	if i, err := net.InterfaceByIndex(index); err == nil {
		return i.Name
	}
	return fmt.Sprint(index)
}

// multicastOut makes the socket send multicast from the interface that has its
// address, whatever the routing table says. Its looping back to the members on
// this host stays on, as it is by default.
func (s *socket) multicastOut(cfg *Config) {
	index, err := interfaceOf(cfg, s.addr)
	switch {
	case err != nil: // the address does not work either
	case s.addr.Is6():
		_ = unix.SetsockoptInt(s.fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, index)
	default:
		_ = unix.SetsockoptIPMreqn(s.fd, unix.SOL_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Address: s.addr.As4(), Ifindex: int32(index)})
	}
}

// Reach implements port.Multicaster.
func (p *Port) Reach(local int, group netip.Addr) error {
	if !p.enter() {
		return errClosed
	}
	defer p.leave()
	socks := *p.socks.Load()
	if uint(local) >= uint(len(socks)) {
		return fmt.Errorf("udp: no local address with index %d: %w", local, unix.EINVAL)
	}
	s := socks[local]
	if s.addr.Is4() {
		return nil // goes where IP_MULTICAST_IF says, route or not
	}
	index, err := interfaceOf(&p.cfg, s.addr)
	if err != nil {
		return err
	}
	return reach6(s.addr, group, index)
}

// reach6 refuses the loopback interface, unless the kernel has a route to groups
// there: over IPv6 there is none, and nothing is delivered. Other interfaces have
// one as soon as they are up.
func reach6(src, group netip.Addr, index int) error {
	i, err := net.InterfaceByIndex(index)
	if err != nil || i.Flags&net.FlagLoopback == 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("udp: socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	_ = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_IF, index)
	if err := unix.Connect(fd, sockaddr(group, uint32(index), roce.Port)); err != nil {
		return fmt.Errorf("udp: no way from %v to group %v over %s (`ip -6 route add local ff00::/8 dev %s` makes one): %w",
			src, group.WithZone(""), i.Name, i.Name, err)
	}
	return nil
}

// arrivedOn gives the index of the interface over which an IPv6 datagram came,
// out of its control messages; 0: not told.
func arrivedOn(b []byte) uint32 {
	for len(b) >= cmsgHdrLen {
		n := word(b)
		if n < cmsgHdrLen || n > uint64(len(b)) {
			return 0
		}
		if int32(binary.NativeEndian.Uint32(b[wordSize:])) == unix.SOL_IPV6 &&
			int32(binary.NativeEndian.Uint32(b[wordSize+4:])) == unix.IPV6_PKTINFO && n >= cmsgHdrLen+unix.SizeofInet6Pktinfo {
			return binary.NativeEndian.Uint32(b[cmsgHdrLen+16:])
		}
		next := (int(n) + wordSize - 1) &^ (wordSize - 1)
		if next >= len(b) {
			return 0
		}
		b = b[next:]
	}
	return 0
}
