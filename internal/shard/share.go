package shard

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Several processes may share an address. What comes in here and is for another
// one's queue pair is not looked at any further: it is given to that process, whose
// business checks and answers are.

// foreign is what parse finds for a packet to a queue pair of another process.
var foreign = new(member)

// relayed is what it finds for a management datagram that was given to another process.
var relayed = new(member)

// Numbers tells which queue pair numbers this process may give: every n with
// n&mask == bits, as [port.Sharer] has it.
func (e *Engine) Numbers() (bits, mask ib.QPN) { return e.bits, e.mask }

// destQP is the queue pair number in a segment's BTH, which is there.
func destQP(seg []byte) ib.QPN {
	return ib.QPN(seg[5])<<16 | ib.QPN(seg[6])<<8 | ib.QPN(seg[7])
}

// forward gives the segment in e.pkt, and those that follow in data for the same
// process, to that process. It returns what is left of data.
func (e *Engine) forward(data, seg []byte, id uint16, d *pkt.Datagram) []byte {
	n := ib.QPN(e.pkt.BTH.DestQP())
	run := seg
	count := uint64(1)
	for len(data) > 0 {
		next := data[:min(d.SegSize, len(data))]
		if len(next) < roce.BTHLen || destQP(next)&e.mask != n&e.mask {
			break
		}
		run = run[:len(run)+len(next)]
		data = data[len(next):]
		count++
	}
	if d.Relayed { // whoever gave it to us was wrong: it must not go round
		e.rxStats.DropNoQP += count
		return data
	}
	switch e.share.Forward(n, e.cut(d, run, id)) {
	case port.Handed:
		e.handed = true
		e.rxStats.Strays += count
	case port.Full:
		e.rxStats.DropStray += count
	default:
		e.rxStats.DropNoQP += count
	}
	return data
}

// cut makes a datagram of some of the segments of d, which stand in data. It is valid
// until the next call.
func (e *Engine) cut(d *pkt.Datagram, data []byte, id uint16) *pkt.Datagram {
	e.part = *d
	e.part.Data, e.part.SegSize, e.part.ID = data, min(d.SegSize, len(data)), id
	return &e.part
}

// keep reports whether the management datagram in e.pkt, a segment of d, is this
// process's. If not, it was given to the one whose it is.
func (e *Engine) keep(seg []byte, id uint16, d *pkt.Datagram) bool {
	if d.Relayed || e.pkt.Op != roce.OpUDSendOnly || len(e.pkt.Payload) != driver.MADLen {
		return true // what it is, is looked at where it is counted
	}
	switch e.share.Management(e.cut(d, seg, id), e.pkt.Payload) {
	case port.Handed:
		e.handed = true
		e.rxStats.MADRelayed++
	case port.Full:
		e.rxStats.DropStray++
	case port.Nobody:
		e.rxStats.DropGSI++
	default:
		return true
	}
	return false
}
