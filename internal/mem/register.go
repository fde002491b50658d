package mem

import (
	"fmt"
	"math"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// Register enters buf into the table and pins it until Release; it must not
// hold Go pointers. iova is the address by which work requests name the first
// byte, usually Address(buf); with AccessZeroBased that is 0 whatever iova says.
// Errors are of type *ParamError: EINVAL for an empty buf, an iova from which the
// region would wrap around 2^64 (it may end there), or rights as in
// [CheckAccess]; ENOMEM when the table is full; EOPNOTSUPP.
func (t *Table) Register(pd *PD, buf []byte, iova uint64, access ib.Access) (*Region, error) {
	if err := CheckAccess(access); err != nil {
		return nil, err
	}
	iova = base(iova, access)
	if err := checkRange("b", "iova", iova, uint64(len(buf))); err != nil {
		return nil, err
	}
	return t.enter(pd, newRegion(buf, iova, access))
}

func newRegion(buf []byte, iova uint64, access ib.Access) *Region {
	r := new(Region)
	r.first.buf, r.first.iova, r.first.length, r.first.access = buf, iova, uint64(len(buf)), access
	return r
}

const firstPage = 4096

// RegisterPointer is Register for memory that Go does not manage. It must stay
// mapped until Release; if it does not, work that touches it ends in error.
// EINVAL also when addr is in the first page or the memory would wrap around.
func (t *Table) RegisterPointer(pd *PD, addr uintptr, length, iova uint64, access ib.Access) (*Region, error) {
	// Before the range: on-demand registration of everything has address 0.
	if err := CheckAccess(access); err != nil {
		return nil, err
	}
	iova = base(iova, access)
	buf, err := checkForeign(addr, length, iova)
	if err != nil {
		return nil, err
	}
	return t.enter(pd, newRegion(buf, iova, access))
}

// checkForeign makes a slice of memory that Go does not manage, to be registered
// at iova.
func checkForeign(addr uintptr, length, iova uint64) ([]byte, error) {
	// Go takes a fault in the first page for a nil pointer, which the guard does not catch.
	if addr < firstPage {
		return nil, &ParamError{"addr", "in the first page", syscall.EINVAL}
	}
	if err := checkRange("length", "iova", iova, length); err != nil {
		return nil, err
	}
	if length > math.MaxInt || uint64(^uintptr(0)-addr) < length-1 {
		return nil, &ParamError{"length", "the memory wraps around the address space", syscall.EINVAL}
	}
	return foreign(addr, int(length)), nil
}

// RegisterNull enters a null region, for local use: it reads as zeros and
// swallows writes at every address (ibv_alloc_null_mr(3)).
func (t *Table) RegisterNull(pd *PD) (*Region, error) {
	r := new(Region)
	r.first.kind, r.first.access = kindNull, ib.AccessLocalWrite
	return t.enter(pd, r)
}

// enter gives the region its key in the domain pd.
func (t *Table) enter(pd *PD, r *Region) (*Region, error) {
	if !pd.Hold() {
		return nil, errDomainGone
	}
	r.pd = pd
	e := &r.first
	e.region = r
	if r.fast == nil {
		e.pd.Store(pd)
	}
	if len(e.buf) > 0 {
		r.pinner.Pin(&e.buf[0])
	}
	if !t.insert(r) {
		r.pinner.Unpin()
		pd.Drop()
		return nil, &ParamError{"mr", fmt.Sprintf("the device has its limit of %d regions", t.max), syscall.ENOMEM}
	}
	return r, nil
}

var errDomainGone error = &ParamError{"pd", "deallocated", syscall.EINVAL}

// base is the address by which work requests name the first byte.
func base(iova uint64, access ib.Access) uint64 {
	if access&ib.AccessZeroBased != 0 {
		return 0
	}
	return iova
}

// Address is where the memory of b begins, as a number: the usual iova.
func Address(b []byte) uint64 { return uint64(address(b)) }

// checkRange refuses an empty range, as the parameter of says, and one that wraps
// around 2^64, as name says; it may end exactly there.
func checkRange(of, name string, addr, length uint64) error {
	switch {
	case length == 0 && of == "length":
		return &ParamError{of, "is 0", syscall.EINVAL}
	case length == 0:
		return &ParamError{of, "is empty", syscall.EINVAL}
	}
	if addr > -length {
		return &ParamError{name, "the region wraps around the address space", syscall.EINVAL}
	}
	return nil
}
