package shard

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
)

// fakePort is a port whose datagrams the test makes.
type fakePort struct {
	mu   sync.Mutex
	in   []pkt.Datagram
	sent int // messages
	more chan struct{}
	kick chan struct{}

	waits  atomic.Int64          // calls of Wait that blocked
	asleep chan struct{}         // if not nil: told of each of them
	onRecv func()                // if not nil: called after a Recv that gave something
	onWait func(d time.Duration) // if not nil: instead of blocking
}

func newFakePort() *fakePort {
	return &fakePort{more: make(chan struct{}, 1), kick: make(chan struct{}, 1)}
}

func (p *fakePort) AddLocal(netip.Addr) (int, error) { return 0, nil }
func (p *fakePort) Caps() port.Caps                  { return port.Caps{MaxSegs: 64, IDKnown: true} }
func (p *fakePort) Stats() port.Stats                { return port.Stats{} }
func (p *fakePort) Close() error                     { return nil }

func (p *fakePort) Send(b *pkt.Tx) {
	p.mu.Lock()
	p.sent += len(b.Msgs)
	p.mu.Unlock()
}

func (p *fakePort) Recv(b *pkt.Rx) int {
	p.mu.Lock()
	n := min(len(p.in), cap(b.Dgrams))
	b.Dgrams = append(b.Dgrams[:0], p.in[:n]...)
	p.in = p.in[n:]
	left := len(p.in)
	p.mu.Unlock()
	if left > 0 {
		signal(p.more)
	}
	if n > 0 && p.onRecv != nil {
		p.onRecv()
	}
	return n
}

func (p *fakePort) Wait(d time.Duration) {
	if p.onWait != nil {
		p.onWait(d)
		return
	}
	var limit <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		limit = t.C
	}
	p.waits.Add(1)
	if p.asleep != nil {
		p.asleep <- struct{}{}
	}
	select {
	case <-p.more:
	case <-p.kick:
	case <-limit:
	}
}

func (p *fakePort) Kick() { signal(p.kick) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (p *fakePort) arrive(d ...pkt.Datagram) {
	p.mu.Lock()
	p.in = append(p.in, d...)
	p.mu.Unlock()
	signal(p.more)
}

// packet is a datagram to a queue pair: UD SEND_ONLY without payload.
func packet(n ib.QPN, psn int) pkt.Datagram {
	b := make([]byte, roce.BTHLen+roce.DETHLen+roce.ICRCLen)
	roce.BTH(b).Put(roce.OpUDSendOnly, false, 0, 0xFFFF, uint32(n), false, 0)
	b[9], b[10], b[11] = byte(psn>>16), byte(psn>>8), byte(psn)
	p := roce.NewPath(there, here, 0xC000)
	roce.PutICRC(b[len(b)-roce.ICRCLen:], p.Compute(b, 7))
	return pkt.Datagram{
		Data: b, SegSize: len(b), Src: netip.AddrPortFrom(there, 0xC000), Dst: here, ID: 7, IDKnown: true,
	}
}

// fakeQP is a queue pair whose service only records.
type fakeQP struct {
	transport.QP
	sh *Shard

	// Under the shard's lock.
	at      int64 // Deadline
	packets int
	posts   int
	acks    int
	timers  []int64
	onTimer func(e *transport.Env)
	onPkt   func(e *transport.Env)
	onPost  func(e *transport.Env)
}

func (q *fakeQP) Base() *transport.QP                                { return &q.QP }
func (q *fakeQP) Modified(*transport.Env, ib.QPState, ib.QPAttrMask) {}
func (q *fakeQP) Deadline() int64                                    { return q.at }
func (q *fakeQP) Ack(*transport.Env)                                 { q.acks++ }
func (q *fakeQP) Packet(e *transport.Env, _ *transport.Packet) {
	q.packets++
	if q.onPkt != nil {
		q.onPkt(e)
	}
}

func (q *fakeQP) Post(e *transport.Env) {
	q.posts++
	if q.onPost != nil {
		q.onPost(e)
	}
}

func (q *fakeQP) Timer(e *transport.Env) {
	q.timers = append(q.timers, e.Now)
	q.at = 0
	if q.onTimer != nil {
		q.onTimer(e)
	}
}

// set gives the queue pair a deadline, as a post would.
func (q *fakeQP) set(at int64) {
	q.sh.Lock()
	q.at = at
	q.sh.Unlock(&q.QP)
}

func (q *fakeQP) look(f func()) { q.sh.Inspect(f) }

// completes makes every packet a completion of c.
func (q *fakeQP) completes(c *queue.CQ) {
	q.onPkt = func(e *transport.Env) { e.Complete(c, &driver.WC{}, false) }
}

func addQP(t testing.TB, e *Engine, n ib.QPN) *fakeQP {
	t.Helper()
	q := &fakeQP{sh: e.ShardFor(n)}
	q.Num, q.Type = n, ib.UD
	q.QP.Service = q
	if err := e.Add(&q.QP, q.sh); err != nil {
		t.Fatal(err)
	}
	return q
}

// virtual is an engine that the test turns, at times that it says.
type virtual struct {
	*Engine
	port *fakePort
	now  int64
}

func newVirtual(shards int) *virtual {
	v := &virtual{port: newFakePort(), now: 1e9}
	v.Engine = NewEngine(Config{
		Port: v.port, Mem: mem.NewTable(16, 1), Clock: func() int64 { return v.now }, Shards: shards, Manual: true,
	})
	return v
}

func (v *virtual) turnAt(now int64) int64 {
	v.now = now
	return v.Turn(now)
}

var epoch = time.Now()

// newReal is an engine with a background thread.
func newReal(t testing.TB, shards int) (*Engine, *fakePort) {
	t.Helper()
	e, p := newIdle(shards)
	e.Start()
	t.Cleanup(e.Close)
	return e, p
}

// newIdle is one without: the test plays it.
func newIdle(shards int) (*Engine, *fakePort) {
	p := newFakePort()
	return NewEngine(Config{
		Port: p, Mem: mem.NewTable(16, 1), Clock: func() int64 { return int64(time.Since(epoch)) + 1 }, Shards: shards,
	}), p
}

func pathOf(d *pkt.Datagram) roce.Path { return roce.NewPath(d.Src.Addr(), d.Dst, d.Src.Port()) }

func putID(p *roce.Path, b []byte, id uint16) {
	roce.PutICRC(b[len(b)-roce.ICRCLen:], p.Compute(b, id))
}
