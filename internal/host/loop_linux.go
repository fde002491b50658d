package host

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The loop is a member's goroutine, besides one that calls OnSteward and one for each
// burial: it lets others in, watches the steward or, if it is the steward, all others. It waits for nobody.
//
// To watch a member is to be connected to its socket for connections: the connection ends
// with it, at once, whether it was running or stopped. Nothing is said over it.
type loop struct {
	epoll, event int
	file         *os.File      // of epoll; nil: the runtime does not wait for it
	spare        int           // a descriptor for when the process has no other left; -1: none
	starved      bool          // a connection could not be taken
	quit         chan struct{} // closed by Close
	done         chan struct{} // closed when the loop has ended; nil: it never began
	left         chan struct{} // closed when the group was left

	tell  chan struct{} // OnSteward is due
	told  sync.WaitGroup
	state atomic.Bool // what it is to be told

	leading  bool
	untidy   bool           // there may be addresses that nobody uses any more
	watched  map[int]watch  // by descriptor
	watching [Slots]watch   // by slot; fd -1: nobody
	visitors map[int]bool   // who watches us
	soon     int            // rounds that follow at once, as somebody has died or will have in a moment
	burials  sync.WaitGroup // running
	mu       sync.Mutex     // guards burying
	burying  [Slots]bool

	// The steward's heartbeat as it was seen last.
	tracked  uint64 // whose
	beat     uint64
	same     int   // looks since it has changed
	changed  int64 // when it did
	looked   int64
	addrs    uint64 // hdrAddrs that OnSteward knows
	lastBeat int64  // when we gave a sign
}

// watch is a connection to a member.
type watch struct {
	fd, slot int
	gen      uint32
}

const (
	soonRounds = 100
	soonPause  = 2 // ms

	// starvedPause is how long a process without descriptors leaves connections waiting.
	starvedPause = 10 * time.Millisecond
)

func (l *loop) init() {
	l.epoll, l.event, l.spare = -1, -1, -1
	l.quit, l.left = make(chan struct{}), make(chan struct{})
	l.watched, l.visitors = map[int]watch{}, map[int]bool{}
	for i := range l.watching {
		l.watching[i].fd = -1
	}
}

// open makes what the loop waits with.
func (l *loop) open(g *Group) (err error) {
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	l.pollable()
	if l.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return err
	}
	l.refill()
	// One of those who wait for new members is enough; of the stopped none waits.
	if err := l.add(g.rendezvous, unix.EPOLLIN|unix.EPOLLEXCLUSIVE); err != nil {
		return err
	}
	if err := l.add(g.listen, unix.EPOLLIN); err != nil {
		return err
	}
	return l.add(l.event, unix.EPOLLIN)
}

func (l *loop) add(fd int, events uint32) error {
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// refill has a spare descriptor ready, if it can.
func (l *loop) refill() {
	if l.spare >= 0 {
		return
	}
	var err error
	if l.spare, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		l.spare = -1
	}
}

// accept takes a connection. Where the process has no descriptor left the spare one makes
// room; without, the connection stays, and the loop must not spin because of it.
func (l *loop) accept(fd int) (int, error) {
	c, _, err := unix.Accept4(fd, sockFlags)
	if l.spare >= 0 && (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) {
		closeFD(l.spare)
		l.spare = -1
		c, _, err = unix.Accept4(fd, sockFlags)
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		l.starved = true
	}
	return c, err
}

func (l *loop) start(g *Group) {
	l.done = make(chan struct{})
	if g.cfg.OnSteward != nil {
		l.tell = make(chan struct{}, 1)
		l.told.Go(func() {
			for range l.tell {
				g.cfg.OnSteward(l.state.Load())
			}
		})
	}
	go l.run(g)
}

// notify has OnSteward called. What is outdated meanwhile is left out.
func (l *loop) notify(on bool) {
	l.state.Store(on)
	if l.tell == nil {
		return
	}
	select {
	case l.tell <- struct{}{}:
	default:
	}
}

// end ends the loop and waits for it and the burials.
func (l *loop) end() {
	close(l.quit)
	var one [8]byte
	one[0] = 1
	if l.done != nil {
		_, _ = unix.Write(l.event, one[:])
		<-l.done
	}
	if l.tell != nil {
		close(l.tell)
		l.told.Wait()
	}
	l.burials.Wait()
	l.close()
}

