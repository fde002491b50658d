package rdmarw_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// nothing is n READs of no bytes that complete for w.
func (r *rig) nothing(w *watch, n int) []verbs.SendWR {
	return slices.Repeat([]verbs.SendWR{{Opcode: ib.WRRDMARead, WRID: r.a.rw.WRID(&w.CQE), Flags: ib.SendSignaled}}, n)
}

// Completions are taken in batches up to the budget, whatever lies in the queue.
func TestProcessBudget(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.Cap.MaxSendWR = 100 })
	w := newWatch()
	must(t, q.QP().PostSendAll(r.nothing(w, 100)))
	r.kick()
	r.net.RunFor(1e9)
	total := 0
	for _, c := range []struct{ budget, want int }{{0, 0}, {1, 1}, {15, 15}, {16, 16}, {17, 17}, {40, 40}, {-1, 11}, {-1, 0}, {5, 0}} {
		n, err := r.a.rw.Process(c.budget)
		must(t, err)
		if total += n; n != c.want || len(w.got) != total {
			t.Errorf("budget %d: %d, want %d; told of %d", c.budget, n, c.want, len(w.got))
		}
	}
}

// A callback may process the queue, post, and forget itself: no lock is held.
func TestCallbacksMayDoEverything(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.Cap.MaxSendWR = 200 })
	w, depth, most := newWatch(), 0, 0
	posted := 40
	var e rdmarw.CQE
	e.Done = func(cq *rdmarw.CQ, wc *verbs.WC) {
		if cq != r.a.rw || cq.CQ() != r.a.cq || wc.Err() != nil {
			t.Errorf("%+v", wc)
		}
		depth++
		most = max(most, depth)
		if _, err := cq.Process(1); err != nil {
			t.Error(err)
		}
		depth--
		if posted < 60 {
			posted++
			must(t, q.QP().PostSendAll(r.nothing(w, 1)))
		}
		cq.WRID(new(rdmarw.CQE))
	}
	wr := r.nothing(w, 1)[0]
	wr.WRID = r.a.rw.WRID(&e)
	must(t, q.QP().PostSendAll(slices.Repeat([]verbs.SendWR{wr}, 40)))
	r.kick()
	r.net.RunFor(1e9) // now they all lie in the queue
	r.wait(w, 20)
	if most < 5 {
		t.Errorf("callbacks were nested %d deep", most)
	}
}

func TestWRIDs(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.Cap.MaxSendWR = 100 })
	cq, other := r.a.rw, rdmarw.NewCQ(r.a.rcq, nil)
	ws := make([]*watch, 20)
	ids := map[uint64]bool{0: true}
	for i := range ws {
		ws[i] = newWatch()
		id := cq.WRID(&ws[i].CQE)
		if ids[id] || cq.WRID(&ws[i].CQE) != id {
			t.Errorf("WRID %d", id)
		}
		ids[id] = true
	}
	for _, w := range ws {
		must(t, q.QP().PostSendAll(r.nothing(w, 1)))
	}
	for _, w := range ws {
		r.wait(w, 1)
	}
	// One CQE on two queues.
	id := other.WRID(&ws[3].CQE)
	if other.WRID(&ws[3].CQE) != id || cq.WRID(&ws[3].CQE) == 0 {
		t.Error("two queues")
	}
	other.Dispatch([]verbs.WC{{WRID: id}})
	if len(ws[3].got) != 2 {
		t.Error("the other queue does not know it")
	}
	other.Forget(&ws[3].CQE)
	other.Forget(&ws[3].CQE)
	other.Dispatch([]verbs.WC{{WRID: id}})
	cq.Dispatch([]verbs.WC{{WRID: cq.WRID(&ws[3].CQE)}})
	if len(ws[3].got) != 3 {
		t.Errorf("%d completions", len(ws[3].got))
	}
	// A place that was left is taken again, under another number.
	old := cq.WRID(&ws[5].CQE)
	cq.Forget(&ws[5].CQE)
	w := newWatch()
	now := cq.WRID(&w.CQE)
	if uint32(now) != uint32(old) || now == old {
		t.Errorf("WRID %#x, was %#x", now, old)
	}
	r.a.lost = nil
	cq.Dispatch([]verbs.WC{{WRID: old}, {WRID: now}, {WRID: 1 << 40}, {WRID: 0}})
	if len(w.got) != 1 || len(r.a.lost) != 3 {
		t.Errorf("told of %+v, nobody of %+v", w.got, r.a.lost)
	}
	if cq.WRID(&ws[5].CQE) == old {
		t.Error("the old number is back")
	}
	other.Dispatch([]verbs.WC{{WRID: 7}, {WRID: other.WRID(new(rdmarw.CQE))}}) // to nobody
}

// Draining hands what is left to the CQEs.
func TestDrain(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(nil)
	w := newWatch()
	r.net.Filter(func(*netEvent) netVerdict { return netDrop })
	must(t, q.QP().PostSendAll(r.nothing(w, 5)))
	must(t, q.QP().Drain(context.Background(), r.a.rw.Dispatch))
	if len(w.got) != 5 || w.got[4].Status != ib.WCWRFlushErr {
		t.Errorf("%+v", w.got)
	}
}

// Errors of the queue come out of Process and Run.
func TestProcessErrors(t *testing.T) {
	r := newRig(t, setup{})
	gone := ok(r.a.ctx.CreateCQ(4, nil, nil))(t)
	cq := rdmarw.NewCQ(gone, nil)
	must(t, gone.Destroy())
	_, err := cq.Process(-1)
	if !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if err := cq.Run(context.Background()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.a.rw.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
