package host

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A goroutine that sleeps in a system call keeps one of the runtime's processors until
// the runtime notices, which on a busy machine takes milliseconds; one that wakes twenty
// times a second would cost the data path a tenth of them. So the loop waits as network
// connections do: its epoll descriptor hangs on the runtime's.

// pollable hands the epoll descriptor to the runtime. Where that does not work the loop
// sleeps in epoll_wait.
func (l *loop) pollable() {
	if unix.SetNonblock(l.epoll, true) != nil {
		return
	}
	f := os.NewFile(uintptr(l.epoll), "epoll")
	if f.SetReadDeadline(time.Time{}) == nil {
		l.file = f
		return
	}
	// The file would close the descriptor when it is collected: it gets another one.
	if fd, err := unix.FcntlInt(uintptr(l.epoll), unix.F_DUPFD_CLOEXEC, 0); err == nil {
		_ = f.Close()
		l.epoll = fd
	} else {
		l.file = f
	}
}

// wait waits for events, ms milliseconds at most; -1: without limit.
func (l *loop) wait(events []unix.EpollEvent, ms int) (n int, err error) {
	n, err = unix.EpollWait(l.epoll, events, 0)
	if n != 0 || err != nil || ms == 0 {
		return max(n, 0), err
	}
	var limit time.Time
	if ms > 0 {
		limit = time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	if l.file == nil || l.file.SetReadDeadline(limit) != nil {
		n, err = unix.EpollWait(l.epoll, events, ms)
		return max(n, 0), err
	}
	c, err := l.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var inner error
	err = c.Read(func(fd uintptr) bool {
		n, inner = unix.EpollWait(int(fd), events, 0)
		return n != 0 || inner != nil
	})
	switch {
	case os.IsTimeout(err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return max(n, 0), inner
}
