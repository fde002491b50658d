package udp

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// A socket is bound to one local address.
type socket struct {
	fd    int
	index int        // of the local address
	addr  netip.Addr // with zone
	scope uint32     // interface index of the zone

	on netip.Addr // of a group's socket: an address of the interface that it is for

	kind      kind          // what a socket on the epoll descriptor is
	unsteered bool          // a control socket to which everything comes
	blind     atomic.Bool   // of a local address, only for sending: what arrives comes to control
	lost      atomic.Uint32 // datagrams dropped before the socket was ours
	watched   bool          // it is on the epoll descriptor; under Port.mu
	control   *socket       // of a shared address: that of slot 0; under Port.mu

	dropped bool // DropLocal took the socket away; under Port.mu

	udpPort uint16      // of a source that only sends
	noLabel atomic.Bool // the kernel refused a flow label: none is set any more

	// The source of the last datagram, for the receiver alone: the next one is
	// likely to come from there too.
	lastRaw rawAddr
	last    netip.AddrPort
	streak  int // receives of single datagrams in a row that found something
}

// A kind tells what is done with a socket that hangs on the epoll descriptor.
type kind uint8

const (
	ofGroup kind = iota // a multicast group's
	control             // slot 0 of a shared address
	mailbox             // of this process
)

// drops is how many datagrams the kernel dropped since the socket is ours.
func (s *socket) drops() uint64 { return uint64(socketDrops(s.fd) - s.lost.Load()) }

// source is where what it sends comes from.
func (s *socket) source() netip.AddrPort {
	if s.udpPort != 0 {
		return netip.AddrPortFrom(s.addr, s.udpPort)
	}
	return netip.AddrPortFrom(s.addr, roce.Port)
}

// An option is a socket option that is an integer.
type option struct{ level, name, value int }

// openSocket makes the socket of a local address that nobody shares.
func openSocket(cfg *Config, addr netip.Addr) (*socket, error) {
	s, err := bareSocket(addr)
	if err != nil {
		return nil, err
	}
	if err = s.setup(cfg); err == nil {
		err = s.bind()
	}
	if err != nil {
		_ = unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

// bareSocket makes one that is neither set up nor bound.
func bareSocket(addr netip.Addr) (*socket, error) {
	s := &socket{addr: addr, scope: scopeID(addr.Zone())}
	if addr.Zone() != "" && s.scope == 0 {
		return nil, fmt.Errorf("udp: local address %v: no interface %q: %w", addr, addr.Zone(), unix.EADDRNOTAVAIL)
	}
	fd, err := unix.Socket(family(addr), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("udp: socket for %v: %w", addr, err)
	}
	s.fd = fd
	// What is bound cannot be given this any more.
	if addr.Is6() {
		if err := s.options([]option{{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1}}); err != nil {
			_ = unix.Close(fd)
			return nil, err
		}
	}
	return s, nil
}

func family(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// pathOptions make the kernel send DF and identification 0: what the ICRC counts on.
func (s *socket) pathOptions() []option {
	if s.addr.Is6() {
		return []option{{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO}}
	}
	return []option{{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO}}
}

// headerOptions make the kernel tell the IP header's fields of what arrives.
func (s *socket) headerOptions() []option {
	if s.addr.Is6() {
		return []option{
			{unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT, 1},
			// Linux's rxe sends UDP checksum 0 over IPv6 too, which a socket drops
			// unless told otherwise (RFC 6936); over IPv6 the ICRC is checked in full.
			{unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1},
		}
	}
	return []option{{unix.SOL_IP, unix.IP_RECVTOS, 1}, {unix.SOL_IP, unix.IP_RECVTTL, 1}}
}

func (s *socket) options(list []option) error {
	for _, o := range list {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("udp: socket for %v: option %d of level %d: %w", s.addr, o.name, o.level, err)
		}
	}
	return nil
}

// setup makes the socket of a local address ready, bound or not.
func (s *socket) setup(cfg *Config) error {
	if err := s.options(append(s.pathOptions(), s.headerOptions()...)); err != nil {
		return err
	}
	setBuffers(s.fd, cfg)
	s.multicastOut(cfg)
	if !cfg.NoGRO {
		// Kernels before 5.0 have no such option; datagrams come one by one then.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	return nil
}

// setBuffers asks for socket buffers. The kernel silently gives what it may.
func setBuffers(fd int, cfg *Config) {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, cfg.RecvBuf)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, cfg.SendBuf)
}

func sockaddr(addr netip.Addr, scope uint32, port int) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: addr.As16(), ZoneId: scope}
}

// probed is what the kernel can do.
type probed struct{ recvBuf, maxSegs int }

// Segment limits of kernels: 64, since 6.9 128.
const (
	segsOld = 64
	segsNew = 128
)

// probe finds out what the kernel can do with a socket that is thrown away.
func probe(cfg *Config) (probed, error) {
	r := probed{maxSegs: 1}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return r, fmt.Errorf("udp: socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	setBuffers(fd, cfg)
	if r.recvBuf, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return r, fmt.Errorf("udp: SO_RCVBUF: %w", err)
	}
	if cfg.NoGSO || cfg.MaxSegs == 1 {
		return r, nil
	}
	if unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, 1) == nil {
		r.maxSegs = segsOld
		if sendsSegs(fd, segsNew) {
			r.maxSegs = segsNew
		}
	}
	if cfg.MaxSegs > 0 {
		r.maxSegs = min(r.maxSegs, cfg.MaxSegs)
	}
	return r, nil
}

// sendsSegs tries to send n segments of one byte over the loopback, from a
// socket to itself.
func sendsSegs(fd, n int) bool {
	if unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}) != nil {
		return false
	}
	self, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	return unix.Sendto(fd, make([]byte, n), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, self) == nil
}
