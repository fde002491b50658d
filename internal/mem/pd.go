package mem

import (
	"sync"
	"sync/atomic"
	"syscall"
)

// PD is a protection domain. Objects hold it by pointer; two domains are the
// same if their pointers are. The zero value is a domain that nothing uses.
type PD struct {
	refs atomic.Int32 // objects in the domain; -1 = deallocated

	dmaMu sync.Mutex               // whoever changes dma
	dma   atomic.Pointer[[][]byte] // what the local DMA key reaches, by address; what it points to does not change
}

// NewPD makes a protection domain.
func NewPD() *PD { return new(PD) }

// Hold counts an object of the domain. False: the domain is deallocated.
func (pd *PD) Hold() bool {
	for {
		n := pd.refs.Load()
		if n < 0 {
			return false
		}
		if pd.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Drop takes back one successful Hold.
func (pd *PD) Drop() {
	if pd.refs.Add(-1) < 0 {
		panic("mem: PD.Drop without Hold")
	}
}

// Refs is the number of objects in the domain.
func (pd *PD) Refs() int { return max(0, int(pd.refs.Load())) }

// Deallocate ends the domain; further calls do nothing. EBUSY: objects of it
// are left.
func (pd *PD) Deallocate() error {
	if pd.refs.CompareAndSwap(0, -1) || pd.refs.Load() < 0 {
		return nil
	}
	return &ParamError{"pd", "objects of the protection domain are left", syscall.EBUSY}
}
