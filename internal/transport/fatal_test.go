package transport

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// flusher is a service that flushes when it is told of Err, as all do.
type flusher struct {
	Service
	q        *QP
	modified []ib.QPState // from where
}

func (f *flusher) Modified(e *Env, from ib.QPState, mask ib.QPAttrMask) {
	f.modified = append(f.modified, from)
	if mask != ib.QPAttrState {
		panic(mask)
	}
	if f.q.State == ib.QPStateErr {
		f.q.FlushRecvs(e)
	}
}

// Losing a completion ends a queue pair at the end of the step, once, whatever
// its state; what is flushed then is lost without further ado.
func TestFailDoomed(t *testing.T) {
	for _, state := range []ib.QPState{
		ib.QPStateReset, ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS, ib.QPStateSQD, ib.QPStateSQE, ib.QPStateErr,
	} {
		e := &Env{Stats: new(Stats), Tx: pkt.NewTx(pkt.TxCaps{MaxSegs: 1})}
		cq := queue.NewCQ(1)
		var events []ib.EventType
		sink := func(t ib.EventType) { events = append(events, t) }
		cq.SetEventSink(sink)
		q := &QP{State: state, RQ: queue.NewRQ(8, 1), RecvCQ: cq, Events: sink}
		s := &flusher{q: q}
		q.Service = s
		if n, err := q.RQ.Post(make([]driver.RecvWR, 6)); n != 6 || err != nil {
			t.Fatal(n, err)
		}
		for range 3 { // one fits
			if !q.TakeRecv(e) {
				t.Fatal("no receive request")
			}
			q.CompleteRecv(e, &driver.WC{}, false)
		}
		if q.State != state || len(s.modified) != 0 || len(e.Doomed) != 1 {
			t.Fatalf("%v: in the middle of the step: %v, %v, %d", state, q.State, s.modified, len(e.Doomed))
		}
		e.FailDoomed()
		var d Deliveries
		e.Take(&d)
		d.Deliver()
		stays := state == ib.QPStateReset || state == ib.QPStateErr
		want := 2
		if stays {
			want = 1
		}
		if len(events) != want || events[0] != ib.EventCQErr || !stays && events[1] != ib.EventQPFatal {
			t.Errorf("%v: events %v", state, events)
		}
		if stays && (q.State != state || len(s.modified) != 0) || !stays && (q.State != ib.QPStateErr || len(s.modified) != 1 || s.modified[0] != state) {
			t.Errorf("%v: now %v, modified from %v", state, q.State, s.modified)
		}
		if len(e.Doomed) != 0 || cq.Len() != 1 {
			t.Errorf("%v: %d doomed, %d completions", state, len(e.Doomed), cq.Len())
		}
		// Brought up again for the same queue, it ends again.
		if q.State = ib.QPStateRTS; !q.TakeRecv(e) {
			if n, err := q.RQ.Post(make([]driver.RecvWR, 1)); n != 1 || err != nil || !q.TakeRecv(e) {
				t.Fatal(n, err)
			}
		}
		q.CompleteRecv(e, &driver.WC{}, false)
		if e.FailDoomed(); q.State != ib.QPStateErr {
			t.Errorf("%v: brought up again: %v", state, q.State)
		}
	}
}
