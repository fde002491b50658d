package host

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// bury takes a slot from an owner who has died: it takes the slot's name, which tells that
// he is dead and keeps others off, makes his claims void, has somebody end his connections, and frees
// the slot. If this process dies in between the next one begins anew.
func (g *Group) bury(slot int) {
	l := &g.loop
	l.mu.Lock()
	if l.burying[slot] {
		l.mu.Unlock()
		return
	}
	l.burying[slot] = true
	l.mu.Unlock()
	fd, err := selfSocket(g.slotName(slot))
	if err != nil {
		// He lives, or others do it, or the kernel is still taking him apart.
		l.mu.Lock()
		l.burying[slot] = false
		l.mu.Unlock()
		return
	}
	l.burials.Add(1)
	go func() {
		defer l.burials.Done()
		g.burial(slot)
		closeFD(fd)
		g.step("bury:done")
		l.mu.Lock()
		l.burying[slot] = false
		l.mu.Unlock()
	}()
}

func (g *Group) burial(slot int) {
	at := slotAt(slot, slotState)
	g.step("bury:bound")
	gen, state := g.d.state(slot)
	if state != slotLive && state != slotDead {
		return // it was left in order meanwhile
	}
	g.d.store(at, slotWord(gen, slotDead))
	g.step("bury:marked")
	g.d.add(hdrDeaths, 1)
	g.step("bury:counted")
	g.d.add(hdrAddrs, 1) // it may have changed what is in use without having told
	g.step("bury:dead")
	if state == slotLive {
		g.counts.deaths.Add(1)
	}
	list, err := g.recordsOf(slot)
	if err != nil {
		g.counts.garbage.Add(1)
	}
	if g.cfg.OnDeath != nil {
		failed := false
		g.cfg.OnDeath(Death{Slot: slot, Conns: list, Fail: func() { failed = true }})
		if failed {
			return
		}
	}
	g.step("bury:told")
	g.punch(slot)
	g.step("bury:punched")
	g.d.store(at, slotWord(gen, slotFree))
	g.step("bury:free")
}

// recordsOf reads the connection records of a slot.
func (g *Group) recordsOf(slot int) ([]driver.ConnRecord, error) {
	n := min(g.d.load(slotAt(slot, slotConns)), maxConns)
	if n == 0 {
		return nil, nil
	}
	b, err := unix.Mmap(g.dirFD, sharedBytes+int64(slot)*connsBytes, connsBytes, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unix.Munmap(b)) }()
	list, garbage := connWordsOf(words(b)).list(slot, n)
	g.counts.garbage.Add(garbage)
	return list, nil
}
