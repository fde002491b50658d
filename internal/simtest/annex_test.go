package simtest

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// annex is registered memory of a node that is not its own: device memory, or a
// buffer of the library, which local work names by the domain's key.
type annex struct {
	s    *sim
	dm   driver.DM
	buf  driver.Buffer
	mr   driver.MR
	lkey ib.LKey
	rkey ib.RKey
	base uint64
}

const annexSize = 4096

// addAnnexes gives a node device memory and a buffer, or not.
func (s *sim) addAnnexes(n *node) {
	if s.chance(0.4) {
		dm, err := n.dev.(driver.DMDevice).AllocDM(&driver.DMAttr{Length: annexSize + 64, LogAlign: uint32(s.rng.IntN(13))})
		s.must("AllocDM", err)
		mr, err := n.pd.(driver.DMPD).RegDMMR(dm, 64, annexSize, allRights|ib.AccessZeroBased)
		s.must("RegDMMR", err)
		if dm.Free() == nil {
			s.failf("device memory with a region on it was freed")
		}
		s.addAnnex(n, &annex{s: s, dm: dm, mr: mr, lkey: mr.LKey(), rkey: mr.RKey()}, make([]byte, annexSize))
	}
	if s.chance(0.4) {
		b, err := n.pd.(driver.BufferPD).AllocBuffer(annexSize, allRights)
		s.must("AllocBuffer", err)
		key, err := n.pd.(driver.LocalDMAPD).LocalDMALKey()
		s.must("LocalDMALKey", err)
		s.addAnnex(n, &annex{s: s, buf: b, mr: b.MR(), lkey: key, rkey: b.MR().RKey(), base: b.MR().Addr()}, b.Bytes())
	}
}

func (s *sim) addAnnex(n *node, x *annex, mem []byte) {
	a := &arena{mem: mem, shadow: make([]byte, annexSize), annex: x}
	a.reset()
	x.write(0, a.mem)
	if s.log != nil {
		a.log = s.note
	}
	n.annexes = append(n.annexes, a)
}

func (x *annex) read(into []byte) {
	if x.dm != nil {
		x.s.must("CopyFrom", x.dm.CopyFrom(into, 64))
	}
}

func (x *annex) write(off int, b []byte) {
	if x.dm != nil {
		x.s.must("CopyTo", x.dm.CopyTo(64+uint64(off), b))
	}
}

// endAnnexes gives them back.
func (s *sim) endAnnexes(n *node) {
	for _, a := range n.annexes {
		x := a.annex
		if x.buf != nil {
			s.must("free a buffer", x.buf.Free())
			continue
		}
		s.must("dereg", x.mr.Dereg())
		s.must("free device memory", x.dm.Free())
	}
}

// place allocates payload of n bytes somewhere on a node; nil: no room.
func (s *sim) place(n *node, size int) *slot {
	if len(n.annexes) > 0 && s.chance(0.2) {
		if sl := pick(s, n.annexes...).alloc(size, s.between(1, 4)); sl != nil {
			return sl
		}
	}
	return n.arena.alloc(size, s.between(1, 4))
}

// target allocates the remote side of a WRITE or READ and names it. False: no
// room. With keys it is named by one that comes and goes, perhaps.
func (s *sim) target(o *op, wr *driver.SendWR, keys bool) bool {
	m := o.q.peer.node
	if keys {
		if o.rem = s.fastSlot(o, wr, o.n, rightFor(o.code)); o.rem != nil {
			return true
		}
		if len(m.annexes) > 0 && s.chance(0.1) {
			a := pick(s, m.annexes...)
			if o.rem = a.alloc(o.n, 1); o.rem != nil {
				wr.RKey, wr.RemoteAddr = a.annex.rkey, a.annex.base+uint64(o.rem.off)
				return true
			}
		}
	}
	if o.rem = m.arena.alloc(o.n, 1); o.rem == nil {
		return false
	}
	wr.RKey, wr.RemoteAddr = m.full.RKey(), m.va(o.rem.off)
	if keys {
		s.via(o, wr, o.rem)
	}
	return true
}
