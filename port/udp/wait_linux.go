package udp

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// States of a waiter.
const (
	awake  = iota
	asleep // in Wait, or on the way
	kicked // the Wait that is running, or the next one, must end
)

// waiter is the port's sleeper. A kick that finds nobody asleep is one atomic
// operation; one that does writes the eventfd as well.
//
// No kick is lost: it first sets the state, and Wait goes to sleep only after
// it has replaced awake by asleep, so either Wait sees the kick or the kick
// sees the sleeper. A kick may write the eventfd after Wait was woken by
// something else; then the next Wait ends for no reason, which is allowed.
type waiter struct {
	state atomic.Int32
	event int // eventfd
	polls []unix.PollFd
	socks int // sockets in polls, which has the eventfd first
	ep    int // descriptor of the groups in polls, -1 for none
	stamp uint32

	// What is in polls hangs on an epoll descriptor as well, if the kernel has
	// epoll_pwait2: with several descriptors ppoll takes a microsecond longer to wake.
	set     int // -1: none
	events  []unix.EpollEvent
	noEpoll bool
}

// renew has what is slept on be what is in the list.
func (w *waiter) renew() {
	if w.set >= 0 {
		_ = unix.Close(w.set)
		w.set = -1
	}
	if w.noEpoll || w.events == nil && !hasEpollWait2() {
		return
	}
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return
	}
	for i, f := range w.polls {
		if f.Fd < 0 {
			continue
		}
		if unix.EpollCtl(set, unix.EPOLL_CTL_ADD, int(f.Fd), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}) != nil {
			_ = unix.Close(set)
			return
		}
	}
	w.set = set
	w.events = make([]unix.EpollEvent, len(w.polls))
}

// block waits for one of the list, whose Revents tell which.
func (w *waiter) block(d time.Duration) {
	var limit *unix.Timespec
	if d >= 0 {
		ts := unix.NsecToTimespec(int64(d))
		limit = &ts
	}
	if w.set < 0 {
		for {
			// The kernel takes the time that was slept off the limit.
			if _, errno := pollWait(w.polls, limit); errno != unix.EINTR {
				return
			}
		}
	}
	for i := range w.polls {
		w.polls[i].Revents = 0
	}
	n, _ := epollWait2(w.set, w.events, limit) // a signal: ends for no reason
	for i := range w.events[:n] {
		w.polls[w.events[i].Fd].Revents = unix.POLLIN
	}
}

// hasEpollWait2 asks the kernel: Linux 5.11 has it, and the filters of some sandboxes do not let it through.
func hasEpollWait2() bool {
	_, errno := epollWait2(-1, make([]unix.EpollEvent, 1), nil)
	return errno == unix.EBADF
}

func (w *waiter) kick() {
	if w.state.Swap(kicked) == asleep {
		eventWrite(w.event)
	}
}

// Kick implements port.Waiter. Any goroutine may call it.
func (p *Port) Kick() {
	// Without the look at the state first, each kick of a port that nobody
	// sleeps on would write to a cache line that senders and receiver share.
	if p.wait.state.Load() == kicked {
		return
	}
	if p.enter() {
		p.wait.kick()
		p.leave()
	}
}

// Wait implements port.Waiter. One goroutine at a time may call it, also while
// another is in Recv. It may end for no reason, and ends at once after Close.
func (p *Port) Wait(d time.Duration) {
	if !p.enter() {
		return
	}
	p.sleep(d)
	p.leave()
}

func (p *Port) sleep(d time.Duration) {
	w := &p.wait
	if !w.state.CompareAndSwap(awake, asleep) {
		w.state.Swap(awake)
		return
	}
	// The sockets are read after the state is set: an AddLocal that is not in
	// the list kicks.
	socks, ep := *p.socks.Load(), p.groups.fd()
	if n := p.renewed.Load(); w.polls == nil || w.socks != len(socks) || w.ep != ep || w.stamp != n {
		w.polls = append(w.polls[:0], unix.PollFd{Fd: int32(w.event), Events: unix.POLLIN})
		w.polls, w.socks, w.ep, w.stamp = pollList(w.polls, socks, ep), len(socks), ep, n
		w.renew()
	}
	if p.share != nil {
		switch {
		case p.more.Load():
			d = 0
		case p.unsent.Load() && (d < 0 || d > retryMail):
			d = retryMail
		}
	}
	w.block(d)
	if w.polls[0].Revents != 0 {
		eventDrain(w.event)
	}
	if p.share != nil {
		side := int32(sideIdle)
		if w.polls[len(w.polls)-1].Revents != 0 {
			side = sideReady
		}
		p.side.Store(side)
	}
	// Not Store: what was done before a kick is seen after Wait.
	w.state.Swap(awake)
}
