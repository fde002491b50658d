package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// message is the kind of the message that is arriving.
type message uint8

const (
	msgNone message = iota
	msgSend
	msgWrite
)

// responder is the state of the receiving half.
type responder struct {
	qp *QP
	b  *transport.QP

	epsn   psn.PSN // PSN expected next
	newest psn.PSN // the newest SEND or WRITE that was executed, which an ACK names
	msn    uint32  // messages completed, 24 bits count
	msg    message // arriving: the next packet must be its MIDDLE or LAST

	silent  bool    // a NAK asks for epsn: nothing is said until it comes
	pending verdict // NAK that waits behind READ responses, good = none

	// The WRITE that is arriving.
	va    uint64
	left  uint64 // bytes to come
	rkey  ib.RKey
	total uint32

	// The SEND that is arriving.
	got    uint64
	size   uint64 // of the receive buffer
	cursor transport.Cursor

	// Acknowledgement.
	owedAt     int64 // when the owed ACK must leave
	owed       bool
	sinceBytes int // received since the last ACK
	sincePkts  int

	// Saved READs and atomics, and those of them that wait for being answered.
	res      []resource
	slot     uint8   // the entry of res to be used next
	fifo     []uint8 // ring of indices of res, in the order of answers
	fifoHead uint8
	fifoLen  uint8
	refs     int // Tx.Packets after the last response that refers to memory, 0 = none
}

// start takes the first PSN. Room for READs and atomics is made when the first one
// comes: most queue pairs of servers never get one, and it is half of what they take.
func (r *responder) start() {
	r.epsn = psn.PSN(r.b.Attr.RQPSN & psn.Mask)
	r.newest = r.epsn.Add(-1)
	r.msn = 0
	r.silent = false
	r.res, r.fifo, r.slot = nil, nil, 0
	r.fifoHead, r.fifoLen = 0, 0
}

// stop ends all work; saved entries are useless from now on.
func (r *responder) stop() {
	r.msg, r.pending, r.silent = msgNone, good, false
	r.owed, r.owedAt = false, 0
	r.fifoHead, r.fifoLen = 0, 0
	r.sinceBytes, r.sincePkts = 0, 0
	r.refs = 0
}

// request takes a request through the checks, in the order of the standard,
// and executes it (IBA 9.7.4).
func (r *responder) request(e *transport.Env, p *transport.Packet) {
	if r.pending.fatal() {
		e.Stats.DropState++
		return
	}
	f := p.Info.Flags
	v := r.checkPSN(e, p)
	if v == good {
		v = r.checkOrder(p, f)
	}
	if v == good {
		v = r.checkOperation(e, p, f)
	}
	if v == good && r.b.XRCD != nil {
		v = r.checkSRQ(p, f)
	}
	if v == good {
		v = r.checkResources(e, f)
	}
	if v == good {
		v = r.checkLength(p, f)
	}
	if v == good {
		v = r.checkKey(e, p, f)
	}
	if v == good {
		v = r.execute(e, p, f)
	}
	switch v {
	case good, dropped:
	case duplicate:
		r.repeated(e, p, f)
	default:
		if v.fatal() {
			r.countRefused(p.Op)
		}
		r.refuse(e, v)
	}
}

// countRefused counts a READ or WRITE that ends with a NAK.
func (r *responder) countRefused(op roce.Opcode) {
	switch f := op.Info().Flags; {
	case f.Any(roce.FlagWrite) || op.Operation() == roce.OpAtomicWrite:
		r.b.CountRemote(ib.CompCntrRemoteRDMAWrite, false)
	case f.Any(roce.FlagRead):
		r.b.CountRemote(ib.CompCntrRemoteRDMARead, false)
	}
}

// checkPSN compares the PSN with the one that is expected (IBA 9.7.4.1.2).
func (r *responder) checkPSN(e *transport.Env, p *transport.Packet) verdict {
	d := psn.Diff(p.BTH.PSN(), r.epsn)
	if d < 0 {
		return duplicate
	}
	if d > 0 {
		e.Stats.OutOfSeq++
		if r.silent {
			e.Stats.DropRNRWait++
			return dropped
		}
		return outOfOrder
	}
	r.silent = false
	r.pending = good
	return good
}

// checkOrder wants messages whole: a FIRST or ONLY between messages, a MIDDLE
// or LAST of the same kind within one. Unknown opcodes never fit.
func (r *responder) checkOrder(p *transport.Packet, f roce.OpFlags) verdict {
	if !p.Info.Valid {
		return invalid
	}
	want := msgNone
	if !f.Any(roce.FlagStart) {
		want = msgSend
		if f.Any(roce.FlagWrite) {
			want = msgWrite
		}
	}
	if r.msg != want {
		return invalid
	}
	return good
}

