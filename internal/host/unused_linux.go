package host

import "golang.org/x/sys/unix"

// An address that nobody uses any more is taken out of its keeper by the steward, so that others can have
// it who do not share, or by who needs the room (MaxAddrs) before the steward comes to it.
//
// Which addresses a member uses is in its word slotAddrs: generation:32 | a bit for each
// keeper. Who empties a keeper says so in hdrEmpty before it looks at these words, and a member sets its bit before it looks at
// hdrEmpty: one of the two sees the other. So nothing is ever taken out of a keeper that would have to be put back, and
// whoever dies in between takes nothing with it.

// uses notes whether this member uses the address in a keeper, and tells whether that is new. The caller holds addrMu.
func (g *Group) uses(at int, on bool) bool {
	w := slotAt(g.slot, slotAddrs)
	old := g.d.load(w)
	if uint32(old>>32) != g.gen {
		old = 0
	}
	bits := old & (1<<MaxAddrs - 1) &^ (1 << at)
	if on {
		bits |= 1 << at
	}
	v := uint64(g.gen)<<32 | bits
	g.d.store(w, v)
	return v != old
}

// using is uses before the sockets are taken out of the keeper. Each member that begins to use an
// address tells the steward: who has made the sockets may have died before it could. The caller holds addrMu.
func (g *Group) using(at int, made bool) error {
	fresh := g.uses(at, true) || made
	g.step("addr:used")
	if g.d.load(hdrEmpty) == uint64(at)+1 {
		lock, err := g.lock()
		if err != nil {
			return err
		}
		g.d.store(hdrEmpty, 0) // who had the lock has died, or is through
		closeFD(lock)
	}
	if fresh {
		g.d.add(hdrAddrs, 1)
		g.step("addr:counted")
		g.poke()
		g.step("addr:told")
	}
	return nil
}

// used reports whether a living member uses the address in a keeper.
func (g *Group) used(at int) bool {
	for slot := 1; slot < Slots; slot++ {
		if gen, ok := g.d.live(slot); ok {
			if w := g.d.load(slotAt(slot, slotAddrs)); uint32(w>>32) == gen && w>>at&1 != 0 {
				return true
			}
		}
	}
	return false
}

// empty takes an address that nobody uses out of its keeper; false: somebody does. The
// caller has the lock and holds addrMu.
func (g *Group) empty(keepers []int, at int) bool {
	g.d.store(hdrEmpty, uint64(at)+1)
	g.step("empty:begun")
	var b [keptLen + 1]byte
	n, taken := 0, false
	if !g.used(at) {
		var err error
		n, err = unix.Read(keepers[at], b[:]) // takes the message, and so its sockets
		taken = err == nil
		g.step("empty:taken")
	}
	if taken {
		if a, _, ok := readKept(b[:n]); ok {
			delete(g.drained, a)
		}
		g.d.add(hdrAddrs, 1)
	}
	g.d.store(hdrEmpty, 0)
	g.step("empty:done")
	if taken {
		g.poke()
	}
	return taken
}

// reclaim empties a keeper of an address that nobody uses; -1: there is none. The caller
// has the lock and holds addrMu.
func (g *Group) reclaim(keepers []int) int {
	for at := range keepers {
		if !g.used(at) && g.empty(keepers, at) {
			return at
		}
	}
	return -1
}

// tidy forgets the addresses that nobody uses any more; false: it could not, as somebody
// else is at it. It waits for nobody.
func (g *Group) tidy() bool {
	if !g.addrMu.TryLock() {
		return false
	}
	defer g.addrMu.Unlock()
	keepers, err := g.keepers()
	if err != nil {
		return false
	}
	defer closeFDs(keepers)
	lock := -1
	defer func() { closeFD(lock) }()
	var b [1]byte
	for at, fd := range keepers {
		if _, err := peekBytes(fd, b[:]); err != nil || g.used(at) {
			continue
		}
		if lock < 0 {
			if lock, err = selfSocket(g.lockName()); err != nil {
				return false
			}
		}
		g.empty(keepers, at)
	}
	return true
}
