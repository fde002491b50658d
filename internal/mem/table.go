package mem

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

const (
	leafBits = 9
	leafLen  = 1 << leafBits

	// quarantine is how many free slots a table keeps before it uses one again:
	// a key that was removed stays invalid for at least that many registrations,
	// times the generations of a slot.
	quarantine = 1 << 16

	// maxRegions bounds the size of a table so that slots have generations left
	// in the 24 bits of a key that are not the consumer's.
	maxRegions = 1 << 20
)

// Table is the key table of a device.
//
// A key has 24 bits that the table chose and 8 bits that belong to the consumer
// (IBA 10.6.3.3). The 24 bits are slot and generation of the slot under a secret
// permutation; the low 8 bits start with what does not fit of the generation.
type Table struct {
	perm     permutation
	slotBits int // log2 of the number of slots
	max      int
	leaves   []atomic.Pointer[leaf]

	persister Persister // see SetPersister
	pageSize  int

	signatures atomic.Int32 // signature regions

	mu    sync.Mutex
	live  int    // regions whose key works
	wins  int    // windows
	fresh uint32 // slots below were in use at some time
	// Free slots, oldest first; linked by leaf.meta.next. freeHead is valid when free > 0.
	free               int
	freeHead, freeTail uint32
	held               map[*Region]struct{} // not released
	// bound are the windows of type 2 that are bound, by queue pair: a list linked
	// by Window.next.
	bound map[ib.QPN]*Window
}

// leaf is a run of slots.
type leaf struct {
	entry [leafLen]atomic.Pointer[entry]
	meta  [leafLen]struct {
		generation uint32 // of what comes into the slot next
		next       uint32 // free list
	}
}

// NewTable makes an empty table for up to limit regions and half as many
// windows. seed makes keys unpredictable.
func NewTable(limit int, seed uint64) *Table {
	limit = min(max(limit, 0), maxRegions)
	t := &Table{
		max: limit, perm: newPermutation(seed),
		held: make(map[*Region]struct{}), bound: make(map[ib.QPN]*Window),
	}
	t.slotBits = bits.Len(uint(limit + t.MaxWindows() + quarantine))
	t.leaves = make([]atomic.Pointer[leaf], 1<<t.slotBits>>leafBits)
	return t
}

// Max is the number of regions that the table takes.
func (t *Table) Max() int { return t.max }

// MaxWindows is the number of windows that the table takes.
func (t *Table) MaxWindows() int { return (t.max + 1) / 2 }

// Len is the number of regions whose key works.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// Local resolves length bytes at addr under lkey for local use, in the
// protection domain pd; write tells that they will be written (needs
// AccessLocalWrite). The pieces are appended to out: usually one, several for
// memory that is not contiguous. False: protection error. A length of 0 is
// never looked up. Pieces are valid until the region is released.
func (t *Table) Local(pd *PD, lkey ib.LKey, addr, length uint64, write bool, out [][]byte) ([][]byte, bool) {
	if length == 0 {
		return out, true
	}
	e := t.lookup(uint32(lkey))
	// A window's key is good for peers only.
	if e == nil || !e.of(pd) || write && e.access&ib.AccessLocalWrite == 0 || e.window != nil {
		return out, false
	}
	how := toRead
	if write {
		how = toWrite
	}
	return e.pieces(addr, length, how, out)
}

// Remote resolves memory that a peer named by rkey, for queue pair qpn of pd;
// need is the set of rights that the operation takes, all of them. False:
// remote access error. A length of 0 is never looked up (IBA 9.7.4.1.4).
func (t *Table) Remote(pd *PD, qpn ib.QPN, rkey ib.RKey, va, length uint64, need ib.Access, out [][]byte) ([][]byte, bool) {
	how := toRead
	if need&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 {
		how = toWrite
	}
	return t.remotePieces(pd, qpn, rkey, va, length, need, how, out)
}

func (t *Table) remotePieces(pd *PD, qpn ib.QPN, rkey ib.RKey, va, length uint64, need ib.Access, how purpose, out [][]byte) ([][]byte, bool) {
	if length == 0 {
		return out, true
	}
	e := t.remote(pd, qpn, rkey, need)
	if e == nil {
		return out, false
	}
	return e.pieces(va, length, how, out)
}

// remote finds what a peer's key stands for, if it may be used: regions by every
// queue pair of their domain, a bound window of type 2 by one (IBA 10.6.7.2.2).
func (t *Table) remote(pd *PD, qpn ib.QPN, rkey ib.RKey, need ib.Access) *entry {
	e := t.lookup(uint32(rkey))
	if e == nil || !e.of(pd) || e.access&need != need || e.qpn != 0 && e.qpn != qpn {
		return nil
	}
	return e
}

