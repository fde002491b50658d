package soft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// settleTime is how long the kernel must be quiet before the interface is
	// looked at: what one command changes arrives as several messages. settleMost
	// bounds that for an interface that is never quiet.
	settleTime = 2 * time.Millisecond
	settleMost = 50 * time.Millisecond
	// dumpTries is how often a list is asked for that changed while it was given.
	dumpTries = 5
)

// watchNetdev gives the Watch of an interface. Its sockets belong to the network
// namespace of the thread that calls Watch, wherever its goroutine runs.
func watchNetdev(index int) Watch {
	return func(report func(Netdev)) (func(), error) {
		w := &watcher{index: index, report: report}
		if err := w.open(); err != nil {
			return nil, err
		}
		// Subscribed before the first look, so that nothing is missed in between.
		if err := w.look(); err != nil {
			w.close()
			return nil, err
		}
		w.done.Go(w.run)
		return w.stop, nil
	}
}

// watcher follows one interface. The kernel's messages only tell when to look;
// what is reported is the state that was found, which is right again also after
// messages were lost.
type watcher struct {
	index  int
	report func(Netdev)
	events *os.File // subscribed netlink socket
	ask    *netlink.Handle
	done   sync.WaitGroup
	gone   bool
}

func (w *watcher) open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink socket: %w", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("netlink socket: bind: %w", err)
	}
	w.events = os.NewFile(uintptr(fd), "netlink")
	if w.ask, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		_ = w.events.Close()
		return fmt.Errorf("netlink socket: %w", err)
	}
	return nil
}

func (w *watcher) close() {
	_ = w.events.Close()
	w.ask.Close()
}

func (w *watcher) stop() {
	_ = w.events.Close() // ends the read
	w.done.Wait()
	w.ask.Close()
}

// run looks at the interface after every message about it.
func (w *watcher) run() {
	b := make([]byte, 64<<10)
	for !w.gone {
		_ = w.events.SetReadDeadline(time.Time{})
		about, err := w.read(b)
		if err != nil {
			return
		}
		if !about {
			continue
		}
		for end := time.Now().Add(settleMost); time.Now().Before(end); {
			_ = w.events.SetReadDeadline(time.Now().Add(settleTime))
			if _, err := w.read(b); errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return
			}
		}
		for range dumpTries { // after that the next change tells more
			if w.look() == nil {
				break
			}
		}
	}
}

// read takes one datagram of messages and tells whether one is about the
// interface. Lost messages may have been.
func (w *watcher) read(b []byte) (about bool, err error) {
	n, err := w.events.Read(b)
	if errors.Is(err, unix.ENOBUFS) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	msgs, err := syscall.ParseNetlinkMessage(b[:n])
	if err != nil {
		return true, nil
	}
	for _, m := range msgs {
		about = about || indexOf(&m) == w.index
	}
	return about, nil
}

// indexOf is the interface that a message is about. In both kinds, struct
// ifinfomsg and ifaddrmsg, the index is the second word.
func indexOf(m *syscall.NetlinkMessage) int {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(m.Data) >= 8 {
			return int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
		}
	}
	return 0
}

// look reports what the interface is now.
func (w *watcher) look() error {
	n, err := w.state()
	if err != nil {
		return err
	}
	w.gone = n.Gone
	w.report(n)
	return nil
}

func (w *watcher) state() (n Netdev, err error) {
	l, err := w.ask.LinkByIndex(w.index)
	if errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV) {
		return Netdev{Gone: true}, nil
	}
	if err != nil {
		return n, fmt.Errorf("interface %d: %w", w.index, err)
	}
	a := l.Attrs()
	list, err := addrList(w.ask, l)
	if err != nil {
		return n, fmt.Errorf("addresses of %s: %w", a.Name, err)
	}
	n = Netdev{
		Enabled: a.RawFlags&unix.IFF_UP != 0,
		Up:      a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0,
		MTU:     a.MTU,
		Addrs:   usableOf(a.Name, list),
	}
	if a.RawFlags&unix.IFF_LOOPBACK != 0 {
		for _, x := range list {
			if p, ok := prefixOf(x.IPNet); ok && p.Addr().Is4() {
				n.Local = append(n.Local, p.Masked())
			}
		}
	}
	return n, nil
}

// addrList gives an interface's addresses, complete.
func addrList(h *netlink.Handle, l netlink.Link) (list []netlink.Addr, err error) {
	for range dumpTries {
		if list, err = h.AddrList(l, netlink.FAMILY_ALL); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// usableOf picks the addresses that may be sent from, those first that reach
// furthest. A tentative address is still being checked for another owner (DAD, RFC
// 4862), unless the interface is optimistic about it.
func usableOf(ifname string, list []netlink.Addr) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range list {
		if a.Flags&unix.IFA_F_DADFAILED != 0 || a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0 {
			continue
		}
		if p, ok := prefixOf(a.IPNet); ok {
			addrs = append(addrs, p.Addr())
		}
	}
	return order(ifname, addrs)
}

func prefixOf(n *net.IPNet) (p netip.Prefix, ok bool) {
	if n == nil {
		return p, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

// addresses lists the usable addresses of an interface. ok is false where
// netlink does not tell.
func addresses(i *net.Interface) (addrs []netip.Addr, ok bool) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, false
	}
	defer h.Close()
	list, err := addrList(h, &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: i.Name, Index: i.Index}})
	if err != nil {
		return nil, false
	}
	return usableOf(i.Name, list), true
}
