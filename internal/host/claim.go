package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Port claims are a table of entries that each have one owner, who alone writes them:
//
//	w0  generation:32 | sequence:20 | slot:8 | state:4
//	w1  flags | port:16 | space:16
//	w2, w3 the address
//
// A claim stands in one of the claimWindow entries from the home of its port on, which
// depends on space and port alone. So all claims of a port are found by looking at that many.
//
// To claim: take an entry (claimFilling), write it, publish it (claimTentative), look at
// all others of the port, and hold it (claimHeld) if there is no conflict. Of two that do so at once
// each sees the other, or one sees nobody and has it. Among tentative ones that with
// the lower index goes first: it revokes the other; the other steps back and tries again. An owner may
// die or stop anywhere: the dead are no claimants, and nobody waits for the stopped.
//
// The sequence number changes with each use of an entry, so that one who has read w0
// twice has read w1 to w3 of one claim.
const (
	claimNone = iota
	claimFilling
	claimTentative
	claimRevoked // by another one, only from tentative
	claimHeld
	claimListens
)

const (
	claimWindow = 512
	claimRounds = 64 // attempts among others who claim the same port at the same time
)

// Flags in w1.
const (
	claimIs4    = 1 << 32
	claimWild   = 1 << 33
	claimOnly   = 1 << 34 // keeps to its family
	claimShares = 1 << 35 // bears others that share
	claimBits   = claimIs4 | claimWild | claimOnly | claimShares | (1<<32 - 1)
)

func claimWord(slot int, gen, seq uint32, state uint64) uint64 {
	return uint64(gen)<<32 | uint64(seq&0xFFFFF)<<12 | uint64(slot&0xFF)<<4 | state
}

func claimOwner(w uint64) (slot int, gen uint32) { return int(w >> 4 & 0xFF), uint32(w >> 32) }
func claimState(w uint64) uint64                 { return w & 0xF }
func withState(w, state uint64) uint64           { return w&^0xF | state }

// claimHome is where the entries for a port begin. Ports of a space are all different; the
// factor keeps those that follow each other apart.
func claimHome(space, port uint16) int {
	return int((uint32(space)*0x9E3779B1 + uint32(port)*40503*2) % claimsLen)
}

// A wanted claim, or one that was read.
type portKey struct {
	w1, hi, lo uint64
}

func makePortKey(space uint16, at netip.AddrPort, flags driver.ClaimFlags) portKey {
	a := at.Addr().Unmap().WithZone("")
	b := a.As16()
	k := portKey{
		w1: uint64(space) | uint64(at.Port())<<16,
		hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:]),
	}
	if a.Is4() {
		k.w1 |= claimIs4 | claimOnly
	}
	if a.IsUnspecified() {
		k.w1 |= claimWild
	}
	if flags&driver.ClaimAFOnly != 0 {
		k.w1 |= claimOnly
	}
	if flags&driver.ClaimReuse != 0 {
		k.w1 |= claimShares
	}
	return k
}

func (k portKey) is(flag uint64) bool { return k.w1&flag != 0 }

// conflicts tells whether two claims of one port cannot be together, and whether a
// wildcard is the reason. Sharing is not looked at.
func (k portKey) conflicts(o portKey) (conflict, wild bool) {
	switch {
	case k.is(claimIs4) != o.is(claimIs4) && k.is(claimOnly) && o.is(claimOnly):
		return false, false
	case k.is(claimWild) || o.is(claimWild):
		return true, true
	}
	return k.is(claimIs4) == o.is(claimIs4) && k.hi == o.hi && k.lo == o.lo, false
}

// claims is a member's access to the port claims.
type claims struct {
	d    dir
	slot int
	gen  uint32
	step func(string)
	// gone asks the system whether the owner of a slot is dead although the directory
	// does not say so yet.
	gone func(slot int) bool
	// pid tells the process that has a slot, as it is called here; 0: it cannot be told.
	pid func(slot int) int

	mu   sync.Mutex
	seq  uint32
	held map[portKey]*claim // those that share, claimed by this member: one entry for all
}

