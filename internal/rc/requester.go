package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// requester is the state of the sending half. The send queue's head is always
// the message that holds una, so a WQE leaves the queue exactly when una passes
// its last PSN, in order.
//
//	una <= next <= end: [una, next) is under way; [next, end) was sent once and
//	is to be sent again.
type requester struct {
	qp *QP
	b  *transport.QP

	una  psn.PSN // oldest PSN without acknowledgement or response
	next psn.PSN // PSN to be sent next
	end  psn.PSN // one past the newest PSN that was ever sent

	cur    uint32           // index in the send queue of the WQE that holds next
	off    uint64           // payload bytes of it before next
	cursor transport.Cursor // the same as a position in its list
	sink   transport.Cursor // where in the list of a READ the response at una goes
	stuck  bool             // WQE cur cannot be sent: it ends with its Status once it is the oldest

	reads    int // READ requests and atomics under way
	outBytes int // what this queue pair has under way in dest
	outPkts  int
	dest     *transport.Dest

	asked   psn.PSN // newest PSN with AckReq
	asking  bool    // it is not acknowledged
	probe   psn.PSN // second segment of a batch, sent while segmentation is unproven
	probing bool    // it is not acknowledged, and was not sent again
	unasked int     // packets since then

	retries    uint8
	rnrRetries uint8
	gapped     bool    // a lost response was noticed; nothing came for una since
	drained    bool    // the send queue has drained in SQD
	notify     bool    // ... and that is to be told: SQ_DRAINED
	rnrPSN     psn.PSN // PSN of the last RNR NAK
	ackAt      int64   // deadline of the oldest packet under way, 0 = none
	rnrAt      int64   // end of an RNR wait, 0 = none
}

// opcodes of a message's packets, by position: middle, first, last, only.
var opcodes = [...][4]roce.Opcode{
	ib.WRRDMAWrite:        {roce.OpRCWriteMiddle, roce.OpRCWriteFirst, roce.OpRCWriteLast, roce.OpRCWriteOnly},
	ib.WRRDMAWriteWithImm: {roce.OpRCWriteMiddle, roce.OpRCWriteFirst, roce.OpRCWriteLastImm, roce.OpRCWriteOnlyImm},
	ib.WRSend:             {roce.OpRCSendMiddle, roce.OpRCSendFirst, roce.OpRCSendLast, roce.OpRCSendOnly},
	ib.WRSendWithImm:      {roce.OpRCSendMiddle, roce.OpRCSendFirst, roce.OpRCSendLastImm, roce.OpRCSendOnlyImm},
	ib.WRSendWithInv:      {roce.OpRCSendMiddle, roce.OpRCSendFirst, roce.OpRCSendLastInv, roce.OpRCSendOnlyInv},
	ib.WRAtomicWrite:      {3: roce.OpRCAtomicWrite},
}

// answered reports whether an operation is acknowledged by a response of its
// own instead of an ACK: it takes one of max_rd_atomic.
func answered(op ib.WROpcode) bool {
	return op == ib.WRRDMARead || atomic(op) || extended(op)
}

func atomic(op ib.WROpcode) bool {
	return op == ib.WRAtomicCmpAndSwp || op == ib.WRAtomicFetchAndAdd
}

// start begins at a PSN, with an empty send queue.
func (r *requester) start(first psn.PSN) {
	r.una, r.next, r.end = first, first, first
	r.dest = r.b.Dest
	r.seek()
}

// stop ends all work: nothing is under way any more.
func (r *requester) stop(e *transport.Env) {
	r.forget(e)
	r.una, r.next = r.end, r.end
	r.rnrAt, r.gapped, r.stuck, r.asking, r.probing = 0, false, false, false, false
	r.reads = 0
}

