package ud

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Post sends what may be sent.
func (u *UC) Post(e *transport.Env) {
	q := u.q
	for range postPackets {
		switch q.State {
		case ib.QPStateRTS:
		case ib.QPStateSQD:
			// What has begun is finished, nothing else starts.
			if u.off == 0 {
				u.retire(e)
				u.drained(e)
				return
			}
		case ib.QPStateSQE:
			q.FlushSends(e)
			return
		case ib.QPStateErr:
			q.FlushSends(e)
			q.FlushRecvs(e)
			return
		default:
			return
		}
		w := u.pending()
		if w != nil && queue.Local(w.Op) {
			if status := q.Local(e, q.SQ.Head()+u.sent); status != ib.WCSuccess {
				u.resume = 0
				u.fail(e, status)
				return
			}
			u.done()
			continue
		}
		if w == nil || u.rests(e, w) {
			u.retire(e)
			return
		}
		u.segments()
		if status := u.packet(e, w); status != ib.WCSuccess {
			u.off, u.resume = 0, 0
			u.fail(e, status)
			return
		}
	}
	u.retire(e)
	if q.SQ.Len() > 0 {
		e.Ready = append(e.Ready, q)
	}
}

// segments says how far the packets may be segmented on the way. A path of which
// that is unknown cannot be probed without acknowledgements: it is left to the
// reliable queue pairs that share it.
func (u *UC) segments() {
	d := u.q.Dest
	if d == nil {
		return
	}
	u.q.Flow.MaxSegs = d.GSO.MaxSegs()
	if d.GSO == transport.GSOUnknown {
		u.q.Flow.MaxSegs = 1
	}
}

// rests reports whether the next packet of w has to wait, and until when.
func (u *UC) rests(e *transport.Env, w *queue.WQE) bool {
	if e.Now-u.pacedAt >= paceTime || u.pacedAt == 0 {
		u.pacedAt, u.pacedBytes, u.pacedPkts = e.Now, 0, 0
	}
	n := int(min(w.Length-u.off, uint64(u.q.MTU)))
	if u.pacedPkts < pacePkts && u.pacedBytes+n <= paceBytes || u.pacedPkts == 0 {
		u.resume = 0
		u.pacedPkts++
		u.pacedBytes += n
		return false
	}
	u.resume = u.pacedAt + paceTime
	return true
}

// packet puts the next packet of w into the batch.
func (u *UC) packet(e *transport.Env, w *queue.WQE) ib.WCStatus {
	q := u.q
	n := int(min(w.Length-u.off, uint64(q.MTU)))
	first, last := u.off == 0, u.off+uint64(n) == w.Length
	op, ok := ucOpcode(w.Op, first, last)
	if !ok {
		return ib.WCLocQPOpErr
	}
	if first {
		u.cursor = transport.Cursor{}
	}
	defer u.release()
	if status := u.local(e, &u.cursor, w, u.off, uint64(n)); status != ib.WCSuccess {
		return status
	}
	info := op.Info()
	h := e.Begin(q.Flow, info.HdrLen, n, len(u.pieces), false)
	se := w.Flags&ib.SendSolicited != 0 && info.Flags.Any(roce.FlagEnd) && info.Flags.Any(roce.FlagSend|roce.FlagImm)
	roce.BTH(h).Put(op, se, roce.PadLen(n), uint16(q.PKey), uint32(q.Attr.DestQPN), false, u.next)
	if o := info.RETH; o != 0 {
		roce.RETH(h[o:]).Put(w.RemoteAddr, uint32(w.RKey), uint32(w.Length))
	}
	if o := info.Imm; o != 0 {
		roce.ImmDt(h[o:]).Put(w.Imm)
	}
	if !u.payload(e, n) {
		return ib.WCLocProtErr
	}
	e.Tx.End()
	u.next = u.next.Next()
	u.off += uint64(n)
	if last {
		u.off = 0
		u.done()
	}
	return ib.WCSuccess
}

// ucOpcode gives the opcode of a packet of a message; a message of one packet
// is first and last.
func ucOpcode(op ib.WROpcode, first, last bool) (roce.Opcode, bool) {
	var row *[5]roce.Opcode
	imm := false
	switch op {
	case ib.WRSendWithImm:
		imm = true
		row = &ucSend
	case ib.WRSend:
		row = &ucSend
	case ib.WRRDMAWriteWithImm:
		imm = true
		row = &ucWrite
	case ib.WRRDMAWrite:
		row = &ucWrite
	default:
		return 0, false
	}
	switch {
	case first && !last:
		return row[0], true
	case !first && !last:
		return row[1], true
	case first && imm:
		return row[4], true
	case first:
		return row[3], true
	case imm:
		return row[2] + 1, true
	}
	return row[2], true
}

// First, middle, last (with immediate data: one more), only, only with
// immediate data.
var (
	ucSend = [5]roce.Opcode{
		roce.OpUCSendFirst, roce.OpUCSendMiddle, roce.OpUCSendLast, roce.OpUCSendOnly, roce.OpUCSendOnlyImm,
	}
	ucWrite = [5]roce.Opcode{
		roce.OpUCWriteFirst, roce.OpUCWriteMiddle, roce.OpUCWriteLast, roce.OpUCWriteOnly, roce.OpUCWriteOnlyImm,
	}
)
