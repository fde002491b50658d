package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// What a member answers a process that has connected to the rendezvous: everything in
// the machine's byte order.
const (
	answerMagic  = 0 // 8 bytes
	answerLayout = 8 // 4: the answer is of this form if it is ours
	answerStatus = 12
	answerUID    = 16
	answerPID    = 20
	answerUserNS = 24 // 16
	answerLen    = 40
)

// Status of an answer.
const (
	answerYes = iota
	answerForeign
	answerNoFDs
)

// ask gets rendezvous and root from a member.
func (g *Group) ask(ctx context.Context) error {
	fd, err := dial(g.name)
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EAGAIN):
		return errAgain
	case err != nil:
		return err
	}
	defer closeFD(fd)
	g.step("join:connected")
	cred, err := peer(fd)
	if err != nil {
		return err
	}
	if cred.Uid != g.me.uid {
		return g.squatted(cred.Uid)
	}
	wait := g.cfg.Answer
	if at, ok := ctx.Deadline(); ok {
		wait = max(min(wait, time.Until(at)), time.Millisecond)
	}
	if err := readable(fd, wait); errors.Is(err, ErrSilent) && cred.Pid > 0 && unix.Kill(int(cred.Pid), 0) == nil {
		return fmt.Errorf("%w; process %d was the first of them", err, cred.Pid)
	} else if err != nil {
		return err
	}
	var b [answerLen]byte
	n, fds, err := recvFDs(fd, b[:], 0)
	if errors.Is(err, unix.ECONNRESET) || err == nil && n == 0 {
		closeFDs(fds)
		return errAgain // it died, or left
	}
	if err != nil {
		return err
	}
	g.step("join:answered")
	if err := g.judge(b[:n], len(fds)); err != nil {
		closeFDs(fds)
		return err
	}
	g.rendezvous, g.root = fds[0], fds[1]
	return nil
}

// judge looks at an answer.
func (g *Group) judge(b []byte, fds int) error {
	if len(b) < answerLen || binary.NativeEndian.Uint64(b[answerMagic:]) != magic {
		return ErrGarbage
	}
	if binary.NativeEndian.Uint32(b[answerLayout:]) != layout {
		return ErrVersion
	}
	pid := int32(binary.NativeEndian.Uint32(b[answerPID:]))
	switch binary.NativeEndian.Uint32(b[answerStatus:]) {
	case answerYes:
	case answerForeign:
		return fmt.Errorf("%w: process %d of user %d", ErrForeign, pid, binary.NativeEndian.Uint32(b[answerUID:]))
	default:
		return fmt.Errorf("%w: process %d, %w", ErrDescriptors, pid, errUnable)
	}
	ns := [2]uint64{binary.NativeEndian.Uint64(b[answerUserNS:]), binary.NativeEndian.Uint64(b[answerUserNS+8:])}
	if ns != g.me.userns && ns != [2]uint64{} && g.me.userns != [2]uint64{} {
		return fmt.Errorf("%w: process %d is in user namespace %d, this one in %d", ErrForeign, pid, ns[1], g.me.userns[1])
	}
	if fds != 2 {
		return ErrGarbage
	}
	return nil
}

// answer lets in who has connected to the rendezvous, one after the other.
func (g *Group) answer() {
	for range 64 {
		fd, err := g.loop.accept(g.rendezvous)
		if err != nil {
			return
		}
		g.step("answer:accepted")
		g.answerTo(fd)
		g.step("answer:sent")
		closeFD(fd)
		g.loop.refill()
	}
}

func (g *Group) answerTo(fd int) {
	var b [answerLen]byte
	binary.NativeEndian.PutUint64(b[answerMagic:], magic)
	binary.NativeEndian.PutUint32(b[answerLayout:], layout)
	binary.NativeEndian.PutUint32(b[answerUID:], g.me.uid)
	binary.NativeEndian.PutUint32(b[answerPID:], uint32(os.Getpid()))
	binary.NativeEndian.PutUint64(b[answerUserNS:], g.me.userns[0])
	binary.NativeEndian.PutUint64(b[answerUserNS+8:], g.me.userns[1])
	status := uint32(answerYes)
	if cred, err := peer(fd); err != nil || cred.Uid != g.me.uid {
		status = answerForeign
	} else if err := sendFDs(fd, b[:], g.rendezvous, g.root); err == nil {
		g.counts.answered.Add(1)
		return
	} else if errors.Is(err, ErrDescriptors) {
		status = answerNoFDs
	} else {
		return // it has gone
	}
	g.counts.refused.Add(1)
	binary.NativeEndian.PutUint32(b[answerStatus:], status)
	_ = unix.Sendmsg(fd, b[:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// readable waits until there is something to read: ErrSilent if there is nothing in time.
func readable(fd int, wait time.Duration) error {
	end := time.Now().Add(wait)
	for {
		left := time.Until(end)
		if left < 0 {
			return ErrSilent
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(left.Milliseconds())+1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n > 0:
			return nil
		}
	}
}
