package rdmacm

import (
	"context"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// CreateQP makes the ID's queue pair, of the ID's type, and moves it to INIT, or for
// datagrams to RTS (rdma_create_qp). pd nil: the device's default domain. Completion
// queues that attr does not name are made, of the size of the work queues and with a
// completion channel of their own, and are the ID's: SendCQ, SendChannel and so on.
// The real sizes and the queues are written back to attr. EINVAL: the ID is not
// bound to a device, has a queue pair, or pd or a queue is of another device.
func (id *ID) CreateQP(pd *verbs.PD, attr *verbs.QPInitAttr) error { return errNotBuilt }

// CreateQPEx is CreateQP with all attributes (rdma_create_qp_ex): also for ib.XRCSend
// and ib.XRCRecv, where an XRCD that attr does not name is the device's default
// one.
func (id *ID) CreateQPEx(attr *verbs.QPInitAttrEx) error { return errNotBuilt }

// DestroyQP destroys the queue pair and the completion queues and channels that were
// made for it (rdma_destroy_qp). Without one it does nothing. It waits for
// unacknowledged events, as verbs.QP.DestroyContext. EBUSY: it is attached to a
// multicast group that was not joined through the ID.
func (id *ID) DestroyQP(ctx context.Context) error { return errNotBuilt }

// QP is the queue pair; nil: none.
func (id *ID) QP() *verbs.QP { return nil }

// SendCQ is where the queue pair's sends complete; nil: none.
func (id *ID) SendCQ() *verbs.CQ { return nil }

// RecvCQ is where its receives complete, or those of SRQ; nil: none.
func (id *ID) RecvCQ() *verbs.CQ { return nil }

// SendChannel is the completion channel that was made for SendCQ; nil: none.
func (id *ID) SendChannel() *verbs.CompChannel { return nil }

// RecvChannel is the completion channel that was made for RecvCQ; nil: none.
func (id *ID) RecvChannel() *verbs.CompChannel { return nil }

// CreateSRQ makes a shared receive queue for queue pairs that are created after it on
// the ID (rdma_create_srq). pd nil: the device's default domain. EINVAL: the ID is
// not bound to a device, or has one.
func (id *ID) CreateSRQ(pd *verbs.PD, attr *ib.SRQAttr) error { return errNotBuilt }

// CreateSRQEx is CreateSRQ with all attributes (rdma_create_srq_ex): of type ib.SRQXRC
// an XRCD that attr does not name is the device's default one, and a CQ is made if
// there is none.
func (id *ID) CreateSRQEx(pd *verbs.PD, attr *verbs.SRQInitAttr) error { return errNotBuilt }

// DestroySRQ destroys the shared receive queue (rdma_destroy_srq). EBUSY: a queue pair
// uses it. Without one it does nothing.
func (id *ID) DestroySRQ(ctx context.Context) error { return errNotBuilt }

// SRQ is the shared receive queue; nil: none.
func (id *ID) SRQ() *verbs.SRQ { return nil }

// InitQPAttr gives attributes and mask with which an application moves its own queue pair to
// the state attr.QPState: INIT, RTR or RTS (rdma_init_qp_attr). EINVAL: another
// state, or too early.
func (id *ID) InitQPAttr(attr *ib.QPAttr) (ib.QPAttrMask, error) { return 0, errNotBuilt }
