package rdmarw

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Ctx is a transfer between a scatterlist of this side and a range of the peer's
// memory (struct rdma_rw_ctx): the READs or WRITEs that it takes, with the
// registrations that they need. The zero value is ready for Init; after Destroy it may
// be used again, and then allocates nothing once it has seen its largest transfer. A
// Ctx belongs to one goroutine at a time.
//
// The life of one: Init, InitBvec or SignatureInit, then Post, or WRs and a post of
// one's own, and after the completion Destroy, DestroyBvec or DestroySignature, the one
// that belongs to the Init. Between the post and the completion the memory is the
// device's.
type Ctx struct {
	qp   *QP
	kind Kind
	way  way
	dir  Direction

	remoteAddr uint64
	rkey       ib.RKey

	ops    []transfer
	sges   []verbs.SGE // of all transfers
	regs   []registration
	list   [][]byte // the memory, where it has to be collected
	contig *verbs.Contig
	spare  *verbs.Contig // one that was closed

	wrs    []verbs.SendWR // the chain, as it was built last
	posted bool           // by Post
}

// transfer is one READ or WRITE: of elements sges[from:to].
type transfer struct {
	from, to int
	remote   uint64
}

// registration is that of the memory of the transfer with the same index.
type registration struct {
	*region
	owed  bool    // at Init the region needed an invalidation
	key   ib.RKey // that the chain gives it
	built bool    // a chain was built
	bind  verbs.BindInfo
}

// ran reports whether the chain's registration has been executed.
func (r *registration) ran() bool { return r.built && r.mr.RKey() == r.key }

// way is how a context was initialized.
type way uint8

const (
	wayNone way = iota
	wayPlain
	wayBvec
	waySignature
)

var wayNames = [...]string{"", "Init and Destroy", "InitBvec and DestroyBvec", "SignatureInit and DestroySignature"}

// Kind says how the context moves its data.
func (c *Ctx) Kind() Kind { return c.kind }

// begin checks what all ways of initializing have in common. After it the context is
// empty, but not yet initialized.
func (c *Ctx) begin(qp *QP, port uint8, remoteAddr uint64, rkey ib.RKey, dir Direction) error {
	switch {
	case c.kind != KindNone:
		return &refusal{"ctx", "is initialized, destroy it first", syscall.EBUSY}
	case qp == nil:
		return invalid("qp", "is nil")
	case dir != DMAToDevice && dir != DMAFromDevice:
		return invalid("dir", "%v, want DMA_TO_DEVICE or DMA_FROM_DEVICE", dir)
	}
	if err := qp.checkPort(port); err != nil {
		return err
	}
	c.qp, c.dir, c.remoteAddr, c.rkey = qp, dir, remoteAddr, rkey
	return nil
}

// check is what calls on an initialized context have in common.
func (c *Ctx) check(qp *QP, port uint8) error {
	switch {
	case c.kind == KindNone:
		return invalid("ctx", "is not initialized")
	case qp != c.qp:
		return invalid("qp", "is not that which the context was initialized with")
	}
	return qp.checkPort(port)
}

// reset empties the context. What it has allocated it keeps.
func (c *Ctx) reset() {
	clear(c.list)
	clear(c.regs)
	clear(c.wrs)
	*c = Ctx{ops: c.ops[:0], sges: c.sges[:0], regs: c.regs[:0], list: c.list[:0], wrs: c.wrs[:0], spare: c.spare}
}

// Destroy ends a context of Init (rdma_rw_ctx_destroy): its memory is the caller's again,
// and its regions go back to the pool. qp, sg and dir are those of Init. It is called
// when the work has completed, well or not, or was not posted. EINVAL, and nothing has
// changed: the context was not initialized, or not by Init, or with other arguments.
func (c *Ctx) Destroy(qp *QP, port uint8, sg [][]byte, dir Direction) error {
	_ = sg // there is no mapping to be undone
	return opErr("ctx_destroy", c.end(qp, port, wayPlain, dir))
}

// DestroyBvec ends a context of InitBvec (rdma_rw_ctx_destroy_bvec), as Destroy does
// one of Init.
func (c *Ctx) DestroyBvec(qp *QP, port uint8, bvec []BioVec, dir Direction) error {
	_ = bvec
	return opErr("ctx_destroy_bvec", c.end(qp, port, wayBvec, dir))
}

func (c *Ctx) end(qp *QP, port uint8, way way, dir Direction) error {
	if err := c.check(qp, port); err != nil {
		return err
	}
	switch {
	case c.way != way:
		return invalid("ctx", "was initialized otherwise: %s belong together", wayNames[c.way])
	case c.dir != dir:
		return invalid("dir", "%v, the context was initialized with %v", dir, c.dir)
	}
	if c.contig != nil {
		if err := c.contig.Close(); err != nil {
			return err
		}
		c.spare = c.contig
	}
	c.putBack()
	c.reset()
	return nil
}

// putBack gives the regions back to the pool, each with what it owes now, so that the
// one that came out first is on top again.
func (c *Ctx) putBack() {
	for i := len(c.regs) - 1; i >= 0; i-- {
		r := &c.regs[i]
		switch {
		case r.built && !r.ran():
			// The chain was not posted, or flushed before the registration.
			r.inv = r.owed
		case r.built && !r.inv && c.qp.qp.State() != ib.QPStateRTS:
			// The READ that was to invalidate the key may not have come to it. Once
			// too often does no harm: the key is free already then.
			r.inv = true
		}
		if r.sig != nil {
			c.qp.sigMRs.put(r.region)
		} else {
			c.qp.mrs.put(r.region)
		}
	}
}

// chainLen is the number of work requests of the context.
func (c *Ctx) chainLen() int {
	n := len(c.ops) + len(c.regs)
	for i := range c.regs {
		if c.regs[i].owed {
			n++
		}
	}
	return n
}

// String tells kind, direction and size.
func (c *Ctx) String() string {
	if c.kind == KindNone {
		return "not initialized"
	}
	return fmt.Sprintf("%v, %v, %d work requests", c.kind, c.dir, c.chainLen())
}
