package host

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	joinPatience = 5 * time.Second
	joinPause    = time.Millisecond // before trying again what another process is about to end

	rootFDs = 2 + MaxAddrs // directory, keeper of the mailboxes, keepers of the addresses
)

// Join makes this process a member: it founds the group or is let in by any member. The
// errors are those of this package, and what the system says (EMFILE, ENOMEM). ctx bounds how long members
// that do not answer are waited for, at most 5 s. Calls of Config.OnSteward and OnDeath may come
// before it returns.
func Join(ctx context.Context, cfg Config) (*Group, error) {
	cfg.setDefaults()
	me, err := whoami()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	g := &Group{
		cfg: cfg, me: me, name: fmt.Sprintf("verbena%s.%d.%d", cfg.Private, me.uid, cfg.IfIndex),
		rendezvous: -1, root: -1, dirFD: -1, mails: -1, slotFD: -1, listen: -1, mailbox: -1,
		drained: map[netip.Addr]bool{},
		idle:    make(chan struct{}),
	}
	g.loop.init()
	if err := g.join(ctx); err != nil {
		g.abandon()
		return nil, tooFew(err)
	}
	return g, nil
}

func (c *Config) setDefaults() {
	if c.Heartbeat <= 0 {
		c.Heartbeat = 50 * time.Millisecond
	}
	if c.Stale <= 0 {
		c.Stale = 250 * time.Millisecond
	}
	if c.Answer <= 0 {
		c.Answer = 200 * time.Millisecond
	}
	if c.Now == nil {
		begin := time.Now()
		c.Now = func() int64 { return int64(time.Since(begin)) }
	}
}

// abandon gives back what a failed join has got.
func (g *Group) abandon() {
	g.loop.close()
	g.leave()
}

func (g *Group) join(ctx context.Context) error {
	founded, err := g.meet(ctx)
	if err != nil {
		return err
	}
	if err := g.attach(); err != nil {
		return err
	}
	if err := g.claimSlot(ctx); err != nil {
		return err
	}
	if founded {
		if err := unix.Listen(g.rendezvous, backlog); err != nil {
			return err
		}
		g.step("found:listening")
	}
	if err := g.loop.open(g); err != nil {
		return err
	}
	g.step("join:done")
	g.loop.start(g)
	return nil
}

// backlog of the sockets that others connect to: the system bounds it by somaxconn.
const backlog = 4096

// meet gets rendezvous and root: it founds the group, or asks who has.
func (g *Group) meet(ctx context.Context) (founded bool, err error) {
	silent := fmt.Errorf("%w (one is about to be the first)", ErrSilent)
	asked, unable := 0, 0
	for {
		fd, err := bindName(g.name)
		if err == nil {
			g.rendezvous = fd
			g.step("found:bound")
			return true, g.found()
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return false, err
		}
		switch err := g.ask(ctx); {
		case err == nil:
			return false, nil
		case errors.Is(err, ErrSilent):
			silent = err
		case errors.Is(err, errUnable) && unable < unableMost:
			unable++
		case !errors.Is(err, errAgain):
			return false, err
		}
		if asked++; asked == askedMany {
			// Nobody takes so long to begin to listen.
			if uid, ok := holder(g.name); ok && uid != g.me.uid {
				return false, g.squatted(uid)
			}
		}
		select {
		case <-ctx.Done():
			if context.Cause(ctx) == context.Canceled {
				return false, ctx.Err()
			}
			return false, silent
		case <-time.After(joinPause):
		}
	}
}

// squatted tells that another user has our name.
func (g *Group) squatted(uid uint32) error {
	return fmt.Errorf("%w: user %d has the name %q", ErrForeign, uid, "@"+g.name)
}

var (
	errAgain  = errors.New("host: nobody listens yet, or not any more")
	errUnable = errors.New("which would let this one in")
)