// lookup gives what the key stands for now, or nil.
func (t *Table) lookup(key uint32) *entry {
	slot := t.perm.undo(key>>8) & (1<<t.slotBits - 1)
	l := t.leaves[slot>>leafBits].Load()
	if l == nil {
		return nil
	}
	e := l.entry[slot&(leafLen-1)].Load()
	// The whole key counts: generation and the consumer's bits too.
	if e == nil || e.key != key {
		return nil
	}
	return e
}

// insert gives r a slot and a key. False: the table is full.
func (t *Table) insert(r *Region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live >= t.max {
		return false
	}
	r.slot, r.first.key = t.newKey()
	r.cur.Store(&r.first)
	t.put(r.slot, &r.first)
	t.live++
	t.held[r] = struct{}{}
	return true
}

// newKey takes a slot and gives its key. The lock is held.
func (t *Table) newKey() (slot, key uint32) {
	for {
		slot = t.takeSlot()
		key = t.key(slot, t.leaves[slot>>leafBits].Load().meta[slot&(leafLen-1)].generation)
		// 0 is what an unset key field holds, so it names nothing; the consumer may
		// choose the low byte of some keys.
		if key>>8 != 0 {
			return slot, key
		}
		t.giveSlot(slot)
	}
}

// put makes a slot's key stand for e; nil: for nothing. The lock is held.
func (t *Table) put(slot uint32, e *entry) {
	t.leaves[slot>>leafBits].Load().entry[slot&(leafLen-1)].Store(e)
}

// key is the key of a slot's generation.
func (t *Table) key(slot, generation uint32) uint32 {
	genBits := 24 - t.slotBits
	upper := slot | generation<<t.slotBits&mask24
	return t.perm.apply(upper)<<8 | generation>>genBits&0xFF
}

// takeSlot takes a slot that was never used or, when enough are free, the one
// that is free for the longest time. The lock is held; the table is not full,
// and has more slots than regions.
func (t *Table) takeSlot() uint32 {
	if t.free > quarantine || t.fresh>>t.slotBits != 0 {
		s := t.freeHead
		t.freeHead = t.leaves[s>>leafBits].Load().meta[s&(leafLen-1)].next
		t.free--
		return s
	}
	s := t.fresh
	t.fresh++
	if p := &t.leaves[s>>leafBits]; p.Load() == nil {
		p.Store(new(leaf))
	}
	return s
}

// giveSlot makes a slot free, in its next generation. The lock is held.
func (t *Table) giveSlot(s uint32) {
	t.leaves[s>>leafBits].Load().meta[s&(leafLen-1)].generation++
	if t.free == 0 {
		t.freeHead = s
	} else {
		t.leaves[t.freeTail>>leafBits].Load().meta[t.freeTail&(leafLen-1)].next = s
	}
	t.freeTail = s
	t.free++
}

// Remove makes the region's keys dead: no lookup finds it any more. Memory that
// was looked up before may still be in use; when that has ended call Release.
// Removing twice does nothing. EBUSY: windows are bound to the region, and
// everything stays as it is (ibv_dereg_mr(3)).
func (t *Table) Remove(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.state == stateLive && r.windows > 0 {
		return r.bound()
	}
	t.remove(r)
	return nil
}

// bound is the refusal because of the region's windows.
func (r *Region) bound() error {
	are := "memory windows are"
	if r.windows == 1 {
		are = "memory window is"
	}
	return &ParamError{"mr", fmt.Sprintf("%d %s bound to it: invalidate (ib.WRLocalInv) or deallocate (MW.Dealloc) first", r.windows, are), syscall.EBUSY}
}

func (t *Table) remove(r *Region) {
	if r.state != stateLive {
		return
	}
	r.state = stateRemoved
	t.put(r.slot, nil)
	t.giveSlot(r.slot)
	t.live--
}

// Release lets go of a removed region's memory: it is unpinned and the
// protection domain dropped. The caller has made sure that nobody works with
// pieces of it any more. A region that was not removed is removed first;
// releasing twice does nothing.
func (t *Table) Release(r *Region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(r)
}

func (t *Table) release(r *Region) {
	t.remove(r)
	if r.state == stateReleased {
		return
	}
	r.state = stateReleased
	delete(t.held, r)
	r.pinner.Unpin()
	// Whoever keeps the object, for instance for its key, does not keep the memory.
	e := r.cur.Load()
	e.letGo()
	if r.fast != nil {
		if r.fast.sig != nil {
			t.signatures.Add(-1)
		}
		r.fast.release()
	}
	if r.pd != nil {
		r.pd.Drop()
	}
}

// Close releases what is left: a pinner that is dropped with something pinned
// would end the process. Nobody may use the table's memory any more.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.held {
		t.release(r)
	}
}
