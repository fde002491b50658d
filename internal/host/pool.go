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

const (
	// poolShare is what one member may have: one that is stopped must not have all.
	poolShare = PoolBufs / 4
	// poolCredit, divided by the sender's slot, is how many buffers a sender passes to a
	// member without counting what that has. All slots' sum is 119: low slots, which are in use where
	// there are few members, count seldom, and however many there are, and whenever they came, what they
	// pass uncounted is less than another share.
	poolCredit = PoolBufs / 16
)

type pool struct {
	d    dir
	self uint64 // owner word
	step func(string)

	mu     sync.Mutex              // between taking a buffer and noting so, and while counting
	credit [Slots]atomic.Int32     // buffers that may be passed to a member before its are counted again
	to     [PoolBufs]atomic.Uint64 // owner word that this member has passed a buffer to

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
	if to != p.self && p.credit[slot].Add(-1) < 0 && !p.count(slot, to) {
		return false
	}
	p.to[i].Store(to)
	p.d.store(passedAt+i, p.self)
	p.step("pool:noted")
	ok = p.d.cas(poolAt+i, p.self, to)
	p.step("pool:passed")
	return ok
}

// count reports whether one more buffer may be passed to a member, and gives credit for the next.
func (p *pool) count(slot int, to uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.credit[slot].Add(-1) >= 0 {
		return true // somebody has counted meanwhile
	}
	has := 0
	for i := range PoolBufs {
		if p.d.load(poolAt+i) == to {
			has++
		}
	}
	if has >= poolShare {
		p.credit[slot].Store(0)
		return false
	}
	from, _ := ownerSlot(p.self)
	p.credit[slot].Store(int32(min(poolCredit/max(from, 1), poolShare-1-has)))
	return true
}

// take takes back what was passed to a slot, when the message could not be sent. Its next owner may have
// the buffer by now, and has it in order.
func (p *pool) take(i, slot int) {
	if i < 0 || i >= PoolBufs || p.d.load(passedAt+i) != p.self {
		return
	}
	if w := p.to[i].Load(); w != p.self && w&0xFF == uint64(slot) {
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