const (
	// unableMost is how often who has too few descriptors is asked: another member may be
	// the next who answers.
	unableMost = 50
	// askedMany is how often nobody has listened when we ask who that is.
	askedMany = 50
)

// found makes what the group shares. Until it listens nobody knows of it; if the process dies the name is free again.
func (g *Group) found() (err error) {
	fds := make([]int, 0, rootFDs)
	defer func() { closeFDs(fds) }()
	dir, err := unix.MemfdCreate("verbena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return err
	}
	fds = append(fds, dir)
	if limited(dirBytes) {
		return ErrFileSize // asking for it would be a signal
	}
	if err := unix.Ftruncate(dir, dirBytes); err != nil {
		return err
	}
	g.step("found:sized")
	if _, err := unix.FcntlInt(uintptr(dir), unix.F_ADD_SEALS, dirSeals); err != nil {
		return err
	}
	b, err := unix.Mmap(dir, 0, sharedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	dirOf(b).begin(binary.NativeEndian.Uint64(id[:]))
	_ = unix.Munmap(b)
	g.step("found:directory")
	name := g.groupName(binary.NativeEndian.Uint64(id[:]))
	mails, err := newMailboxes(name)
	if err != nil {
		return err
	}
	defer closeFDs(mails)
	for i := range rootFDs - 1 {
		fd, err := keeper(fmt.Sprintf("%s/k%d", name, i))
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	if err := sendFDs(fds[1], id[:], mails...); err != nil {
		return err
	}
	g.step("found:mailboxes")
	if g.root, err = keeper(name + "/root"); err != nil {
		return err
	}
	if err := sendFDs(g.root, id[:], fds...); err != nil {
		return err
	}
	g.step("found:root")
	return nil
}

// keeper makes a socket whose first message is what this process will send.
func keeper(name string) (int, error) {
	fd, err := selfSocket(name)
	if err != nil {
		return -1, err
	}
	// What a stranger sent before it was connected to itself is none of ours.
	if err := drain(fd, drainMax); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

const dirSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func dirOf(b []byte) dir { return dir{words(b)} }

// attach gets what the root has, and checks it.
func (g *Group) attach() error {
	id, fds, err := g.peekRoot()
	if err != nil {
		return err
	}
	g.step("join:peeked")
	g.id = id
	g.dirFD, g.mails = fds[0], fds[1]
	closeFDs(fds[2:])
	var st unix.Stat_t
	if err := unix.Fstat(g.dirFD, &st); err != nil {
		return err
	}
	if st.Size != dirBytes {
		return ErrVersion
	}
	// Whoever could shrink it would kill those who read it.
	if seals, err := unix.FcntlInt(uintptr(g.dirFD), unix.F_GET_SEALS, 0); err != nil || seals&dirSeals != dirSeals {
		return ErrGarbage
	}
	if g.shared, err = unix.Mmap(g.dirFD, 0, sharedBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	g.d = dirOf(g.shared)
	if err := g.d.check(); err != nil {
		return err
	}
	g.step("join:mapped")
	return nil
}

// peekRoot gets the group's number and the descriptors of the root, which are the caller's.
func (g *Group) peekRoot() (id uint64, fds []int, err error) {
	var b [8]byte
	n, fds, err := recvFDs(g.root, b[:], unix.MSG_PEEK)
	if err != nil {
		return 0, nil, tooFew(err)
	}
	if len(fds) != rootFDs || n != len(b) {
		closeFDs(fds)
		return 0, nil, ErrGarbage
	}
	return binary.NativeEndian.Uint64(b[:]), fds, nil
}

// claimSlot takes a slot that nobody has: whoever has bound its name.
func (g *Group) claimSlot(ctx context.Context) error {
	for {
		taken := 0
		for slot := 1; slot < Slots; slot++ {
			if _, state := g.d.state(slot); state == slotLive || state == slotDead {
				if state == slotLive && bound(g.slotName(slot)) {
					taken++
				}
				continue // of a dead one: the steward has to bury it before
			}
			ok, err := g.trySlot(slot)
			if err != nil || ok {
				return err
			}
		}
		if taken == Slots-1 {
			return ErrFull
		}
		// The rest are being taken, or their owners' connections are being ended.
		select {
		case <-ctx.Done():
			if context.Cause(ctx) == context.Canceled {
				return ctx.Err()
			}
			if uid, ok := g.slotSquatter(); ok {
				return fmt.Errorf("%w: user %d has names of the group %q", ErrForeign, uid, "@"+g.name)
			}
			return ErrFull
		case <-time.After(joinPause):
		}
	}
}

// slotSquatter looks for another user who keeps us from a slot that nobody has.
func (g *Group) slotSquatter() (uid uint32, ok bool) {
	for slot := 1; slot < Slots; slot++ {
		if _, live := g.d.live(slot); live {
			continue
		}
		if uid, ok := holder(g.slotName(slot)); ok && uid != g.me.uid {
			return uid, true
		}
		break // it asks for all sockets: once
	}
	return 0, false
}

// trySlot takes a slot if it is free.
func (g *Group) trySlot(slot int) (bool, error) {
	name := g.slotName(slot)
	fd, err := selfSocket(name)
	if errors.Is(err, unix.EADDRINUSE) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	g.step("claim:bound")
	gen, state := g.d.state(slot)
	if state == slotLive || state == slotDead { // it came and died since we looked
		closeFD(fd)
		return false, nil
	}
	g.slotFD = fd
	if g.listen, err = bindName(name); errors.Is(err, unix.EADDRINUSE) {
		closeFD(fd) // its last owner is still being taken apart
		g.slotFD, g.listen = -1, -1
		return false, nil
	}
	if err == nil {
		err = unix.Listen(g.listen, backlog)
	}
	if err != nil {
		return false, err
	}
	g.step("claim:listening")
	if g.mailbox, err = g.takeMailbox(slot); err != nil {
		return false, err
	}
	if err := drain(g.mailbox, drainMax); err != nil {
		return false, err
	}
	g.records, err = unix.Mmap(g.dirFD, sharedBytes+int64(slot)*connsBytes, connsBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return false, err
	}
	g.punch(slot)
	g.step("claim:cleared")
	gen++
	g.d.store(slotAt(slot, slotFlags), 0)
	g.d.store(slotAt(slot, slotAddrs), 0)
	g.slot, g.gen, g.self = slot, gen, owner(slot, gen)
	g.claims = claims{d: g.d, slot: slot, gen: gen, step: g.step, gone: g.dead, pid: g.pidOf, held: map[portKey]*claim{}}
	g.conns = conns{d: g.d, w: words(g.records), slot: slot, gen: gen, step: g.step}
	g.pool.d, g.pool.self, g.pool.step = g.d, g.self, g.step
	g.pool.swept.Store(g.d.load(hdrDeaths))
	g.d.store(slotAt(slot, slotState), slotWord(gen, slotLive))
	g.step("claim:live")
	g.poke() // the steward watches us from now on
	g.step("claim:told")
	return true, nil
}

// gone reports whether a slot's owner is dead, whatever the directory says.
func (g *Group) gone(slot int) bool { return !bound(g.slotName(slot)) }

// dead is gone also while somebody who buries the owner has bound the name, but has not
// written it down yet: only the owner listens.
func (g *Group) dead(slot int) bool {
	if g.gone(slot) {
		return true
	}
	fd, err := dial(g.slotName(slot))
	if err == nil {
		closeFD(fd)
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

// pidOf asks the kernel, which knows what the process is called in this PID namespace.
func (g *Group) pidOf(slot int) int {
	fd, err := dial(g.slotName(slot))
	if err != nil {
		return 0
	}
	defer closeFD(fd)
	cred, err := peer(fd)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}
