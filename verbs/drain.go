package verbs

import (
	"context"
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// The two highest WRIDs mark the end of the queues in Drain: a program that
// drains does not use them.
const (
	drainSendWRID = 1<<64 - 1
	drainRecvWRID = 1<<64 - 2
)

// Drain ends the queue pair's work, as the kernel's ib_drain_qp does: it moves
// the queue pair to ERR, so that what is left completes as flushed, posts a
// marker to each of its queues, and polls until the markers come out. Then no
// completion of the queue pair will come any more, and its memory is the
// application's again.
//
// Completions that come before are given to handle, those of other queue pairs
// on the same completion queues too; the slice is valid only during the call.
// With nil they are dropped. Nobody else may poll these completion queues
// meanwhile. With a shared receive queue only the send queue is drained: the
// requests that wait there are not this queue pair's. In RESET there is nothing
// to drain. The WRIDs from 1<<64 - 2 on are Drain's.
func (q *QP) Drain(ctx context.Context, handle func([]WC)) error {
	const op = "drain_qp"
	if !q.alive() {
		return opErr(op, errQPClosed)
	}
	if q.State() == ib.QPStateReset {
		return nil
	}
	d := drain{
		q: q, handle: handle,
		sendOut: q.init.Cap.MaxSendWR == 0,
		recvOut: q.init.SRQ != nil || q.init.Cap.MaxRecvWR == 0,
	}
	if q.State() != ib.QPStateErr {
		if err := q.qp.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); err != nil {
			return opErr(op, err)
		}
	}
	if q.init.SendCQ == nil {
		return nil // an XRC target: what it received is in other queues
	}
	if q.init.Type == ib.UD && !d.sendOut {
		if ah, err := q.pd.loopAH(); err == nil {
			defer ah.Destroy()
			d.ah = ah
		} else {
			// The device is gone or has no address at the moment: no marker can be
			// posted. What was posted is flushed since the move to ERR.
			d.sendOut, d.noMark = true, true
		}
	}
	return opErr(op, d.run(ctx))
}

// drain is the state of one Drain.
type drain struct {
	q      *QP
	handle func([]WC)
	ah     *AH // datagrams need one even to be flushed

	sendIn, recvIn   bool // the marker is posted
	sendOut, recvOut bool // the marker came out, or the queue has none
	noMark           bool // sends have no marker: their queue is polled until it is empty
	buf              [32]WC
}

func (d *drain) run(ctx context.Context) error {
	q := d.q
	for {
		if err := d.post(); err != nil {
			return err
		}
		n, err := d.poll(q.init.SendCQ)
		if err != nil {
			return err
		}
		if q.init.RecvCQ != nil && q.init.RecvCQ != q.init.SendCQ {
			m, err := d.poll(q.init.RecvCQ)
			if err != nil {
				return err
			}
			n += m
		}
		if d.sendOut && d.recvOut && (n == 0 || !d.noMark) {
			return nil
		}
		if n > 0 {
			continue
		}
		wait := q.init.SendCQ
		if d.sendOut {
			wait = q.init.RecvCQ
		}
		if err := wait.cq.Wait(ctx); err != nil {
			return err
		}
	}
}

// post posts the markers that are not in yet. A full queue gets room by what the
// flush completes.
func (d *drain) post() error {
	if !d.sendIn && !d.sendOut {
		wr := SendWR{WRID: drainSendWRID, Opcode: ib.WRSend, Flags: ib.SendSignaled}
		if d.ah != nil {
			wr.AH = d.ah
		}
		switch err := d.q.PostSendOne(&wr); {
		case err == nil:
			d.sendIn = true
		case !errors.Is(err, syscall.ENOMEM):
			return err
		}
	}
	if !d.recvIn && !d.recvOut {
		switch err := d.q.PostRecvOne(&RecvWR{WRID: drainRecvWRID}); {
		case err == nil:
			d.recvIn = true
		case !errors.Is(err, syscall.ENOMEM):
			return err
		}
	}
	return nil
}

// poll takes what a completion queue holds and hands it on, without the markers.
func (d *drain) poll(cq *CQ) (int, error) {
	n, err := cq.cq.Poll(d.buf[:])
	rest := d.buf[:0]
	for _, wc := range d.buf[:n] {
		switch {
		case wc.QPNum == d.q.Num() && wc.WRID == drainSendWRID:
			d.sendOut = true
		case wc.QPNum == d.q.Num() && wc.WRID == drainRecvWRID:
			d.recvOut = true
		default:
			rest = append(rest, wc)
		}
	}
	if len(rest) > 0 && d.handle != nil {
		d.handle(rest)
	}
	return n, err
}

// loopAH is an address handle to the first GID of the device itself.
func (p *PD) loopAH() (*AH, error) {
	gids, err := p.ctx.QueryGIDTable()
	if err != nil {
		return nil, err
	}
	if len(gids) == 0 {
		return nil, paramErr("drain_qp", "device", "has no GID", syscall.EADDRNOTAVAIL)
	}
	return p.createAH("drain_qp", &ib.AHAttr{
		IsGlobal: true, DGID: gids[0].GID, SGIDIndex: uint8(gids[0].Index), HopLimit: 1, PortNum: gids[0].Port,
	})
}
