package host

import "sync/atomic"

// The pool's buffers belong to who is named by their owner word. A dead owner's are free.

// poolShare is the most that one member may have: one that is stopped must not have all.
const poolShare = PoolBufs / 4

type pool struct {
	d    dir
	self uint64 // owner word
	next atomic.Uint32
}

func (p *pool) get() (int, bool) {
	first := p.next.Add(1)
	for n := range uint32(PoolBufs) {
		i := int((first + n) % PoolBufs)
		w := p.d.load(poolAt + i)
		if w != p.self && !p.d.ownerAlive(w) && p.d.cas(poolAt+i, w, p.self) {
			p.next.Store(uint32(i))
			return i, true
		}
	}
	return 0, false
}

func (p *pool) mine(i int) bool {
	return i >= 0 && i < PoolBufs && p.d.load(poolAt+i) == p.self
}

func (p *pool) pass(i, slot int) bool {
	gen, ok := p.d.live(slot)
	if !ok || !p.mine(i) {
		return false
	}
	to := owner(slot, gen)
	has := 0
	for n := range PoolBufs {
		if p.d.load(poolAt+n) == to {
			has++
		}
	}
	return (to == p.self || has < poolShare) && p.d.cas(poolAt+i, p.self, to)
}

func (p *pool) put(i int) {
	if i >= 0 && i < PoolBufs {
		p.d.cas(poolAt+i, p.self, 0)
	}
}
