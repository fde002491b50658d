package verbs

import (
	"context"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CompCntrCaps tells what completion counters can do (struct ibv_comp_cntr_caps).
type CompCntrCaps = driver.CompCntrCaps

// CompCntr counts what queue pairs complete (struct ibv_comp_cntr): one number for
// what succeeded, one for what failed or was flushed. Send requests count whether
// they were signaled or not. The counters are in ordinary memory of the device;
// memory of the application for them is not offered.
type CompCntr struct {
	life
	ctx *Context
	c   driver.CompCntr
}

var errCompCntrClosed error = &closedError{"completion counter", syscall.EINVAL}

// CreateCompCntr makes a counter, both numbers 0 (ibv_create_comp_cntr). ENOMEM: there
// are too many; EOPNOTSUPP.
func (c *Context) CreateCompCntr() (*CompCntr, error) {
	const op = "create_comp_cntr"
	d, ok := c.dev.(driver.CompCntrCreator)
	switch {
	case !ok:
		return nil, notOffered(op)
	case !c.hold(aCompCntr):
		return nil, opErr(op, errDeviceClosed)
	}
	n, err := d.CreateCompCntr()
	if err != nil {
		c.drop(aCompCntr)
		return nil, opErr(op, err)
	}
	return &CompCntr{ctx: c, c: n}, nil
}

// QueryCompCntrCaps tells what the device's counters can do
// (ibv_query_comp_cntr_caps). EOPNOTSUPP: it has none.
func (c *Context) QueryCompCntrCaps() (CompCntrCaps, error) {
	const op = "query_comp_cntr_caps"
	if err := c.check(op); err != nil {
		return CompCntrCaps{}, err
	}
	d, ok := c.dev.(driver.CompCntrCreator)
	if !ok {
		return CompCntrCaps{}, notOffered(op)
	}
	return d.CompCntrCaps(), nil
}

// Context is the open device that the counter belongs to.
func (n *CompCntr) Context() *Context { return n.ctx }

// Read gives the number of operations that succeeded (ibv_read_comp_cntr). It takes
// no lock and makes no progress: somebody has to poll or wait, or the device's
// background thread does.
func (n *CompCntr) Read() uint64 {
	done, _ := n.c.Read()
	return done
}

// ReadErr gives the number of operations that failed (ibv_read_err_comp_cntr).
func (n *CompCntr) ReadErr() uint64 {
	_, failed := n.c.Read()
	return failed
}

// Set sets the number of those that succeeded (ibv_set_comp_cntr). What completes at the
// same time counts before or after.
func (n *CompCntr) Set(v uint64) error {
	return n.change("set_comp_cntr", func() { n.c.Set(v) })
}

// SetErr sets the number of those that failed (ibv_set_err_comp_cntr).
func (n *CompCntr) SetErr(v uint64) error {
	return n.change("set_err_comp_cntr", func() { n.c.SetErr(v) })
}

// Inc adds to the number of those that succeeded (ibv_inc_comp_cntr); beyond
// CompCntrCaps.MaxValue it goes on from 0.
func (n *CompCntr) Inc(v uint64) error {
	return n.change("inc_comp_cntr", func() { n.c.Inc(v) })
}

// IncErr adds to the number of those that failed (ibv_inc_err_comp_cntr).
func (n *CompCntr) IncErr(v uint64) error {
	return n.change("inc_err_comp_cntr", func() { n.c.IncErr(v) })
}

func (n *CompCntr) change(op string, f func()) error {
	if !n.alive() {
		return opErr(op, errCompCntrClosed)
	}
	f()
	return nil
}

// Destroy ends the counter (ibv_destroy_comp_cntr). EBUSY: a queue pair is
// attached to it, which ends when the queue pair is destroyed.
func (n *CompCntr) Destroy() error {
	return opErr("destroy_comp_cntr", n.end(context.Background(), n.c.Destroy, nil, n.ctx.dropper(aCompCntr)))
}

// AttachCompCntr has n count the queue pair's operations ops until the queue pair
// is destroyed (ibv_qp_attach_comp_cntr). Several queue pairs may have one
// counter, and one queue pair several for different operations. ATOMIC WRITE counts as
// RDMA WRITE; atomics, FLUSH and operations on keys are not counted. A peer's WRITE
// or READ counts when it was executed, a READ once for each request packet: long
// ones may come as several. EINVAL: the queue pair is not in RESET or INIT, or of
// another device; EBUSY: another counter counts one of the operations; EOPNOTSUPP: the
// device does not count one of them. Nothing has changed then.
func (q *QP) AttachCompCntr(n *CompCntr, ops ib.CompCntrOps) error {
	const op = "qp_attach_comp_cntr"
	a, ok := q.qp.(driver.CompCntrAttacher)
	switch {
	case n == nil:
		return paramErr(op, "comp_cntr", "is nil", syscall.EINVAL)
	case !ok:
		return notOffered(op)
	case !q.alive():
		return opErr(op, errQPClosed)
	case !n.alive():
		return opErr(op, errCompCntrClosed)
	}
	return opErr(op, a.AttachCompCntr(n.c, ops))
}
