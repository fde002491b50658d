package mem

import (
	"runtime"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// Change is what Reregister makes of a region.
type Change struct {
	Flags  ib.ReregFlags
	PD     *PD       // ReregPD
	Buf    []byte    // ReregTranslation: the new memory ...
	Addr   uintptr   // ... or, with a nil Buf, memory that Go does not manage
	Length uint64    // ... and its length
	Access ib.Access // ReregAccess
}

// Leftover is what a region had before it was registered anew. The caller makes
// sure that nobody works with its memory any more, then calls Release.
type Leftover struct {
	pinner runtime.Pinner
	pd     *PD
	old    *entry
}

// Release unpins the memory and drops the protection domain.
func (l *Leftover) Release() {
	l.pinner.Unpin()
	l.old.buf = nil // it may lie in the region itself, which programs keep
	if l.pd != nil {
		l.pd.Drop()
		l.pd = nil
	}
}

// Reregister changes a region's memory, domain or rights, in one step or not at
// all (ibv_rereg_mr(3), IBA 11.2.8.5): on an error everything is as it was. With
// new memory or another domain the region has new keys, and the old ones are
// dead, as if it were deregistered and registered; with other rights alone it
// keeps them. New memory, and memory whose rights turn AccessZeroBased on or
// off, begins at its real address, or at 0 with that right; else the region keeps
// the address that it has.
//
// EINVAL: flags are 0 or unknown; memory or rights as with Register; the region
// is null, for fast registration, or deregistered. EBUSY: windows are bound to it.
func (t *Table) Reregister(r *Region, c *Change) (*Leftover, error) {
	const all = ib.ReregTranslation | ib.ReregPD | ib.ReregAccess
	if c.Flags == 0 || c.Flags&^all != 0 {
		return nil, &ParamError{"flags", c.Flags.String() + ", want some of ib.ReregTranslation, ib.ReregPD, ib.ReregAccess", syscall.EINVAL}
	}
	if c.Flags&ib.ReregPD != 0 {
		if c.PD == nil || !c.PD.Hold() {
			return nil, errDomainGone
		}
	}
	l, err := t.reregister(r, c)
	if err != nil && c.Flags&ib.ReregPD != 0 {
		c.PD.Drop()
	}
	return l, err
}

func (t *Table) reregister(r *Region, c *Change) (*Leftover, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := r.cur.Load()
	switch {
	case r.state != stateLive:
		return nil, &ParamError{"mr", "is deregistered", syscall.EINVAL}
	case r.fast != nil || old.kind != kindMemory:
		return nil, &ParamError{"mr", "is not a region of this kind", syscall.EINVAL}
	case r.windows > 0:
		return nil, r.bound()
	}
	e := &entry{key: old.key, access: old.access, iova: old.iova, buf: old.buf, region: r}
	pd := r.pd
	if c.Flags&ib.ReregAccess != 0 {
		if err := CheckAccess(c.Access); err != nil {
			return nil, err
		}
		e.access = c.Access
		if (old.access^e.access)&ib.AccessZeroBased != 0 {
			e.iova = base(Address(e.buf), e.access)
		}
	}
	if c.Flags&ib.ReregTranslation != 0 {
		if e.buf = c.Buf; c.Buf == nil {
			var err error
			if e.buf, err = checkForeign(c.Addr, c.Length, base(uint64(c.Addr), e.access)); err != nil {
				return nil, err
			}
		}
		e.iova = base(Address(e.buf), e.access)
	}
	if err := checkRange("Bytes", "addr", e.iova, uint64(len(e.buf))); err != nil {
		return nil, err
	}
	e.length = uint64(len(e.buf))
	if c.Flags&ib.ReregPD != 0 {
		pd = c.PD
	}

	// Nothing fails from here on.
	l := &Leftover{old: old}
	if c.Flags&ib.ReregTranslation != 0 {
		l.pinner, r.pinner = r.pinner, runtime.Pinner{}
		r.pinner.Pin(&e.buf[0])
	}
	if c.Flags&ib.ReregPD != 0 {
		l.pd, r.pd = r.pd, pd
	}
	e.pd.Store(pd)
	if c.Flags&(ib.ReregTranslation|ib.ReregPD) != 0 {
		gone := r.slot
		r.slot, e.key = t.newKey()
		t.put(r.slot, e)
		t.put(gone, nil)
		t.giveSlot(gone)
	} else {
		t.put(r.slot, e)
	}
	r.cur.Store(e)
	return l, nil
}
