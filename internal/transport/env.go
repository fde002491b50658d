package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Env is what a protocol step works with. A shard owns one; it is valid while
// the shard's lock is held.
type Env struct {
	Now  int64 // ns; read once a turn
	Skew int64 // ns that the device's clock is ahead of Now
	Tx   *pkt.Tx
	Mem  *mem.Table
	// Stats are the counters of the queue pair whose step this is; see Count.
	Stats *Stats
	// PKeyDrops and QKeyDrops count for all queue pairs: ports tell them often.
	PKeyDrops, QKeyDrops uint64
	// Send transmits Tx and resets it; it calls Sent.
	Send func()

	// Settle returns when no step on another shard works with memory that it looked
	// up before; nil where there is none.
	Settle func()

	// Ready holds queue pairs to be given a Post again in this turn: their
	// destination's window opened, or a bounded piece of work is left over.
	Ready []*QP
	// Owed holds queue pairs that owe an ACK which may wait for company.
	Owed []*QP
	// Doomed holds queue pairs that lost a completion; see FailDoomed.
	Doomed []*QP

	counted int // packets of Tx that are in SentPackets

	fired     []*queue.CQ
	events    []event
	moderated []*queue.CQ // with a notification that is held back
	// moderatedAt is when the first of them is due at the earliest, 0 = there is none.
	moderatedAt int64
}

type event struct {
	sink driver.EventSink
	typ  ib.EventType
}

// Count has the counters s count what happens from now on: a step of the queue
// pair that they belong to begins.
func (e *Env) Count(s *Stats) {
	if e.Stats == s {
		return
	}
	e.credit()
	e.Stats = s
}

// credit counts the packets that are in the batch since the last time.
func (e *Env) credit() {
	e.Stats.SentPackets += uint64(e.Tx.Packets - e.counted)
	e.counted = e.Tx.Packets
}

// Sent tells that the batch is leaving and will be empty.
func (e *Env) Sent() {
	e.credit()
	e.counted = 0
}

// BadPKey counts a packet that is dropped for its partition.
func (e *Env) BadPKey() {
	e.Stats.DropPKey++
	e.PKeyDrops++
}

// BadQKey counts a datagram that is dropped for its Q_Key.
func (e *Env) BadQKey() {
	e.Stats.DropQKey++
	e.QKeyDrops++
}

// Room makes sure that a packet of up to frags payload pieces fits into Tx.
func (e *Env) Room(frags int) {
	if e.Tx.Full(frags) {
		e.Send()
	}
}

// RoomCopy makes sure that a packet with n bytes of copied payload fits into Tx.
func (e *Env) RoomCopy(n int) {
	if e.Tx.FullCopy(n) {
		e.Send()
	}
}

// Begin makes room for a packet of n bytes of payload in that many pieces and
// begins it. copied: its bytes are copied, the ICRC holds whatever happens to the
// memory; so are crumbs, which would be more fragments than one send takes.
func (e *Env) Begin(f *pkt.Flow, hdrLen, n, pieces int, copied bool) []byte {
	if copied = copied || pieces > pkt.MaxPieces; copied {
		e.RoomCopy(n)
	} else {
		e.Room(pieces)
	}
	h := e.Tx.Begin(f, hdrLen, n)
	if copied {
		e.Tx.Copy()
	}
	return h
}

// Complete puts a completion into cq. Its notification is delivered after the
// lock is released. An overrun raises CQ_ERR (IBA 11.6.3.1).
func (e *Env) Complete(cq *queue.CQ, wc *driver.WC, solicited bool) {
	fire, overrun, held := cq.PushAt(e.Now, e.Now+e.Skew, wc, solicited)
	if held {
		e.hold(cq)
	}
	if fire {
		e.fired = append(e.fired, cq)
	}
	if overrun {
		e.Stats.CQOverruns++
		e.fired = append(e.fired, cq)
		e.Raise(cq.EventSink(), ib.EventCQErr)
	}
}

// Raise queues an asynchronous event, delivered after the lock is released.
func (e *Env) Raise(sink driver.EventSink, t ib.EventType) {
	if sink != nil {
		e.events = append(e.events, event{sink, t})
	}
}

// Pending reports whether Deliver has something to do.
func (e *Env) Pending() bool { return len(e.fired)+len(e.events) > 0 }

// Take moves what is to be delivered to d, which the caller empties with
// Deliver after it released the lock.
func (e *Env) Take(d *Deliveries) {
	d.fired = append(d.fired, e.fired...)
	d.events = append(d.events, e.events...)
	clear(e.fired)
	clear(e.events)
	e.fired, e.events = e.fired[:0], e.events[:0]
}

// Deliveries are notifications and events on their way to the application.
type Deliveries struct {
	fired  []*queue.CQ
	events []event
}

// Any reports whether there is something to deliver.
func (d *Deliveries) Any() bool { return len(d.fired)+len(d.events) > 0 }

// Deliver calls the application's side. No lock may be held.
func (d *Deliveries) Deliver() {
	for _, cq := range d.fired {
		cq.Notify()
	}
	for _, ev := range d.events {
		ev.sink(ev.typ)
	}
	clear(d.fired)
	clear(d.events)
	d.fired, d.events = d.fired[:0], d.events[:0]
}

// Packet is a received packet as a service gets it: parsed, its ICRC checked,
// for this queue pair, and (RC, UC) from the peer's address.
type Packet struct {
	roce.Packet
	Dgram *pkt.Datagram
	ID    uint16 // IP identification (IPv4), as told or solved
}

// Service is a transport service: what internal/rc and internal/ud implement
// for one queue pair each.
type Service interface {
	// Base gives the common part.
	Base() *QP
	// Modified tells that the attributes named by mask were stored in
	// Base().Attr and the state went from one to another (possibly the same);
	// the service takes over what it needs. In the states Err and Reset
	// it flushes or forgets its work.
	Modified(e *Env, from ib.QPState, mask ib.QPAttrMask)
	// Post sends what may be sent: after posts, and when it is in Env.Ready.
	Post(e *Env)
	// Packet handles a received packet.
	Packet(e *Env, p *Packet)
	// Ack sends the ACK that is owed, if one is.
	Ack(e *Env)
	// Timer handles a deadline that has passed.
	Timer(e *Env)
	// Deadline is the next time at which Timer wants to be called, 0 = never.
	Deadline() int64
}
