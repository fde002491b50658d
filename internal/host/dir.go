package host

import "sync/atomic"

// The directory: 64-bit words, in the machine's byte order, for processes of one
// machine. All counts are constants, so nothing that is read from it bounds anything.
const (
	magic  = 0x6162_6E65_6272_6556 // "Verbenab"
	layout = 3                     // changes with everything on this page and in the messages of answer_linux.go

	hdrMagic   = 0
	hdrLayout  = 1
	hdrSize    = 2 // of the memfd, bytes
	hdrGroup   = 3 // random; in the root's message too, where nobody can change it
	hdrSteward = 4 // owner word, 0: nobody
	hdrBeat    = 5 // changes while the steward runs
	hdrAddrs   = 6 // changes when an address comes into use, also by one more member, or is dropped
	hdrEmpty   = 7 // 1 and the keeper that is about to be emptied, 0: none
	hdrDeaths  = 8 // changes when a member has been found dead

	slotsAt   = 512 // words
	slotWords = 8

	slotState = 0 // generation<<32 | state
	slotConns = 2 // connection records that this generation has ever used
	slotFlags = 3 // generation<<32 | flags
	slotAddrs = 4 // generation<<32 | a bit for each address that it uses

	poolAt = slotsAt + Slots*slotWords // an owner word for each buffer

	passedAt = poolAt + PoolBufs // and who has passed it on

	indexAt  = passedAt + PoolBufs // of connections, by the peer's address and ID: see connindex.go
	indexLen = 1 << 17

	claimsAt   = indexAt + indexLen
	claimWords = 4
	claimsLen  = 1 << 17

	// What all members map, in bytes.
	sharedBytes = pageUp * ((claimsAt+claimsLen*claimWords)*8/pageUp + 1)

	// Then the records of each slot, mapped by its owner, and by who buries it.
	maxConns   = 1 << 17
	recWords   = 8
	connWords  = 1 + 2*recWords // which of the two is valid, and the two
	connsBytes = maxConns * connWords * 8

	// Then the pool, mapped by who uses it.
	poolBytesAt = sharedBytes + Slots*connsBytes
	dirBytes    = poolBytesAt + PoolBufs*PoolBuf

	// pageUp is a multiple of every page size that there is.
	pageUp = 64 << 10
)

// State of a slot.
const (
	slotFree = iota
	slotLive
	slotDead // its owner died; what it had is being ended
)

// dir is the part of the directory that all members map. All access is atomic.
type dir struct{ w []uint64 }

func (d dir) load(i int) uint64             { return atomic.LoadUint64(&d.w[i]) }
func (d dir) store(i int, v uint64)         { atomic.StoreUint64(&d.w[i], v) }
func (d dir) cas(i int, old, v uint64) bool { return atomic.CompareAndSwapUint64(&d.w[i], old, v) }
func (d dir) add(i int, v uint64)           { atomic.AddUint64(&d.w[i], v) }
func slotAt(slot, word int) int             { return slotsAt + slot*slotWords + word }
func owner(slot int, gen uint32) uint64     { return uint64(gen)<<32 | uint64(slot) }
func ownerSlot(w uint64) (int, uint32)      { return int(w & 0xFF), uint32(w >> 32) }
func slotWord(gen uint32, state int) uint64 { return uint64(gen)<<32 | uint64(state) }
func splitSlot(w uint64) (uint32, int)      { return uint32(w >> 32), int(w & 0xFF) }
func (d dir) state(slot int) (uint32, int)  { return splitSlot(d.load(slotAt(slot, slotState))) }
func (d dir) alive(slot int, gen uint32) bool {
	return slot > 0 && slot < Slots && d.load(slotAt(slot, slotState)) == slotWord(gen, slotLive)
}

// live gives the generation of a slot that somebody has.
func (d dir) live(slot int) (uint32, bool) {
	if slot <= 0 || slot >= Slots {
		return 0, false
	}
	gen, state := d.state(slot)
	return gen, state == slotLive
}

// ownerAlive reports whether the member that an owner word names lives.
func (d dir) ownerAlive(w uint64) bool {
	slot, gen := ownerSlot(w)
	return w == owner(slot, gen) && d.alive(slot, gen)
}

// Flags of a slot.
const flagMADs = 1

// servesMADs reports whether the living owner of a slot takes management datagrams.
func (d dir) servesMADs(slot int) bool {
	gen, ok := d.live(slot)
	return ok && d.load(slotAt(slot, slotFlags)) == uint64(gen)<<32|flagMADs
}

// begin writes the header of an empty directory.
func (d dir) begin(group uint64) {
	d.store(hdrLayout, layout)
	d.store(hdrSize, dirBytes)
	d.store(hdrGroup, group)
	d.store(hdrMagic, magic)
}

// check looks whether it is a directory of ours.
func (d dir) check() error {
	switch {
	case d.load(hdrMagic) != magic:
		return ErrGarbage
	case d.load(hdrLayout) != layout || d.load(hdrSize) != dirBytes:
		return ErrVersion
	}
	return nil
}
