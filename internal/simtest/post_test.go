package simtest

import (
	"encoding/binary"
	"errors"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// op is a posted send work request.
type op struct {
	id     uint64
	q      *qp
	code   ib.WROpcode
	n      int
	flags  ib.SendFlags
	signal bool
	id32   uint32 // content that it moves
	imm    uint32
	src    *slot // local source
	dst    *slot // local destination of READ and atomic
	rem    *slot // remote target
	loose  bool  // bytes other than the content's may have been written
	relay  bool  // the source is the destination of an earlier READ
	stray  bool  // it names another place than rem, by a key without the right
	fault  fault
	victim *victim

	key    *key    // of the target, if it is one that comes and goes
	holder *holder // local operations, SEND with invalidate: whose key changes
	born   *key    // ... what it has then
	dies   *key    // ... what it has no more
	inv    ib.RKey
	aims   *key // ... what it must not invalidate
	doomed bool // ... and it ends with the request

	cell    *cell
	counter *counter
	cmp     uint64
	swapAdd uint64
	expect  uint64 // value that the atomic must find

	xsrq      *srq   // XRC
	srqGone   bool   // ... and it may be gone
	to        *qp    // UD
	group     *group // ... or a group
	members   []*qp  // ... and who was in it then
	copies    map[*qp]int
	at        int64  // when it was posted
	num       ib.QPN // of q when it was posted
	msg       int    // index among its direction's messages, -1: takes no receive
	delivered int
	done      bool
	ok        bool
	status    ib.WCStatus
}

// fault is what is wrong with a work request.
type fault uint8

const (
	faultNone     fault = iota
	faultLKey           // bad local key
	faultRKey           // bad remote key, bounds or rights
	faultMisalign       // atomic at an address that is no multiple of 8
	faultTooLong        // longer than the receive
	faultInv            // SEND with invalidate: nothing can be invalidated
	faultNowhere        // datagram that nobody may get
	faultRight          // the far queue pair does not allow the operation
	faultVictim         // the region may vanish meanwhile
)

// statuses are those with which the fault may end the request.
func (f fault) statuses(o *op) []ib.WCStatus {
	if o.q.typ == ib.UC && f != faultLKey && f != faultLocal {
		return []ib.WCStatus{ib.WCSuccess} // nobody tells
	}
	switch f {
	case faultLKey:
		return []ib.WCStatus{ib.WCLocProtErr}
	case faultRKey:
		return []ib.WCStatus{ib.WCRemAccessErr}
	case faultMisalign, faultRight:
		return []ib.WCStatus{ib.WCRemInvReqErr}
	case faultTooLong:
		if o.q.typ == ib.UD {
			return []ib.WCStatus{ib.WCSuccess}
		}
		return []ib.WCStatus{ib.WCRemInvReqErr}
	case faultInv:
		return []ib.WCStatus{ib.WCRetryExcErr, ib.WCRemAccessErr, ib.WCRemInvReqErr}
	case faultLocal:
		return []ib.WCStatus{ib.WCMWBindErr}
	case faultKeyRace:
		return []ib.WCStatus{ib.WCSuccess, ib.WCRemAccessErr}
	case faultVictim:
		return []ib.WCStatus{ib.WCSuccess, ib.WCLocProtErr, ib.WCRemAccessErr}
	}
	return []ib.WCStatus{ib.WCSuccess}
}

// victim is a region of one slot that is deregistered while it is in use.
type victim struct {
	mr   driver.MR
	slot *slot
	dead bool
}

// rightFor is what the far queue pair must allow for an operation.
func rightFor(c ib.WROpcode) ib.Access {
	switch c {
	case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRAtomicWrite:
		return ib.AccessRemoteWrite
	case ib.WRFlush:
		return flushRights
	case ib.WRRDMARead:
		return ib.AccessRemoteRead
	case ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAndAdd:
		return ib.AccessRemoteAtomic
	}
	return 0
}

// takesRecv reports whether the request takes a receive at the far end.
func takesRecv(c ib.WROpcode) bool {
	return c == ib.WRSend || c == ib.WRSendWithImm || c == ib.WRRDMAWriteWithImm || c == ib.WRSendWithInv
}

func isSend(c ib.WROpcode) bool {
	return c == ib.WRSend || c == ib.WRSendWithImm || c == ib.WRSendWithInv
}

func isAtomic(c ib.WROpcode) bool { return c == ib.WRAtomicCmpAndSwp || c == ib.WRAtomicFetchAndAdd }

// post posts a burst of random work to a queue pair.
func (s *sim) post(q *qp) {
	if q.dq == nil || !q.up || q.sqe || q.typ == ib.XRCRecv {
		return
	}
	room := int(q.cap.MaxSendWR) - len(q.sendq)
	if room <= 0 {
		return
	}
	var wrs []driver.SendWR
	var ops []*op
	for range s.between(1, min(room, pick(s, 1, 4, 32))) {
		o, wr := s.request(q)
		if o == nil {
			break
		}
		wrs, ops = append(wrs, wr), append(ops, o)
		q.sendq = append(q.sendq, o)
	}
	s.submit(q, wrs, ops)
}

// submit posts the requests, sometimes with one that must be refused behind
// them.
func (s *sim) submit(q *qp, wrs []driver.SendWR, ops []*op) {
	want := len(wrs)
	if s.chance(0.02) {
		wrs = append(wrs, s.refused(q))
	}
	got, err := want, error(nil)
	if s.chance(0.3) {
		s.postAll(q, wrs, want)
		wrs = wrs[:want]
	} else {
		got, err = q.dq.PostSend(wrs)
	}
	if got != want || (err != nil) != (len(wrs) > want) || err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOPNOTSUPP) {
		s.failf("queue pair %d (%v): %d of %d requests posted, %d good, %d of %d there: %v", q.id, q.typ, got, len(wrs), want, len(q.sendq), q.cap.MaxSendWR, err)
	}
	for i, o := range ops {
		s.stats.posted++
		s.note("post op %d at %d: %v %d bytes, flags %#x, content %d, msg %d, fault %d, keys %#x and %#x", o.id, q.id, o.code, o.n, uint32(o.flags), o.id32, o.msg, o.fault,
			uint32(wrs[i].RKey), uint32(wrs[i].InvalidateRKey))
		if o.flags&ib.SendInline != 0 {
			// The bytes were taken: the memory is the application's again.
			clear(wrs[i].InlineData)
			if o.src != nil {
				o.src.fill(s.newID(nil))
				o.src.release()
				o.src = nil
			}
		}
	}
	s.net.Kick(q.node.port)
}

