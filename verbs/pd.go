package verbs

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// PD is a protection domain: queue pairs reach only the memory and the addresses
// of their own domain (struct ibv_pd).
type PD struct {
	life
	ctx    *Context
	pd     driver.PD
	parent []parent // of a parent domain: what it holds
}

// Context is the open device that the domain belongs to.
func (p *PD) Context() *Context { return p.ctx }

// Dealloc gives the domain back (ibv_dealloc_pd). EBUSY: something uses it.
func (p *PD) Dealloc() error {
	if p.parent != nil {
		return opErr("dealloc_pd", p.end(context.Background(), nil, nil, func() {
			for _, o := range p.parent {
				o.life.drop(aParentDomain)
			}
		}))
	}
	return opErr("dealloc_pd", p.end(context.Background(), p.pd.Dealloc, nil, p.ctx.dropper(aPD)))
}

// MR is a registered memory region (struct ibv_mr).
type MR struct {
	life
	mr   driver.MR
	cur  atomic.Pointer[registration]
	null bool          // has every address
	fast driver.FastMR // nil: not one for fast registration
	live driver.MR     // nil: keys, address and length change by calls only, and cur tells them
}

// registration is what a region is now.
type registration struct {
	pd   *PD
	b    []byte
	lkey ib.LKey
	rkey ib.RKey
	addr uint64
	size uint64
}

// RegMR registers b with the given rights (ibv_reg_mr). It is pinned until
// Dereg. Remote write and remote atomic need ib.AccessLocalWrite; hints of
// ib.AccessOptional are accepted. EINVAL: b is empty or a right is unknown;
// ENOMEM: too many regions; EOPNOTSUPP: the device cannot.
func (p *PD) RegMR(b []byte, access ib.Access) (*MR, error) {
	return p.register("reg_mr", b, func() (driver.MR, error) { return p.pd.RegMR(b, 0, false, access) })
}

// RegMRIOVA is RegMR with a chosen address, by which work requests and the peer
// name the first byte (ibv_reg_mr_iova).
func (p *PD) RegMRIOVA(b []byte, iova uint64, access ib.Access) (*MR, error) {
	return p.register("reg_mr_iova", b, func() (driver.MR, error) { return p.pd.RegMR(b, iova, true, access) })
}

// RegMRPointer registers memory that Go does not manage, for instance mapped
// memory or that of a C program. It must stay mapped until Dereg; if it does
// not, work that touches it fails with a protection error. Errors as RegMR; on
// demand paging (address 0, all lengths) is EOPNOTSUPP where the device does not
// offer it.
func (p *PD) RegMRPointer(addr uintptr, length uint64, access ib.Access) (*MR, error) {
	return p.register("reg_mr", nil, func() (driver.MR, error) { return p.pd.RegMRPointer(addr, length, 0, false, access) })
}

// RegMRPointerIOVA is RegMRPointer with a chosen address, as RegMRIOVA.
func (p *PD) RegMRPointerIOVA(addr uintptr, length, iova uint64, access ib.Access) (*MR, error) {
	return p.register("reg_mr_iova", nil, func() (driver.MR, error) { return p.pd.RegMRPointer(addr, length, iova, true, access) })
}

// NullMR gives a region for local use that reads as zeros and swallows what is
// written (ibv_alloc_null_mr).
// It has every address: SGE does not check its range.
func (p *PD) NullMR() (*MR, error) {
	m, err := p.register("alloc_null_mr", nil, p.pd.NullMR)
	if m != nil {
		m.null = true
	}
	return m, err
}

func (p *PD) register(op string, b []byte, reg func() (driver.MR, error)) (*MR, error) {
	if !p.hold(anMR) {
		return nil, opErr(op, errPDClosed)
	}
	m, err := reg()
	if err != nil {
		p.drop(anMR)
		return nil, opErr(op, err)
	}
	r := &MR{mr: m}
	r.set(p, b)
	return r, nil
}

// set takes over what the provider's region is now.
func (m *MR) set(pd *PD, b []byte) {
	d := m.mr
	m.cur.Store(&registration{pd: pd, b: b, lkey: d.LKey(), rkey: d.RKey(), addr: d.Addr(), size: d.Length()})
}

// PD is the domain of the region.
func (m *MR) PD() *PD { return m.cur.Load().pd }

// LKey names the region in the scatter/gather elements of this side.
func (m *MR) LKey() ib.LKey {
	if m.live != nil {
		return m.live.LKey()
	}
	return m.cur.Load().lkey
}

// RKey names the region for the peer. That of a region for fast registration is
// the one of the last WRRegMR that was executed.
func (m *MR) RKey() ib.RKey {
	if m.live != nil {
		return m.live.RKey()
	}
	return m.cur.Load().rkey
}

// Addr is the address of the first byte, for both sides.
func (m *MR) Addr() uint64 {
	if m.live != nil {
		return m.live.Addr()
	}
	return m.cur.Load().addr
}

// Length is the number of bytes.
func (m *MR) Length() uint64 {
	if m.live != nil {
		return m.live.Length()
	}
	return m.cur.Load().size
}

// Bytes is the slice that was registered; nil for memory that was not given as
// one.
func (m *MR) Bytes() []byte { return m.cur.Load().b }

// SGE describes length bytes of the region from offset on. Like slicing, it
// panics when they are not in the region, or more than an element can count
// (4 GiB - 1).
func (m *MR) SGE(offset, length int) SGE {
	var addr, size uint64
	var key ib.LKey
	if m.live != nil {
		addr, size, key = m.live.Addr(), m.live.Length(), m.live.LKey()
	} else {
		r := m.cur.Load()
		addr, size, key = r.addr, r.size, r.lkey
	}
	in := m.null || uint64(offset) <= size && uint64(length) <= size-uint64(offset)
	if offset < 0 || length < 0 || !in || uint64(length) > 1<<32-1 {
		panic(fmt.Sprintf("verbs: SGE of %d bytes at offset %d is not in the memory region of %d bytes", length, offset, size))
	}
	return SGE{Addr: addr + uint64(offset), Length: uint32(length), LKey: key}
}

// Dereg ends the registration (ibv_dereg_mr): when it returns nothing touches
// the memory any more, and the keys are dead. Work that still names them fails.
// EBUSY: a memory window is bound to it.
func (m *MR) Dereg() error {
	return opErr("dereg_mr", m.end(context.Background(), m.mr.Dereg, nil, func() { m.PD().drop(anMR) }))
}

// UnwrapMR gives the provider's region.
func (m *MR) UnwrapMR() driver.MR {
	if m == nil {
		return nil
	}
	return m.mr
}
