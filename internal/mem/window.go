package mem

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// Window is a memory window as the key table holds it: a second key for a part
// of a region, with rights of its own (IBA 10.6.7). A window of type 1 serves
// every queue pair of its domain; one of type 2 the queue pair that bound it,
// which has to be of the window's domain too (type 2B, which Linux's soft RoCE
// and the usual NICs have).
type Window struct {
	typ ib.MWType
	pd  *PD
	cur atomic.Pointer[entry] // what its key stands for, or stood for last

	// Under the table's lock.
	slot       uint32
	state      state
	region     *Region // what it is bound to, or nil
	next, prev *Window // in Table.bound, for type 2
}

// windowAccess is what may be asked for in a bind.
const windowAccess = ib.AccessRemote | ib.AccessZeroBased | ib.AccessOptional

// AllocWindow enters a window that is not bound to anything. EINVAL: no such
// type, or the domain is deallocated; ENOMEM.
func (t *Table) AllocWindow(pd *PD, typ ib.MWType) (*Window, error) {
	if typ != ib.MWType1 && typ != ib.MWType2 {
		return nil, &ParamError{"type", fmt.Sprintf("%d is unknown", typ), syscall.EINVAL}
	}
	if !pd.Hold() {
		return nil, errDomainGone
	}
	w := &Window{typ: typ, pd: pd}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wins >= t.MaxWindows() {
		pd.Drop()
		return nil, &ParamError{"mw", fmt.Sprintf("the device has its limit of %d windows", t.MaxWindows()), syscall.ENOMEM}
	}
	e := &entry{window: w}
	w.slot, e.key = t.newKey()
	w.cur.Store(e)
	t.put(w.slot, e)
	t.wins++
	return w, nil
}

// RKey is the window's key: the one that the last bind gave it.
func (w *Window) RKey() ib.RKey { return ib.RKey(w.cur.Load().key) }

// Type is the window's type.
func (w *Window) Type() ib.MWType { return w.typ }

// Windows is the number of windows in the table.
func (t *Table) Windows() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wins
}

// FreeWindow unbinds a window and ends it: its key is dead (ibv_dealloc_mw(3)).
// A second call does nothing. As with Remove, memory that was looked up before
// may still be in use.
func (t *Table) FreeWindow(w *Window) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.state != stateLive {
		return
	}
	w.state = stateReleased
	t.unbind(w)
	t.empty(w, w.RKey())
	t.put(w.slot, nil)
	t.giveSlot(w.slot)
	t.wins--
	w.pd.Drop()
}

// Bind gives peers the rights of access to length bytes at addr (by r's
// addresses) of r, under the window's key with the low 8 bits of key. qpn, of
// pd, is the queue pair whose work request this is. With AccessZeroBased, peers
// count the addresses from 0. False, and nothing has changed (IBA 10.6.7.2.6,
// 11.4.1.1):
//
//   - window, region and queue pair are not of one domain, or key differs from
//     the window's in more than the low 8 bits;
//   - the region does not have AccessMWBind, is zero-based or not registered;
//   - peers are to write or use atomics, and the region lacks AccessLocalWrite;
//   - the range is not inside the region (without wrapping around 2^64);
//   - rights that no window has are asked for;
//   - type 1: it is to be zero-based;
//   - type 2: it is bound already, or the length is 0.
//
// A window of type 1 that is bound is bound anew; with length 0 it is unbound
// (r may be nil then).
func (t *Table) Bind(pd *PD, qpn ib.QPN, w *Window, r *Region, key ib.RKey, addr, length uint64, access ib.Access) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if bindFault(pd, w, r, key, addr, length, access) != 0 {
		return false
	}
	if w.typ == ib.MWType1 {
		qpn = 0
		if length == 0 {
			t.unbind(w)
			t.empty(w, key)
			return true
		}
	}
	m := r.cur.Load()
	off := addr - m.iova
	t.unbind(w)
	e := m.part(off, length)
	e.key, e.qpn, e.window = uint32(key), qpn, w
	e.access, e.iova = access, base(addr, access)
	e.pd.Store(pd)
	w.region = r
	r.windows++
	if qpn != 0 {
		if w.next = t.bound[qpn]; w.next != nil {
			w.next.prev = w
		}
		t.bound[qpn] = w
	}
	t.show(w, e)
	return true
}

// BindFault tells why Bind with these arguments fails now; 0: it does not.
func (t *Table) BindFault(pd *PD, w *Window, r *Region, key ib.RKey, addr, length uint64, access ib.Access) ib.VendorErr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bindFault(pd, w, r, key, addr, length, access)
}