// refused is a work request that post must refuse.
func (s *sim) refused(q *qp) driver.SendWR {
	wr := driver.SendWR{Opcode: ib.WRSend, WRID: 1 << 62}
	if q.typ == ib.UD {
		wr.AH, wr.RemoteQPN = s.ah(q.node, q.addr, q.addr), 2
	}
	switch s.rng.IntN(5) {
	case 0:
		wr.SGList = make([]driver.SGE, q.cap.MaxSendSGE+1)
	case 1:
		wr.Flags, wr.InlineData = ib.SendInline, make([]byte, q.cap.MaxInlineData+1)
	case 2:
		wr.Opcode = 99
	case 3:
		wr.Flags = ib.SendIPCSum
	case 4:
		switch q.typ {
		case ib.UD:
			wr.Opcode = ib.WRRDMAWrite
		case ib.UC:
			wr.Opcode = pick(s, ib.WRRDMARead, ib.WRSendWithInv, ib.WRAtomicFetchAndAdd)
		default:
			wr.Opcode, wr.Flags = ib.WRRDMARead, ib.SendInline
		}
	}
	return wr
}

// request makes a random work request; nil: not possible now.
func (s *sim) request(q *qp) (*op, driver.SendWR) {
	o := &op{id: uint64(len(s.ops)), q: q, num: q.dq.Num(), msg: -1, at: s.net.Now()}
	// A queue full of requests that are not signaled would never tell of room.
	o.signal = q.sigAll || s.chance(0.6) || len(q.sendq) == int(q.cap.MaxSendWR)-1
	if o.signal && !q.sigAll {
		o.flags |= ib.SendSignaled
	}
	if s.chance(0.2) {
		o.flags |= ib.SendFence
	}
	if s.chance(0.3) {
		o.flags |= ib.SendSolicited
	}
	switch q.typ {
	case ib.RC, ib.XRCSend:
		o.code = pick(s, ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm,
			ib.WRRDMARead, ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAndAdd, ib.WRFlush, ib.WRAtomicWrite)
	case ib.UC:
		o.code = pick(s, ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm)
	case ib.UD:
		o.code = pick(s, ib.WRSend, ib.WRSendWithImm)
	}
	fault := s.chance(s.prof.faultRate) || s.prof.faultRate > 0 && rightFor(o.code) != 0 && s.chance(0.003)
	if fault && q.rel() && s.chance(0.1) {
		o.code, o.fault = ib.WRSendWithInv, faultInv
		fault = false
	}
	var inv driver.SendWR
	if o.code == ib.WRSend && q.rel() && !fault && s.chance(0.1) && s.invalidation(o, &inv) {
		o.code = ib.WRSendWithInv
	}
	if need := rightFor(o.code); q.rel() && q.conn.attr.access&need != need {
		if !s.chance(s.prof.faultRate) {
			o.code = ib.WRSend
		} else {
			o.fault, fault = faultRight, false
		}
	}
	if takesRecv(o.code) && q.rel() && !q.peer.starved && q.peer.dq != nil && q.peer.up && !s.feed(q) {
		if q.conn.attr.access&ib.AccessRemoteWrite == 0 {
			return nil, driver.SendWR{}
		}
		o.code, o.fault, o.dies, o.holder = ib.WRRDMAWrite, faultNone, nil, nil
	}
	if q.typ == ib.XRCSend {
		o.xsrq = pick(s, q.peer.node.xsrqs...)
		s.stats.xrc++
	}
	var wr driver.SendWR
	good := false
	switch {
	case q.typ == ib.UD:
		wr, good = s.datagram(o, fault)
	case isSend(o.code):
		wr, good = s.sendRequest(o, fault)
	case o.code == ib.WRRDMARead:
		wr, good = s.readRequest(o, fault)
	case isAtomic(o.code):
		wr, good = s.atomicRequest(o, fault)
	case o.code == ib.WRFlush:
		wr, good = s.flushRequest(o, fault), true
	default:
		wr, good = s.writeRequest(o, fault)
	}
	if !good {
		if o.key != nil {
			o.key.unuse(o)
		}
		return nil, wr
	}
	if o.dies != nil {
		wr.InvalidateRKey = inv.InvalidateRKey
		o.dies.dying, o.holder.busy = true, o
	}
	wr.WRID, wr.Opcode, wr.Flags = o.id, o.code, o.flags
	if o.xsrq != nil {
		wr.RemoteSRQN = o.xsrq.dq.Num()
	}
	s.ops = append(s.ops, o)
	if takesRecv(o.code) && q.typ != ib.UD {
		o.msg = len(q.out.msgs)
		q.out.msgs = append(q.out.msgs, o)
	}
	if o.fault != faultNone && q.rel() {
		s.provoke(q)
		s.provoke(q.peer)
	} else if o.fault != faultNone {
		q.mayErr = true
	}
	return o, wr
}

