package shard

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/timer"
	"github.com/verbena-rdma/verbena/internal/transport"
)

// Shard is the unit of mutual exclusion of the data path.
type Shard struct {
	mu     sync.Mutex
	env    transport.Env
	own    transport.Stats // what belongs to no queue pair, or to one that is gone
	eng    *Engine
	timers timer.Heap[*transport.QP]
	dests  map[netip.Addr]*transport.Dest

	due   []*transport.QP // owed their ACK since before this turn
	ready []*transport.QP // scratch: the Ready list being worked on

	// deadline is the earliest time at which the shard needs a turn, 0 = none.
	// Written under mu, read by whoever is about to sleep.
	deadline atomic.Int64
	owes     atomic.Bool   // Env.Owed is not empty
	settling atomic.Bool   // waits for other shards, in settle
	steps    atomic.Uint32 // that have ended; with one shard nobody counts

	turn uint64 // the last turn that brought packets; under the receive lock
}

func newShard(e *Engine) *Shard {
	s := &Shard{eng: e, dests: make(map[netip.Addr]*transport.Dest)}
	s.env.Mem, s.env.Stats = e.cfg.Mem, &s.own
	s.env.Tx = pkt.NewTx(pkt.TxCaps{MaxSegs: e.cfg.Port.Caps().MaxSegs})
	s.env.Send, s.env.Settle = s.send, s.settle
	return s
}

func (s *Shard) send() {
	if s.env.Tx.Empty() {
		return
	}
	s.env.Sent()
	if s.eng.cfg.Trace != nil {
		traceTx(s.eng.cfg.Trace, s.eng.cfg.Clock(), s.env.Tx)
	}
	s.eng.cfg.Port.Send(s.env.Tx)
	s.env.Tx.Reset()
}

// Lock takes the shard's lock and reads the clock. The Env is valid until
// Unlock.
func (s *Shard) Lock() *transport.Env {
	s.mu.Lock()
	s.env.Skew = s.eng.skew.Load()
	s.env.Now = s.eng.cfg.Clock() - s.env.Skew
	return &s.env
}

// LockFor is Lock for a step of the queue pair q, which counts it.
func (s *Shard) LockFor(q *transport.QP) *transport.Env {
	e := s.Lock()
	e.Count(&q.Stats)
	return e
}

// Unlock ends a step that began with Lock: work that became ready is done, ACKs
// that are owed leave with what is sent, timers are set, and after the lock is
// released the application's side is called. touched is the queue pair that the
// step was about, or nil.
func (s *Shard) Unlock(touched *transport.QP) { s.Release(touched).Deliver() }

// Release is Unlock for who holds a lock of its own: the application's side is
// called by Deliver, when that lock is released too.
func (s *Shard) Release(touched *transport.QP) Delivery {
	if touched != nil {
		s.arm(touched)
	}
	s.runReady()
	if len(s.env.Owed) > 0 && !s.env.Tx.Empty() {
		s.due, s.env.Owed = s.env.Owed, s.due
		s.payOwed()
	}
	return s.leave()
}

// Delivery is what a step has for the application.
type Delivery struct {
	eng *Engine
	d   *transport.Deliveries
}

// Deliver calls the application's side. No lock may be held.
func (v Delivery) Deliver() {
	if v.d != nil {
		v.d.Deliver()
		v.eng.deliveries.Put(v.d)
	}
}

