package simtest

import (
	"errors"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// holderKind is what has remote keys that come and go.
type holderKind uint8

const (
	holdRegion  holderKind = iota // a region with an address of its own, registered anew in place
	holdWindow1                   // a memory window of type 1
	holdWindow2                   // a memory window of type 2
	holdFast                      // a region for fast registration
	holdKinds
)

// holder is an object whose remote key changes: it has at most one that is good.
type holder struct {
	n    *node
	kind holderKind
	mr   driver.MR
	mw   driver.MW
	fast driver.FastMR
	rkey ib.RKey // the newest, good or not
	key  *key    // nil: none that is good
	last *key    // what it had before
	busy *op     // the work request that is changing it
	plot *slot   // holdFast: its memory
	away *key    // holdRegion: it is in the other domain, and would be this
	gone bool
}

// key is a remote key with what it is good for.
type key struct {
	h      *holder
	rkey   ib.RKey
	base   uint64 // address of the first byte
	span   span   // of the arena
	parts  []span // holdFast: the pieces, in the order of addresses; span is unused
	next   int    // holdFast: bytes in use by requests
	access ib.Access
	q      *qp // the one queue pair that may use it, nil: any of the domain
	open   []*op
	dead   bool
	dying  bool // by a work request that is under way
}

const (
	remoteRights = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | flushRights
	allRights    = ib.AccessLocalWrite | remoteRights
	pageSize     = 4096
)

// faultLocal: a local operation that must fail; faultKeyRace: the key that the
// request uses may go meanwhile.
const (
	faultLocal fault = 100 + iota
	faultKeyRace
)

// someRights draws rights, most of the time many.
func (s *sim) someRights() (a ib.Access) {
	if s.chance(0.4) {
		return remoteRights
	}
	for _, r := range []ib.Access{ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic, flushRights} {
		if s.chance(0.7) {
			a |= r
		}
	}
	return a
}

// someRange draws a range of the arena, where slots usually are.
func (s *sim) someRange() span {
	lo := s.rng.IntN(arenaSize/8) &^ 7
	return span{lo, s.between(pageSize, arenaSize-lo) &^ 7}
}

// usable reports whether the queue pair's requests may name the key.
func (k *key) usable(q *qp) bool {
	return !k.dead && !k.dying && (k.q == nil || k.q == q.peer)
}

// covers reports whether all of a slot's payload lies in the key's range.
func (k *key) covers(s *slot) bool {
	if k.parts != nil || len(s.pieces) != 1 || s.a != k.h.n.arena {
		return false
	}
	p := s.pieces[0]
	return p.off >= k.span.off && p.off+p.n <= k.span.off+k.span.n
}

func (k *key) use(o *op) {
	o.key = k
	k.open = append(k.open, o)
}

func (k *key) unuse(o *op) {
	if i := slices.Index(k.open, o); i >= 0 {
		k.open = slices.Delete(k.open, i, i+1)
	}
}

// via lets the request name its target by a key that comes and goes.
func (s *sim) via(o *op, wr *driver.SendWR, sl *slot) {
	if o.n == 0 || o.fault != faultNone || len(sl.pieces) != 1 || !s.chance(0.5) {
		return
	}
	need := rightFor(o.code)
	var fit []*key
	for _, h := range o.q.peer.node.holders {
		if k := h.key; k != nil && k.usable(o.q) && k.access&need == need && k.covers(sl) {
			fit = append(fit, k)
		}
	}
	if len(fit) == 0 {
		return
	}
	k := pick(s, fit...)
	wr.RKey, wr.RemoteAddr = k.rkey, k.base+uint64(sl.pieces[0].off-k.span.off)
	k.use(o)
	s.stats.keyUses++
}

// spoilKey has the request name its target by a key that is not good for it:
// dead, of another queue pair, without the right, or beyond its range.
func (s *sim) spoilKey(o *op, wr *driver.SendWR) bool {
	m := o.q.peer.node
	if len(m.dead) > 0 && s.chance(0.4) {
		if k := pick(s, m.dead...); !m.good(k.rkey) {
			wr.RKey, wr.RemoteAddr = k.rkey, k.base
			if k.parts == nil {
				wr.RemoteAddr += uint64(s.rng.IntN(max(k.span.n-o.n, 1))) &^ 7
			}
			o.fault = faultRKey
			wr.RemoteAddr = aligned(o.code, wr.RemoteAddr)
			return true
		}
	}
	for _, h := range m.holders {
		// Just invalidated: nothing has taken its place in the table.
		if k := h.last; k != nil && h.kind != holdRegion && h.key == nil && h.busy == nil && (k.q == nil || k.q == o.q.peer) && s.chance(0.5) {
			wr.RKey, wr.RemoteAddr, o.fault = k.rkey, aligned(o.code, k.base), faultRKey
			return true
		}
	}
	need := rightFor(o.code)
	for try := range 10 {
		if len(m.holders) == 0 {
			return false
		}
		k := pick(s, m.holders...).key
		switch {
		case k == nil || k.dead || k.dying || try < 5 && k.access&need == need:
			continue
		case k.q != nil && k.q != o.q.peer || k.access&need != need:
			wr.RKey, wr.RemoteAddr = k.rkey, k.base
		default:
			// Its last bytes and one more, or the one before its first.
			end := k.base + uint64(k.size())
			if wr.RKey, wr.RemoteAddr = k.rkey, end-uint64(o.n)+uint64(s.between(1, o.n)); s.chance(0.3) {
				wr.RemoteAddr = k.base - 1
			}
			if o.code == ib.WRAtomicWrite || isAtomic(o.code) {
				wr.RemoteAddr = end
			}
		}
		o.fault = faultRKey
		wr.RemoteAddr = aligned(o.code, wr.RemoteAddr)
		k.use(o)
		o.stray = true // with other rights it might be good
		return true
	}
	return false
}

// aligned makes an address one that the operation may have.
func aligned(c ib.WROpcode, addr uint64) uint64 {
	if c == ib.WRAtomicWrite || isAtomic(c) {
		return (addr + 7) &^ 7
	}
	return addr
}

// size is the number of bytes that the key is good for.
func (k *key) size() (n int) {
	if k.parts == nil {
		return k.span.n
	}
	for _, p := range k.parts {
		n += p.n
	}
	return n
}

// good reports whether a number is a key that somebody may use, or may become one.
func (n *node) good(k ib.RKey) bool {
	for _, h := range n.holders {
		if h.rkey == k {
			return h.key != nil || h.busy != nil
		}
	}
	return n.victims[k] || slices.Contains([]ib.RKey{n.full.RKey(), n.remRO.RKey(), n.locRO.RKey(), n.foreign.RKey(), n.binder.RKey()}, k) ||
		slices.ContainsFunc(n.annexes, func(a *arena) bool { return a.annex.rkey == k })
}

// fastSlot cuts a target out of memory that was registered by a work request.
func (s *sim) fastSlot(o *op, wr *driver.SendWR, n int, need ib.Access) *slot {
	if n == 0 || o.fault != faultNone || !s.chance(0.3) {
		return nil
	}
	for _, h := range o.q.peer.node.holders {
		k := h.key
		if h.kind != holdFast || k == nil || !k.usable(o.q) || k.access&need != need || k.next+n+guard > k.size() {
			continue
		}
		sl := &slot{a: h.n.arena, refs: 1, parent: h.plot}
		at, left, off := k.next, n, 0
		if o.code == ib.WRAtomicWrite {
			at += int(-(k.base + uint64(at)) & 7)
		}
		for _, p := range k.parts {
			if lo := max(at-off, 0); lo < p.n && left > 0 {
				c := min(p.n-lo, left)
				sl.pieces = append(sl.pieces, span{p.off + lo, c})
				left -= c
			}
			off += p.n
		}
		if o.code == ib.WRAtomicWrite && len(sl.pieces) != 1 {
			continue
		}
		h.plot.refs++
		wr.RKey, wr.RemoteAddr = k.rkey, k.base+uint64(at)
		k.next = (at + n + guard + 7) &^ 7
		k.use(o)
		s.stats.keyUses++
		return sl
	}
	return nil
}

// kill says that the key is good for nothing any more: whoever still uses it
// touches no memory.
func (k *key) kill(s *sim) {
	if k.dead {
		return
	}
	s.note("node %d: key %#x is dead", k.h.n.id, uint32(k.rkey))
	k.dead = true
	if k.h.last = k; k.h.key == k {
		k.h.key = nil
	}
	for _, o := range k.open {
		if o.rem != nil && rightFor(o.code) == ib.AccessRemoteWrite {
			o.rem.settle()
		}
	}
	if n := k.h.n; len(n.dead) < 12 {
		n.dead = append(n.dead, k)
	} else {
		n.dead[s.rng.IntN(len(n.dead))] = k
	}
	s.stats.keysDied++
}

// quiet says whether a key may be taken away now without harm to those who use
// it; else it is done only where faults are asked for, and they may fail.
func (s *sim) quiet(k *key, but *qp) bool {
	if k == nil {
		return true
	}
	race := func(o *op) bool { return but == nil || o.q != but }
	if !slices.ContainsFunc(k.open, race) {
		return true
	}
	if s.prof.faultRate == 0 || !s.chance(0.2) {
		return false
	}
	for _, o := range k.open {
		if race(o) {
			o.fault = faultKeyRace
			s.provoke(o.q)
			s.provoke(o.q.peer)
		}
	}
	return true
}

// keyWork makes, changes or ends something with a key, by work requests of q
// where it takes one.
func (s *sim) keyWork(q *qp) {
	n := q.node
	if len(n.holders) < 6 && s.chance(0.5) {
		s.addHolder(n)
		return
	}
	if len(n.holders) == 0 {
		return
	}
	h := pick(s, n.holders...)
	if h.busy != nil {
		return
	}
	if s.chance(0.1) && s.quiet(h.key, nil) {
		s.endHolder(h)
		return
	}
	switch h.kind {
	case holdRegion:
		s.rereg(h)
	default:
		s.localWork(q, h)
	}
}

func (s *sim) addHolder(n *node) {
	h := &holder{n: n, kind: holderKind(s.rng.IntN(int(holdKinds)))}
	var err error
	switch h.kind {
	case holdRegion:
		r := s.someRange()
		a := s.someRights() | ib.AccessLocalWrite
		iova, use := uint64(0), s.chance(0.5)
		if use {
			iova = uint64(s.rng.Uint32())<<20 | uint64(s.rng.IntN(512)*8)
		} else if s.chance(0.5) {
			a |= ib.AccessZeroBased
		}
		h.mr, err = n.pd.RegMR(n.arena.mem[r.off:r.off+r.n], iova, use, a)
		s.must("MR", err)
		want := iova
		if !use && a&ib.AccessZeroBased == 0 {
			want = n.va(r.off)
		}
		if h.mr.Addr() != want || h.mr.Length() != uint64(r.n) {
			s.failf("region at %#x with %d bytes, want %#x with %d", h.mr.Addr(), h.mr.Length(), want, r.n)
		}
		h.rkey = h.mr.RKey()
		h.key = &key{h: h, rkey: h.rkey, base: want, span: r, access: a}
	case holdWindow1, holdWindow2:
		h.mw, err = n.pd.(driver.MWPD).AllocMW(ib.MWType1 + ib.MWType(h.kind-holdWindow1))
		s.must("MW", err)
		h.rkey = h.mw.RKey()
	case holdFast:
		if n.arena.left < recvReserve+8*pageSize {
			return
		}
		h.fast, err = n.pd.(driver.FastRegPD).AllocMR(6)
		s.must("AllocMR", err)
		h.rkey = h.fast.RKey()
	}
	n.holders = append(n.holders, h)
}

// endHolder ends the object: its key is dead at once.
func (s *sim) endHolder(h *holder) {
	s.note("node %d: end holder %d with key %#x", h.n.id, h.kind, uint32(h.rkey))
	switch h.kind {
	case holdRegion:
		s.must("dereg", h.mr.Dereg())
	case holdFast:
		s.must("dereg", h.fast.Dereg())
	default:
		s.must("dealloc MW", h.mw.Dealloc())
	}
	h.gone = true
	if k := h.key; k != nil {
		k.kill(s)
	}
	if h.plot != nil {
		h.plot.release()
		h.plot = nil
	}
	if i := slices.Index(h.n.holders, h); i >= 0 {
		h.n.holders = slices.Delete(h.n.holders, i, i+1)
	}
}

// rereg registers a region anew: other memory, domain or rights.
func (s *sim) rereg(h *holder) {
	if h.key != nil && slices.ContainsFunc(h.key.open, func(o *op) bool { return o.stray }) {
		return
	}
	if !s.quiet(h.key, nil) {
		return
	}
	n, old := h.n, h.key
	flags := ib.ReregFlags(s.between(1, 7))
	attr := driver.ReregAttr{PD: pick(s, n.pd, n.pd, n.pd2), Access: s.someRights() | ib.AccessLocalWrite}
	if s.chance(0.3) {
		attr.Access |= ib.AccessZeroBased
	}
	r := s.someRange()
	attr.Bytes = n.arena.mem[r.off : r.off+r.n]
	mr := h.mr.(driver.MRRereger)
	if s.chance(0.2) { // refused: nothing changes
		if err := mr.Rereg(flags|8, &attr); !errors.Is(err, syscall.EINVAL) {
			s.failf("rereg with an unknown flag: %v", err)
		}
		bad := attr
		bad.Access = ib.AccessRemoteWrite
		if err := mr.Rereg(flags|ib.ReregAccess, &bad); !errors.Is(err, syscall.EINVAL) {
			s.failf("rereg with rights that no region has: %v", err)
		}
		if n.bound() {
			if err := n.binder.(driver.MRRereger).Rereg(ib.ReregAccess, &attr); !errors.Is(err, syscall.EBUSY) {
				s.failf("rereg of a region with windows: %v", err)
			}
			if err := n.binder.Dereg(); !errors.Is(err, syscall.EBUSY) {
				s.failf("dereg of a region with windows: %v", err)
			}
		}
		if h.mr.RKey() != h.rkey {
			s.failf("a rereg that is refused changes the key")
		}
	}
	k := &key{h: h}
	if old != nil {
		k.base, k.span, k.access = old.base, old.span, old.access
	} else {
		// It is in the other domain.
		flags |= ib.ReregPD
		k.base, k.span, k.access = h.away.base, h.away.span, h.away.access
	}
	if flags&ib.ReregAccess != 0 {
		if (k.access^attr.Access)&ib.AccessZeroBased != 0 {
			k.base = n.va(k.span.off)
		}
		k.access = attr.Access
	}
	if flags&ib.ReregTranslation != 0 {
		k.span, k.base = r, n.va(r.off)
	}
	if k.access&ib.AccessZeroBased != 0 {
		k.base = 0
	}
	s.must("rereg", mr.Rereg(flags, &attr))
	if same := flags&(ib.ReregTranslation|ib.ReregPD) == 0; same != (h.mr.RKey() == h.rkey) {
		s.failf("rereg %v: key %#x, was %#x", flags, uint32(h.mr.RKey()), uint32(h.rkey))
	}
	if h.mr.Addr() != k.base || h.mr.Length() != uint64(k.span.n) {
		s.failf("rereg %v: region at %#x with %d bytes, want %#x with %d", flags, h.mr.Addr(), h.mr.Length(), k.base, k.span.n)
	}
	switch {
	case old == nil:
	case h.mr.RKey() == old.rkey:
		// Who was to lose the rights may have kept them.
		for _, o := range old.open {
			k.use(o)
		}
		old.open, old.dead = nil, true
	default:
		old.kill(s)
	}
	h.rkey = h.mr.RKey()
	k.rkey = h.rkey
	h.key, h.away = k, nil
	if flags&ib.ReregPD != 0 && attr.PD == n.pd2 {
		h.key, h.away = nil, k
		n.dead = append(n.dead, k) // good for nobody here
		if len(n.dead) > 12 {
			n.dead = n.dead[1:]
		}
	}
	s.note("node %d: rereg %v: key %#x, %v at %#x, rights %#x", n.id, flags, uint32(k.rkey), k.span, k.base, uint32(k.access))
}

// bound reports whether a window is bound for sure to the node's region for that.
func (n *node) bound() bool {
	return slices.ContainsFunc(n.holders, func(h *holder) bool {
		return (h.kind == holdWindow1 || h.kind == holdWindow2) && h.key != nil && h.busy == nil
	})
}