// close closes what the loop has.
func (l *loop) close() {
	for fd := range l.watched {
		closeFD(fd)
	}
	for fd := range l.visitors {
		closeFD(fd)
	}
	clear(l.watched)
	clear(l.visitors)
	closeFD(l.spare)
	closeFD(l.event)
	if l.file != nil {
		_ = l.file.Close()
	} else {
		closeFD(l.epoll)
	}
	l.file = nil
	l.event, l.epoll, l.spare = -1, -1, -1
}

func (l *loop) run(g *Group) {
	defer close(l.done)
	var events [64]unix.EpollEvent
	for {
		wait := l.round(g)
		if l.refill(); l.starved {
			l.starved = false
			time.Sleep(starvedPause)
		}
		n, err := l.wait(events[:], wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // nobody but us closes it
		}
		select {
		case <-l.quit:
			return
		default:
		}
		for _, e := range events[:max(n, 0)] {
			l.ready(g, int(e.Fd))
		}
	}
}

// ready is called when a descriptor has something.
func (l *loop) ready(g *Group, fd int) {
	switch {
	case fd == l.event:
		var b [8]byte
		_, _ = unix.Read(fd, b[:])
	case fd == g.rendezvous:
		g.answer()
	case fd == g.listen:
		l.receive(g)
	case l.visitors[fd]:
		closeFD(fd) // nobody says anything: it has gone
		delete(l.visitors, fd)
	default:
		if w, ok := l.watched[fd]; ok {
			l.unwatch(w)
			l.soon, l.untidy = soonRounds, true
		}
	}
}

// receive takes the connections of who watches us.
func (l *loop) receive(g *Group) {
	for range 4 * Slots {
		fd, err := l.accept(g.listen)
		if err != nil {
			return
		}
		if cred, err := peer(fd); err != nil || cred.Uid != g.me.uid || len(l.visitors) >= 4*Slots {
			g.counts.refused.Add(1)
			closeFD(fd)
			continue
		}
		if l.add(fd, unix.EPOLLIN|unix.EPOLLRDHUP) != nil {
			closeFD(fd)
			continue
		}
		l.visitors[fd] = true
	}
}

// watch connects to a member; false: it does not listen.
func (l *loop) watch(g *Group, slot int, gen uint32) bool {
	if w := l.watching[slot]; w.fd >= 0 {
		if w.gen == gen {
			return true
		}
		l.unwatch(w)
	}
	fd, err := dial(g.slotName(slot))
	if err != nil {
		return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
	}
	if cred, err := peer(fd); err != nil || cred.Uid != g.me.uid || l.add(fd, unix.EPOLLIN|unix.EPOLLRDHUP) != nil {
		closeFD(fd)
		return false
	}
	w := watch{fd, slot, gen}
	l.watched[fd], l.watching[slot] = w, w
	return true
}

func (l *loop) unwatch(w watch) {
	closeFD(w.fd)
	delete(l.watched, w.fd)
	if l.watching[w.slot].fd == w.fd {
		l.watching[w.slot].fd = -1
	}
}

// round does what is due. It returns how many ms may pass until the next one.
func (l *loop) round(g *Group) int {
	now := g.cfg.Now()
	word := g.d.load(hdrSteward)
	if word != g.self && !g.d.ownerAlive(word) {
		// Whoever is first; it need not be the lowest slot.
		word = l.takeOver(g, word)
	}
	if word != g.self {
		if l.leading {
			l.lead(g, false)
		}
		l.follow(g, word, now)
		word = g.d.load(hdrSteward)
	}
	if word == g.self {
		if !l.leading {
			l.lead(g, true)
		}
		return l.tend(g, now)
	}
	return l.lookAgain(g)
}

// lookAgain is how many ms may pass until the steward's heartbeat is looked at again.
func (l *loop) lookAgain(g *Group) int {
	if l.same > 0 {
		return l.pause(g.cfg.Stale/8 + time.Millisecond) // it may not run: look closely
	}
	return l.pause(g.cfg.Stale / 2)
}

func (l *loop) pause(d time.Duration) int {
	if l.soon > 0 {
		l.soon--
		return soonPause
	}
	return max(int(d.Milliseconds()), 1)
}