// rehome moves what is under way to the window of another destination: the
// address was changed in the state SQD.
func (r *requester) rehome(e *transport.Env) {
	if r.dest == r.b.Dest {
		return
	}
	if r.outPkts > 0 {
		r.dest.Forget(e, r.outBytes, r.outPkts)
		r.b.Dest.Sent(r.outBytes)
		for range r.outPkts - 1 {
			r.b.Dest.Sent(0)
		}
	}
	r.dest = r.b.Dest
}

// idle reports whether no message that has started is unfinished.
func (r *requester) idle() bool { return r.una == r.end && !r.begun() }

// begun reports whether the message at cur has been sent in part.
func (r *requester) begun() bool {
	return r.cur != r.b.SQ.Tail() && r.b.SQ.At(r.cur).Started
}

// drain tells once, in the state SQD, that the last message that had started
// is complete, if the application asked for it (IBA 10.3.1.4).
func (r *requester) drain(e *transport.Env) {
	if !r.drained && r.idle() {
		r.drained = true
		if r.notify {
			e.Raise(r.b.Events, ib.EventSQDrained)
		}
	}
}

// seek makes una the next PSN to be sent.
func (r *requester) seek() {
	r.next = r.una
	r.cur = r.b.SQ.Head()
	r.off, r.cursor = 0, transport.Cursor{}
	r.stuck, r.asking, r.probing = false, false, false
	r.reads = 0
	if r.b.SQ.Len() == 0 {
		return
	}
	if w := r.b.SQ.At(r.cur); w.Started && w.FirstPSN != r.una {
		r.off = uint64((r.una-w.FirstPSN)&psn.Mask) * uint64(r.b.MTU)
		if !answered(w.Op) && w.Flags&ib.SendInline == 0 {
			r.cursor.Seek(w.SGL, r.off)
		}
	}
}

// send sends what queue, windows and depth allow, up to sendBudget packets.
func (r *requester) send(e *transport.Env) {
	b := r.b
	b.Flow.MaxSegs = b.Dest.GSO.MaxSegs()
	for budget := sendBudget; r.cur != b.SQ.Tail() && r.rnrAt == 0 && !r.stuck; budget-- {
		if budget == 0 {
			r.qp.again(e)
			return
		}
		w := b.SQ.At(r.cur)
		if !w.Started && !r.begin(e, w) {
			return
		}
		if w.Done {
			r.passLocal(e)
			continue
		}
		var sent bool
		switch {
		case !answered(w.Op):
			sent = r.sendData(e, w)
		case atomic(w.Op):
			sent = r.sendAtomic(e, w)
		case extended(w.Op):
			sent = r.sendExtended(e, w)
		default:
			sent = r.sendRead(e, w)
		}
		if !sent {
			return
		}
	}
}

// begin starts the message of w, if it may start: PSNs are given to it.
func (r *requester) begin(e *transport.Env, w *queue.WQE) bool {
	b := r.b
	if b.State == ib.QPStateSQD {
		return false
	}
	// A fence waits for earlier READs and atomics, not for SENDs and WRITEs
	// (IBA 10.8.3.3). Those that are not sent yet hold up the queue anyway.
	if w.Flags&ib.SendFence != 0 && r.reads > 0 {
		return false
	}
	if queue.Local(w.Op) {
		return r.beginLocal(e, w)
	}
	n := 1
	switch w.Op {
	case ib.WRSend, ib.WRSendWithImm, ib.WRSendWithInv, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm:
		n = r.packets(w.Length)
	case ib.WRRDMARead, ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAndAdd, ib.WRFlush, ib.WRAtomicWrite:
		// With a depth of 0 it could never be sent.
		if b.Attr.MaxRDAtomic == 0 {
			b.Fault(r.cur, ib.VendorErrNoRDAtomic)
			return r.stall(e, w, ib.WCLocQPOpErr)
		}
		if w.Op == ib.WRRDMARead {
			n = r.packets(w.Length)
			if b.SinkRemoteWrite && !b.SinkWritable(e, w) {
				b.Fault(r.cur, ib.VendorErrReadSink)
				return r.stall(e, w, ib.WCLocProtErr)
			}
		}
	default:
		return r.stall(e, w, ib.WCLocQPOpErr)
	}
	if w.Length > ib.MaxMsgSize {
		return r.stall(e, w, ib.WCLocLenErr)
	}
	w.Started = true
	w.FirstPSN = r.next
	w.LastPSN = r.next.Add(n - 1)
	return true
}