// feed makes sure that the next message finds a receive.
func (s *sim) feed(q *qp) bool {
	p := q.peer
	has := func() bool { return len(q.out.msgs)-q.out.got < len(p.recvq) }
	if !has() {
		s.postRecvs(p)
	}
	return has()
}

// source gives the request its payload: a slot, inline bytes or, for RC with
// fence, the destination of an earlier READ.
func (s *sim) source(o *op, wr *driver.SendWR) bool {
	o.id32 = s.newID(o)
	inline := o.n <= int(o.q.cap.MaxInlineData) && s.chance(0.3)
	if inline && s.chance(0.5) {
		o.flags |= ib.SendInline
		wr.InlineData = make([]byte, o.n)
		content(wr.InlineData, o.id32, 0)
		return true
	}
	sl := s.place(o.q.node, o.n)
	if sl == nil {
		return false
	}
	sl.fill(o.id32)
	o.src = sl
	wr.SGList = sges(sl, o.q.node.full.LKey(), o.q.node)
	if inline {
		o.flags |= ib.SendInline
	}
	return true
}

// relayOf finds a READ that is under way, to pass on what it brings.
func (s *sim) relayOf(q *qp) *op {
	if !q.rel() || !s.chance(0.15) {
		return nil
	}
	for _, r := range slices.Backward(q.sendq) {
		if r.code == ib.WRRDMARead && r.fault == faultNone && r.n > 0 {
			return r
		}
	}
	return nil
}

