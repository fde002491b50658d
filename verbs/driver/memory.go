package driver

import "github.com/verbena-rdma/verbena/ib"

// MRRereger is a region that can be registered anew in place.
type MRRereger interface {
	// Rereg changes what flags name, in one step or not at all. Keys, address and
	// length may be others afterwards. EINVAL, ENOMEM; EBUSY: a window is bound.
	Rereg(flags ib.ReregFlags, attr *ReregAttr) error
}

// ReregAttr is what a region becomes (the arguments of ibv_rereg_mr). Only what
// the flags name is read.
type ReregAttr struct {
	PD     PD
	Bytes  []byte  // the new memory ...
	Addr   uintptr // ... or, where Bytes is nil, memory that Go does not manage
	Length uint64
	Access ib.Access
}

// FastMR is a region for fast registration (kernel: ib_mr of type
// IB_MR_TYPE_MEM_REG).
type FastMR interface {
	MR
	// MapSG sets the memory that the next WRRegMR registers. n is how many slices
	// of the list fit, rest how many bytes of slice n besides. EINVAL.
	MapSG(list [][]byte, offset, pageSize int) (n, rest int, err error)
}

// FastRegPD is a domain that has regions for fast registration.
type FastRegPD interface {
	AllocMR(maxNumSG int) (FastMR, error) // EINVAL, ENOMEM
}

// MWPD is a domain that has memory windows.
type MWPD interface {
	AllocMW(typ ib.MWType) (MW, error) // EINVAL, ENOMEM, EOPNOTSUPP
}

// MWBinder is a queue pair that binds windows of type 1.
type MWBinder interface {
	// BindMW posts the bind. The window's RKey is the new one when it returns.
	BindMW(mw MW, bind *MWBind) error // EINVAL, EPERM, ENOMEM
}

// MWBind is a request to bind a window of type 1 (struct ibv_mw_bind).
type MWBind struct {
	WRID  uint64
	Flags ib.SendFlags // ib.SendFence, ib.SendSignaled
	Info  BindInfo     // MW is not read
}

// MWUnwrapper is what a wrapper of a window implements, as [AHUnwrapper].
type MWUnwrapper interface{ UnwrapMW() MW }

// MRUnwrapper is what a wrapper of a region implements, as [AHUnwrapper].
type MRUnwrapper interface{ UnwrapMR() MR }

// LocalDMAPD is a domain with a key for local access to all its buffers.
type LocalDMAPD interface {
	LocalDMALKey() (ib.LKey, error)
}

// BufferPD is a domain that allocates registered memory itself.
type BufferPD interface {
	AllocBuffer(size int, access ib.Access) (Buffer, error) // EINVAL, ENOMEM
}

// Buffer is memory that the provider allocated and registered.
type Buffer interface {
	Bytes() []byte
	MR() MR
	Huge() bool // lies in huge pages for sure
	// Free deregisters and frees it. EBUSY while a window is bound.
	Free() error
}

// DMDevice is a device with memory of its own.
type DMDevice interface {
	AllocDM(attr *DMAttr) (DM, error) // EINVAL, ENOMEM
}

// DMAttr describes device memory to allocate (struct ibv_alloc_dm_attr).
type DMAttr struct {
	Length   uint64
	LogAlign uint32 // log2 of the alignment
}

// DM is device memory (struct ibv_dm).
type DM interface {
	CopyTo(offset uint64, from []byte) error // EINVAL
	CopyFrom(into []byte, offset uint64) error
	Free() error // EBUSY while a region is on it
}

// DMPD is a domain that registers device memory.
type DMPD interface {
	RegDMMR(dm DM, offset, length uint64, access ib.Access) (MR, error) // EINVAL, ENOMEM
}

// MRAdviser is a domain that takes advice about regions with on-demand paging.
type MRAdviser interface {
	AdviseMR(advice ib.Advice, flags uint32, list []SGE) error
}
