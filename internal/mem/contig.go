package mem

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// RegisterList enters the slices of list, one behind the other, as one range for
// local use: what an IOMMU makes of scattered memory. The range begins at the
// address of the first slice. They must not hold Go pointers. The table keeps them until
// Release, as Map does. EINVAL: the list or a slice is empty; ENOMEM.
func (t *Table) RegisterList(pd *PD, list [][]byte) (*Region, error) {
	if len(list) == 0 {
		return nil, &ParamError{"list", "empty", syscall.EINVAL}
	}
	r := new(Region)
	e := &r.first
	e.kind, e.access, e.list = kindList, ib.AccessLocalWrite, make([]run, 0, len(list))
	for i, b := range list {
		if len(b) == 0 {
			return nil, &ParamError{"list", fmt.Sprintf("slice %d is empty", i), syscall.EINVAL}
		}
		e.append(b)
	}
	e.iova = Address(list[0])
	if err := checkRange("list", "list", e.iova, e.length); err != nil {
		return nil, err
	}
	return t.enter(pd, r)
}

// Grants reports whether the key is one of the domain's for local use that has
// all the rights.
func (t *Table) Grants(pd *PD, lkey ib.LKey, rights ib.Access) bool {
	e := t.lookup(uint32(lkey))
	return e != nil && e.of(pd) && e.window == nil && e.access&rights == rights
}
