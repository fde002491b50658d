package rdmarw

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// region is a memory region for fast registration that belongs to a pool.
type region struct {
	mr  *verbs.MR
	sig *verbs.SigMR // what mr is a part of; nil: not a signature region
	inv bool         // it is registered: its key is to be invalidated before the next registration
}

// nextKey is the key of the next registration. The last 8 bits of a key are the
// consumer's (IBA 10.6.3.3); counting them up keeps a key that somebody still has
// from naming the new memory.
func (r *region) nextKey() ib.RKey { return ib.IncRKey(r.mr.RKey()) }

// pool is the regions of a queue pair (kernel: ib_mr_pool_init and so on).
type pool struct {
	mu   sync.Mutex
	free []*region
	size int
}

// fill makes n regions. On failure there are none.
func (p *pool) fill(n int, alloc func() (*region, error)) error {
	for range n {
		r, err := alloc()
		if err != nil {
			return errors.Join(err, p.drain())
		}
		p.free = append(p.free, r)
		p.size++
	}
	return nil
}

// get takes the region that came back last; nil: there is none.
func (p *pool) get() *region {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free) - 1
	if n < 0 {
		return nil
	}
	r := p.free[n]
	p.free = p.free[:n]
	return r
}

func (p *pool) put(r *region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, r)
}

// left is how many regions contexts may have, and how many there are.
func (p *pool) left() (free, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free), p.size
}

// idle is EBUSY while contexts have regions.
func (p *pool) idle() error {
	if free, size := p.left(); free < size {
		return fmt.Errorf("contexts still have %d memory regions, they are to be destroyed first: %w", size-free, syscall.EBUSY)
	}
	return nil
}

// drain ends the regions that are in the pool.
func (p *pool) drain() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := len(p.free); n > 0; n = len(p.free) {
		if err := p.free[n-1].mr.Dereg(); err != nil {
			return err
		}
		p.free, p.size = p.free[:n-1], p.size-1
	}
	return nil
}
