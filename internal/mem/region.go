package mem

import (
	"runtime"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// Region is a memory region as the key table holds it.
type Region struct {
	cur   atomic.Pointer[entry] // what its key stands for, or stood for last
	first entry                 // the first of them
	fast  *fast                 // what only fast-registration regions have
	runs  []run                 // of RegisterList: the room for the list

	// Under the table's lock.
	pd      *PD
	pinner  runtime.Pinner
	slot    uint32
	state   state
	windows int // windows that are bound to it
}

// state is how far a region or a window has come.
type state uint8

const (
	stateLive     state = iota // its key works
	stateRemoved               // its key is dead, the memory still pinned
	stateReleased              // gone
)

// LKey is the key for local access.
func (r *Region) LKey() ib.LKey { return ib.LKey(r.cur.Load().key) }

// RKey is the key for remote access: the same number.
func (r *Region) RKey() ib.RKey { return ib.RKey(r.cur.Load().key) }

// Addr is the address by which work requests name the first byte. Of a
// fast-registration region it is that of the pages it was given last.
func (r *Region) Addr() uint64 { return r.shape().iova }

// Length is the length in bytes; of a null region 0.
func (r *Region) Length() uint64 { return r.shape().length }

// Access is what the region was registered with.
func (r *Region) Access() ib.Access { return r.cur.Load().access }

// PD is the protection domain that may use the region now; nil for a
// fast-registration region that is not registered.
func (r *Region) PD() *PD { return r.cur.Load().pd.Load() }

// shape is the entry that tells address and length.
func (r *Region) shape() *entry {
	if r.fast != nil {
		if e := r.fast.mapped.Load(); e != nil {
			return e
		}
	}
	return r.cur.Load()
}