func (s *sim) relay(o, r *op, wr *driver.SendWR) {
	o.n, o.id32, o.src, o.relay = r.n, r.id32, r.dst, true
	r.dst.refs++
	o.flags |= ib.SendFence
	wr.SGList = sges(r.dst, o.q.node.full.LKey(), o.q.node)
}

// payload chooses the request's payload, with a bad local key if fault says so.
// most bounds its length, least is for payload that must be recognised.
func (s *sim) payload(o *op, fault bool, least, most int) (wr driver.SendWR, good bool) {
	r := s.relayOf(o.q)
	switch {
	case r != nil && r.n <= most && !fault:
		s.relay(o, r, &wr)
	default:
		o.n = min(max(s.msgSize(o.q.conn.attr.mtu.Bytes()), least), most)
		if !s.source(o, &wr) {
			return wr, false
		}
	}
	if fault && o.n > 0 && o.flags&ib.SendInline == 0 {
		s.spoilLocal(o, &wr)
	}
	return wr, true
}

func (s *sim) spoilLocal(o *op, wr *driver.SendWR) {
	i := s.rng.IntN(len(wr.SGList))
	for wr.SGList[i].Length == 0 {
		i = (i + 1) % len(wr.SGList)
	}
	if o.code == ib.WRRDMARead || isAtomic(o.code) {
		wr.SGList[i].LKey = pick(s, o.q.node.locRO.LKey(), o.q.node.foreign.LKey(), 0xDEAD)
	} else if s.chance(0.3) {
		// What is inside the region may be sent before the end shows.
		wr.SGList[i].Addr = o.q.node.va(arenaSize) - uint64(wr.SGList[i].Length) + 1
		o.loose = true
	} else {
		wr.SGList[i].LKey = pick(s, o.q.node.foreign.LKey(), 0xDEAD)
	}
	o.fault = faultLKey
}

func (s *sim) sendRequest(o *op, fault bool) (driver.SendWR, bool) {
	most, least := o.q.peer.recvLen, 0
	if o.xsrq != nil {
		most = o.xsrq.size
	}
	if o.q.typ == ib.UC {
		least = 4
		if most < least {
			return driver.SendWR{}, false
		}
	}
	if fault && s.chance(0.4) && o.q.rel() {
		// One byte too many, or a few packets.
		o.n = most + s.between(1, 3000)
		var wr driver.SendWR
		if !s.source(o, &wr) {
			return wr, false
		}
		o.fault = faultTooLong
		return s.immediate(o, wr), true
	}
	wr, good := s.payload(o, fault && o.fault == faultNone, least, most)
	if o.code == ib.WRSendWithInv {
		if m := o.q.peer.node; o.dies == nil {
			wr.InvalidateRKey = pick(s, m.full.RKey(), 0xDEAD)
			s.spoilInv(o, &wr)
		}
		return wr, good
	}
	return s.immediate(o, wr), good
}

// immediate adds immediate data, by which a message is recognised.
func (s *sim) immediate(o *op, wr driver.SendWR) driver.SendWR {
	if o.code == ib.WRSendWithImm || o.code == ib.WRRDMAWriteWithImm {
		o.imm = uint32(o.id) ^ 0x5EED0000
		wr.ImmData = o.imm
	}
	return wr
}

