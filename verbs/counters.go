package verbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Counter is a counter with its name.
type Counter = driver.Counter

// Counters lists the counters of a port, counted from 1, that every InfiniBand
// port has: what Linux shows in /sys/class/infiniband/NAME/ports/1/counters,
// under the same names, so far as the device has them. Data are counted in units
// of four bytes (IBA 16.1.3.5). EINVAL: there is no such port; EOPNOTSUPP: the
// provider does not count.
func (c *Context) Counters(port uint8) ([]Counter, error) {
	return c.count("counters", func(d driver.DeviceCounter) ([]Counter, error) { return d.PortCounters(port) })
}

// HWCounters lists the device's own counters of a port, in a fixed order; port 0
// is the whole device. Names are those of Linux's hw_counters where one fits, of
// rdma_rxe first; each reason for which a packet can be dropped has a counter
// whose name begins with "drop_". EINVAL: there is no such port; EOPNOTSUPP: the
// provider does not count.
func (c *Context) HWCounters(port uint8) ([]Counter, error) {
	return c.count("hw_counters", func(d driver.DeviceCounter) ([]Counter, error) { return d.HWCounters(port) })
}

func (c *Context) count(op string, list func(driver.DeviceCounter) ([]Counter, error)) ([]Counter, error) {
	if err := c.check(op); err != nil {
		return nil, err
	}
	d, ok := c.dev.(driver.DeviceCounter)
	if !ok {
		return nil, opErr(op, fmt.Errorf("the device does not count: %w", syscall.EOPNOTSUPP))
	}
	l, err := list(d)
	return l, opErr(op, err)
}

// Counters lists what this queue pair counted since it was created, under the
// names of Context.HWCounters. EINVAL: it was destroyed; EOPNOTSUPP: the provider
// does not count for each queue pair.
func (q *QP) Counters() ([]Counter, error) {
	const op = "qp_counters"
	if !q.alive() {
		return nil, opErr(op, errQPClosed)
	}
	d, ok := q.qp.(driver.QPCounter)
	if !ok {
		return nil, opErr(op, fmt.Errorf("the queue pair does not count: %w", syscall.EOPNOTSUPP))
	}
	l, err := d.Counters()
	return l, opErr(op, err)
}