// checkOperation asks whether the queue pair allows the operation.
func (r *responder) checkOperation(e *transport.Env, p *transport.Packet, f roce.OpFlags) verdict {
	if !f.Any(roce.FlagStart) || f.Any(roce.FlagSend) {
		return good
	}
	var need ib.Access
	switch {
	case f.Any(roce.FlagWrite):
		need = ib.AccessRemoteWrite
	case f.Any(roce.FlagRead):
		need = ib.AccessRemoteRead
	case f.Any(roce.FlagAtomic):
		need = ib.AccessRemoteAtomic
	case f.Any(roce.FlagExtended):
		return r.checkExtended(e, p)
	default:
		return invalid
	}
	if r.b.Attr.QPAccessFlags&need == 0 {
		return invalid
	}
	return good
}

// checkResources takes a receive request or finds room for a READ or atomic.
func (r *responder) checkResources(e *transport.Env, f roce.OpFlags) verdict {
	switch {
	case f.Any(roce.FlagConsumesRecv):
		if !r.b.TakeRecv(e) {
			return notReady
		}
		if f.Any(roce.FlagSend) {
			r.got, r.size = 0, min(transport.ListLen(r.b.Recv.SGL), ib.MaxMsgSize)
			r.cursor = transport.Cursor{}
		}
	case f.Any(roce.FlagRead | roce.FlagAtomic | roce.FlagExtended):
		if !r.slotFree() {
			return invalid
		}
	}
	return good
}

// checkLength checks the packet's length against the path MTU and the message's
// (IBA 9.7.4.1.6).
func (r *responder) checkLength(p *transport.Packet, f roce.OpFlags) verdict {
	n := uint64(len(p.Payload))
	switch {
	case !f.Any(roce.FlagPayload):
		if n != 0 {
			return invalid
		}
	case n > uint64(r.b.MTU), f.Any(roce.FlagFirst|roce.FlagMiddle) && n != uint64(r.b.MTU), f.Any(roce.FlagLast) && n == 0:
		return invalid
	}
	switch {
	case f.Any(roce.FlagSend):
		if r.got+n > r.size {
			return tooLong
		}
	case f.Any(roce.FlagWrite):
		if f.Any(roce.FlagStart) {
			h := p.RETH()
			r.va, r.rkey, r.total = h.VA(), ib.RKey(h.RKey()), h.DMALen()
			r.left = uint64(r.total)
		}
		if r.total > ib.MaxMsgSize || f.Any(roce.FlagEnd) != (n == r.left) || n > r.left {
			return invalid
		}
	case f.Any(roce.FlagRead):
		if p.RETH().DMALen() > ib.MaxMsgSize {
			return invalid
		}
	case f.Any(roce.FlagAtomic):
		if p.AtomicETH().VA()%8 != 0 {
			return invalid
		}
	case f.Any(roce.FlagExtended):
		return checkExtendedLength(p)
	}
	return good
}

// checkKey checks that the whole range of a WRITE or READ may be accessed before
// a byte of it moves. The key of an empty range is not looked at.
func (r *responder) checkKey(e *transport.Env, p *transport.Packet, f roce.OpFlags) verdict {
	if !f.Any(roce.FlagStart) {
		return good
	}
	switch {
	case f.Any(roce.FlagWrite):
		// A packet that is the whole message is checked when it is executed.
		if f.Any(roce.FlagFirst) && !r.allowed(e, r.rkey, r.va, r.left, ib.AccessRemoteWrite) {
			return noAccess
		}
	case f.Any(roce.FlagRead):
		if h := p.RETH(); !r.allowed(e, ib.RKey(h.RKey()), h.VA(), uint64(h.DMALen()), ib.AccessRemoteRead) {
			return noAccess
		}
	}
	return good
}

// allowed reports whether the peer may access a range.
func (r *responder) allowed(e *transport.Env, key ib.RKey, va, n uint64, need ib.Access) bool {
	return e.Mem.Reachable(r.b.PD, r.b.Num, key, va, n, need)
}

// execute does what the packet asks for.
func (r *responder) execute(e *transport.Env, p *transport.Packet, f roce.OpFlags) verdict {
	switch {
	case f.Any(roce.FlagSend):
		return r.executeSend(e, p, f)
	case f.Any(roce.FlagWrite):
		return r.executeWrite(e, p, f)
	case f.Any(roce.FlagRead):
		return r.executeRead(e, p)
	case f.Any(roce.FlagExtended):
		return r.executeExtended(e, p)
	}
	return r.executeAtomic(e, p)
}

