package host

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// mailBuf is the send buffer of a mailbox to ask for: with what ordinary users get
// (net.core.wmem_max, 208 KiB) some 330 management datagrams fit.
const mailBuf = 1 << 20

// newMailboxes makes the mailbox of each slot. What strangers have sent before they were
// connected to themselves is thrown away by who takes the slot.
func newMailboxes(name string) ([]int, error) {
	fds := make([]int, 0, Slots)
	option := unix.SO_SNDBUFFORCE
	for slot := range Slots {
		fd, err := selfSocket(fmt.Sprintf("%s/m%d", name, slot))
		if err != nil {
			closeFDs(fds)
			return nil, err
		}
		fds = append(fds, fd)
		if option == unix.SO_SNDBUFFORCE && unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, mailBuf) != nil {
			option = unix.SO_SNDBUF
		}
		if option == unix.SO_SNDBUF {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, mailBuf)
		}
	}
	return fds, nil
}

// Mailbox is the descriptor of this member's mailbox, to wait for messages: it stays the group's, until Close.
func (g *Group) Mailbox() int { return g.mailbox }

// Send puts a message, of at most [MaxMail] bytes, into a member's mailbox, this one's
// included. It does not block. EAGAIN: the mailbox is full, the message is dropped and counted; ESRCH: the slot
// is nobody's; EMSGSIZE: it is too long.
func (g *Group) Send(slot int, msg []byte) error {
	if len(msg) > MaxMail {
		return syscall.EMSGSIZE
	}
	if !g.enter() {
		return ErrClosed
	}
	defer g.exit()
	if _, ok := g.d.live(slot); !ok {
		return syscall.ESRCH
	}
	fd := int(g.mail[slot].Load()) - 1
	if fd < 0 {
		var err error
		if fd, err = g.mailFD(slot); err != nil {
			return err
		}
	}
	for {
		_, err := unix.Write(fd, msg)
		switch {
		case err == nil:
			g.counts.sent.Add(1)
			g.step("mail:sent")
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			g.counts.dropped.Add(1)
			return syscall.EAGAIN
		}
		return err
	}
}

// Recv takes the oldest message out of this member's mailbox; EAGAIN: there is none. What
// does not fit into b is cut off. A message may have been written by any member: it is input. Who calls has
// dealt with the messages before: buffers of the pool that came from members who have died are free when there are no more.
func (g *Group) Recv(b []byte) (int, error) {
	if !g.enter() {
		return 0, ErrClosed
	}
	defer g.exit()
	orphans := g.pool.orphans()
	for {
		n, err := unix.Read(g.mailbox, b)
		if errors.Is(err, unix.EAGAIN) {
			for _, i := range orphans {
				g.pool.put(i)
			}
		}
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// mailFD gets the descriptor of a slot's mailbox, which is kept.
func (g *Group) mailFD(slot int) (int, error) {
	g.mailMu.Lock()
	defer g.mailMu.Unlock()
	if v := g.mail[slot].Load(); v != 0 {
		return int(v) - 1, nil
	}
	fd, err := g.takeMailbox(slot)
	if err != nil {
		return -1, err
	}
	g.mail[slot].Store(int32(fd + 1))
	return fd, nil
}

// takeMailbox gets the descriptor of a slot's mailbox, the caller's.
func (g *Group) takeMailbox(slot int) (int, error) {
	var b [8]byte
	_, fds, err := recvFDs(g.mails, b[:], unix.MSG_PEEK)
	if err != nil {
		return -1, tooFew(err)
	}
	return pick(fds, slot, Slots, unix.AF_UNIX)
}

// pick keeps one of n descriptors, which has to be a datagram socket of a family (0: any).
func pick(fds []int, which, n, family int) (int, error) {
	if len(fds) != n {
		closeFDs(fds)
		return -1, ErrGarbage
	}
	fd := fds[which]
	fds[which] = -1
	closeFDs(fds)
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err == nil && typ == unix.SOCK_DGRAM {
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err == nil && (family == 0 || domain == family) {
			return fd, nil
		}
	}
	closeFD(fd)
	return -1, ErrGarbage
}
