package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// room reports whether a packet of n bytes (with its responses) may leave. Who has
// some under way stays behind those that wait: small packets do not pass a large
// one for ever. If not, Dest calls back. A message of which nothing under way asks
// for an ACK may go one packet too far: that packet will ask.
func (r *requester) room(n int) bool {
	if psn.Diff(r.next, r.una) >= maxUnacked {
		return false
	}
	if (r.outPkts > 0 && r.b.Dest.Contended() || !r.b.Dest.Room(n)) && (r.outPkts == 0 || r.asking) {
		r.b.Dest.Wait(r.b)
		return false
	}
	return true
}

// askNow decides about AckReq inside a message: when the window is half full,
// or nothing has asked for long, and no earlier packet waits for its ACK. Where
// packets get lost the one that fills the window asks too: else one lost ACK
// stops a small window until the timer ends.
func (r *requester) askNow(n int) bool {
	d := r.b.Dest
	full := !d.Room(n)
	return full && d.Narrow() || !r.asking && (r.unasked >= askEvery || d.HalfFull() || full)
}

// cost is what the packets i to j-1 of a message count in the window: bytes of
// UDP payload and datagrams. A READ counts its responses, as one datagram for
// each request.
func (r *requester) cost(w *queue.WQE, i, j uint32) (bytes, pkts int) {
	xrc := r.qp.xrcLen()
	if atomic(w.Op) {
		return roce.BTHLen + roce.AtomicETHLen + roce.ICRCLen + xrc, 1
	}
	if w.Op == ib.WRFlush {
		return roce.BTHLen + roce.FETHLen + roce.RETHLen + roce.ICRCLen + xrc, 1
	}
	n := span(w)
	count := int(j - i)
	bytes = count * (r.b.MTU + roce.BTHLen + roce.ICRCLen)
	if j == n {
		bytes = int((w.Length+3)&^3) - int(i)*r.b.MTU + count*(roce.BTHLen+roce.ICRCLen)
	}
	if w.Op == ib.WRRDMARead {
		c := r.chunk()
		pkts = int(j/c - i/c)
		if j == n && n%c != 0 {
			pkts++
		}
		return bytes + count*roce.AETHLen, pkts
	}
	bytes += count * xrc
	if i == 0 && (w.Op == ib.WRRDMAWrite || w.Op == ib.WRRDMAWriteWithImm || w.Op == ib.WRAtomicWrite) {
		bytes += roce.RETHLen
	}
	if j == n && (w.Op == ib.WRRDMAWriteWithImm || w.Op == ib.WRSendWithImm || w.Op == ib.WRSendWithInv) {
		bytes += roce.ImmDtLen
	}
	return bytes, count
}
