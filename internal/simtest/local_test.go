package simtest

import (
	"errors"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// localWork posts a BIND_MW, REG_MR or LOCAL_INV for a holder.
func (s *sim) localWork(q *qp, h *holder) {
	if q.dq == nil || !q.up || q.sqe || q.failed || q.typ == ib.UD || q.typ == ib.XRCRecv || len(q.sendq) >= int(q.cap.MaxSendWR) {
		return
	}
	foreign := h.key != nil && h.key.q != nil && h.key.q != q
	if foreign && !s.chance(s.prof.faultRate*2) || !foreign && !s.quiet(h.key, nil) {
		return
	}
	o := &op{id: uint64(len(s.ops)), q: q, num: q.dq.Num(), msg: -1, holder: h, at: s.net.Now()}
	o.signal = q.sigAll || s.chance(0.6) || len(q.sendq) == int(q.cap.MaxSendWR)-1
	if o.signal && !q.sigAll {
		o.flags |= ib.SendSignaled
	}
	if s.chance(0.2) {
		o.flags |= ib.SendFence
	}
	wr := driver.SendWR{WRID: o.id, Flags: o.flags}
	k := &key{h: h, access: s.someRights()}
	fault := s.chance(s.prof.faultRate * 2)
	switch {
	case foreign:
		o.aims = h.key
		o.code, wr.InvalidateRKey, o.fault, k = ib.WRLocalInv, h.rkey, faultLocal, nil
	case h.kind == holdWindow1:
		s.bindByCall(o, k, fault)
		return
	case h.key != nil || fault && s.chance(0.2):
		o.code, wr.InvalidateRKey = ib.WRLocalInv, h.rkey
		if h.key == nil && h.kind == holdWindow2 {
			return // useless already: no error, and nothing to see
		}
		if o.dies = h.key; fault && h.key != nil {
			// What has no such key, nor will have it while this waits, or keeps it.
			o.dies, o.fault = nil, faultLocal
			wr.InvalidateRKey = pick(s, q.node.full.RKey(), 0xDEAD, ib.TagRKey(h.rkey, uint8(h.rkey)+128))
		}
		k = nil
	case h.kind == holdWindow2:
		o.code = ib.WRBindMW
		k.q, k.span = q, s.someRange()
		k.rkey = ib.TagRKey(h.rkey, uint8(h.rkey)+1)
		off := uint64(k.span.off)
		wr.Bind = &driver.BindInfo{MW: h.mw, MR: q.node.binder, Addr: q.node.binderBase + off, Length: uint64(k.span.n), Access: k.access}
		k.base = wr.Bind.Addr
		if s.chance(0.3) {
			wr.Bind.Access |= ib.AccessZeroBased
			k.base = 0
		}
		wr.RKey = k.rkey
		if fault {
			o.fault = faultLocal
			switch s.rng.IntN(4) {
			case 0:
				wr.Bind.MR = q.node.full // windows are not to be bound to it
			case 1:
				wr.Bind.Length += uint64(arenaSize)
			case 2:
				wr.Bind.Length = 0
			case 3:
				wr.Bind.Access |= ib.AccessLocalWrite
			}
		}
	default:
		o.code = ib.WRRegMR
		if !s.mapPages(h, k) {
			return
		}
		k.rkey = ib.TagRKey(h.rkey, uint8(h.rkey)+uint8(s.between(1, 3)))
		k.access |= ib.AccessLocalWrite
		wr.RKey = k.rkey
		wr.Bind = &driver.BindInfo{MR: h.fast, Access: k.access}
		if s.chance(0.3) {
			k.base = 0
			wr.Bind.Access |= ib.AccessZeroBased
		}
		if fault {
			o.fault = faultLocal
			wr.Bind.Access = ib.AccessRemoteWrite // without the local right
		}
	}
	wr.Opcode = o.code
	if o.fault == faultNone {
		o.born = k
		h.busy = o
		if o.dies != nil {
			o.dies.dying = true
		}
	} else {
		s.provoke(q)
	}
	s.ops = append(s.ops, o)
	q.sendq = append(q.sendq, o)
	s.submit(q, []driver.SendWR{wr}, []*op{o})
}

// bindByCall binds a window of type 1, anew or not at all any more.
func (s *sim) bindByCall(o *op, k *key, fault bool) {
	q, h := o.q, o.holder
	o.code = ib.WRBindMW
	k.span = s.someRange()
	b := driver.MWBind{WRID: o.id, Flags: o.flags, Info: driver.BindInfo{
		MR: q.node.binder, Addr: q.node.binderBase + uint64(k.span.off), Length: uint64(k.span.n), Access: k.access,
	}}
	k.base = b.Info.Addr
	o.dies = h.key
	switch {
	case fault:
		b.Info.Length += uint64(arenaSize)
		o.fault, o.dies = faultLocal, nil
	case s.chance(0.2):
		b.Info.Length, k = 0, nil
	}
	before := h.mw.RKey()
	binder := q.dq.(driver.MWBinder)
	if s.chance(0.05) {
		bad := b
		bad.Info.Access |= ib.AccessZeroBased
		if err := binder.BindMW(h.mw, &bad); !errors.Is(err, syscall.EINVAL) {
			s.failf("bind of a zero-based window of type 1: %v", err)
		}
	}
	s.must("bind", binder.BindMW(h.mw, &b))
	s.note("post op %d at %d: bind by call, key %#x, fault %d", o.id, q.id, uint32(h.mw.RKey()), o.fault)
	if h.mw.RKey()>>8 != before>>8 || h.mw.RKey() == before {
		s.failf("a bind gives key %#x after %#x", uint32(h.mw.RKey()), uint32(before))
	}
	if o.fault != faultNone {
		// The key that it has is not the one that is good: end it with the bind.
		s.provoke(q)
		o.doomed = true
		if h.key != nil {
			h.key.dying = true
		}
	}
	h.rkey = h.mw.RKey()
	if k != nil {
		k.rkey = h.rkey
	}
	h.busy = o
	if o.dies != nil {
		o.dies.dying = true
	}
	if o.fault == faultNone {
		o.born = k
	}
	s.stats.posted++
	s.ops = append(s.ops, o)
	q.sendq = append(q.sendq, o)
	s.net.Kick(q.node.port)
}

// mapPages gives a fast-registration region memory: pages in any order, with an
// odd beginning and an odd end.
func (s *sim) mapPages(h *holder, k *key) bool {
	const pages = 5
	a := h.n.arena
	if h.plot != nil {
		h.plot.release()
	}
	if h.plot = a.alloc((pages+1)*pageSize, 1); h.plot == nil {
		return false
	}
	off := h.plot.off
	first := off + int(-h.n.va(off)&(pageSize-1)) // where a page begins
	order := s.rng.Perm(pages)
	list := make([][]byte, 0, pages)
	skip := 0
	if s.chance(0.6) {
		skip = s.rng.IntN(pageSize)
	}
	for i, p := range order {
		sp := span{first + p*pageSize, pageSize}
		b := a.mem[sp.off : sp.off+sp.n]
		if i == 0 {
			sp.off, sp.n = sp.off+skip, sp.n-skip
		}
		if i == pages-1 && s.chance(0.6) {
			sp.n = s.between(1, pageSize-1)
			b = b[:sp.n]
			if i == 0 {
				b = a.mem[first+p*pageSize : sp.off+sp.n]
			}
		}
		list = append(list, b)
		k.parts = append(k.parts, sp)
	}
	n, rest, err := h.fast.MapSG(list, skip, pageSize)
	if err != nil || n != len(list) || rest != 0 {
		s.failf("MapSG took %d of %d and %d bytes: %v", n, len(list), rest, err)
	}
	k.base = h.n.va(k.parts[0].off)
	return true
}

// changed does to keys what a local operation, or a SEND with invalidate, that
// has ended does.
func (s *sim) changed(o *op) {
	h := o.holder
	if h == nil || h.gone {
		return
	}
	if h.busy == o {
		h.busy = nil
	}
	switch {
	case o.ok:
		if o.dies != nil {
			o.dies.kill(s)
		}
		if o.born == nil {
			break
		}
		k := o.born
		h.key, h.rkey = k, k.rkey
		if h.mw != nil && h.mw.RKey() != k.rkey || h.fast != nil && h.fast.RKey() != k.rkey {
			s.failf("op %d gave key %#x, want %#x", o.id, uint32(h.mw.RKey()), uint32(k.rkey))
		}
		s.note("node %d: key %#x is good: %v%v at %#x, rights %#x, for %v", h.n.id, uint32(k.rkey), k.span, k.parts, k.base, uint32(k.access), k.q)
		s.stats.keysBorn++
	case o.born != nil || o.doomed || o.dies != nil && !o.dies.dead:
		// Nobody knows whether it was executed.
		if h.key != nil {
			s.race(h.key)
		}
		s.endHolder(h)
	}
}

// race notes that those who use a key may lose it.
func (s *sim) race(k *key) {
	for _, o := range k.open {
		o.fault = faultKeyRace
		s.provoke(o.q)
		s.provoke(o.q.peer)
	}
}

// unbound notes that a queue pair lets go of the windows that it had bound.
func (s *sim) unbound(q *qp) {
	for _, h := range q.node.holders {
		if k := h.key; k != nil && k.q == q {
			k.kill(s)
		}
	}
}

// spoilInv has a SEND take along a key that its queue pair cannot invalidate: a
// dead one, or one of a region, a window of type 1 or of another queue pair.
func (s *sim) spoilInv(o *op, wr *driver.SendWR) {
	m := o.q.peer.node
	if len(m.dead) > 0 && s.chance(0.3) {
		if k := pick(s, m.dead...); !m.good(k.rkey) {
			wr.InvalidateRKey = k.rkey
		}
		return
	}
	for _, h := range m.holders {
		if k := h.key; k != nil && h.busy == nil && (h.kind < holdWindow2 || h.kind == holdWindow2 && k.q != o.q.peer) && s.chance(0.5) {
			wr.InvalidateRKey = k.rkey
		}
	}
}

// invalidation has a SEND take a key of the far end along. False: there is none.
func (s *sim) invalidation(o *op, wr *driver.SendWR) bool {
	for _, h := range o.q.peer.node.holders {
		k := h.key
		if h.kind != holdFast && h.kind != holdWindow2 || k == nil || h.busy != nil || !k.usable(o.q) || k.access&ib.AccessRemote == 0 || !s.quiet(k, o.q) {
			continue
		}
		if slices.ContainsFunc(k.open, func(p *op) bool { return p.code == ib.WRRDMARead }) {
			o.flags |= ib.SendFence
		}
		wr.InvalidateRKey = k.rkey
		o.holder, o.dies, o.inv = h, k, k.rkey
		return true
	}
	return false
}
