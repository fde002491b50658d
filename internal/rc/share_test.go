package rc

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Queue pairs that share a window share it: one that always has more to send
// does not keep out another whose turn it is, whatever needs more room.
func TestWindowIsShared(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		o := defaults()
		o.bufs = 1 << 20
		w := newWorld(t, o)
		w.mute = true
		a := w.a
		for range 20 { // the window is as large as it gets
			a.q.Dest.Sent(4 << 20)
			a.q.Dest.Acked(&a.env, 4<<20, 1)
		}
		// Another queue pair of A's shard, to the same destination; nobody answers it.
		other := &transport.QP{
			Num: 0x777, Type: ib.RC, PD: a.pd, PKey: ib.PKeyDefault, SQ: queue.NewSQ(4, 4, 0), RQ: queue.NewRQ(0, 1),
			SendCQ: a.scq, RecvCQ: a.rcq, MTU: 1024, Dest: a.q.Dest, Attr: a.q.Attr,
		}
		other.Flow = &pkt.Flow{Path: roce.NewPath(addrOf(a), addrOf(w.b), 0xC001)}
		qp := New(other)
		for _, s := range []ib.QPState{ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS} {
			from := other.State
			other.State = s
			qp.Modified(&a.env, from, ib.QPAttrState)
		}
		fed := 0
		feed := func() {
			for ; a.q.SQ.Len() < 32; fed++ {
				a.push(a.write(uint64(fed), 0, 0, 1<<20))
			}
			poll(a.scq)
		}
		feed()
		a.kick()
		a.settle() // until the window is full
		wr := a.write(1, 0, 0, 40<<10)
		wr.Opcode = op
		if other.SQ.Push(&wr) == nil {
			t.Fatal("full")
		}
		qp.Post(&a.env)
		w.want("waits", qp.req.next, qp.req.una)
		for range 200 {
			feed()
			a.kick()
			w.a.settle()
			w.b.settle()
			batch := w.wire
			w.wire = nil
			for i := range batch {
				if len(batch[i].b) > 0 && qp.req.outPkts == 0 {
					batch[i].deliver()
				}
			}
			if qp.req.outPkts > 0 {
				break
			}
		}
		if qp.req.outPkts == 0 {
			t.Errorf("%v: starved while %d others left", op, fed)
		}
	}
}
