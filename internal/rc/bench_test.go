package rc

import (
	"reflect"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// fastLane replaces the wire by buffers that are used again, so that a benchmark
// sees the protocol alone: packets go to the peer within Send.
type fastLane struct {
	w    *world
	bufs [2][]byte // one for each direction
	ps   [2]transport.Packet
	wcs  [64]driver.WC
}

func newFastLane(t testing.TB, o options) *fastLane {
	l := &fastLane{w: newWorld(t, o)}
	for i, s := range []*side{l.w.a, l.w.b} {
		l.bufs[i] = make([]byte, 0, 1<<22)
		s.env.Send = func() { l.carry(i, s) }
	}
	return l
}

// carry copies the batch of s behind what the peer has not seen yet.
func (l *fastLane) carry(i int, s *side) {
	tx := s.env.Tx
	for k := range tx.Msgs {
		m := &tx.Msgs[k]
		at := len(l.bufs[i])
		for _, f := range tx.Frags[m.First : m.First+m.Count] {
			l.bufs[i] = append(l.bufs[i], f...)
		}
		l.cut(i, s.peer, l.bufs[i][at:], m.SegSize)
	}
	tx.Reset()
	l.bufs[i] = l.bufs[i][:0]
}

func (l *fastLane) cut(i int, to *side, b []byte, seg int) {
	for len(b) > 0 {
		n := min(seg, len(b))
		if err := roce.Parse(b[:n], &l.ps[i].Packet); err != nil {
			l.w.t.Fatal(err)
		}
		to.qp.Packet(&to.env, &l.ps[i])
		b = b[n:]
	}
}

// turn lets both sides work until nothing is left.
func (l *fastLane) turn() {
	a, b := l.w.a, l.w.b
	for {
		a.finish()
		b.finish()
		if !l.w.busy() {
			return
		}
	}
}

func (s *side) finish() {
	for i := 0; i < len(s.env.Ready); i++ {
		s.env.Ready[i].Service.Post(&s.env)
	}
	s.env.Ready = s.env.Ready[:0]
	for _, q := range s.env.Owed {
		q.Owes = false
		q.Service.Ack(&s.env)
	}
	s.env.Owed = s.env.Owed[:0]
	s.env.Send()
}

func (l *fastLane) drain(n int) {
	for n > 0 {
		k := l.w.a.scq.Poll(l.wcs[:])
		for i := range k {
			if l.wcs[i].Status != ib.WCSuccess {
				l.w.t.Fatal(l.wcs[i].Status)
			}
		}
		if k == 0 {
			l.w.t.Fatal("completions are missing")
		}
		n -= k
	}
}

func benchWrites(b *testing.B, op ib.WROpcode, size, batch int) {
	o := defaults()
	o.mtu, o.bufs = ib.MTU4096, 2<<20
	l := newFastLane(b, o)
	wr := l.w.a.write(1, 0, 0, size)
	wr.Opcode = op
	round := func(n int) {
		for range n {
			l.w.a.push(wr)
		}
		l.w.a.kick()
		l.turn()
		l.drain(n)
	}
	round(batch)
	round(batch)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for n := b.N; n > 0; n -= batch {
		round(min(n, batch))
	}
}

func BenchmarkWrite8(b *testing.B)    { benchWrites(b, ib.WRRDMAWrite, 8, 32) }
func BenchmarkWrite8x1(b *testing.B)  { benchWrites(b, ib.WRRDMAWrite, 8, 1) }
func BenchmarkWrite64K(b *testing.B)  { benchWrites(b, ib.WRRDMAWrite, 64<<10, 4) }
func BenchmarkWrite1M(b *testing.B)   { benchWrites(b, ib.WRRDMAWrite, 1<<20, 1) }
func BenchmarkRead64K(b *testing.B)   { benchWrites(b, ib.WRRDMARead, 64<<10, 4) }
func BenchmarkFetchAdd8(b *testing.B) { benchWrites(b, ib.WRAtomicFetchAndAdd, 8, 4) }

func BenchmarkSend8(b *testing.B) {
	l := newFastLane(b, defaults())
	wr := l.w.a.sendWR(1, 0, 8)
	rwr := []driver.RecvWR{{SGList: []driver.SGE{l.w.b.sge(0, 64)}}}
	round := func(n int) {
		for range n {
			if _, err := l.w.b.q.RQ.Post(rwr); err != nil {
				b.Fatal(err)
			}
			l.w.a.push(wr)
		}
		l.w.a.kick()
		l.turn()
		l.drain(n)
		for n > 0 {
			n -= l.w.b.rcq.Poll(l.wcs[:])
		}
	}
	round(32)
	b.ReportAllocs()
	b.ResetTimer()
	for n := b.N; n > 0; n -= 32 {
		round(min(n, 32))
	}
}

// The paths of data allocate nothing.
func TestNoAllocations(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead, ib.WRAtomicFetchAndAdd, ib.WRRDMAWriteWithImm, ib.WRSend} {
		o := defaults()
		o.mtu = ib.MTU1024
		l := newFastLane(t, o)
		size := 20_000
		if op == ib.WRAtomicFetchAndAdd {
			size = 8
		}
		wr := l.w.a.write(1, 0, 0, size)
		wr.Opcode = op
		rwr := []driver.RecvWR{{SGList: []driver.SGE{l.w.b.sge(0, 30_000)}}}
		round := func() {
			if op == ib.WRSend || op == ib.WRRDMAWriteWithImm {
				_, _ = l.w.b.q.RQ.Post(rwr)
			}
			l.w.a.push(wr)
			l.w.a.kick()
			l.turn()
			l.drain(1)
			l.w.b.rcq.Poll(l.wcs[:])
		}
		for range 5 {
			round()
		}
		if n := testing.AllocsPerRun(20, round); n != 0 {
			t.Errorf("%v: %v allocations", op, n)
		}
	}
}

// An idle queue pair's own state stays small.
func TestSize(t *testing.T) {
	qp, res := reflect.TypeFor[QP]().Size(), reflect.TypeFor[resource]().Size()
	n := qp + 16*(res+1)
	t.Logf("QP %d bytes, resource %d bytes", qp, res)
	if n > 2048 {
		t.Errorf("a queue pair of depth 16 takes %d bytes", n)
	}
}
