package mem

import (
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// fast is the part of a fast-registration region (IBA 10.6.3.2): its memory is
// set by Map and comes into force by a work request.
type fast struct {
	max    int                   // pages
	mapped atomic.Pointer[entry] // what Map gave last: what the next registration takes
	sig    *signature            // of a signature region only

	// Under the table's lock: what registrations before had. Whoever has found before
	// without a lock may still be looking at it, nobody at spare any more: between the
	// two a key was taken away and waited for those (transport.Env.Revoke).
	before, spare *entry
}

func (f *fast) release() {
	if e := f.mapped.Load(); e != nil {
		e.letGo()
	}
	f.before, f.spare = nil, nil
	if f.sig != nil {
		f.sig.release()
	}
}

// minPage is the smallest page of a fast registration (DeviceAttr.PageSizeCap).
const minPage = 4096

// RegisterFast enters a region without memory, for up to maxPages pages (kernel:
// ib_alloc_mr with IB_MR_TYPE_MEM_REG). Its key is good for nothing until
// FastRegister. EINVAL: maxPages is not positive; ENOMEM.
func (t *Table) RegisterFast(pd *PD, maxPages int) (*Region, error) {
	if maxPages <= 0 {
		return nil, &ParamError{"maxNumSG", fmt.Sprintf("%d", maxPages), syscall.EINVAL}
	}
	r := &Region{fast: &fast{max: maxPages}}
	r.first.kind = kindList
	return t.enter(pd, r)
}

// Map gives a fast-registration region its memory: the slices of list one
// behind the other, from byte offset of the first on. Memory has the page
// structure of real page lists: only the first may begin, and only the last may
// end, inside a page, unless one slice begins where the one before it ends in
// memory (kernel: ib_map_mr_sg). n is how many slices fit; it is smaller than
// the list's length at a gap, or when the pages are used up. Then the last
// slice that fits may be cut, and rest is how many bytes of slice n are in.
//
// What is registered stays registered, with the memory that it has: the new one
// comes into force with the next registration. The table keeps the slices.
//
// EINVAL: the region is not one for fast registration, the list is empty or
// offset is beyond the first slice, a slice is empty, pageSize is not a power of
// two of at least 4096.
func (t *Table) Map(r *Region, list [][]byte, offset, pageSize int) (n, rest int, err error) {
	switch {
	case !r.Fast():
		return 0, 0, &ParamError{"mr", "not a region for fast registration", syscall.EINVAL}
	case len(list) == 0:
		return 0, 0, &ParamError{"list", "empty", syscall.EINVAL}
	case offset < 0 || offset >= len(list[0]):
		return 0, 0, &ParamError{"offset", fmt.Sprintf("%d, the first slice has %d bytes", offset, len(list[0])), syscall.EINVAL}
	case pageSize < minPage || bits.OnesCount(uint(pageSize)) != 1:
		return 0, 0, &ParamError{"pageSize", fmt.Sprintf("%d, want a power of two from %d on", pageSize, minPage), syscall.EINVAL}
	}
	for i, b := range list {
		if len(b) == 0 {
			return 0, 0, &ParamError{"list", fmt.Sprintf("slice %d is empty", i), syscall.EINVAL}
		}
	}
	e := t.unused(r)
	e.iova = uint64(address(list[0])) + uint64(offset)
	e.list = slices.Grow(e.list, len(list))
	page := uint64(pageSize)
	pages := uint64(r.fast.max) // left
	var end uint64              // address behind the slice before
	for n < len(list) {
		b := list[n]
		if n == 0 {
			b = b[offset:]
		}
		at := uint64(address(b))
		if n > 0 && end != at && (end|at)&(page-1) != 0 {
			break // a gap
		}
		// Pages from the first that is not in yet.
		first := at &^ (page - 1)
		if n > 0 && end&(page-1) != 0 {
			first += page // the slice before has begun this one
		}
		last := at + uint64(len(b))
		need := uint64(0)
		if last > first {
			need = (last - first + page - 1) / page
		}
		if need > pages {
			fits := first + pages*page
			if fits <= at {
				break
			}
			b = b[:fits-at]
			e.append(b)
			rest = len(b)
			if n == 0 {
				rest += offset
			}
			break
		}
		pages -= need
		e.append(b)
		end = last
		n++
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.state != stateLive {
		return 0, 0, &ParamError{"mr", "deregistered", syscall.EINVAL}
	}
	r.fast.mapped.Store(e)
	return n, rest, nil
}

// unused gives an entry for a mapping of a fast-registration region: one that had its
// turn, so that a region that is registered again and again takes nothing from the
// heap, or a new one.
func (t *Table) unused(r *Region) *entry {
	t.mu.Lock()
	e := r.fast.spare
	r.fast.spare = nil
	t.mu.Unlock()
	if e == nil {
		return &entry{kind: kindList, region: r}
	}
	clear(e.list)
	e.key, e.access, e.length, e.list = 0, 0, 0, e.list[:0]
	return e
}

// retire notes that a registration replaces that of old.
func (f *fast) retire(old *entry) {
	f.spare, f.before = f.before, old
	if old.shared || old.kind == kindSignature && old.sig == nil {
		f.before = nil
	}
}

// append adds a piece to the list.
func (e *entry) append(b []byte) {
	e.length += uint64(len(b))
	e.list = append(e.list, run{e.length, b[:len(b):len(b)]})
}

// FastRegister is the work request REG_MR: it puts the memory that the region
// was given last into force, under key and with the rights of access. False,
// and nothing has changed: the region is not in the free state, not of the
// domain pd, or was given no memory; key differs in more than the low 8 bits,
// which belong to the consumer (IBA 10.6.3.3); the rights are as no region may
// have them.
func (t *Table) FastRegister(pd *PD, r *Region, key ib.RKey, access ib.Access) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if registerFault(pd, r, key, access) != 0 {
		return false
	}
	e := r.fast.mapped.Load()
	if s := r.fast.sig; s != nil {
		e = s.register(uint32(key), access)
	} else if e.key != 0 || access&ib.AccessZeroBased != 0 {
		// Lookups know it already, or it counts from 0 for this registration only.
		e.shared = true
		e = &entry{kind: kindList, iova: base(e.iova, access), length: e.length, list: e.list, shared: true, region: r}
	}
	r.fast.retire(r.cur.Load())
	e.key, e.access = uint32(key), access
	e.pd.Store(pd)
	r.cur.Store(e)
	t.put(r.slot, e)
	return true
}

// FastRegisterFault tells why FastRegister with these arguments fails now; 0: it does
// not.
func (t *Table) FastRegisterFault(pd *PD, r *Region, key ib.RKey, access ib.Access) ib.VendorErr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return registerFault(pd, r, key, access)
}

// registerFault is FastRegisterFault under the lock.
func registerFault(pd *PD, r *Region, key ib.RKey, access ib.Access) ib.VendorErr {
	old := r.cur.Load()
	switch {
	case r.state != stateLive || r.fast == nil:
		return ib.VendorErrRegGone
	case r.pd != pd:
		return ib.VendorErrRegDomain
	case old.pd.Load() != nil:
		return ib.VendorErrRegValid
	case (uint32(key)^old.key)>>8 != 0:
		return ib.VendorErrRegKey
	case CheckAccess(access) != nil, r.fast.sig != nil && CheckSigAccess(access) != nil:
		return ib.VendorErrRegRights
	case r.fast.mapped.Load() == nil:
		return ib.VendorErrRegNoMemory
	case r.fast.sig != nil && r.fast.sig.why != nil:
		return ib.VendorErrRegSignature
	}
	return 0
}

// Fast reports whether the region is one for fast registration without protection
// information.
func (r *Region) Fast() bool { return r.fast != nil && r.fast.sig == nil }