func (s *sim) writeRequest(o *op, fault bool) (driver.SendWR, bool) {
	local := fault && s.chance(0.3)
	if o.q.typ == ib.UC && len(o.q.out.writes) > 100 {
		return driver.SendWR{}, false // their targets are in use until the connection ends
	}
	wr, good := driver.SendWR{}, false
	if o.code == ib.WRAtomicWrite {
		wr, good = s.word(o, local)
	} else {
		wr, good = s.payload(o, local, 0, arenaSize)
	}
	if !good {
		return wr, false
	}
	if !s.target(o, &wr, !fault || local) {
		o.src.release()
		return wr, false
	}
	o.rem.fill(s.newID(nil))
	o.rem.unsettle()
	o.q.out.writes = append(o.q.out.writes, o)
	if o.fault == faultNone && fault && o.n > 0 && !local {
		s.spoilRemote(o, &wr)
	} else if o.n == 0 && s.chance(0.5) {
		// Nothing is written: key and address do not matter (row 31).
		wr.RKey, wr.RemoteAddr = 0xDEAD, 0
	}
	return s.immediate(o, wr), true
}

// spoilRemote makes the remote side refuse the request, or lets its region
// vanish at some time.
func (s *sim) spoilRemote(o *op, wr *driver.SendWR) {
	m := o.q.peer.node
	if s.chance(0.7) && s.spoilKey(o, wr) {
		return
	}
	o.fault = faultRKey
	switch s.rng.IntN(5) {
	case 0:
		wr.RKey = 0xDEAD
	case 1:
		wr.RKey = m.foreign.RKey()
	case 2:
		wr.RemoteAddr = m.va(arenaSize) - uint64(o.n) + uint64(s.between(1, o.n))
		if o.code == ib.WRAtomicWrite {
			wr.RemoteAddr = m.va(arenaSize)
		}
	case 3:
		if o.code == ib.WRRDMARead {
			wr.RKey = m.locRO.RKey()
		} else {
			wr.RKey = m.remRO.RKey()
		}
	case 4:
		// A target that an earlier WRITE has too is written after the end.
		if o.rem.refs > 1 || o.rem.a != m.arena {
			wr.RKey = 0xDEAD
			return
		}
		o.fault = faultVictim
		if !s.makeVictim(o, m, o.rem, ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead) {
			o.fault = faultNone
			return
		}
		wr.RKey, wr.RemoteAddr = o.victim.mr.RKey(), o.victim.mr.Addr()
	}
}

// makeVictim registers the one piece of a slot by itself and plans its end.
func (s *sim) makeVictim(o *op, n *node, sl *slot, access ib.Access) bool {
	p := sl.pieces[0]
	if p.n == 0 {
		return false
	}
	mr, err := n.pd.RegMR(n.arena.mem[p.off:p.off+p.n], 0, false, access)
	s.must("MR", err)
	v := &victim{mr: mr, slot: sl}
	n.victims[mr.RKey()] = true
	sl.refs++
	o.victim = v
	s.net.After(int64(s.rng.IntN(200_000)), func() { s.endVictim(v) })
	return true
}

// endVictim deregisters: from then on nobody may touch the memory.
func (s *sim) endVictim(v *victim) {
	if v.dead {
		return
	}
	v.dead = true
	s.must("dereg", v.mr.Dereg())
	v.slot.settle()
	v.slot.release()
}

func (s *sim) readRequest(o *op, fault bool) (driver.SendWR, bool) {
	var wr driver.SendWR
	m := o.q.peer.node
	// Read back what an earlier WRITE of this queue pair wrote: order must hold.
	if back := s.writtenBefore(o.q); back != nil {
		o.rem, o.n, o.id32 = back.rem, back.n, back.id32
		o.rem.refs++
		wr.RKey, wr.RemoteAddr = m.full.RKey(), m.va(o.rem.off)
		if !fault {
			s.via(o, &wr, o.rem)
		}
	} else {
		o.n = s.msgSize(o.q.conn.attr.mtu.Bytes())
		if !s.target(o, &wr, !fault) {
			return wr, false
		}
		o.id32 = s.newID(o)
		o.rem.fill(o.id32)
	}
	o.dst = s.place(o.q.node, o.n)
	if o.dst == nil {
		o.rem.release()
		o.rem = nil
		return wr, false
	}
	o.dst.fill(s.newID(nil))
	o.dst.unsettle()
	wr.SGList = sges(o.dst, o.q.node.full.LKey(), o.q.node)
	switch {
	case !fault && o.n > 0 && o.key == nil && o.rem.a == m.arena && s.chance(0.1):
		wr.RKey = m.remRO.RKey()
		wr.RemoteAddr = m.remRO.Addr() + uint64(o.rem.off)
	case fault && o.n > 0 && s.chance(0.3):
		s.spoilLocal(o, &wr)
	case fault && o.n > 0 && s.chance(0.2) && len(o.dst.pieces) == 1 && o.dst.a == o.q.node.arena:
		o.fault = faultVictim
		s.makeVictim(o, o.q.node, o.dst, ib.AccessLocalWrite)
		wr.SGList[0].LKey, wr.SGList[0].Addr = o.victim.mr.LKey(), o.victim.mr.Addr()
	case fault && o.n > 0:
		s.spoilRemote(o, &wr)
	}
	return wr, true
}