// Inspect calls f under the lock. f only looks: nothing is sent or delivered.
func (s *Shard) Inspect(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// leave sends what is in the batch, publishes the deadline and releases the
// lock.
func (s *Shard) leave() (v Delivery) {
	s.env.FailDoomed()
	s.send()
	s.publish()
	d := s.deadline.Load()
	s.env.Count(&s.own)
	if s.env.Pending() {
		v = Delivery{s.eng, s.eng.deliveries.Get().(*transport.Deliveries)}
		s.env.Take(v.d)
	}
	s.unlock()
	s.eng.wakeFor(d)
	return v
}

// publish tells those who are about to sleep when the shard needs a turn. The
// earliest timer may be set for what is no more, for instance an ACK that has
// left meanwhile: a sleeper would wake for nothing in every ping-pong.
func (s *Shard) publish() {
	for range staleTimers {
		it := s.timers.First()
		if it == nil {
			break
		}
		d := it.Owner.Service.Deadline()
		if d == it.At() {
			break
		}
		s.timers.Set(it, d)
	}
	d := s.timers.Next()
	if at := s.env.ModeratedAt(); at != 0 && (d == 0 || at < d) {
		d = at
	}
	if len(s.env.Ready) > 0 {
		d = s.env.Now
	}
	s.deadline.Store(d)
	s.owes.Store(len(s.env.Owed) > 0)
}

// staleTimers bounds the timers that one step sets anew.
const staleTimers = 4

// arm schedules the queue pair's deadline. A deadline that moved later leaves
// the timer where it is: it then fires early and is set again, which is cheaper
// than moving it with every packet.
func (s *Shard) arm(q *transport.QP) {
	d := q.Service.Deadline()
	if d == 0 {
		return
	}
	if at := q.Timer.At(); at == 0 || d < at {
		s.timers.Set(&q.Timer, d)
	}
}

// runReady gives each queue pair on the Ready list one Post. What they leave
// over waits for the next turn, so that a turn is bounded.
func (s *Shard) runReady() {
	if len(s.env.Ready) == 0 {
		return
	}
	s.ready, s.env.Ready = s.env.Ready, s.ready[:0]
	for i, q := range s.ready {
		s.env.Count(&q.Stats)
		q.Service.Post(&s.env)
		s.arm(q)
		s.ready[i] = nil
	}
	s.ready = s.ready[:0]
}

// payOwed sends the ACKs of s.due.
func (s *Shard) payOwed() {
	for i, q := range s.due {
		q.Owes = false
		s.env.Count(&q.Stats)
		q.Service.Ack(&s.env)
		s.due[i] = nil
	}
	s.due = s.due[:0]
}

// begin starts a turn: the ACKs owed so far leave at its end.
func (s *Shard) begin(now int64) {
	s.mu.Lock()
	s.env.Now, s.env.Skew = now, s.eng.skew.Load()
	s.due, s.env.Owed = s.env.Owed, s.due
}

// end ends a turn.
func (s *Shard) end(d *transport.Deliveries) {
	s.runReady()
	s.expire()
	s.env.FireModerated()
	if len(s.env.Owed) > 0 && !s.env.Tx.Empty() {
		s.due = append(s.due, s.env.Owed...)
		clear(s.env.Owed)
		s.env.Owed = s.env.Owed[:0]
	}
	s.payOwed()
	s.env.FailDoomed()
	s.send()
	s.publish()
	s.env.Count(&s.own)
	if s.env.Pending() {
		s.env.Take(d)
	}
	s.unlock()
}

// expire fires the timers that are due.
func (s *Shard) expire() {
	// Each at most once: one that is due again at once waits for the next turn.
	for range s.timers.Len() {
		q, ok := s.timers.Expired(s.env.Now)
		if !ok {
			return
		}
		if d := q.Service.Deadline(); d != 0 && d <= s.env.Now {
			s.env.Count(&q.Stats)
			q.Service.Timer(&s.env)
		}
		s.arm(q)
	}
}

// Dest gives the shard's record of a destination address. The caller holds the
// lock. local tells that it is on this host, so that
// the way there needs no offload probe.
func (s *Shard) Dest(a netip.Addr, local bool) *transport.Dest {
	d := s.dests[a]
	if d == nil {
		gso := transport.GSOOn
		if s.eng.cfg.Port.Caps().NeedsProbe && !local && a.Unmap().Is4() {
			gso = transport.GSOUnknown
		}
		d = transport.NewDest(a, gso)
		if local {
			d.OnHost()
		}
		s.dests[a] = d
	}
	return d
}

// Drop removes a queue pair's timer and list entries: it is being destroyed.
// The caller holds the lock.
func (s *Shard) Drop(q *transport.QP) {
	s.timers.Set(&q.Timer, 0)
	s.own.Add(&q.Stats)
	s.env.Ready = without(s.env.Ready, q)
	s.env.Owed = without(s.env.Owed, q)
	if q.Dest != nil {
		q.Dest.Leave(q)
	}
}

func without(l []*transport.QP, q *transport.QP) []*transport.QP {
	n := 0
	for _, x := range l {
		if x != q {
			l[n] = x
			n++
		}
	}
	clear(l[n:])
	return l[:n]
}
