package target

import (
	"errors"
	"sync"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// pool is the memory for data under way on one device, in chunks that need not be
// neighbours: what a request gets is a scatterlist. Whoever finds too little waits in a
// queue, so that a large request is not passed by small ones for ever.
type pool struct {
	chunk  int // bytes of data of one
	data   *verbs.Buffer
	meta   *verbs.Buffer // the tuples of each chunk's blocks; nil: no protection
	perTup int           // bytes of tuples of a chunk

	mu      sync.Mutex
	free    []int
	waiters []*op
}

func newPool(pd *verbs.PD, chunk, n, tuples int) (p *pool, err error) {
	p = &pool{chunk: chunk, perTup: tuples, free: make([]int, n)}
	for i := range p.free {
		p.free[i] = i
	}
	if p.data, err = pd.AllocBuffer(n*chunk, ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	if tuples > 0 {
		if p.meta, err = pd.AllocBuffer(n*tuples, ib.AccessLocalWrite); err != nil {
			return nil, errors.Join(err, p.data.Close())
		}
	}
	return p, nil
}

// take gives the operation memory for n bytes of blocks of bs bytes, or queues it: false.
func (p *pool) take(o *op, n, bs int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiters) > 0 || !p.fits(n) {
		o.need = n
		p.waiters = append(p.waiters, o)
		return false
	}
	p.give(o, n, bs)
	return true
}

func (p *pool) fits(n int) bool { return len(p.free)*p.chunk >= n }

// give hands chunks to the operation. The lock is held.
func (p *pool) give(o *op, n, bs int) {
	for n > 0 {
		last := len(p.free) - 1
		i := p.free[last]
		p.free = p.free[:last]
		k := min(n, p.chunk)
		o.chunks = append(o.chunks, i)
		at := i * p.chunk
		o.data = append(o.data, p.data.Bytes()[at:at+k:at+k])
		if p.meta != nil {
			at, k := i*p.perTup, k/bs*proto.TupleLen
			o.meta = append(o.meta, p.meta.Bytes()[at:at+k:at+k])
		}
		n -= k
	}
}

// put takes the operation's memory back, and tells who has waited for it and has it now.
func (p *pool) put(o *op, bs int) (ready []*op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, o.chunks...)
	o.chunks, o.data, o.meta = o.chunks[:0], o.data[:0], o.meta[:0]
	for len(p.waiters) > 0 && p.fits(p.waiters[0].need) {
		w := p.waiters[0]
		p.waiters = p.waiters[1:]
		p.give(w, w.need, bs)
		ready = append(ready, w)
	}
	return ready
}

// cancel takes the operations of a connection out of the queue.
func (p *pool) cancel(c *conn) (out []*op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := p.waiters[:0]
	for _, o := range p.waiters {
		if o.c == c {
			out = append(out, o)
		} else {
			rest = append(rest, o)
		}
	}
	clear(p.waiters[len(rest):])
	p.waiters = rest
	return out
}

func (p *pool) close() error {
	err := p.data.Close()
	if p.meta != nil {
		err = errors.Join(err, p.meta.Close())
	}
	return err
}
