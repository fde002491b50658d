package cm

import (
	"runtime"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// pair is two managers that hear each other at once.
type pair struct {
	a, b *Manager
	now  int64
}

func newPair(t testing.TB) *pair {
	p := &pair{a: newManager(1, guidA), b: newManager(2, guidB), now: 1}
	if _, err := p.b.Listen(ListenParams{ServiceID: sidT}); err != nil {
		t.Fatal(err)
	}
	return p
}

func deliver(now int64, from, to *Manager) {
	for _, o := range from.Outgoing() {
		to.Receive(now, o.Remote, o.Local, o.MAD[:])
	}
}

func (p *pair) connect(t testing.TB, qpn uint32) (active, passive *Conn) {
	req := reqParams()
	req.QPN = qpn
	active, err := p.a.Connect(p.now, req)
	if err != nil {
		t.Fatal(err)
	}
	deliver(p.now, p.a, p.b)
	passive = p.b.Events()[0].Conn
	rep := repParams()
	rep.QPN = qpn
	if err := p.b.Accept(p.now, passive, rep); err != nil {
		t.Fatal(err)
	}
	deliver(p.now, p.b, p.a)
	p.a.Events()
	if err := p.a.RTU(p.now, active, nil); err != nil {
		t.Fatal(err)
	}
	deliver(p.now, p.a, p.b)
	p.b.Events()
	if active.State() != StateEstablished || passive.State() != StateEstablished {
		t.Fatal(active.State(), passive.State())
	}
	return active, passive
}

// BenchmarkCycle is a connection from REQ to the end of TIMEWAIT, both sides.
func BenchmarkCycle(b *testing.B) {
	p := newPair(b)
	b.ReportAllocs()
	for i := range b.N {
		a, s := p.connect(b, uint32(i)&0xFFFFFF)
		_ = p.a.Disconnect(p.now, a, nil)
		deliver(p.now, p.a, p.b)
		p.b.Events()
		_ = p.b.SendDREP(p.now, s, nil)
		deliver(p.now, p.b, p.a)
		p.now += 1024 * ms
		p.a.Timer(p.now)
		p.b.Timer(p.now)
		p.a.Events()
		p.b.Events()
	}
	if p.a.Conns()+p.b.Conns() != 0 {
		b.Fatal("left over")
	}
}

// BenchmarkStray is a message that belongs to nothing, answered without state.
func BenchmarkStray(b *testing.B) {
	m := newManager(1, guidA)
	g := newMsg(mad.AttrDREQ, 1).ids(5, 6)
	b.ReportAllocs()
	for range b.N {
		m.Receive(1, addrA, addrB, g.b[:])
		m.Outgoing()
	}
}

// BenchmarkHold says what an established connection costs in memory, per side.
func BenchmarkHold(b *testing.B) {
	const n = 10000
	for range b.N {
		p := newPair(b)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range uint32(n) {
			p.connect(b, i+1)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(2*n), "B/conn")
		runtime.KeepAlive(p)
	}
}

// What is repeated, dropped or answered without state allocates nothing.
func TestNoAllocations(t *testing.T) {
	r := newRig(t)
	r.listen()
	c := r.reach(StateReqSent, false)
	busy := r.reach(StateEstablished, true)
	again := peerREP(1, peerID+7, c.localID+1, 5)
	dreq, req := newMsg(mad.AttrDREQ, 1).ids(5, 6), peerREQ(peerTID, peerID, peerQPN)
	lost := peerREQ(peerTID, 77, 78).u64(8, 5)
	if busy.State() != StateEstablished {
		t.Fatal(busy.State())
	}
	if n := testing.AllocsPerRun(100, func() {
		r.recv(again)
		r.recv(dreq)
		r.recv(req)
		r.recv(lost)
		r.m.Outgoing()
		r.m.Events()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(10, func() {
		r.m.Timer(r.m.Deadline())
		r.m.Outgoing()
	}); n != 0 {
		t.Errorf("%v allocations of a repetition", n)
	}
}