func (r *responder) executeWrite(e *transport.Env, p *transport.Packet, f roce.OpFlags) verdict {
	if n := uint64(len(p.Payload)); n > 0 {
		r.settleRefs(e)
		pieces, ok := e.Mem.Remote(r.b.PD, r.b.Num, r.rkey, r.va, n, ib.AccessRemoteWrite, r.qp.pieces[:0])
		ok = ok && transport.Scatter(pieces, p.Payload) == nil && e.Mem.Arrived(uint32(r.rkey), r.va, n)
		r.qp.keep(pieces)
		if !ok {
			return noAccess
		}
		r.va += n
		r.left -= n
	}
	if f.Any(roce.FlagImm) {
		wc := driver.WC{
			Opcode: ib.WCRecvRDMAWithImm, Flags: ib.WCWithImm,
			ByteLen: r.total, ImmData: p.ImmDt().Data(), SrcQP: r.b.Attr.DestQPN,
		}
		r.b.CompleteRecv(e, &wc, p.BTH.SE())
	}
	r.taken(e, p, f, msgWrite)
	return good
}

func (r *responder) executeSend(e *transport.Env, p *transport.Packet, f roce.OpFlags) verdict {
	if n := uint64(len(p.Payload)); n > 0 {
		r.settleRefs(e)
		at := r.cursor
		pieces, status := r.cursor.Pieces(e.Mem, r.b.PD, r.b.Recv.SGL, n, true, r.qp.pieces[:0])
		ok := status == ib.WCSuccess && transport.Scatter(pieces, p.Payload) == nil && at.Arrived(e.Mem, r.b.Recv.SGL, n)
		r.qp.keep(pieces)
		if !ok {
			return localFault
		}
		r.got += n
	}
	if f.Any(roce.FlagEnd) {
		wc := driver.WC{Opcode: ib.WCRecv, ByteLen: uint32(r.got), SrcQP: r.b.Attr.DestQPN}
		if f.Any(roce.FlagImm) {
			wc.Flags, wc.ImmData = ib.WCWithImm, p.ImmDt().Data()
		}
		if f.Any(roce.FlagInv) {
			wc.Flags, wc.InvalidatedRKey = ib.WCWithInv, ib.RKey(p.IETH().RKey())
			if !r.invalidate(e, wc.InvalidatedRKey) {
				return badInv
			}
		}
		r.b.CompleteRecv(e, &wc, p.BTH.SE())
	}
	r.taken(e, p, f, msgSend)
	return good
}

// invalidate makes a key of this queue pair useless, as SEND_WITH_INV asks: of a
// memory window of type 2 that the queue pair has bound, or of a
// fast-registration region of its domain. READs under the key that are being
// answered end in an error.
func (r *responder) invalidate(e *transport.Env, key ib.RKey) bool {
	return e.Revoke(func() bool { return e.Mem.Invalidate(r.b.PD, r.b.Num, key, true) })
}

// taken moves on behind a packet of a SEND or WRITE that was executed.
func (r *responder) taken(e *transport.Env, p *transport.Packet, f roce.OpFlags, kind message) {
	r.newest = r.epsn
	r.epsn = r.epsn.Next()
	r.msg = kind
	end := f.Any(roce.FlagEnd)
	if end {
		r.msg = msgNone
		r.msn++
		if kind == msgWrite {
			r.b.CountRemote(ib.CompCntrRemoteRDMAWrite, true)
		}
	}
	r.sinceBytes += len(p.Payload)
	r.sincePkts++
	ask := p.BTH.AckReq()
	switch {
	case ask && !end, r.sinceBytes >= ackBytes, r.sincePkts >= ackPackets:
		r.owe(e)
		r.payAck(e)
	case ask:
		r.owe(e)
	}
}

// repeated handles a packet that was seen before. It is not executed again: a
// SEND or WRITE is acknowledged with the newest PSN, which serves for all of a
// batch; READs and atomics are answered from what was saved (IBA 9.7.5.1.5).
func (r *responder) repeated(e *transport.Env, p *transport.Packet, f roce.OpFlags) {
	e.Stats.DuplicateReq++
	switch {
	case f.Any(roce.FlagRead):
		r.repeatRead(e, p)
	case f.Any(roce.FlagAtomic):
		r.repeatSaved(e, p, resAtomic)
	case f.Any(roce.FlagExtended):
		r.repeatExtended(e, p)
	case f.Any(roce.FlagSend | roce.FlagWrite):
		r.owe(e)
	default:
		e.Stats.DropDuplicate++
	}
}
