package host

// An address stays in its keeper when its last user has gone, so that it costs the next one
// nothing. There is room for MaxAddrs: one that nobody uses any more makes room for another.
//
// Which addresses a member uses is in its word slotAddrs: generation:32 | a bit for each
// keeper. It is set before the sockets are taken, and the keeper is looked at again afterwards: so
// who empties a keeper, and then looks at the words again, sees it, or is seen.

// uses notes that this member uses the address in a keeper. The caller holds addrMu.
func (g *Group) uses(at int) {
	w := slotAt(g.slot, slotAddrs)
	old := g.d.load(w)
	if uint32(old>>32) != g.gen {
		old = 0
	}
	g.d.store(w, uint64(g.gen)<<32|old&(1<<MaxAddrs-1)|1<<at)
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

// reclaim empties a keeper of an address that nobody uses; -1: there is none. The caller
// has the lock.
func (g *Group) reclaim(keepers []int) int {
	for at, fd := range keepers {
		if g.used(at) {
			continue
		}
		var b [keptLen + 1]byte
		n, fds, err := recvFDs(fd, b[:], 0)
		if err != nil {
			continue
		}
		g.step("reclaim:taken")
		again := g.used(at) // since we looked
		if again {
			err = sendFDs(fd, b[:n], fds...)
		}
		closeFDs(fds)
		if again && err == nil {
			continue
		}
		if a, _, ok := readKept(b[:n]); ok {
			delete(g.drained, a)
		}
		g.d.add(hdrAddrs, 1)
		g.poke()
		g.step("reclaim:told")
		return at
	}
	return -1
}
