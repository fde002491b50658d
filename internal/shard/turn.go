package shard

import (
	"errors"
	"math"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// turnDatagrams bounds the datagrams of one turn.
const turnDatagrams = 64

// starved is the least lateness of a timer that counts as a pause of the whole
// process and not as scheduling noise.
const starved = 1e6

// turn reads the socket, then lets the shards concerned fire their timers. It
// returns the number of datagrams. The caller holds rxMu; e.rxDeliver must be
// delivered after it is released.
func (e *Engine) turn(now int64) int {
	now = e.unstarve(now)
	e.last = now
	e.turns++
	n := e.cfg.Port.Recv(&e.rx)
	var s *Shard
	for i := range e.rx.Dgrams {
		s = e.datagram(now, s, &e.rx.Dgrams[i])
	}
	if e.handed { // before what is ours is answered: somebody may sleep
		e.share.Flush()
		e.handed = false
	}
	if s != nil {
		s.end(&e.rxDeliver)
	}
	for _, o := range e.shards {
		d := o.deadline.Load()
		// What a shard owes since this turn waits for the next one.
		if d != 0 && d <= now || o.owes.Load() && o.turn != e.turns {
			o.begin(now)
			o.end(&e.rxDeliver)
		}
	}
	return n
}

// unstarve notices that the process did not run for a while: a deadline passed
// by more than half of the time that was left to it at the last turn. The
// engine's time then goes on where it stopped, which pushes every deadline by
// the gap, once: what arrived meanwhile is read before a timer fires. A deadline
// that is missed again after that fires: on a machine that is always late the
// engine's time must go on.
func (e *Engine) unstarve(now int64) int64 {
	d := e.nextDeadline()
	if d == math.MaxInt64 || d >= now || e.last == 0 || d <= e.last || d == e.pushed {
		return now
	}
	if late := now - d; late > starved && late > (d-e.last)/2 {
		e.skew.Add(now - e.last)
		e.pushed = d
		return e.last
	}
	return now
}

// datagram handles the segments of one datagram. s is the shard whose lock is
// held, or nil; the one whose lock is held afterwards is returned.
func (e *Engine) datagram(now int64, s *Shard, d *pkt.Datagram) *Shard {
	var path *peerPath
	data, id := d.Data, d.ID
	if len(data) == 0 {
		e.rxStats.DropShort++
	}
	for len(data) > 0 {
		seg := data[:min(d.SegSize, len(data))]
		data = data[len(seg):]
		m := e.parse(seg, id, d)
		if e.cfg.Trace != nil && m != foreign && m != relayed {
			traceRx(e.cfg.Trace, e.cfg.Clock(), seg, id, d)
		}
		if m == relayed {
			id++
			continue
		}
		if m == foreign {
			rest := e.forward(data, seg, id, d)
			id += uint16((len(data)-len(rest)+d.SegSize-1)/d.SegSize) + 1
			data = rest
			continue
		}
		if m != nil {
			if path == nil {
				path = e.peers.path(d)
			}
			if m == management {
				s = e.manage(now, s, path, seg, id, d)
				id++
				continue
			}
			if m == everyone {
				s = e.multicast(now, s, path, seg, id, d)
				id++
				continue
			}
			s = e.enter(now, s, m.sh)
			if m.gone { // removed between the look-up and the lock
				e.rxStats.DropNoQP++
			} else if e.check(s, m.qp, path, seg, id, d) {
				s.env.Count(&m.qp.Stats)
				m.qp.Stats.RcvdPackets++
				m.qp.Service.Packet(&s.env, &e.pkt)
				s.arm(m.qp)
			}
		}
		id++
	}
	return s
}

// enter ends the step of the shard that is locked, nil if none is, and begins
// one of another, unless it is the same.
func (e *Engine) enter(now int64, locked, s *Shard) *Shard {
	if s == locked {
		return s
	}
	if locked != nil {
		locked.end(&e.rxDeliver)
	}
	s.turn = e.turns
	s.begin(now)
	return s
}

// parse cuts a segment into e.pkt and finds its queue pair; nil if it was
// dropped.
func (e *Engine) parse(seg []byte, id uint16, d *pkt.Datagram) *member {
	st := &e.rxStats
	if err := roce.Parse(seg, &e.pkt.Packet); err != nil {
		switch {
		case errors.Is(err, roce.ErrShort):
			st.DropShort++
			return nil
		case errors.Is(err, roce.ErrVersion):
			st.DropVersion++
			return nil
		case errors.Is(err, roce.ErrPad):
			st.DropPad++
			return nil
		case e.pkt.Op.Transport() != roce.TransportRC && e.pkt.Op.Transport() != roce.TransportXRC:
			st.DropOpcode++
			return nil
		}
		// An unknown opcode of a reliable service is answered with a NAK by the
		// queue pair, once the packet proved to be its peer's and intact.
	}
	n := ib.QPN(e.pkt.BTH.DestQP())
	if n == ib.QPNMulticast || d.Dst.IsMulticast() {
		return e.toGroup(n, d)
	}
	m := e.qps.find(n)
	if m == nil {
		switch {
		case e.share != nil && n != ib.QPNGSI && n&e.mask != e.bits:
			return foreign
		case e.share != nil && n == ib.QPNGSI && !e.keep(seg, id, d):
			return relayed
		case n != ib.QPNGSI:
			st.DropNoQP++
		case e.gsi != nil:
			return management
		default:
			st.DropGSI++
		}
		return nil
	}
	return m
}

// check verifies that the packet in e.pkt is for this service, from the peer,
// and intact. Nothing else of it was looked at before that.
func (e *Engine) check(s *Shard, q *transport.QP, path *peerPath, seg []byte, id uint16, d *pkt.Datagram) bool {
	st := &q.Stats
	if e.pkt.Op.Transport() != transportOf(q.Type) {
		if e.pkt.Op == roce.OpCNP {
			st.CNPIgnored++
		} else {
			st.DropTransport++
		}
		return false
	}
	if q.Type != ib.UD {
		if q.Flow == nil {
			st.DropState++
			return false
		}
		// Both addresses are the connection's; the peer's UDP port is free.
		if q.Flow.Dst() != path.Src() || q.Flow.Src() != path.Dst() || q.Flow.Local != d.Local {
			st.DropSource++
			return false
		}
	}
	return e.intact(st, s.env.Now, path, seg, id, d)
}

// intact verifies the ICRC of the packet in e.pkt and completes it.
func (e *Engine) intact(st *transport.Stats, now int64, path *peerPath, seg []byte, id uint16, d *pkt.Datagram) bool {
	switch {
	case d.IDKnown || path.Is6():
		if !path.Check(seg, id) {
			st.DropICRC++
			return false
		}
	default:
		var ok bool
		if id, ok = path.Solve(seg); !ok {
			st.DropICRC++
			return false
		}
		if !path.peer.ids.PlausibleAt(now, id) {
			st.DropID++
			return false
		}
	}
	e.pkt.Dgram, e.pkt.ID = d, id
	return true
}

func transportOf(t ib.QPType) roce.Transport {
	switch t {
	case ib.UC:
		return roce.TransportUC
	case ib.UD:
		return roce.TransportUD
	case ib.XRCSend, ib.XRCRecv:
		return roce.TransportXRC
	}
	return roce.TransportRC
}
