package ib

// IncRKey gives the key that differs from k in its low 8 bits, which belong to
// the consumer: they count up and wrap around (ibv_inc_rkey(3)). It is the usual
// next key of a memory window or a fast-registration region.
func IncRKey(k RKey) RKey { return k&^0xFF | (k+1)&0xFF }

// TagRKey gives the key with the low 8 bits tag (kernel: ib_update_fast_reg_key).
func TagRKey(k RKey, tag uint8) RKey { return k&^0xFF | RKey(tag) }

// ReregFlags tell what of a memory region changes (enum ibv_rereg_mr_flags).
type ReregFlags uint32

// What ibv_rereg_mr(3) changes.
const (
	ReregTranslation ReregFlags = 1 << 0 // the memory: where it is and how long
	ReregPD          ReregFlags = 1 << 1 // the protection domain
	ReregAccess      ReregFlags = 1 << 2 // the rights
)

var reregNames = []flagName{
	{uint32(ReregTranslation), "CHANGE_TRANSLATION"},
	{uint32(ReregPD), "CHANGE_PD"},
	{uint32(ReregAccess), "CHANGE_ACCESS"},
}

// String lists the flags as the C constants spell them after IBV_REREG_MR_:
// "CHANGE_PD|CHANGE_ACCESS".
func (f ReregFlags) String() string { return flagString(reregNames, uint32(f)) }

// Advice is what ibv_advise_mr(3) asks for (enum ib_uverbs_advise_mr_advice).
type Advice uint32

// Advices about regions with on-demand paging.
const (
	AdvisePrefetch        Advice = 0 // make the pages present, to be read
	AdvisePrefetchWrite   Advice = 1 // ... to be written
	AdvisePrefetchNoFault Advice = 2 // ... those that are present anyway
)

// Bits of DeviceAttr.DeviceCapFlags that tell about memory (enum
// ibv_device_cap_flags; the local DMA key's is the kernel's
// IB_DEVICE_LOCAL_DMA_LKEY).
const (
	DeviceCapLocalDMALKey     uint64 = 1 << 15 // domains have a local DMA key
	DeviceCapMemWindow        uint64 = 1 << 17 // memory windows
	DeviceCapMemMgtExtensions uint64 = 1 << 21 // fast registration, LOCAL_INV, SEND with invalidate
	DeviceCapMemWindowType2A  uint64 = 1 << 23 // windows of type 2 are of the queue pair alone
	DeviceCapMemWindowType2B  uint64 = 1 << 24 // ... of the queue pair and its domain
)
