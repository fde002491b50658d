package host

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockAnswers bounds how long a process is waited for that is making an address's
	// sockets, in Config.Answer, makePatience how long Make is asked again.
	lockAnswers  = 10
	makePatience = 500 * time.Millisecond
)

// A keeper's message: 1 if the address is IPv4, the number of sockets, the address.
const keptLen = 18

func keptMessage(addr netip.Addr, n int) []byte {
	b := make([]byte, 2, keptLen)
	if addr.Is4() {
		b[0] = 1
	}
	b[1] = byte(n)
	a := addr.As16()
	return append(b, a[:]...)
}

func readKept(b []byte) (addr netip.Addr, n int, ok bool) {
	if len(b) != keptLen || b[0] > 1 || b[1] != 1 && b[1] != Slots {
		return addr, 0, false
	}
	addr = netip.AddrFrom16([16]byte(b[2:]))
	if b[0] == 1 {
		if !addr.Is4In6() {
			return addr, 0, false
		}
		addr = addr.Unmap()
	}
	return addr, int(b[1]), true
}

// keepers gets the keepers of all addresses, the caller's.
func (g *Group) keepers() ([]int, error) {
	_, fds, err := g.peekRoot()
	if err != nil {
		return nil, err
	}
	closeFDs(fds[:2])
	return fds[2:], nil
}

// find looks for the keeper of an address, and for one that is empty; -1: there is none.
func find(keepers []int, addr netip.Addr) (at, empty int) {
	at, empty = -1, -1
	var b [keptLen + 1]byte
	for i, fd := range keepers {
		n, err := peekBytes(fd, b[:])
		if err != nil {
			if errors.Is(err, unix.EAGAIN) && empty < 0 {
				empty = i
			}
			continue
		}
		if a, _, ok := readKept(b[:n]); ok && a == addr {
			return i, empty
		}
	}
	return -1, empty
}

// Sockets gives the sockets of an address, new descriptors with each call; mk makes them if
// the address is not in use yet, nil: it is ENOENT, and looking at them does not make this member a user. One process at a time does. Zones are ignored. The errors are those of mk,
// ErrAddrs, ErrDescriptors, ErrClosed, and EAGAIN if a process that is about to do the same does not get
// ahead (it is stopped).
func (g *Group) Sockets(addr netip.Addr, mk Make) (Sockets, error) {
	none := Sockets{-1, -1}
	if !g.enter() {
		return none, ErrClosed
	}
	defer g.exit()
	g.addrMu.Lock()
	defer g.addrMu.Unlock()
	plain := addr.Unmap().WithZone("")
	keepers, err := g.keepers()
	if err != nil {
		return none, err
	}
	defer closeFDs(keepers)
	s := none
	for range 3 {
		at, _ := find(keepers, plain)
		made := at < 0
		if made {
			if at, err = g.use(keepers, plain, addr, mk); err != nil {
				return none, tooFew(err)
			}
		}
		if mk != nil {
			if err = g.using(at, made); err != nil {
				return none, tooFew(err)
			}
		}
		if s, err = g.take(keepers[at], plain); !errors.Is(err, unix.EAGAIN) {
			break
		}
		if mk != nil {
			g.uses(at, false) // somebody has emptied it meanwhile
		}
	}
	if err != nil {
		return none, tooFew(err)
	}
	if !g.drained[plain] && s.Own >= 0 {
		if err := drain(s.Own, drainMax); err != nil {
			closeFDs([]int{s.Own, s.Control})
			return none, err
		}
	}
	g.drained[plain] = true
	return s, nil
}

// Control gives the socket of slot 0 of an address that is in use by anybody, a new
// descriptor, the caller's. ENOENT: nobody uses it.
func (g *Group) Control(addr netip.Addr) (int, error) {
	if !g.enter() {
		return -1, ErrClosed
	}
	defer g.exit()
	return g.control(addr.Unmap().WithZone(""))
}

func (g *Group) control(addr netip.Addr) (int, error) {
	keepers, err := g.keepers()
	if err != nil {
		return -1, err
	}
	defer closeFDs(keepers)
	at, _ := find(keepers, addr)
	if at < 0 {
		return -1, fmt.Errorf("host: %v is not in use: %w", addr, syscall.ENOENT)
	}
	s, err := g.take(keepers[at], addr)
	closeFD(s.Own)
	return s.Control, err
}