// packets is the number of PSNs that n bytes take.
func (r *requester) packets(n uint64) int {
	return max(1, int((n+uint64(r.b.MTU)-1)/uint64(r.b.MTU)))
}

// stall stops sending at WQE cur: it ends with status as soon as all earlier
// ones are complete. Always false.
func (r *requester) stall(e *transport.Env, w *queue.WQE, status ib.WCStatus) bool {
	w.Status = status
	r.stuck = true
	r.settle(e)
	return false
}

// settle ends a stuck WQE whose turn has come.
func (r *requester) settle(e *transport.Env) {
	if r.stuck && r.cur == r.b.SQ.Head() {
		r.qp.failSend(e, r.b.SQ.At(r.cur).Status)
	}
}

// sendData sends one packet of a SEND or WRITE.
func (r *requester) sendData(e *transport.Env, w *queue.WQE) bool {
	b := r.b
	n := min(w.Length-r.off, uint64(b.MTU))
	pos := 0
	if r.next == w.FirstPSN {
		pos = 1
	}
	last := r.next == w.LastPSN
	if last {
		pos |= 2
	}
	op := opcodes[w.Op][pos] | r.qp.class
	info := op.Info()
	pad := int(-n & 3)
	size := info.HdrLen + int(n) + pad + roce.ICRCLen
	if !r.room(size) {
		return false
	}

	cursor := r.cursor
	pieces, status := cursor.SendPieces(e.Mem, b.PD, w, r.off, n, r.qp.pieces[:0])
	if status != ib.WCSuccess {
		r.qp.keep(pieces)
		return r.stall(e, w, status)
	}
	again := r.next.Before(r.end)
	// What is sent again is copied, as READ responses are: the source may have
	// changed under way.
	h := e.Begin(b.Flow, info.HdrLen, int(n), len(pieces), again)
	b.Dest.Sent(size)
	ask := last || r.askNow(size)
	se := last && w.Flags&ib.SendSolicited != 0 && w.Op != ib.WRRDMAWrite && w.Op != ib.WRAtomicWrite
	roce.BTH(h).Put(op, se, pad, uint16(b.PKey), uint32(b.Attr.DestQPN), ask, r.next)
	if info.XRCETH != 0 {
		roce.XRCETH(h[info.XRCETH:]).Put(w.RemoteSRQN)
	}
	if info.RETH != 0 {
		roce.RETH(h[info.RETH:]).Put(w.RemoteAddr, uint32(w.RKey), uint32(w.Length))
	}
	if info.Imm != 0 {
		roce.ImmDt(h[info.Imm:]).Put(w.Imm)
	}
	if info.IETH != 0 {
		roce.IETH(h[info.IETH:]).Put(uint32(w.InvKey))
	}
	for _, p := range pieces {
		if e.Tx.Payload(p) != nil {
			e.Tx.Abort()
			b.Dest.Forget(e, size, 1)
			r.qp.keep(pieces)
			return r.stall(e, w, ib.WCLocProtErr)
		}
	}
	e.Tx.End()
	r.qp.keep(pieces)

	r.cursor = cursor
	r.off += n
	r.sent(e, size, r.next.Next(), ask)
	if last {
		r.nextWQE()
	}
	return true
}

