package rdmarw

import "github.com/verbena-rdma/verbena/ib"

// RegState is what a test wants to know of a region of a pool.
type RegState struct {
	Key       ib.RKey // that the device has
	NeedInval bool
}

// PoolStates tells of the regions that are in the pool, the next one to be taken last.
func (q *QP) PoolStates() []RegState { return q.mrs.states() }

// SigPoolStates is PoolStates of signature regions.
func (q *QP) SigPoolStates() []RegState { return q.sigMRs.states() }

func (p *pool) states() []RegState {
	var s []RegState
	for _, r := range p.free {
		s = append(s, RegState{r.mr.RKey(), r.inv})
	}
	return s
}

// Regs tells of the regions that a context has.
func (c *Ctx) Regs() []RegState {
	var s []RegState
	for i := range c.regs {
		s = append(s, RegState{c.regs[i].mr.RKey(), c.regs[i].inv})
	}
	return s
}
