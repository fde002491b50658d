package verbs

import (
	"context"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// DMAttr describes device memory to allocate (struct ibv_alloc_dm_attr).
type DMAttr = driver.DMAttr

// DM is memory of the device (struct ibv_dm). On a software device it is memory
// like any other.
type DM struct {
	life
	ctx *Context
	dm  driver.DM
	n   uint64
}

var errDMClosed error = &closedError{"device memory", syscall.EINVAL}

// AllocDM allocates zeroed device memory (ibv_alloc_dm). EINVAL: the length is 0
// or the alignment unheard of; ENOMEM: more than DeviceAttr.MaxDMSize in all;
// EOPNOTSUPP.
func (c *Context) AllocDM(attr *DMAttr) (*DM, error) {
	const op = "alloc_dm"
	d, ok := c.dev.(driver.DMDevice)
	switch {
	case attr == nil:
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	case !ok:
		return nil, notOffered(op)
	case !c.hold(aDM):
		return nil, opErr(op, errDeviceClosed)
	}
	m, err := d.AllocDM(attr)
	if err != nil {
		c.drop(aDM)
		return nil, opErr(op, err)
	}
	return &DM{ctx: c, dm: m, n: attr.Length}, nil
}

// Length is the number of bytes.
func (m *DM) Length() uint64 { return m.n }

// CopyTo copies b to byte offset of the device memory (ibv_memcpy_to_dm).
// EINVAL: it does not fit there.
func (m *DM) CopyTo(offset uint64, b []byte) error {
	if !m.alive() {
		return opErr("memcpy_to_dm", errDMClosed)
	}
	return opErr("memcpy_to_dm", m.dm.CopyTo(offset, b))
}

// CopyFrom fills b from byte offset of the device memory on
// (ibv_memcpy_from_dm). EINVAL: there is less.
func (m *DM) CopyFrom(b []byte, offset uint64) error {
	if !m.alive() {
		return opErr("memcpy_from_dm", errDMClosed)
	}
	return opErr("memcpy_from_dm", m.dm.CopyFrom(b, offset))
}

// Free gives the memory back (ibv_free_dm). EBUSY: a region is on it.
func (m *DM) Free() error {
	return opErr("free_dm", m.end(context.Background(), m.dm.Free, nil, m.ctx.dropper(aDM)))
}

// RegDMMR registers length bytes of device memory from offset on
// (ibv_reg_dm_mr). The rights must hold ib.AccessZeroBased: addresses count from
// 0. EINVAL, ENOMEM, EOPNOTSUPP.
func (p *PD) RegDMMR(dm *DM, offset, length uint64, access ib.Access) (*MR, error) {
	const op = "reg_dm_mr"
	d, ok := p.pd.(driver.DMPD)
	switch {
	case dm == nil:
		return nil, paramErr(op, "dm", "is nil", syscall.EINVAL)
	case dm.ctx != p.ctx:
		return nil, paramErr(op, "dm", "is of another device", syscall.EINVAL)
	case !ok:
		return nil, notOffered(op)
	case !dm.alive():
		return nil, &OpError{Op: op, Param: "dm", Err: errDMClosed}
	}
	return p.register(op, nil, func() (driver.MR, error) { return d.RegDMMR(dm.dm, offset, length, access) })
}

// TD is a thread domain: a promise that what is made under it is used by one
// thread at a time (struct ibv_td). Software devices make no use of it.
type TD struct {
	life
	ctx *Context
}

var errTDClosed error = &closedError{"thread domain", syscall.EINVAL}

// AllocTD makes a thread domain (ibv_alloc_td).
func (c *Context) AllocTD() (*TD, error) {
	if !c.hold(aTD) {
		return nil, opErr("alloc_td", errDeviceClosed)
	}
	return &TD{ctx: c}, nil
}

// Dealloc gives the thread domain back (ibv_dealloc_td). EBUSY: a parent domain
// uses it.
func (t *TD) Dealloc() error {
	return opErr("dealloc_td", t.end(context.Background(), nil, nil, t.ctx.dropper(aTD)))
}

// ParentDomainAttr describes a parent domain (struct
// ibv_parent_domain_init_attr). There are no allocators: in Go the library's
// memory is Go's.
type ParentDomainAttr struct {
	PD *PD // must not be nil
	TD *TD // may be nil
}

// AllocParentDomain makes a parent domain (ibv_alloc_parent_domain): another
// handle of attr.PD. What is made under it belongs to that domain's protection,
// and keeps the parent domain from being deallocated; the parent domain keeps
// attr.PD and attr.TD. EINVAL: nil, destroyed, or of another device.
func (c *Context) AllocParentDomain(attr *ParentDomainAttr) (*PD, error) {
	const op = "alloc_parent_domain"
	switch {
	case attr == nil:
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	case attr.PD == nil:
		return nil, paramErr(op, "PD", "is nil", syscall.EINVAL)
	case attr.PD.ctx != c:
		return nil, paramErr(op, "PD", "is of another device", syscall.EINVAL)
	case attr.TD != nil && attr.TD.ctx != c:
		return nil, paramErr(op, "TD", "is of another device", syscall.EINVAL)
	}
	parents := []parent{{&attr.PD.life, errPDClosed, "PD"}}
	if attr.TD != nil {
		parents = append(parents, parent{&attr.TD.life, errTDClosed, "TD"})
	}
	if err := holdAll(op, aParentDomain, parents...); err != nil {
		return nil, err
	}
	return &PD{ctx: c, pd: attr.PD.pd, parent: parents}, nil
}
