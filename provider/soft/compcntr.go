package soft

import (
	"fmt"
	"math"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const maxCompCntr = 1 << 16

// compCntr is a completion counter.
type compCntr struct {
	dev   *Device
	c     transport.CompCntr
	users users
}

// CreateCompCntr implements driver.CompCntrCreator.
func (d *Device) CreateCompCntr() (driver.CompCntr, error) {
	if err := d.cntrs.add(d, "completion counter"); err != nil {
		return nil, err
	}
	return &compCntr{dev: d}, nil
}

// CompCntrCaps implements driver.CompCntrCreator.
func (d *Device) CompCntrCaps() driver.CompCntrCaps {
	return driver.CompCntrCaps{MaxValue: math.MaxUint64, MaxCounters: maxCompCntr, AttachOps: ib.CompCntrAll}
}

// Read implements driver.CompCntr.
func (c *compCntr) Read() (done, failed uint64) { return c.c.Done.Load(), c.c.Failed.Load() }

// Set implements driver.CompCntr.
func (c *compCntr) Set(v uint64) { c.c.Done.Store(v) }

// SetErr implements driver.CompCntr.
func (c *compCntr) SetErr(v uint64) { c.c.Failed.Store(v) }

// Inc implements driver.CompCntr.
func (c *compCntr) Inc(n uint64) { c.c.Done.Add(n) }

// IncErr implements driver.CompCntr.
func (c *compCntr) IncErr(n uint64) { c.c.Failed.Add(n) }

// Destroy implements driver.CompCntr.
func (c *compCntr) Destroy() error {
	first, err := c.users.end("completion counter")
	if first {
		c.dev.cntrs.drop()
	}
	return err
}

// AttachCompCntr implements driver.CompCntrAttacher.
func (q *qp) AttachCompCntr(h driver.CompCntr, ops ib.CompCntrOps) error {
	c, ok := h.(*compCntr)
	switch {
	case !ok || c == nil || c.dev != q.dev:
		return invalid("comp_cntr", "is not a completion counter of this device")
	case ops == 0:
		return invalid("ops", "is empty")
	case ops&^ib.CompCntrAll != 0:
		return notOffered("ops", fmt.Sprintf("%v are not counted", ops&^ib.CompCntrAll))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !c.users.hold() {
		return invalid("comp_cntr", "was destroyed")
	}
	var err error
	q.sh.Inspect(func() {
		switch {
		case q.dead:
			err = fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
		case q.State != ib.QPStateReset && q.State != ib.QPStateInit:
			err = fmt.Errorf("queue pair is in state %v, counters are attached in RESET and INIT: %w", q.State, syscall.EINVAL)
		case !q.Count(&c.c, ops):
			err = &paramError{"ops", "another counter counts one of them", syscall.EBUSY}
		}
	})
	if err != nil {
		c.users.drop()
		return err
	}
	q.cntrs = append(q.cntrs, c)
	return nil
}

// dropCntrs detaches what counts the queue pair's completions.
func (q *qp) dropCntrs() {
	for _, c := range q.cntrs {
		c.users.drop()
	}
	q.cntrs = nil
}
