package driver

import "github.com/verbena-rdma/verbena/ib"

// CompCntrCreator is a device with completion counters.
type CompCntrCreator interface {
	CreateCompCntr() (CompCntr, error) // ENOMEM
	CompCntrCaps() CompCntrCaps
}

// CompCntrCaps tells what completion counters can do (struct
// ibv_comp_cntr_caps).
type CompCntrCaps struct {
	MaxValue    uint64 // one more gives 0
	MaxCounters int
	AttachOps   ib.CompCntrOps
}

// CompCntr counts completions: those that succeeded and those that failed.
type CompCntr interface {
	Read() (done, failed uint64)
	Set(v uint64)
	SetErr(v uint64)
	Inc(n uint64)
	IncErr(n uint64)
	Destroy() error // EBUSY while attached
}

// CompCntrAttacher is a queue pair whose completions can be counted.
type CompCntrAttacher interface {
	// AttachCompCntr has c count the operations ops until the queue pair is
	// destroyed. EINVAL: not in RESET or INIT, or of another device; EOPNOTSUPP:
	// operations that are not counted; EBUSY: another counter counts one of them.
	AttachCompCntr(c CompCntr, ops ib.CompCntrOps) error
}
