package rdmarw

import "strconv"

// Direction says which way data goes, seen from the memory of this side (enum
// dma_data_direction).
type Direction uint8

// Directions.
const (
	DMAToDevice   Direction = 1 // from this side's memory to the peer's: RDMA WRITE
	DMAFromDevice Direction = 2 // from the peer's memory to this side's: RDMA READ
)

// String is the name of the constant.
func (d Direction) String() string {
	switch d {
	case DMAToDevice:
		return "DMA_TO_DEVICE"
	case DMAFromDevice:
		return "DMA_FROM_DEVICE"
	}
	return "direction " + strconv.Itoa(int(d))
}

// Kind says how a context moves its data (enum of rdma_rw_ctx.type).
type Kind uint8

// Kinds of contexts.
const (
	KindNone     Kind = iota // not initialized
	KindSingleWR             // one READ or WRITE
	KindMultiWR              // several, each of as many elements as it may have
	KindMR                   // registered regions, each with one READ or WRITE
	KindSigMR                // a region that makes, checks or strips protection information
	KindIOVA                 // one contiguous mapping with one READ or WRITE
)

// String is the name of the kernel's constant.
func (k Kind) String() string {
	names := [...]string{"none", "RDMA_RW_SINGLE_WR", "RDMA_RW_MULTI_WR", "RDMA_RW_MR", "RDMA_RW_SIG_MR", "RDMA_RW_IOVA"}
	if int(k) < len(names) {
		return names[k]
	}
	return "kind " + strconv.Itoa(int(k))
}