// claim is an entry of the table that this member has.
type claim struct {
	at   int // index
	key  portKey
	uses int // under claims.mu
}

// portError tells that a port is in use. Where a wildcard is the reason Linux's rdma_cm
// says EADDRNOTAVAIL, while sockets say EADDRINUSE: it is both.
type portError struct {
	at       netip.AddrPort
	wildcard bool
	slot     int
	pid      int
	self     bool
}

func (e *portError) Error() string {
	switch {
	case e.self:
		return fmt.Sprintf("%s: %v by this process", e.at, syscall.EADDRINUSE)
	case e.pid > 0:
		return fmt.Sprintf("%s: %v by process %d", e.at, syscall.EADDRINUSE, e.pid)
	}
	return e.at.String() + ": " + syscall.EADDRINUSE.Error()
}

// Unwrap gives the errnos.
func (e *portError) Unwrap() []error {
	if e.wildcard {
		return []error{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL}
	}
	return []error{syscall.EADDRINUSE}
}

// claim claims a port. The caller has checked the arguments.
func (c *claims) claim(space uint16, at netip.AddrPort, flags driver.ClaimFlags) (*claim, error) {
	k := makePortKey(space, at, flags)
	unused := flags&driver.ClaimUnused != 0
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.held[k]; h != nil && !unused {
		h.uses++
		return h, nil
	}
	i, err := c.insert(k, -1, unused, at)
	if err != nil {
		return nil, err
	}
	n := &claim{at: i, key: k, uses: 1}
	if k.is(claimShares) {
		c.held[k] = n
	}
	return n, nil
}

// insert takes an entry for k and holds it. The entry except, this member's, is no conflict; unused: everybody
// else is. The caller holds mu.
func (c *claims) insert(k portKey, except int, unused bool, at netip.AddrPort) (int, error) {
	for range claimRounds {
		i, w, err := c.take(k)
		if err != nil {
			return 0, err
		}
		e := claimsAt + i*claimWords
		c.d.store(e+1, k.w1)
		c.d.store(e+2, k.hi)
		c.d.store(e+3, k.lo)
		c.step("port:filled")
		c.d.store(e, withState(w, claimTentative))
		c.step("port:published")
		err = c.check(k, i, except, unused, at)
		c.step("port:checked")
		if err == nil && c.d.cas(e, withState(w, claimTentative), withState(w, claimHeld)) {
			c.step("port:held")
			return i, nil
		}
		c.d.store(e, withState(w, claimNone))
		c.step("port:withdrawn")
		if err != nil && !errors.Is(err, errRace) {
			return 0, err
		}
	}
	return 0, &portError{at: at}
}

// errRace: another one claims the same at the same time, and goes first.
var errRace = errors.New("host: somebody else claims the port")

// take takes a free entry of k's window.
func (c *claims) take(k portKey) (int, uint64, error) {
	home := claimHome(uint16(k.w1), uint16(k.w1>>16))
	for n := range claimWindow {
		i := (home + n) % claimsLen
		e := claimsAt + i*claimWords
		old := c.d.load(e)
		if claimState(old) != claimNone && c.valid(old) {
			continue
		}
		c.seq++
		w := claimWord(c.slot, c.gen, c.seq, claimFilling)
		if c.d.cas(e, old, w) {
			c.step("port:taken")
			return i, w, nil
		}
	}
	return 0, 0, fmt.Errorf("host: too many claims of port %d: %w", uint16(k.w1>>16), syscall.ENOMEM)
}

// valid reports whether an entry's first word was written by a living member.
func (c *claims) valid(w uint64) bool {
	slot, gen := claimOwner(w)
	return claimState(w) <= claimListens && c.d.alive(slot, gen)
}

// shown is a quick look whether an entry may have a claim that read would give.
func (c *claims) shown(i int) bool {
	s := claimState(c.d.load(claimsAt + i*claimWords))
	return s == claimTentative || s == claimHeld || s == claimListens
}