// take gets the two sockets that this member needs out of a keeper.
func (g *Group) take(keeper int, addr netip.Addr) (Sockets, error) {
	none := Sockets{-1, -1}
	var b [keptLen + 1]byte
	n, fds, err := recvFDs(keeper, b[:], unix.MSG_PEEK)
	if err != nil {
		return none, err
	}
	a, count, ok := readKept(b[:n])
	if ok && a != addr {
		closeFDs(fds)
		return none, unix.EAGAIN // since we looked
	}
	if !ok || count != len(fds) {
		closeFDs(fds)
		return none, ErrGarbage
	}
	s := none
	s.Control, fds[0] = fds[0], -1
	if count == Slots {
		s.Own, fds[g.slot] = fds[g.slot], -1
	}
	closeFDs(fds)
	if !isAt(s.Control, addr) || s.Own >= 0 && !isAt(s.Own, addr) {
		closeFDs([]int{s.Own, s.Control})
		return none, ErrGarbage
	}
	return s, nil
}

// isAt reports whether a descriptor is a datagram socket bound to an address.
func isAt(fd int, addr netip.Addr) bool {
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || typ != unix.SOCK_DGRAM {
		return false
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(at.Addr) == addr
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(at.Addr) == addr
	}
	return false
}

func (g *Group) lockName() string { return g.groupName(g.id) + "/addr" }

// lock makes this process the one that changes which addresses are in use. The lock is a
// name, so it goes with the process.
func (g *Group) lock() (int, error) {
	name := g.lockName()
	end := time.Now().Add(lockAnswers * g.cfg.Answer)
	for {
		fd, err := selfSocket(name)
		if !errors.Is(err, unix.EADDRINUSE) {
			return fd, err
		}
		if time.Now().After(end) {
			return -1, fmt.Errorf("host: another process is about to use the address, and does not get ahead: %w", syscall.EAGAIN)
		}
		time.Sleep(joinPause)
	}
}

// use makes the sockets of an address and puts them into a keeper, unless somebody else
// has meanwhile.
func (g *Group) use(keepers []int, plain, addr netip.Addr, mk Make) (int, error) {
	if mk == nil {
		return -1, fmt.Errorf("host: %v is not in use: %w", addr, syscall.ENOENT)
	}
	lock, err := g.lock()
	if err != nil {
		return -1, err
	}
	defer closeFD(lock)
	g.step("addr:locked")
	at, empty := find(keepers, plain)
	if at >= 0 {
		return at, nil
	}
	if empty < 0 {
		if empty = g.reclaim(keepers); empty < 0 {
			return -1, ErrAddrs
		}
	}
	fds, err := mk(addr)
	for end := time.Now().Add(makePatience); errors.Is(err, unix.EAGAIN) && time.Now().Before(end); {
		time.Sleep(joinPause)
		fds, err = mk(addr)
	}
	if err != nil {
		return -1, err
	}
	defer closeFDs(fds)
	g.step("addr:made")
	if len(fds) != 1 && len(fds) != Slots {
		return -1, fmt.Errorf("host: %d sockets were made of %d: %w", len(fds), Slots, syscall.EINVAL)
	}
	g.uses(empty, true) // before anybody can find it unused
	if err := sendFDs(keepers[empty], keptMessage(plain, len(fds)), fds...); err != nil {
		g.uses(empty, false)
		return -1, err
	}
	g.step("addr:kept")
	return empty, nil
}

// Drop tells that this member does not use an address any more, as when the interface has
// lost it. With the last one who does the group forgets it: when all have closed its sockets they are gone. ENOENT: it is
// not in use. It waits for nobody: if another process is at it, the steward does it afterwards.
func (g *Group) Drop(addr netip.Addr) error {
	if !g.enter() {
		return ErrClosed
	}
	defer g.exit()
	g.addrMu.Lock()
	defer g.addrMu.Unlock()
	addr = addr.Unmap().WithZone("")
	keepers, err := g.keepers()
	if err != nil {
		return err
	}
	defer closeFDs(keepers)
	at, _ := find(keepers, addr)
	if at < 0 {
		return fmt.Errorf("host: %v is not in use: %w", addr, syscall.ENOENT)
	}
	g.uses(at, false)
	g.step("drop:unused")
	lock, err := selfSocket(g.lockName())
	if err != nil { // somebody is at it; the steward will be
		g.d.add(hdrAddrs, 1)
		g.poke()
		return nil
	}
	defer closeFD(lock)
	g.step("drop:locked")
	if at, _ = find(keepers, addr); at >= 0 {
		g.empty(keepers, at)
	}
	return nil
}

// Addrs lists the addresses that are in use by any member, without zones.
func (g *Group) Addrs() []netip.Addr {
	if !g.enter() {
		return nil
	}
	defer g.exit()
	list, _ := g.addrs()
	return list
}

func (g *Group) addrs() ([]netip.Addr, error) {
	keepers, err := g.keepers()
	if err != nil {
		return nil, err
	}
	defer closeFDs(keepers)
	var list []netip.Addr
	var b [keptLen + 1]byte
	for _, fd := range keepers {
		if n, err := peekBytes(fd, b[:]); err == nil {
			if a, _, ok := readKept(b[:n]); ok {
				list = append(list, a)
			}
		}
	}
	return list, nil
}
