package ud

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// inbound is the message that a UC queue pair is receiving.
type inbound struct {
	expect psn.PSN
	kind   msgKind
	off    uint64 // bytes received
	// SEND
	cursor transport.Cursor
	room   uint64 // bytes of the receive request
	// RDMA WRITE
	va     uint64
	dmaLen uint64
	rkey   ib.RKey

	pieces [][]byte // scratch
}

// msgKind is what a message in progress is. While there is none, MIDDLE and
// LAST packets are dropped.
type msgKind uint8

const (
	msgNone msgKind = iota
	msgSend
	msgWrite
)

func (in *inbound) start(p uint32) {
	in.expect = psn.PSN(p & psn.Mask)
	in.kind = msgNone
}

// Packet handles a received packet (IBA 9.8.3, responder of unreliable
// connections): never an answer; what cannot be delivered ends the message, and
// the next FIRST or ONLY packet is good again whatever its PSN. The receive
// request of an ended message is used for the next one.
func (u *UC) Packet(e *transport.Env, p *transport.Packet) {
	q, in := u.q, &u.in
	if !receives(q.State) {
		e.Stats.DropState++
		return
	}
	if p.Op.Transport() != roce.TransportUC {
		e.Stats.DropTransport++
		return
	}
	if !ib.PKey(p.BTH.PKey()).Matches(q.PKey) {
		e.BadPKey()
		return
	}
	q.Established(e)

	at, f := p.BTH.PSN(), p.Info.Flags
	start := f.Any(roce.FlagStart)
	kind := msgWrite
	if f.Any(roce.FlagSend) {
		kind = msgSend
	}
	fits := at == in.expect
	if psn.Diff(at, in.expect) > 0 {
		e.Stats.OutOfSeq++
	}
	in.expect = at.Next()
	switch {
	case start:
		if in.kind != msgNone {
			e.Stats.DropSequence++ // the rest of the message before is lost
		}
		in.kind, in.off = kind, 0
	case !fits || in.kind != kind:
		e.Stats.DropSequence++
		in.kind = msgNone
		return
	}
	if why := u.place(e, p); why != nil {
		*why++
		in.kind = msgNone
	}
}

// place checks the packet against its message, stores the payload, and
// completes the message with its last packet. What it returns is the counter of
// the reason for which the message is dropped, nil if it is not.
func (u *UC) place(e *transport.Env, p *transport.Packet) *uint64 {
	q, in, f := u.q, &u.in, p.Info.Flags
	n, mtu := len(p.Payload), q.MTU
	end := f.Any(roce.FlagEnd)
	switch {
	case !end && n != mtu, f.Any(roce.FlagLast) && n == 0, n > mtu:
		return &e.Stats.DropLength
	}
	defer in.release()
	if in.kind == msgWrite {
		if f.Any(roce.FlagStart) {
			h := p.RETH()
			in.va, in.rkey, in.dmaLen = h.VA(), ib.RKey(h.RKey()), uint64(h.DMALen())
			if in.dmaLen > ib.MaxMsgSize {
				return &e.Stats.DropLength
			}
			// The whole target is checked before a byte moves.
			if q.Attr.QPAccessFlags&ib.AccessRemoteWrite == 0 || !e.Mem.Reachable(q.PD, q.Num, in.rkey, in.va, in.dmaLen, ib.AccessRemoteWrite) {
				return &e.Stats.DropAccess
			}
		}
		after := in.off + uint64(n)
		if after > in.dmaLen || end && after != in.dmaLen {
			return &e.Stats.DropLength
		}
		if f.Any(roce.FlagImm) && !q.TakeRecv(e) {
			return &e.Stats.DropNoRecv
		}
		// Every packet looks the key up anew: the region may be gone by now.
		if !u.remote(e, in.off, uint64(n)) || transport.Scatter(in.pieces, p.Payload) != nil || !e.Mem.Arrived(uint32(in.rkey), in.va+in.off, uint64(n)) {
			return &e.Stats.DropAccess
		}
		in.off = after
	} else {
		if f.Any(roce.FlagStart) {
			if !q.TakeRecv(e) {
				return &e.Stats.DropNoRecv
			}
			in.cursor, in.room = transport.Cursor{}, min(transport.ListLen(q.Recv.SGL), ib.MaxMsgSize)
		}
		if in.off+uint64(n) > in.room {
			return &e.Stats.DropLength
		}
		var status ib.WCStatus
		at := in.cursor
		in.pieces, status = in.cursor.Pieces(e.Mem, q.PD, q.Recv.SGL, uint64(n), true, in.pieces[:0])
		if status == ib.WCSuccess && (transport.Scatter(in.pieces, p.Payload) != nil || !at.Arrived(e.Mem, q.Recv.SGL, uint64(n))) {
			status = ib.WCLocProtErr
		}
		if status != ib.WCSuccess {
			// The fault is ours, not the sender's: the request is of no use.
			u.off, u.resume, in.kind = 0, 0, msgNone
			u.broken(e, status)
			return nil
		}
		in.off += uint64(n)
	}
	if end {
		u.complete(e, p)
		in.kind = msgNone
	}
	return nil
}

// remote resolves n bytes at offset off of the WRITE's target.
func (u *UC) remote(e *transport.Env, off, n uint64) (ok bool) {
	in := &u.in
	in.pieces, ok = e.Mem.Remote(u.q.PD, u.q.Num, in.rkey, in.va+off, n, ib.AccessRemoteWrite, in.pieces[:0])
	return ok
}

// complete reports the message that has arrived in full.
func (u *UC) complete(e *transport.Env, p *transport.Packet) {
	in := &u.in
	imm := p.ImmDt()
	if in.kind == msgWrite {
		u.q.CountRemote(ib.CompCntrRemoteRDMAWrite, true)
		if imm == nil {
			return
		}
	}
	wc := driver.WC{Opcode: ib.WCRecv, ByteLen: uint32(in.off)}
	if in.kind == msgWrite {
		wc.Opcode = ib.WCRecvRDMAWithImm
	}
	if imm != nil {
		wc.Flags, wc.ImmData = ib.WCWithImm, imm.Data()
	}
	u.q.CompleteRecv(e, &wc, p.BTH.SE())
}

// release lets go of the memory that a packet touched.
func (in *inbound) release() {
	clear(in.pieces)
	in.pieces = in.pieces[:0]
}