// read gives the claim in an entry, if one was published by a living member.
func (c *claims) read(i int) (w uint64, k portKey, ok bool) {
	e := claimsAt + i*claimWords
	for range 8 { // an owner who changes it all the time is not worth waiting for
		w = c.d.load(e)
		if s := claimState(w); s != claimTentative && s != claimHeld && s != claimListens || !c.valid(w) {
			return 0, k, false
		}
		k = portKey{c.d.load(e+1) & claimBits, c.d.load(e + 2), c.d.load(e + 3)}
		if c.d.load(e) == w {
			return w, k, true
		}
	}
	return 0, k, false
}

// check looks for a claim that keeps the tentative one in entry mine from its port.
func (c *claims) check(k portKey, mine, except int, unused bool, at netip.AddrPort) error {
	home := claimHome(uint16(k.w1), uint16(k.w1>>16))
	var race error
	for n := range claimWindow {
		i := (home + n) % claimsLen
		if i == mine || i == except || !c.shown(i) {
			continue
		}
		for range claimRounds {
			w, o, ok := c.read(i)
			if !ok || uint32(o.w1) != uint32(k.w1) {
				break
			}
			conflict, wild := k.conflicts(o)
			if unused {
				conflict = true
			} else if k.is(claimShares) && o.is(claimShares) {
				conflict = false
			}
			if !conflict {
				break
			}
			slot, gen := claimOwner(w)
			if slot != c.slot && (c.gone(slot) || !c.d.alive(slot, gen)) {
				break // not buried yet, or since we looked
			}
			if claimState(w) != claimTentative {
				return &portError{at, wild, slot, c.pid(slot), slot == c.slot}
			}
			e := claimsAt + i*claimWords
			if mine < i {
				c.d.cas(e, w, withState(w, claimRevoked))
				continue // it is revoked, or has become something else
			}
			race = errRace
			break
		}
	}
	return race
}

// listen begins or ends that requests come to the claim. It may be another one afterwards.
func (c *claims) listen(h *claim, on bool, at netip.AddrPort) (*claim, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !on {
		c.set(h, claimHeld)
		return h, nil
	}
	if h.key.is(claimShares) {
		if h.uses > 1 {
			return h, &portError{at: at, wildcard: h.key.is(claimWild), slot: c.slot, self: true}
		}
		k := h.key
		k.w1 &^= claimShares
		i, err := c.insert(k, h.at, false, at)
		if err != nil {
			return h, err
		}
		c.drop(h)
		h = &claim{at: i, key: k, uses: 1}
	}
	c.set(h, claimListens)
	return h, nil
}

// set changes the state of an entry that is held.
func (c *claims) set(h *claim, state uint64) {
	e := claimsAt + h.at*claimWords
	w := c.d.load(e)
	if slot, gen := claimOwner(w); slot == c.slot && gen == c.gen && claimState(w) >= claimHeld {
		c.d.store(e, withState(w, state))
	}
	c.step("port:set")
}

// drop gives up one use of a claim; with the last one the entry is free. The caller holds mu.
func (c *claims) drop(h *claim) {
	if h.uses--; h.uses > 0 {
		return
	}
	if c.held[h.key] == h {
		delete(c.held, h.key)
	}
	c.set(h, claimNone)
}

// listener is the slot of who takes requests to a port at an address.
func (c *claims) listener(space, port uint16, local netip.Addr) (int, bool) {
	want := makePortKey(space, netip.AddrPortFrom(local, port), 0)
	home := claimHome(space, port)
	best, found := 0, false
	for n := range claimWindow {
		i := (home + n) % claimsLen
		if !c.shown(i) {
			continue
		}
		w, o, ok := c.read(i)
		if !ok || claimState(w) != claimListens || uint32(o.w1) != uint32(want.w1) {
			continue
		}
		slot, _ := claimOwner(w)
		switch {
		case o.is(claimWild):
			if o.is(claimIs4) == want.is(claimIs4) || !o.is(claimOnly) {
				best, found = slot, true
			}
		case o.is(claimIs4) == want.is(claimIs4) && o.hi == want.hi && o.lo == want.lo:
			return slot, true
		}
	}
	return best, found
}
