package udp

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Sockets of an address that several processes share. They form one group
// (SO_REUSEPORT), and a classic BPF filter picks the one that a datagram goes to by
// its destination queue pair number, so that no process stands between the kernel
// and the one that a packet is for. It needs no privilege.

const (
	// slotCount sockets an address has, one for each value of the upper seven bits of
	// a queue pair number.
	slotCount = 128
	slotShift = 17
)

// slotFilter picks socket DestQP >> 17: of the program's packet the UDP header was
// taken off, so offset 5 is the first of the three bytes of the number in the BTH
// (IBA 9.2.5). What is shorter goes to socket 0, as a load beyond the end ends the
// program with 0. A GSO or GRO super-packet goes whole where its first segment goes.
var slotFilter = [...]unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 5},
	{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: slotShift - 16},
	{Code: unix.BPF_RET | unix.BPF_A},
}

// errNoFilter: the system has no such groups, or takes no filter for them.
var errNoFilter = errors.New("udp: no filter for groups of sockets")

// openSlots makes the n sockets of an address, in the order of their slots, and
// attaches the filter. Who takes one into use sets its options (socket.setup). It is exclusive: who has the port, even with a group of its own,
// makes it fail with EADDRINUSE. errNoFilter: one socket will have to do.
func openSlots(addr netip.Addr, n int) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			fds = nil
		}
	}()
	for i := range n {
		s, err := bareSocket(addr)
		if err != nil {
			return fds, err
		}
		fds = append(fds, s.fd)
		// The first is bound as one that shares with nobody: with SO_REUSEPORT it would
		// join what any process of this user has made. What is set afterwards lets the
		// others in.
		if i > 0 {
			if err := s.reusable(); err != nil {
				return fds, err
			}
		}
		if err := s.bind(); err != nil {
			return fds, err
		}
		switch i {
		case 0:
			if n == 1 {
				break // nobody is let in
			}
			if err := s.reusable(); err != nil {
				return fds, err
			}
		case 1:
			// As early as there is a group, which the second socket makes: what the filter
			// sends to a socket that is still missing is spread by a hash.
			prog := slotFilter
			if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
				&unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}); err != nil {
				return fds, fmt.Errorf("%w: %w", errNoFilter, err)
			}
		}
	}
	return fds, nil
}

func (s *socket) reusable() error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("%w: %w", errNoFilter, err)
	}
	return nil
}

func (s *socket) bind() error {
	if err := unix.Bind(s.fd, sockaddr(s.addr, s.scope, roce.Port)); err != nil {
		return fmt.Errorf("udp: bind to %v: %w", netip.AddrPortFrom(s.addr, roce.Port), err)
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