// bindFault is BindFault under the lock.
func bindFault(pd *PD, w *Window, r *Region, key ib.RKey, addr, length uint64, access ib.Access) ib.VendorErr {
	switch {
	case w.state != stateLive:
		return ib.VendorErrBindWindowGone
	case w.pd != pd:
		return ib.VendorErrBindDomain
	case (uint32(key)^w.cur.Load().key)>>8 != 0:
		return ib.VendorErrBindKey
	case access&^windowAccess != 0:
		return ib.VendorErrBindRights
	case w.typ == ib.MWType1 && access&ib.AccessZeroBased != 0:
		return ib.VendorErrBindZeroBasedType1
	case w.typ == ib.MWType1 && length == 0:
		return 0
	case w.typ == ib.MWType2 && w.region != nil:
		return ib.VendorErrBindBound
	case length == 0:
		return ib.VendorErrBindLength
	case r == nil || r.state != stateLive:
		return ib.VendorErrBindRegionGone
	}
	m := r.cur.Load()
	off := addr - m.iova
	switch {
	case !m.of(pd):
		return ib.VendorErrBindDomain
	case m.access&ib.AccessMWBind == 0:
		return ib.VendorErrBindNoMWBind
	case m.access&ib.AccessZeroBased != 0:
		return ib.VendorErrBindRegionZeroBased
	case access&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && m.access&ib.AccessLocalWrite == 0:
		return ib.VendorErrBindNoLocalWrite
	case length > m.length || off > m.length-length:
		return ib.VendorErrBindRange
	}
	return 0
}

// show makes e what the window's key stands for. The lock is held.
func (t *Table) show(w *Window, e *entry) {
	w.cur.Store(e)
	t.put(w.slot, e)
}

// empty makes the window's key stand for nothing: a window that is not bound does
// not keep memory. The lock is held.
func (t *Table) empty(w *Window, key ib.RKey) {
	t.show(w, &entry{key: uint32(key), window: w})
}

// unbind makes the window's key useless, if it is bound. The caller shows what it
// stands for then. The lock is held.
func (t *Table) unbind(w *Window) {
	if w.region == nil {
		return
	}
	e := w.cur.Load()
	e.pd.Store(nil)
	w.region.windows--
	w.region = nil
	if e.qpn == 0 {
		return
	}
	if w.next != nil {
		w.next.prev = w.prev
	}
	switch {
	case w.prev != nil:
		w.prev.next = w.next
	case w.next != nil:
		t.bound[e.qpn] = w.next
	default:
		delete(t.bound, e.qpn)
	}
	w.next, w.prev = nil, nil
}

// UnbindQP unbinds every window of type 2 that is bound by a queue pair: it is
// destroyed or reset.
func (t *Table) UnbindQP(qpn ib.QPN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := t.bound[qpn]; w != nil; w = t.bound[qpn] {
		t.unbind(w)
		t.empty(w, w.RKey())
	}
}

// Invalidate makes a key useless, as LOCAL_INV does, or (remote) a SEND with
// invalidate that came from the peer of queue pair qpn of pd. It is the key of a
// window of type 2 that this queue pair has bound, or of a fast-registration
// region that no window is bound to. Its owner may bind or register it again
// then. False, and nothing has changed: it is not (IBA 10.6.5).
//
// A key that is useless already may be invalidated again locally, as rdma_rxe
// and NICs allow: after a peer that was to invalidate it did. A peer may
// invalidate only what it may use: it has no key of a region without remote
// rights.
func (t *Table) Invalidate(pd *PD, qpn ib.QPN, key ib.RKey, remote bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.lookup(uint32(key))
	if invalidateFault(e, pd, qpn) != 0 {
		return false
	}
	if w := e.window; w != nil {
		if w.region == nil {
			return !remote
		}
		t.unbind(w)
		t.empty(w, key)
		return true
	}
	switch {
	case e.pd.Load() == nil:
		return !remote
	case remote && e.access&ib.AccessRemote == 0:
		return false
	}
	e.pd.Store(nil)
	return true
}

// InvalidateFault tells why a LOCAL_INV of the key fails now; 0: it does not.
func (t *Table) InvalidateFault(pd *PD, qpn ib.QPN, key ib.RKey) ib.VendorErr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return invalidateFault(t.lookup(uint32(key)), pd, qpn)
}

// invalidateFault is InvalidateFault under the lock, of what the key stands for.
func invalidateFault(e *entry, pd *PD, qpn ib.QPN) ib.VendorErr {
	if e == nil {
		return ib.VendorErrInvKey
	}
	if w := e.window; w != nil {
		switch {
		case w.typ != ib.MWType2:
			return ib.VendorErrInvKind
		case w.pd != pd:
			return ib.VendorErrInvDomain
		case w.region != nil && e.qpn != qpn:
			return ib.VendorErrInvOtherQP
		}
		return 0
	}
	switch r := e.region; {
	case r.fast == nil:
		return ib.VendorErrInvKind
	case r.pd != pd:
		return ib.VendorErrInvDomain
	case r.windows > 0:
		return ib.VendorErrInvWindows
	}
	return 0
}
