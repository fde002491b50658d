package host

import (
	"sync"
	"sync/atomic"
)

// The pool's buffers belong to who is named by their owner word. A dead owner's are free.
//
// Who passes a buffer on tells the new owner by a message, and may die before: then nobody
// would ever use the buffer. So a second word says from whom the owner has it, itself if it has taken it. What came from
// the dead is free when the mailbox is empty (orphans).

// poolShare is the most that one member may have: one that is stopped must not have all.
const poolShare = PoolBufs / 4

const poolMost = PoolBufs * 3 / 4

type pool struct {
	d    dir
	self uint64 // owner word
	step func(string)

	mu     sync.Mutex          // between taking a buffer and noting so
	credit [Slots]atomic.Int32 // buffers that may be passed to a member before its are counted again

	swept atomic.Uint64 // hdrDeaths at the last look that found no orphans
}

func (p *pool) get() (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Always from the first on: few buffers used over and over stay in the caches.
	for i := range PoolBufs {
		w := p.d.load(poolAt + i)
		if w != p.self && !p.d.ownerAlive(w) && p.d.cas(poolAt+i, w, p.self) {
			p.step("pool:got")
			p.d.store(passedAt+i, p.self)
			return i, true
		}
	}
	return 0, false
}

func (p *pool) mine(i int) bool {
	return i >= 0 && i < PoolBufs && p.d.load(poolAt+i) == p.self
}

// came reports whether a buffer was passed to this member, and so may be in a message.
func (p *pool) came(i int) bool { return p.mine(i) && p.d.load(passedAt+i) != p.self }

func (p *pool) pass(i, slot int) bool {
	gen, ok := p.d.live(slot)
	if !ok || !p.mine(i) {
		return false
	}
	to := owner(slot, gen)
	if to != p.self && p.credit[slot].Add(-1) < 0 {
		has := 0
		for n := range PoolBufs {
			if p.d.load(poolAt+n) == to {
				has++
			}
		}
		if has >= poolShare {
			return false
		}
		// Others pass buffers to it as well: count again before it can have too many.
		p.credit[slot].Store(int32(poolShare-has) / 4)
	}
	p.d.store(passedAt+i, p.self)
	p.step("pool:noted")
	ok = p.d.cas(poolAt+i, p.self, to)
	p.step("pool:passed")
	return ok
}

// take takes back what was passed to a slot, when the message could not be sent.
func (p *pool) take(i, slot int) {
	if i < 0 || i >= PoolBufs || p.d.load(passedAt+i) != p.self {
		return
	}
	if w := p.d.load(poolAt + i); w != p.self && w&0xFF == uint64(slot) {
		p.d.cas(poolAt+i, w, 0)
	}
}

// orphans lists this member's buffers that came from members who have died, if anybody has
// died since the last time. If the mailbox is empty after that there is no message with them.
func (p *pool) orphans() (list []int) {
	deaths := p.d.load(hdrDeaths)
	if p.swept.Load() == deaths {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range PoolBufs {
		if p.d.load(poolAt+i) != p.self {
			continue
		}
		if from := p.d.load(passedAt + i); from != p.self && !p.d.ownerAlive(from) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		p.swept.Store(deaths)
	}
	return list
}

func (p *pool) put(i int) {
	if i >= 0 && i < PoolBufs {
		p.d.cas(poolAt+i, p.self, 0)
	}
}
