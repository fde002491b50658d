package mem

import (
	"runtime"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// kind is what stands behind a key.
type kind uint8

const (
	kindMemory kind = iota // one piece of memory
	kindNull               // reads as zeros, swallows writes, at any address
)

// Region is a registered memory region as the key table holds it.
type Region struct {
	key    atomic.Uint32
	kind   kind
	access ib.Access
	pd     *PD
	iova   uint64 // address by which work requests name the first byte
	length uint64
	buf    []byte

	pinner runtime.Pinner
	slot   uint32
	state  state // under the table's lock
}

// state is how far a region has come.
type state uint8

const (
	stateLive     state = iota // its key works
	stateRemoved               // its key is dead, the memory still pinned
	stateReleased              // gone
)

// LKey is the key for local access.
func (r *Region) LKey() ib.LKey { return ib.LKey(r.key.Load()) }

// RKey is the key for remote access: the same number.
func (r *Region) RKey() ib.RKey { return ib.RKey(r.key.Load()) }

// Addr is the address by which work requests name the first byte.
func (r *Region) Addr() uint64 { return r.iova }

// Length is the length in bytes; of a null region 0.
func (r *Region) Length() uint64 { return r.length }

// Access is what the region was registered with.
func (r *Region) Access() ib.Access { return r.access }

// PD is the protection domain that the region belongs to.
func (r *Region) PD() *PD { return r.pd }

// pieces appends length > 0 bytes at addr to out. False: out of bounds.
func (r *Region) pieces(addr, length uint64, out [][]byte) ([][]byte, bool) {
	if r.kind == kindNull {
		for ; length > nullLen; length -= nullLen {
			out = append(out, null[:])
		}
		return append(out, null[:length]), true
	}
	// Modulo 2^64 an address below the region gives an offset that is behind
	// its end, since registration refuses regions that wrap around.
	off := addr - r.iova
	if length > r.length || off > r.length-length {
		return out, false
	}
	return append(out, r.buf[off:off+length:off+length]), true
}

// nullLen is the size of the memory behind null regions.
const nullLen = 64 << 10

// null is the memory behind every null region. Nobody writes it: Copy,
// FetchAdd and CompareSwap know it.
var null [nullLen]byte
