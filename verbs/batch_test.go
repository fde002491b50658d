package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// What a panic says is one of the things that it must.
func panics(t *testing.T, what, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
			t.Errorf("%s: panic %q, want %q", what, got, want)
		}
	}()
	f()
}

// An Abort that is deferred does nothing to a batch that was completed, nor to what
// comes after.
func TestAbortAfterComplete(t *testing.T) {
	r := newExRig(t, nil)
	post := func(stop bool) error {
		r.x.Start()
		defer r.x.Abort()
		r.x.WRFlags = ib.SendSignaled
		r.x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
		if stop {
			return errors.New("on the way")
		}
		return r.x.Complete()
	}
	for range 3 {
		if err := post(false); err != nil {
			t.Fatal(err)
		}
		if post(true) == nil {
			t.Fatal("no error")
		}
	}
	for _, wc := range r.wcs(r.a.cq, 3) {
		if wc.Status != ib.WCSuccess {
			t.Errorf("%+v", wc)
		}
	}
	r.x.Abort()
}

// A second StartPoll of the one who polls tells so; reading outside a batch says
// what is wrong.
func TestCQExMisuse(t *testing.T) {
	r, x := exCQ(t, verbs.CQInitAttrEx{CQE: 10, Flags: ib.CQSingleThreaded, WCFlags: ib.WCExCompletionTimestamp})
	const outside = "verbs: CQEx read outside StartPoll and EndPoll"
	panics(t, "before the first batch", outside, func() { x.ReadOpcode() })
	r.writes(1, 1)
	if err := x.StartPoll(); err != nil {
		t.Fatal(err)
	}
	if err := x.StartPoll(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "EndPoll") {
		t.Errorf("second StartPoll: %v", err)
	}
	if x.WRID() != 1 || x.ReadCompletionTS() == 0 {
		t.Error("the batch is another one")
	}
	if err := x.NextPoll(); !errors.Is(err, verbs.ErrNoCompletion) {
		t.Errorf("second completion: %v", err)
	}
	panics(t, "behind the last", outside, func() { x.Status() })
	x.EndPoll()
	x.EndPoll()
	panics(t, "after the batch", outside, func() { x.ReadCompletionTS() })
	panics(t, "after the batch", outside, func() { x.WC() })
}

func TestSGEPanicTellsTheRange(t *testing.T) {
	r := newRig(t, 9000)
	panics(t, "SGE", "SGE of 60 bytes at offset 8 is not in the memory region of 64 bytes", func() { r.a.mem(64).SGE(8, 60) })
}

// An object that waits for acknowledgements says so when it gives up.
func TestDestroyTellsWhatItWaitsFor(t *testing.T) {
	r := newRig(t, 9000)
	ch := ok(r.a.ctx.CreateCompChannel())(t)
	cq := ok(r.a.ctx.CreateCQ(4, ch, nil))(t)
	r.a.later(ch.Destroy)
	attr := r.a.attr(ib.RC)
	attr.SendCQ, attr.RecvCQ = cq, cq
	q := ok(r.a.pd.CreateQP(attr))(t)
	r.a.to(q, ib.QPStateRTS, r.b.qp(r.b.attr(ib.RC)), r.b.addr)
	cq.ReqNotify(false)
	if err := errors.Join(q.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState),
		q.PostRecvOne(&verbs.RecvWR{}), q.Destroy()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if got, err := ch.GetCQEvent(ctx); got != cq || err != nil {
		t.Fatal(err)
	}
	done, stop := context.WithCancel(t.Context())
	stop()
	err := cq.DestroyContext(done)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 event is not acknowledged (CQ.AckEvents)") {
		t.Errorf("with an event that is open: %v", err)
	}
	if err := errors.Join(cq.AckEvents(1), cq.DestroyContext(done)); err != nil {
		t.Error(err)
	}
}
