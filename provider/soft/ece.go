package soft

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var _ driver.ECEQP = (*qp)(nil)

// SetECE implements driver.ECEQP. The device has no options that would change
// what it does; it keeps what is set until the queue pair is reset. Options act
// when the connection is configured, so they come before RTR, where mlx5 takes
// them over; later ones would never be looked at.
func (q *qp) SetECE(e *ib.ECE) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch s, dead := q.state(); {
	case dead:
		return fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
	case s != ib.QPStateReset && s != ib.QPStateInit:
		return fmt.Errorf("queue pair is in state %v, ECE options are set in RESET or INIT: %w", s, syscall.EINVAL)
	case e.CompMask != 0:
		return invalid("CompMask", "%#x, nothing is defined", e.CompMask)
	case e.VendorID > 0xFFFFFF:
		return invalid("VendorID", "%#x, an OUI has 24 bits", e.VendorID)
	}
	q.ece = *e
	return nil
}

// QueryECE implements driver.ECEQP.
func (q *qp) QueryECE() (ib.ECE, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, dead := q.state(); dead {
		return ib.ECE{}, fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
	}
	return q.ece, nil
}