// sendRead sends one READ request packet: the rest of the WQE up to the next
// multiple of readChunk. Cutting a READ bounds what a responder streams into
// our receive buffer at once; where the cuts are depends only on the WQE, so
// that a repeated request is a part of one that the responder has seen.
func (r *requester) sendRead(e *transport.Env, w *queue.WQE) bool {
	b := r.b
	if r.reads >= int(b.Attr.MaxRDAtomic) {
		return false
	}
	i := uint32((r.next - w.FirstPSN) & psn.Mask)
	total := span(w)
	c := r.chunk()
	stop := min((i/c+1)*c, total)
	size, _ := r.cost(w, i, stop)
	if !r.room(size) {
		return false
	}
	mtu := uint64(b.MTU)
	off := uint64(i) * mtu
	n := min(uint64(stop)*mtu, w.Length) - off
	h := r.beginRequest(e, roce.OpRCReadRequest, roce.RETHLen, w)
	roce.RETH(h).Put(w.RemoteAddr+off, uint32(w.RKey), uint32(n))
	e.Tx.End()
	b.Dest.Sent(size)
	r.reads++
	r.off = off + n
	r.sent(e, size, w.FirstPSN.Add(int(stop)), true)
	if stop == total {
		r.nextWQE()
	}
	return true
}

// sendAtomic sends an atomic request.
func (r *requester) sendAtomic(e *transport.Env, w *queue.WQE) bool {
	b := r.b
	size, _ := r.cost(w, 0, 1)
	if r.reads >= int(b.Attr.MaxRDAtomic) || !r.room(size) {
		return false
	}
	op, swapAdd, compare := roce.OpRCFetchAdd, w.CompareAdd, uint64(0)
	if w.Op == ib.WRAtomicCmpAndSwp {
		op, swapAdd, compare = roce.OpRCCompareSwap, w.Swap, w.CompareAdd
	}
	h := r.beginRequest(e, op, roce.AtomicETHLen, w)
	roce.AtomicETH(h).Put(w.RemoteAddr, uint32(w.RKey), swapAdd, compare)
	e.Tx.End()
	b.Dest.Sent(size)
	r.reads++
	r.sent(e, size, r.next.Next(), true)
	r.nextWQE()
	return true
}

// beginRequest begins a request packet without payload that asks for a response
// of its own. It gives the space of the ext bytes of header that say what for.
func (r *requester) beginRequest(e *transport.Env, op roce.Opcode, ext int, w *queue.WQE) []byte {
	b := r.b
	op |= r.qp.class
	hdr := op.Info().HdrLen
	e.Room(0)
	h := e.Tx.Begin(b.Flow, hdr, 0)
	roce.BTH(h).Put(op, false, 0, uint16(b.PKey), uint32(b.Attr.DestQPN), true, r.next)
	if at := op.Info().XRCETH; at != 0 {
		roce.XRCETH(h[at:]).Put(w.RemoteSRQN)
	}
	return h[hdr-ext:]
}

// sent accounts for a packet of n bytes whose PSNs end before stop.
func (r *requester) sent(e *transport.Env, n int, stop psn.PSN, ask bool) {
	if r.next.Before(r.end) {
		e.Stats.Retransmits++
	}
	if stop.After(r.end) {
		r.end = stop
	}
	if r.b.Dest.GSO == transport.GSOUnknown && !r.probing && e.Tx.Joined() {
		r.probe, r.probing = r.next, true
	}
	r.next = stop
	r.outBytes += n
	r.outPkts++
	r.unasked++
	if ask {
		r.asked, r.asking, r.unasked = stop.Add(-1), true, 0
	}
	if r.ackAt == 0 {
		r.startTimer(e)
	}
}

func (r *requester) nextWQE() {
	r.cur++
	r.off, r.cursor = 0, transport.Cursor{}
}

// span is the number of PSNs of a message that has started.
func span(w *queue.WQE) uint32 { return uint32((w.LastPSN-w.FirstPSN)&psn.Mask) + 1 }

// chunk is the number of PSNs of a full READ request packet.
func (r *requester) chunk() uint32 { return uint32(readChunk / r.b.MTU) }