// takeOver tries to become the steward after another one.
func (l *loop) takeOver(g *Group, after uint64) uint64 {
	g.step("steward:begin")
	if g.d.cas(hdrSteward, after, g.self) {
		g.counts.takeovers.Add(1)
		g.step("steward:taken")
		return g.self
	}
	return g.d.load(hdrSteward)
}

// lead begins or ends that this member is the steward.
func (l *loop) lead(g *Group, on bool) {
	l.leading, l.tracked, l.untidy = on, 0, true
	for _, w := range l.watching {
		if w.fd >= 0 {
			l.unwatch(w)
		}
	}
	l.addrs = g.d.load(hdrAddrs)
	if on {
		g.d.add(hdrBeat, 1)
	}
	l.notify(on)
	g.step("steward:told")
}

// tend does the steward's work.
func (l *loop) tend(g *Group, now int64) int {
	if a := g.d.load(hdrAddrs); a != l.addrs {
		l.addrs, l.untidy = a, true
		l.notify(true)
	}
	alone := true
	for slot := 1; slot < Slots; slot++ {
		if slot == g.slot {
			continue
		}
		gen, state := g.d.state(slot)
		switch {
		case state == slotLive && l.watch(g, slot, gen):
			alone = false
		case state == slotLive || state == slotDead:
			alone = false
			g.bury(slot)
		case l.watching[slot].fd >= 0:
			l.unwatch(l.watching[slot]) // it has left
			l.untidy = true
		}
	}
	if l.untidy {
		l.untidy = !g.tidy()
	}
	if alone {
		// Who comes connects to us.
		return l.pause(4 * g.cfg.Stale)
	}
	if now-l.lastBeat >= int64(g.cfg.Heartbeat)/2 {
		l.lastBeat = now
		g.d.add(hdrBeat, 1)
	}
	return l.pause(g.cfg.Heartbeat)
}

// follow watches the steward, which word names.
func (l *loop) follow(g *Group, word uint64, now int64) {
	slot, gen := ownerSlot(word)
	if slot <= 0 || slot >= Slots {
		return
	}
	for _, w := range l.watching {
		if w.fd >= 0 && (w.slot != slot || w.gen != gen) {
			l.unwatch(w)
		}
	}
	if l.tracked != word {
		l.tracked, l.beat, l.same, l.changed = word, g.d.load(hdrBeat), 0, now
	}
	// It may be alive and not to be connected to: too many wait there.
	if l.watching[slot].fd < 0 && !l.watch(g, slot, gen) && g.gone(slot) {
		l.takeOver(g, word)
		return
	}
	if beat := g.d.load(hdrBeat); beat != l.beat {
		l.beat, l.same, l.changed = beat, 0, now
	} else if now-l.looked >= int64(g.cfg.Stale)/8 {
		l.same++ // looks, not time alone: this process may have been stopped as well
		l.looked = now
	}
	if l.same >= 4 && now-l.changed >= int64(g.cfg.Stale) && (g.controlReadable() || g.somebodyDied(slot)) {
		l.takeOver(g, word)
	}
}

// controlReadable reports whether anything waits in slot 0 of any address. No socket is kept
// for it: it would keep an address that is given up from being had again.
func (g *Group) controlReadable() bool {
	list, err := g.addrs()
	if err != nil {
		return true // then better two than none
	}
	for _, a := range list {
		fd, err := g.control(a)
		if err != nil {
			continue
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		closeFD(fd)
		if err == nil && n > 0 {
			return true
		}
	}
	return false
}

// somebodyDied reports whether a member has died that the steward has not buried.
func (g *Group) somebodyDied(steward int) bool {
	for slot := 1; slot < Slots; slot++ {
		if slot == g.slot || slot == steward {
			continue
		}
		if _, state := g.d.state(slot); (state == slotLive || state == slotDead) && g.gone(slot) {
			return true
		}
	}
	return false
}

// poke has the steward look what is new.
func (g *Group) poke() {
	slot, _ := ownerSlot(g.d.load(hdrSteward))
	if slot <= 0 || slot >= Slots {
		return
	}
	if fd, err := dial(g.slotName(slot)); err == nil {
		closeFD(fd)
	}
}
