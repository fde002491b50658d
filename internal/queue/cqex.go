package queue

import (
	"sync"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// batchLen is how many completions an extended queue shows at once.
const batchLen = 16

// extension is what extended completion queues have beyond plain ones.
type extension struct {
	stamped bool // completions have timestamps
	lossy   bool // full: the oldest completion makes room
	single  bool // one poller at a time, by the application's word

	// poller is held by who looks at a batch. It comes before the queue's lock,
	// which is free meanwhile: completions go on coming in.
	poller sync.Mutex
	wcs    [batchLen]driver.WC
	ts     [batchLen]uint64

	// Under the queue's lock.
	stamps []int64 // of each completion in the ring, by the device's clock; nil without
	shown  int     // completions of the ring that were shown and not taken
	lost   int     // ... that made room meanwhile
}

func (x *extension) lock() {
	if !x.single {
		x.poller.Lock()
	}
}

func (x *extension) unlock() {
	if !x.single {
		x.poller.Unlock()
	}
}

// NewCQEx makes an extended queue for cqe completions, at least 1: with
// timestamps, lossy (a full queue loses its oldest completion and goes on), and
// with locking only where several poll.
func NewCQEx(cqe int, stamps, lossy, single bool) *CQ {
	c := NewCQ(cqe)
	c.ex = &extension{stamped: stamps, lossy: lossy, single: single}
	if stamps {
		c.ex.stamps = make([]int64, cqe)
	}
	return c
}

// loseOldest takes the oldest completion away. The lock is held.
func (c *CQ) loseOldest() {
	c.head = c.wrap(c.head + 1)
	if c.ex.shown > 0 {
		c.ex.shown--
		c.ex.lost++
	}
}

// Look shows the oldest completions of an extended queue and their timestamps, if
// it has them; nobody else polls until Done. Without any the queue is let go at
// once. What is shown is valid until Next or Done.
func (c *CQ) Look() ([]driver.WC, []uint64) {
	x := c.ex
	x.lock()
	wcs, ts := c.show()
	if len(wcs) == 0 {
		x.unlock()
	}
	return wcs, ts
}

// Next takes all that was shown and shows what is there now, perhaps nothing.
func (c *CQ) Next() ([]driver.WC, []uint64) {
	c.take(batchLen)
	return c.show()
}

// Done takes the first n of what was shown and lets others poll.
func (c *CQ) Done(n int) {
	c.take(n)
	c.ex.unlock()
}

func (c *CQ) show() ([]driver.WC, []uint64) {
	if c.n.Load() == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.ex
	n := min(int(c.n.Load()), batchLen)
	k := copy(x.wcs[:n], c.ring[c.head:])
	copy(x.wcs[k:n], c.ring)
	x.shown, x.lost = n, 0
	if x.stamps == nil {
		return x.wcs[:n], nil
	}
	for i := range n {
		x.ts[i] = uint64(x.stamps[c.wrap(c.head+i)])
	}
	return x.wcs[:n], x.ts[:n]
}

// take removes the first n that were shown, those that are still there.
func (c *CQ) take(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.ex
	n = max(min(n, x.shown+x.lost)-x.lost, 0)
	c.head = c.wrap(c.head + n)
	c.n.Add(int32(-n))
	x.shown, x.lost = 0, 0
}
