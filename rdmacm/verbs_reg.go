package rdmacm

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// The registration helpers of rdma_verbs.h: they differ in the rights that the
// region gets, and all of them register in the ID's domain (ID.PD), which it has from
// Bind or ResolveAddr on. The memory stays the application's; it is pinned until DeregMR.

// RegMsgs registers buf for messages, for what READs bring and what WRITEs take
// (rdma_reg_msgs): the device may read and write it, peers may not. EINVAL: buf is
// empty, or the ID is not bound to a device; ENOMEM: too many regions.
func (id *ID) RegMsgs(buf []byte) (*verbs.MR, error) {
	return id.reg("reg_msgs", buf, ib.AccessLocalWrite)
}

// RegRead registers buf so that the peer may read it, by PostRead for instance
// (rdma_reg_read). It needs the region's Addr and RKey for that. The device may
// write it as well. Errors as RegMsgs.
func (id *ID) RegRead(buf []byte) (*verbs.MR, error) {
	return id.reg("reg_read", buf, ib.AccessLocalWrite|ib.AccessRemoteRead)
}

// RegWrite registers buf so that the peer may write it, by PostWrite for instance
// (rdma_reg_write): it names the region's Addr, or one behind it, and RKey. It may
// neither read it nor use atomics on it. Errors as RegMsgs.
func (id *ID) RegWrite(buf []byte) (*verbs.MR, error) {
	return id.reg("reg_write", buf, ib.AccessLocalWrite|ib.AccessRemoteWrite)
}

func (id *ID) reg(op string, buf []byte, access ib.Access) (*verbs.MR, error) {
	pd := id.PD()
	if pd == nil {
		return nil, opErr(op, errNoDevice)
	}
	mr, err := pd.RegMR(buf, access)
	return mr, opErr(op, err)
}

// DeregMR ends a registration, of any of the three kinds (rdma_dereg_mr). When it
// returns the keys are dead and nothing touches the memory any more; work that still
// names it fails. Doing it again does nothing. EBUSY: a memory window is bound to it;
// EINVAL: mr is nil.
func DeregMR(mr *verbs.MR) error {
	const op = "dereg_mr"
	if mr == nil {
		return paramErr(op, "mr", "is nil", syscall.EINVAL)
	}
	return opErr(op, mr.Dereg())
}

// What an ID lacks at a helper call that comes too early.
var (
	errNoDevice = fmt.Errorf("the ID is not bound to a device: %w", syscall.EINVAL)
	errNoQP     = fmt.Errorf("the ID has no queue pair: %w", syscall.EINVAL)
	errNoCQ     = fmt.Errorf("the ID has no completion queue for it: %w", syscall.EINVAL)
)