// writtenBefore finds a WRITE that this queue pair has under way.
func (s *sim) writtenBefore(q *qp) *op {
	if !s.chance(0.2) {
		return nil
	}
	for _, w := range slices.Backward(q.sendq) {
		if (w.code == ib.WRRDMAWrite || w.code == ib.WRRDMAWriteWithImm || w.code == ib.WRAtomicWrite) && w.fault == faultNone && w.n > 0 && w.rem.a == q.peer.node.arena && w.rem.parent == nil {
			return w
		}
	}
	return nil
}

func (s *sim) atomicRequest(o *op, fault bool) (driver.SendWR, bool) {
	var wr driver.SendWR
	m := o.q.peer.node
	o.n = 8
	if o.dst = s.place(o.q.node, 8); o.dst == nil {
		return wr, false
	}
	d := o.q.out
	if d.cell == nil {
		c := m.arena.alloc(8, 1)
		if c == nil {
			o.dst.release()
			return wr, false
		}
		c.fill(s.newID(nil))
		c.unsettle()
		v := binary.NativeEndian.Uint64(m.arena.mem[c.off:])
		d.cell = &cell{slot: c, init: v, next: v}
	}
	o.dst.fill(s.newID(nil))
	o.dst.unsettle()
	wr.SGList = sges(o.dst, o.q.node.full.LKey(), o.q.node)
	wr.RKey, wr.RemoteAddr = m.full.RKey(), m.va(d.cell.slot.off)
	if !fault && o.code == ib.WRAtomicFetchAndAdd && s.chance(0.4) {
		o.counter, o.swapAdd = m.counter, 1
		m.counter.posted++
		wr.RemoteAddr, wr.CompareAdd = m.va(m.counter.slot.off), 1
		s.via(o, &wr, m.counter.slot)
		return wr, true
	}
	o.swapAdd = s.rng.Uint64()
	if o.code == ib.WRAtomicCmpAndSwp {
		o.cmp = d.cell.next
		if s.chance(0.3) {
			o.cmp++
		}
		wr.CompareAdd, wr.Swap = o.cmp, o.swapAdd
	} else {
		wr.CompareAdd = o.swapAdd
	}
	if fault {
		switch n := s.rng.IntN(5); {
		case n == 4 && s.spoilKey(o, &wr):
		case n == 0:
			wr.RemoteAddr += 4
			o.fault = faultMisalign
		case n == 1:
			wr.RKey = pick(s, m.remRO.RKey(), m.foreign.RKey(), 0xDEAD)
			o.fault = faultRKey
		case n == 2:
			s.spoilLocal(o, &wr)
			if o.swapAdd = 0; o.code == ib.WRAtomicCmpAndSwp {
				// It may be executed before its result finds no place.
				o.cmp = d.cell.next + 1
				wr.CompareAdd = o.cmp
			} else {
				wr.CompareAdd = 0
			}
		default:
			wr.RemoteAddr, o.fault = m.va(arenaSize), faultRKey
		}
		return wr, true
	}
	if o.fault != faultNone {
		return wr, true
	}
	o.cell, o.expect = d.cell, d.cell.next
	d.cell.next = o.apply(d.cell.next)
	d.cell.ops = append(d.cell.ops, o)
	s.via(o, &wr, d.cell.slot)
	return wr, true
}

// apply is what the atomic makes of a value.
func (o *op) apply(v uint64) uint64 {
	if o.code == ib.WRAtomicFetchAndAdd {
		return v + o.swapAdd
	}
	if v == o.cmp {
		return o.swapAdd
	}
	return v
}
