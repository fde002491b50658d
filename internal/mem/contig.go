package mem

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// RegisterList enters the slices of list, one behind the other, as one range for
// local use: what an IOMMU makes of scattered memory. The range begins at the
// address of the first slice. They must not hold Go pointers. The table keeps them until
// Release, as Map does. old, if not nil, is such a region that was released and that
// nobody has any more: it is used again. EINVAL: the list or a slice is empty; ENOMEM.
func (t *Table) RegisterList(pd *PD, list [][]byte, old *Region) (*Region, error) {
	if len(list) == 0 {
		return nil, &ParamError{"list", "empty", syscall.EINVAL}
	}
	for i, b := range list {
		if len(b) == 0 {
			return nil, &ParamError{"list", fmt.Sprintf("slice %d is empty", i), syscall.EINVAL}
		}
	}
	r := old
	if r == nil {
		r = new(Region)
	}
	e := &r.first
	if cap(r.runs) < len(list) {
		r.runs = make([]run, 0, len(list))
	}
	e.kind, e.access, e.list, e.length = kindList, ib.AccessLocalWrite, r.runs[:0], 0
	for _, b := range list {
		e.append(b)
	}
	r.runs = e.list
	e.iova = Address(list[0])
	if err := checkRange("list", "list", e.iova, e.length); err != nil {
		r.ForgetList()
		return nil, err
	}
	r.state = stateLive
	if _, err := t.enter(pd, r); err != nil {
		r.state = stateReleased
		r.ForgetList()
		return nil, err
	}
	return r, nil
}

// ForgetList lets go of the slices of a released region of RegisterList, which is kept to
// be used again.
func (r *Region) ForgetList() {
	r.first.list = nil
	clear(r.runs)
}

// Grants reports whether the key is one of the domain's for local use that has
// all the rights.
func (t *Table) Grants(pd *PD, lkey ib.LKey, rights ib.Access) bool {
	e := t.lookup(uint32(lkey))
	return e != nil && e.of(pd) && e.window == nil && e.access&rights == rights
}
