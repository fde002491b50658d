package host

import (
	"slices"
	"testing"
)

// memberPool is a member's view of the pool.
func (t *table) memberPool(slot int) *pool {
	c := t.member(slot)
	return &pool{d: t.d, self: owner(slot, c.gen), step: c.step}
}

// has counts a member's buffers.
func (p *pool) has() (n int) {
	for i := range PoolBufs {
		if p.mine(i) {
			n++
		}
	}
	return n
}

// poolMost is the most that one member has: its share, what was counted by all senders at
// once, and their credits.
const poolMost = poolShare + Slots + poolShare

// A member that stops when all others have just sent to it, and could go on for as long as they
// may without counting, has not all buffers in the end: others have some to work with. A lone
// sender keeps to the share.
func TestPoolOfStoppedMember(t *testing.T) {
	for _, senders := range []int{1, 3, 16, 30, Slots - 2} {
		tab := newTable()
		to := tab.memberPool(1)
		var from []*pool
		for slot := 2; slot < 2+senders; slot++ {
			from = append(from, tab.memberPool(slot))
		}
		slices.Reverse(from) // whoever comes first
		for _, p := range from {
			i, _ := p.get()
			if !p.pass(i, 1) {
				t.Fatal("not passed")
			}
			to.put(i)
		}
		for going := true; going; {
			going = false
			for _, p := range from {
				i, ok := p.get()
				if !ok {
					break
				}
				if p.pass(i, 1) {
					going = true
				} else {
					p.put(i)
				}
			}
		}
		most := poolMost
		if senders == 1 {
			most = poolShare
		}
		if n := to.has(); n > most || n < poolShare {
			t.Errorf("%d senders: it has %d buffers of %d, at most %d are to be", senders, n, PoolBufs, most)
		}
		for _, p := range from { // else a credit would come round by being refused
			if n := p.credit[1].Load(); n < -1 {
				t.Fatalf("credit %d", n)
			}
		}
		if i, ok := from[0].get(); !ok || senders > 1 && !from[0].pass(i, 2) {
			t.Errorf("%d senders: they cannot send to each other any more", senders)
		}
	}
}

// What a member has taken anew is not taken from it by who has passed it to the slot's owner before.
func TestPoolTakenBack(t *testing.T) {
	tab := newTable()
	a := tab.memberPool(1)
	tab.memberPool(2)
	i, _ := a.get()
	if !a.pass(i, 2) {
		t.Fatal("not passed")
	}
	b := tab.memberPool(2) // the next owner of the slot
	b.step = func(step string) {
		if step == "pool:got" {
			a.take(i, 2) // whose message could not be sent
		}
	}
	if k, ok := b.get(); !ok || k != i {
		t.Fatalf("%d, %v", k, ok)
	}
	if !b.mine(i) {
		t.Error("taken while it was filled")
	}
	b.put(i)
	// And what was passed to who lives comes back.
	if i, _ = a.get(); !a.pass(i, 2) {
		t.Fatal("not passed")
	}
	a.take(i, 2)
	if n := b.has(); n != 0 {
		t.Errorf("it still has %d", n)
	}
}

// What may be in a message is what another one has passed; what is given up as nobody's is what the dead
// have passed, not what the living have and are about to tell of.
func TestPoolPassedOn(t *testing.T) {
	tab := newTable()
	a, b, c := tab.memberPool(1), tab.memberPool(2), tab.memberPool(3)
	i, _ := a.get()
	if a.came(i) || !a.pass(i, 2) || a.came(i) || !b.came(i) {
		t.Error("passing")
	}
	tab.d.add(hdrDeaths, 1)
	if list := b.orphans(); len(list) != 0 {
		t.Errorf("%v of one who lives", list)
	}
	if b.put(i); b.came(i) {
		t.Error("it was given back")
	}
	if k, ok := b.get(); !ok || k != i || b.came(i) {
		t.Errorf("what it has taken itself was passed to it: buffer %d, %v", k, ok)
	}
	b.put(i)
	// From hand to hand: it is the last one's death that counts.
	if k, _ := a.get(); k != i || !a.pass(i, 2) || !b.pass(i, 3) {
		t.Fatal("passing on")
	}
	tab.member(1)
	tab.d.add(hdrDeaths, 1)
	if list := c.orphans(); len(list) != 0 {
		t.Errorf("%v, of one who lives", list)
	}
	tab.member(2)
	tab.d.add(hdrDeaths, 1)
	if list := c.orphans(); !slices.Equal(list, []int{i}) {
		t.Errorf("%v, want %d", list, i)
	}
}
