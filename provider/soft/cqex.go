package soft

import (
	"fmt"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// What extended completion queues offer. Tags of VLANs do not reach a UDP
// socket; there is neither flow steering nor tag matching.
const (
	wcExOffered = ib.WCExStandard | ib.WCExCompletionTimestamp | ib.WCExCompletionTimestampWallclock
	wcExKnown   = wcExOffered | ib.WCExCVLAN | ib.WCExFlowTag | ib.WCExTMInfo
	wcExStamps  = ib.WCExCompletionTimestamp | ib.WCExCompletionTimestampWallclock
	cqKnown     = ib.CQSingleThreaded | ib.CQIgnoreOverrun

	// clockKHz is the rate of the device's clock: its ticks are ns.
	clockKHz = 1_000_000
	// maxModeration is the most completions, and us, that moderation waits for.
	maxModeration = 1<<16 - 1
)

// CreateCQEx implements driver.CQExCreator.
func (d *Device) CreateCQEx(attr *driver.CQInitAttr, notify func()) (driver.CQEx, error) {
	switch {
	case attr.CompVector != 0:
		return nil, invalid("CompVector", "%d, there is one vector, 0", attr.CompVector)
	case attr.WCFlags&^wcExKnown != 0:
		return nil, invalid("WCFlags", "%#x are unknown", uint64(attr.WCFlags&^wcExKnown))
	case attr.WCFlags&^wcExOffered != 0:
		return nil, notOffered("WCFlags", fmt.Sprintf("the device does not offer %v", attr.WCFlags&^wcExOffered))
	case attr.Flags&^cqKnown != 0:
		return nil, invalid("Flags", "%v are unknown", attr.Flags&^cqKnown)
	}
	return d.createCQ(attr.CQE, notify, func(cqe int) *queue.CQ {
		return queue.NewCQEx(cqe, attr.WCFlags&wcExStamps != 0, attr.Flags&ib.CQIgnoreOverrun != 0, attr.Flags&ib.CQSingleThreaded != 0)
	})
}

// Look implements driver.CQEx.
func (c *cq) Look() ([]driver.WC, []uint64, error) {
	if wcs, ts := c.q.Look(); len(wcs) > 0 {
		c.empty.Store(0)
		return wcs, ts, nil
	}
	c.progress()
	if wcs, ts := c.q.Look(); len(wcs) > 0 {
		return wcs, ts, nil
	}
	return nil, nil, c.overran()
}

// Next implements driver.CQEx.
func (c *cq) Next() ([]driver.WC, []uint64) { return c.q.Next() }

// Done implements driver.CQEx.
func (c *cq) Done(n int) { c.q.Done(n) }

// Moderate implements driver.CQModerator.
func (c *cq) Moderate(count int, period time.Duration) error {
	switch most := maxModeration * time.Microsecond; {
	case count < 0 || count > maxModeration:
		return invalid("CQCount", "%d, want 0 to %d", count, maxModeration)
	case period < 0 || period > most:
		return invalid("CQPeriod", "%v, want 0 to %v", period, most)
	}
	if c.q.Moderate(count, int64(period)) {
		c.q.Notify()
	}
	return nil
}

// Ticks implements driver.Clock: ns since some time in the past.
func (d *Device) Ticks() uint64 { return uint64(d.clock()) }

// WallClock implements driver.Clock. Both clocks run at one rate (NTP slews
// CLOCK_MONOTONIC as it does CLOCK_REALTIME), so what lies between them is read
// anew only when somebody has set the time: equal ticks stay equal times, and a
// later tick a later one. Of a virtual clock it is read once.
func (d *Device) WallClock(ticks uint64) int64 {
	before := d.clock()
	wall := time.Now().UnixNano()
	after := d.clock()
	between := wall - before - (after-before)/2
	for {
		held := d.wallOffset.Load()
		if held != nil && (d.virtual || max(between-*held, *held-between) <= after-before+wallSlack) {
			return int64(ticks) + *held
		}
		fresh := between
		if d.wallOffset.CompareAndSwap(held, &fresh) {
			return int64(ticks) + fresh
		}
	}
}

// wallSlack is how far the clocks may drift apart, in ns, before the time counts as
// set.
const wallSlack = 1_000_000
