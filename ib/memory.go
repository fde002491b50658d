package ib

// MWType is the kind of a memory window (enum ibv_mw_type).
type MWType uint8

// Memory window types. A window of type 1 is bound by a call and belongs to the
// protection domain, one of type 2 is bound by a work request and belongs to the
// queue pair (IBA 10.6.7.2.2).
const (
	MWType1 MWType = 1
	MWType2 MWType = 2
)

// FlushType is what an RDMA FLUSH makes of the memory (enum
// ibv_placement_type); the bits may be combined.
type FlushType uint32

// Flush types.
const (
	FlushGlobal     FlushType = 1 << 0 // visible to everybody on the peer's host
	FlushPersistent FlushType = 1 << 1 // durable
)

// FlushLevel is the memory that an RDMA FLUSH is about (enum
// ibv_selectivity_level).
type FlushLevel uint32

// Flush levels.
const (
	FlushRange FlushLevel = 0 // the range that the request names
	FlushMR    FlushLevel = 1 // the whole region of the key
)
