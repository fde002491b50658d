package shard

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/internal/transport"
)

// Config is what an engine works with.
type Config struct {
	Port   port.Port
	Mem    *mem.Table
	Clock  func() int64 // monotonic ns, never 0
	Shards int
	// Manual switches off every progress but that by Turn: the simulated
	// network drives.
	Manual bool
	// Trace is shown every packet; nil: nobody looks.
	Trace trace.Recorder
}

// Engine is the data path of an open device.
type Engine struct {
	cfg    Config
	waiter port.Waiter // nil: the port cannot block
	share  port.Sharer // nil: every packet is this process's
	bits   ib.QPN      // what queue pair numbers of this process have ...
	mask   ib.QPN      // ... in these bits
	shards []*Shard
	qps    table

	rxMu      sync.Mutex // receive side: rx and what follows
	rx        pkt.Rx
	peers     peers
	last      int64 // time of the last turn
	turns     uint64
	pushed    int64 // the deadline that unstarve pushed last
	skew      atomic.Int64
	rxStats   transport.Stats // drops before a shard is known
	pkt       transport.Packet
	groups    map[netip.Addr][]seat // multicast
	gsi       *GSI                  // queue pair 1; nil: nobody serves it
	gsiNext   psn.PSN               // of the next datagram from queue pair 1; means nothing to anybody; under the first shard's lock
	part      pkt.Datagram          // scratch of cut
	handed    bool                  // something was forwarded in this turn
	rxDeliver transport.Deliveries

	deliveries sync.Pool
	progress
}

// NewEngine makes an engine; Start begins background progress.
func NewEngine(cfg Config) *Engine {
	e := &Engine{cfg: cfg}
	e.waiter, _ = cfg.Port.(port.Waiter)
	if s, ok := cfg.Port.(port.Sharer); ok {
		if e.bits, e.mask = s.Numbers(); e.mask != 0 {
			e.share = s
		}
	}
	e.deliveries.New = func() any { return new(transport.Deliveries) }
	e.rx.Dgrams = make([]pkt.Datagram, 0, turnDatagrams)
	e.peers.init()
	for range max(cfg.Shards, 1) {
		e.shards = append(e.shards, newShard(e))
	}
	e.progress.init()
	return e
}

// now is the clock less the pauses during which the process was starved.
func (e *Engine) now() int64 { return e.cfg.Clock() - e.skew.Load() }

// ErrNumberInUse tells that a queue pair with the number exists.
var ErrNumberInUse = errors.New("queue pair number in use")

// ShardFor picks the shard of a new queue pair.
func (e *Engine) ShardFor(n ib.QPN) *Shard { return e.shards[int(n)%len(e.shards)] }

// Add makes the queue pair reachable under its number.
func (e *Engine) Add(q *transport.QP, s *Shard) error {
	q.Timer.Owner = q
	if !e.qps.add(&member{qp: q, sh: s}) {
		return ErrNumberInUse
	}
	return nil
}

// Remove makes it unreachable and forgets it. When it returns no step for it
// is running or will run.
func (e *Engine) Remove(q *transport.QP, s *Shard) {
	s.mu.Lock()
	m := e.qps.remove(q.Num)
	if m != nil {
		m.gone = true
	}
	s.Drop(q)
	s.publish()
	s.mu.Unlock()
}

// Quiesce returns when every step that was running when it was called has
// ended: whatever it looked up before that is not used any more.
func (e *Engine) Quiesce() {
	for _, s := range e.shards {
		s.mu.Lock()
		//lint:ignore SA2001 passing through the lock is the purpose
		s.mu.Unlock()
	}
}

// Stats gives the sum of all counters.
func (e *Engine) Stats() transport.Stats {
	e.rxMu.Lock()
	t := e.rxStats
	e.rxMu.Unlock()
	for _, s := range e.shards {
		s.mu.Lock()
		t.Add(&s.own)
		e.qps.each(func(m *member) {
			if m.sh == s {
				t.Add(&m.qp.Stats)
			}
		})
		s.mu.Unlock()
	}
	return t
}

// Violations gives the number of packets that were dropped for their P_Key and
// for their Q_Key.
func (e *Engine) Violations() (pkey, qkey uint64) {
	for _, s := range e.shards {
		s.mu.Lock()
		pkey, qkey = pkey+s.env.PKeyDrops, qkey+s.env.QKeyDrops
		s.mu.Unlock()
	}
	return pkey, qkey
}

// Busy names what an idle engine should not have: windows in use, packets in
// batches, timers of no queue pair.
func (e *Engine) Busy() error {
	for _, s := range e.shards {
		s.mu.Lock()
		var err error
		for a, d := range s.dests {
			if !d.Idle() {
				err = errors.New("window to " + a.String() + " is not empty")
			}
		}
		if !s.env.Tx.Empty() {
			err = errors.New("a send batch is not empty")
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// nextDeadline is the earliest time at which a shard needs a turn, in the
// engine's time; MaxInt64 when none does.
func (e *Engine) nextDeadline() int64 {
	next := int64(math.MaxInt64)
	for _, s := range e.shards {
		if d := s.deadline.Load(); d != 0 && d < next {
			next = d
		}
	}
	return next
}

// ErrClosed tells that the engine was closed.
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string        { return "device is closed" }
func (closedError) Is(target error) bool { return target == syscall.EIO || target == net.ErrClosed }
