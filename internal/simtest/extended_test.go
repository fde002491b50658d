package simtest

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const flushRights = ib.AccessFlushGlobal | ib.AccessFlushPersistent

// flushRequest makes a FLUSH of a random range or of everything.
func (s *sim) flushRequest(o *op, fault bool) driver.SendWR {
	m := o.q.peer.node
	off := s.rng.IntN(arenaSize)
	wr := driver.SendWR{
		RKey: m.full.RKey(), RemoteAddr: m.va(off), Length: uint32(s.rng.IntN(arenaSize - off + 1)),
		FlushType: pick(s, ib.FlushGlobal, ib.FlushPersistent, ib.FlushGlobal|ib.FlushPersistent), FlushLevel: pick(s, ib.FlushRange, ib.FlushMR),
	}
	if m.dev.Query().DeviceCapFlags&ib.DeviceCapFlushPersistent == 0 {
		wr.FlushType = ib.FlushGlobal
	}
	if wr.FlushLevel == ib.FlushMR && s.chance(0.5) {
		wr.RemoteAddr, wr.Length = 0, 0 // not looked at
	}
	if !fault && o.fault == faultNone && s.chance(0.4) {
		for _, h := range m.holders {
			if k := h.key; k != nil && k.usable(o.q) && k.access&flushRights == flushRights {
				n := s.rng.IntN(k.size() + 1)
				wr.RKey, wr.RemoteAddr, wr.Length = k.rkey, k.base+uint64(s.rng.IntN(k.size()-n+1)), uint32(n)
				k.use(o)
				break
			}
		}
	}
	if fault && o.fault == faultNone {
		o.fault = faultRKey
		if o.n = 1; s.chance(0.7) && s.spoilKey(o, &wr) {
			wr.Length, wr.FlushLevel = 1, ib.FlushRange
			if s.chance(0.5) {
				wr.Length = ib.MaxMsgSize - uint32(s.rng.IntN(1000))
			}
			o.n = 0
			return wr
		}
		if o.n = 0; s.chance(0.5) {
			wr.RemoteAddr, wr.Length = m.va(0), 1
		}
		if s.chance(0.5) {
			wr.RKey = pick(s, m.foreign.RKey(), m.remRO.RKey(), 0xDEAD)
		} else {
			wr.FlushLevel, wr.RemoteAddr, wr.Length = ib.FlushRange, m.va(off), uint32(arenaSize-off+s.between(1, 1000))
		}
	}
	return wr
}

// word gives an ATOMIC WRITE its payload.
func (s *sim) word(o *op, fault bool) (wr driver.SendWR, good bool) {
	o.n = 8
	if !s.source(o, &wr) {
		return wr, false
	}
	if fault && o.flags&ib.SendInline == 0 {
		s.spoilLocal(o, &wr)
	}
	return wr, true
}
