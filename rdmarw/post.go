package rdmarw

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// WRs gives the work requests that Post posts, without posting them (rdma_rw_ctx_wrs):
// so that they can be the chain of another context, or be posted with others by one
// call of QP.PostSendAll. cqe and chain are as in Post. The slice is the context's, and good until
// its next call; so are the lists that it refers to.
//
// With it the keys of the regions are settled; if the requests are not posted after all,
// the next WRs, Post or Destroy undoes that. The errors are those of Post, but what only a post
// finds.
func (c *Ctx) WRs(qp *QP, port uint8, cqe *CQE, chain []verbs.SendWR) ([]verbs.SendWR, error) {
	wrs, err := c.build(qp, port, cqe, chain)
	return wrs, opErr("ctx_wrs", err)
}

// Post posts the context's READs or WRITEs to its queue pair, with all the registrations
// that they need (rdma_rw_ctx_post).
//
// chain, if not empty, is posted behind them. Its flags and WRIDs are the caller's: unless one of
// its requests is signaled there is no notice. It may be what WRs returned for another
// context. Without a chain the last request is signaled to cqe. Giving neither is EINVAL;
// if both are given cqe is not used. port is the port that the connection is bound to.
//
// The chain is posted whole or not at all. After an error the regions are as before: Post
// may be tried again, or the context be destroyed. ENOMEM: the send queue has no room for
// it now; EINVAL: the state of the queue pair does not allow posting, something in the
// chain is wrong, or a context with regions was posted already. In state ERR the post
// succeeds, and cqe is told of the flush.
func (c *Ctx) Post(qp *QP, port uint8, cqe *CQE, chain []verbs.SendWR) error {
	const op = "ctx_post"
	wrs, err := c.build(qp, port, cqe, chain)
	if err != nil {
		return opErr(op, err)
	}
	c.posted = true // before the post: another goroutine may handle the completion at once
	if err := qp.qp.PostSendAll(wrs); err != nil {
		c.posted = false
		c.unbuild()
		return opErr(op, err)
	}
	return nil
}

func (c *Ctx) build(qp *QP, port uint8, cqe *CQE, chain []verbs.SendWR) ([]verbs.SendWR, error) {
	if err := c.check(qp, port); err != nil {
		return nil, err
	}
	switch {
	case len(chain) > 0:
	case cqe == nil:
		return nil, invalid("cqe", "is nil, and there is no chain")
	case qp.cq == nil:
		return nil, invalid("cqe", "the queue pair was set up without QPInitAttr.CQ")
	}
	for i := range c.regs { // a registration is good for one transfer
		if c.posted || c.regs[i].ran() {
			return nil, invalid("ctx", "was posted already")
		}
	}
	c.wrs = c.wrs[:0]
	for i := range c.ops {
		t := &c.ops[i]
		wr := verbs.SendWR{Opcode: ib.WRRDMARead, SGList: c.sges[t.from:t.to:t.to], RemoteAddr: t.remote, RKey: c.rkey}
		if c.dir == DMAToDevice {
			wr.Opcode = ib.WRRDMAWrite
		}
		if len(c.regs) > 0 {
			c.register(&c.regs[i], &c.sges[t.from], &wr)
		}
		c.wrs = append(c.wrs, wr)
	}
	if len(chain) > 0 {
		c.wrs = append(c.wrs, chain...)
		return c.wrs, nil
	}
	last := &c.wrs[len(c.wrs)-1]
	last.WRID, last.Flags = qp.cq.WRID(cqe), last.Flags|ib.SendSignaled
	return c.wrs, nil
}

// register adds the registration of a transfer's memory to the chain and settles its
// key.
func (c *Ctx) register(r *registration, e *verbs.SGE, wr *verbs.SendWR) {
	r.key, r.built, r.inv = r.nextKey(), true, true
	if r.owed {
		c.wrs = append(c.wrs, verbs.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: r.mr.RKey()})
	}
	op := ib.WRRegMR
	if r.sig != nil {
		op = ib.WRRegMRIntegrity
	}
	c.wrs = append(c.wrs, verbs.SendWR{Opcode: op, RKey: r.key, Bind: &r.bind})
	e.LKey = ib.LKey(r.key)
	if c.kind == KindMR && c.dir == DMAFromDevice && c.qp.readInv {
		wr.Opcode, wr.InvalidateRKey = ib.WRReadWithInv, r.key
		r.inv = false
	}
}

// unbuild takes back what build has settled: nothing was posted.
func (c *Ctx) unbuild() {
	for i := range c.regs {
		r := &c.regs[i]
		r.inv, r.built = r.owed, false
	}
}
