package ud

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Packet handles a received datagram (IBA 9.8.4, responder of unreliable
// datagrams). AckReq is ignored: Linux's rdma_rxe sets it on its management
// queue pair. A PSN means nothing here.
func (u *UD) Packet(e *transport.Env, p *transport.Packet) {
	q := u.q
	if !receives(q.State) {
		e.Stats.DropState++
		return
	}
	if p.Op != roce.OpUDSendOnly && p.Op != roce.OpUDSendOnlyImm {
		e.Stats.DropTransport++
		return
	}
	if !ib.PKey(p.BTH.PKey()).Matches(q.PKey) {
		e.BadPKey()
		return
	}
	deth := p.DETH()
	if ib.QKey(deth.QKey()) != q.Attr.QKey {
		e.BadQKey()
		return
	}
	if !q.TakeRecv(e) {
		e.Stats.DropNoRecv++
		return
	}
	n := uint64(len(p.Payload))
	if roce.GRHLen+n > transport.ListLen(q.Recv.SGL) {
		e.Stats.DropLength++ // the request stays, for a datagram that fits
		return
	}
	if status := u.deliver(e, p); status != ib.WCSuccess {
		u.broken(e, status)
		return
	}
	wc := driver.WC{
		Opcode: ib.WCRecv, Flags: ib.WCGRH, ByteLen: uint32(roce.GRHLen + n), SrcQP: ib.QPN(deth.SrcQP()),
	}
	if imm := p.ImmDt(); imm != nil {
		wc.Flags |= ib.WCWithImm
		wc.ImmData = imm.Data()
	}
	q.CompleteRecv(e, &wc, p.BTH.SE())
}

// deliver writes the network header and the payload into the receive request.
func (u *UD) deliver(e *transport.Env, p *transport.Packet) ib.WCStatus {
	q := u.q
	defer u.release()
	// All of it is checked before a byte moves.
	var c transport.Cursor
	var status ib.WCStatus
	u.pieces, status = c.Pieces(e.Mem, q.PD, q.Recv.SGL, roce.GRHLen, true, u.pieces[:0])
	if status != ib.WCSuccess {
		return status
	}
	k := len(u.pieces)
	u.pieces, status = c.Pieces(e.Mem, q.PD, q.Recv.SGL, uint64(len(p.Payload)), true, u.pieces)
	if status != ib.WCSuccess {
		return status
	}
	d := p.Dgram
	src, dst := d.Src.Addr(), d.Dst
	if src.Unmap().Is4() && dst.Unmap().Is4() {
		roce.PutGRH4(u.grh[:], src, dst, d.TOS, d.TTL, p.ID, len(p.B))
	} else {
		// The flow label is not known: sockets do not tell it, and senders use 0.
		roce.PutGRH6(u.grh[:], src, dst, d.TOS, 0, d.TTL, len(p.B))
	}
	if transport.Scatter(u.pieces[:k], u.grh[:]) != nil || transport.Scatter(u.pieces[k:], p.Payload) != nil ||
		!(transport.Cursor{}).Arrived(e.Mem, q.Recv.SGL, uint64(roce.GRHLen+len(p.Payload))) {
		return ib.WCLocProtErr
	}
	return ib.WCSuccess
}
