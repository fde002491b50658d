package verbs_test

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func (n *node) srq(attr *ib.SRQAttr) *verbs.SRQ {
	n.t.Helper()
	s := ok(n.pd.CreateSRQ(attr, nil))(n.t)
	n.later(s.Destroy)
	return s
}

// noEvent checks that no asynchronous event waits.
func (n *node) noEvent() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if e, err := n.ctx.GetAsyncEvent(ctx); !errors.Is(err, context.Canceled) {
		n.t.Errorf("unexpected event %v, %v", e, err)
	}
}

// event takes the event that waits and acknowledges it.
func (n *node) event(typ ib.EventType) *verbs.AsyncEvent {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e, err := n.ctx.GetAsyncEvent(ctx)
	if err != nil {
		n.t.Fatalf("no event %v: %v", typ, err)
	}
	e.Ack()
	if e.Type != typ {
		n.t.Fatalf("event %v, want %v", e, typ)
	}
	return e
}

func TestCase58_ReceiveSizesAreIgnoredWithSRQ(t *testing.T) {
	r := newRig(t, 9000)
	attr := r.a.attr(ib.RC)
	attr.SRQ = r.a.srq(&ib.SRQAttr{MaxWR: 8, MaxSGE: 1})
	attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 1<<31, math.MaxUint32
	q := r.a.qp(attr)
	if attr.Cap.MaxRecvWR != 0 || attr.Cap.MaxRecvSGE != 0 {
		t.Errorf("%+v", attr.Cap)
	}
	r.a.to(q, ib.QPStateInit, nil, r.b.addr)
	if err := q.PostRecvOne(&verbs.RecvWR{}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// exchange sends n messages that the SRQ of b takes in.
func (r *rig) exchange(qa *verbs.QP, n int) {
	r.t.Helper()
	src := r.a.mem(8)
	for range n {
		if err := qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}}); err != nil {
			r.t.Fatal(err)
		}
		for _, wc := range append(r.wcs(r.b.cq, 1), r.wcs(r.a.cq, 1)...) {
			if wc.Err() != nil {
				r.t.Fatal(wc.Err())
			}
		}
	}
}

func TestCase59_ResizeSRQ(t *testing.T) {
	r := newRig(t, 9000)
	attr := ib.SRQAttr{MaxWR: 8, MaxSGE: 1}
	srq := r.b.srq(&attr)
	ab := r.b.attr(ib.RC)
	ab.SRQ = srq
	qa, _ := r.connect(r.a.attr(ib.RC), ab)
	dst := r.b.mem(8)
	post := func(n int) {
		t.Helper()
		for range n {
			if err := srq.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 8)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	post(4)
	r.exchange(qa, 2) // 2 are left
	for _, size := range []uint32{16, 3, 2, 100} {
		a := ib.SRQAttr{MaxWR: size}
		if err := srq.Modify(&a, ib.SRQMaxWR); err != nil || a.MaxWR < size {
			t.Fatalf("resize to %d: %v, got %d", size, err, a.MaxWR)
		}
		if got := ok(srq.Query())(t); got.MaxWR != a.MaxWR {
			t.Errorf("query shows %d, modify gave %d", got.MaxWR, a.MaxWR)
		}
		r.exchange(qa, 1)
		post(1) // 2 again
		// What fails changes nothing, and traffic goes on.
		for _, bad := range []uint32{0, 1, math.MaxUint32} {
			a := ib.SRQAttr{MaxWR: bad}
			if err := srq.Modify(&a, ib.SRQMaxWR); !errors.Is(err, syscall.EINVAL) || a.MaxWR != bad {
				t.Errorf("resize to %d: %v, %+v", bad, err, a)
			}
		}
		r.exchange(qa, 1)
		post(1)
	}
	r.exchange(qa, 2)
}

func TestCase61_SRQLimit(t *testing.T) {
	r := newRig(t, 9000)
	srq := r.b.srq(&ib.SRQAttr{MaxWR: 8, MaxSGE: 1})
	ab := r.b.attr(ib.RC)
	ab.SRQ = srq
	qa, _ := r.connect(r.a.attr(ib.RC), ab)
	dst := r.b.mem(8)
	fill := func(n int) {
		t.Helper()
		for range n {
			if err := srq.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 8)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	arm := func() {
		t.Helper()
		if err := srq.Modify(&ib.SRQAttr{SRQLimit: 3}, ib.SRQLimit); err != nil {
			t.Fatal(err)
		}
		if a := ok(srq.Query())(t); a.SRQLimit != 3 {
			t.Errorf("armed at 3, query shows %d", a.SRQLimit)
		}
	}
	fill(8)
	arm()
	r.exchange(qa, 5) // 3 are left: not below the limit
	r.b.noEvent()
	r.exchange(qa, 1)
	if e := r.b.event(ib.EventSRQLimitReached); e.SRQ != srq {
		t.Error("event of another queue")
	}
	if a := ok(srq.Query())(t); a.SRQLimit != 0 {
		t.Errorf("after the event the limit is %d", a.SRQLimit)
	}
	fill(6)
	r.exchange(qa, 7)
	r.b.noEvent() // not armed
	fill(7)
	arm()
	r.exchange(qa, 6)
	r.b.event(ib.EventSRQLimitReached)
}

func TestCase62_AbsurdSizes(t *testing.T) {
	r := newRig(t, 9000)
	srq := r.a.srq(&ib.SRQAttr{MaxWR: 1})
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, set := range map[string]func(*ib.QPCap){
		"max_send_wr":     func(c *ib.QPCap) { c.MaxSendWR = math.MaxUint32 },
		"max_recv_wr":     func(c *ib.QPCap) { c.MaxRecvWR = math.MaxUint32 },
		"max_send_sge":    func(c *ib.QPCap) { c.MaxSendSGE = math.MaxUint32 },
		"max_recv_sge":    func(c *ib.QPCap) { c.MaxRecvSGE = math.MaxUint32 },
		"max_inline_data": func(c *ib.QPCap) { c.MaxInlineData = math.MaxUint32 },
	} {
		attr := r.a.attr(ib.RC)
		set(&attr.Cap)
		was := attr.Cap
		_, err := r.a.pd.CreateQP(attr)
		refused(what, err)
		if attr.Cap != was {
			t.Errorf("%s: a failed create changed the sizes", what)
		}
	}
	_, err := r.a.pd.CreateSRQ(&ib.SRQAttr{MaxWR: math.MaxUint32}, nil)
	refused("srq max_wr", err)
	_, err = r.a.pd.CreateSRQ(&ib.SRQAttr{MaxWR: 1, MaxSGE: math.MaxUint32}, nil)
	refused("srq max_sge", err)
	refused("srq limit", srq.Modify(&ib.SRQAttr{SRQLimit: math.MaxUint32}, ib.SRQLimit))
	_, err = r.a.ctx.CreateCQ(math.MaxInt, nil, nil)
	refused("cqe", err)
	refused("cqe", r.a.cq.Resize(math.MaxInt))
	_, err = r.a.ctx.CreateCQ(-1, nil, nil)
	refused("cqe", err)
}

// flusher is a queue pair in ERR: each post completes at once, on the caller's
// goroutine, without a packet.
func (n *node) flusher(cq *verbs.CQ) *verbs.QP {
	n.t.Helper()
	attr := n.attr(ib.UC)
	attr.SendCQ, attr.RecvCQ = cq, cq
	q := n.qp(attr)
	n.to(q, ib.QPStateErr, q, n.addr)
	return q
}

// A completion between the empty poll and the request for a notification is not
// lost, neither with a channel nor with Wait.
func TestCase64_NoLostWakeUp(t *testing.T) {
	rounds := 200_000
	if testing.Short() || raceEnabled {
		rounds = 20_000
	}
	for _, wait := range []bool{true, false} {
		r := newRig(t, 9000)
		ch := ok(r.a.ctx.CreateCompChannel())(t)
		cq := ok(r.a.ctx.CreateCQ(4, ch, nil))(t)
		r.a.later(ch.Destroy)
		r.a.later(cq.Destroy)
		q := r.a.flusher(cq)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		taken := make(chan struct{}, 1) // paces the producer, so that the queue runs empty often
		wg.Go(func() {
			wr := verbs.SendWR{Opcode: ib.WRSend}
			for i := range rounds {
				wr.WRID = uint64(i)
				if err := q.PostSendOne(&wr); err != nil {
					t.Error(err)
					cancel()
					return
				}
				if i%2 == 1 {
					select {
					case <-taken:
					case <-ctx.Done():
						return
					}
				}
			}
		})
		next, acked := uint64(0), 0
		poll := func() int {
			var wc [2]verbs.WC
			n, err := cq.Poll(wc[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range wc[:n] {
				if w.WRID != next || w.Status != ib.WCWRFlushErr {
					t.Fatalf("%+v, want %d", w, next)
				}
				if next++; next%2 == 0 {
					taken <- struct{}{}
				}
			}
			return n
		}
		for next < uint64(rounds) {
			switch {
			case poll() > 0:
			case wait:
				if err := cq.Wait(ctx); err != nil {
					t.Fatalf("after %d: %v", next, err)
				}
			case cq.ReqNotify(false):
				// Completions that were missed: the notification that was asked for
				// comes with the next one all the same.
			default:
				if _, err := ch.GetCQEvent(ctx); err != nil {
					t.Fatalf("after %d: %v", next, err)
				}
				acked++
			}
		}
		wg.Wait()
		if err := cq.AckEvents(acked); err != nil {
			t.Error(err)
		}
	}
}

func TestCase69_OverrunAndResize(t *testing.T) {
	r := newRig(t, 9000)
	cq := ok(r.a.ctx.CreateCQ(3, nil, nil))(t)
	r.a.later(cq.Destroy)
	q := r.a.flusher(cq)
	send := []verbs.SendWR{{Opcode: ib.WRSend}, {Opcode: ib.WRSend}, {Opcode: ib.WRSend}}
	if err := q.PostSend(send); err != nil {
		t.Fatal(err)
	}
	// Resizing keeps what is there, or fails.
	if err := cq.Resize(2); !errors.Is(err, syscall.EINVAL) || cq.CQE() != 3 {
		t.Error(err, cq.CQE())
	}
	if err := cq.Resize(5); err != nil {
		t.Error(err)
	}
	if err := cq.Resize(3); err != nil || cq.CQE() != 3 {
		t.Error(err, cq.CQE())
	}
	r.a.noEvent()
	if err := q.PostSend(send[:1]); err != nil {
		t.Fatal(err)
	}
	if e := r.a.event(ib.EventCQErr); e.CQ != cq {
		t.Error("event of another queue")
	}
	// The three that fit are there, then the loss is told, again and again.
	wcs := make([]verbs.WC, 8)
	if n, err := cq.Poll(wcs); n != 3 || err != nil {
		t.Error(n, err)
	}
	for range 2 {
		if n, err := cq.Poll(wcs); n != 0 || !errors.Is(err, syscall.EOVERFLOW) {
			t.Error(n, err)
		}
	}
}

func TestCase70_TooSmallCompletionQueue(t *testing.T) {
	r := newRig(t, 9000)
	cq := ok(r.b.ctx.CreateCQ(64, nil, nil))(t)
	r.b.later(cq.Destroy)
	src, dst := r.a.mem(8), r.b.mem(8)
	const pairs, each = 16, 8
	var qb []*verbs.QP
	for range pairs {
		ab := r.b.attr(ib.RC)
		ab.SendCQ, ab.RecvCQ = cq, cq
		a, b := r.connect(r.a.attr(ib.RC), ab)
		for range each {
			if err := errors.Join(
				b.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 8)}}),
				a.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{src.SGE(0, 8)}}),
			); err != nil {
				t.Fatal(err)
			}
		}
		qb = append(qb, b)
		r.net.RunFor(1e6)
	}
	// It is told, once for the queue: as an event and by Poll.
	cqErr := 0
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		e, err := r.b.ctx.GetAsyncEvent(ctx)
		if err != nil {
			break
		}
		e.Ack()
		if e.Type == ib.EventCQErr {
			cqErr++
		}
	}
	if cqErr != 1 {
		t.Errorf("%d CQ error events", cqErr)
	}
	wcs := make([]verbs.WC, 100)
	if n, err := cq.Poll(wcs); n != 64 || err != nil {
		t.Error(n, err)
	}
	if _, err := cq.Poll(wcs); !errors.Is(err, syscall.EOVERFLOW) {
		t.Error(err)
	}
	if n := r.b.soft.Stats().CQOverruns; n != 1 {
		t.Errorf("counted %d overruns", n)
	}
	// Nobody hangs: the queue pairs can still be moved, and go (at the end).
	for _, q := range qb {
		if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); err != nil {
			t.Error(err)
		}
	}
}

// The function that a provider calls for a notification holds no lock: it may
// poll and post.
func TestCase71_CallbackPollsAndPosts(t *testing.T) {
	r := newRig(t, 9000)
	dev := driver.Device(r.a.soft)
	pd := ok(dev.AllocPD())(t)
	var cq driver.CQ
	var qp driver.QP
	var got []uint64
	depth := 0
	cq = ok(dev.CreateCQ(8, func() {
		if depth++; depth > 20 {
			t.Fatal("notified more often than asked for")
		}
		var wcs [4]driver.WC
		n, err := cq.Poll(wcs[:])
		if err != nil || n != 1 {
			t.Error(n, err)
		}
		got = append(got, wcs[0].WRID)
		if wcs[0].WRID < 10 {
			cq.Arm(false)
			if _, err := qp.PostSend([]driver.SendWR{{WRID: wcs[0].WRID + 1, Opcode: ib.WRSend}}); err != nil {
				t.Error(err)
			}
		}
	}))(t)
	qp = ok(dev.CreateQP(pd, &driver.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.UC, Cap: ib.QPCap{MaxSendWR: 4}}, func(ib.EventType) {}))(t)
	if err := errors.Join(
		qp.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1}, ib.QPAttrState|ib.QPAttrPort|ib.QPAttrPKeyIndex|ib.QPAttrAccessFlags),
		qp.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState),
	); err != nil {
		t.Fatal(err)
	}
	cq.Arm(false)
	if _, err := qp.PostSend([]driver.SendWR{{WRID: 0, Opcode: ib.WRSend}}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 11 || got[10] != 10 {
		t.Errorf("%v", got)
	}
	if err := errors.Join(qp.Destroy(), cq.Destroy(), pd.Dealloc()); err != nil {
		t.Error(err)
	}
}

func TestCase72_CloseEndsEventReaders(t *testing.T) {
	n := simnet.New(2)
	r := &rig{t: t, net: n}
	d := r.node("c", 9000, "192.0.2.9")
	done := make(chan error, 1)
	go func() { _, err := d.ctx.GetAsyncEvent(context.Background()); done <- err }()
	if err := errors.Join(d.cq.Destroy(), d.pd.Dealloc(), d.ctx.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, syscall.EIO) || !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// A wait ends when the queue is destroyed under it.
func TestDestroyEndsWait(t *testing.T) {
	r := newRig(t, 9000)
	cq := ok(r.a.ctx.CreateCQ(1, nil, nil))(t)
	done := make(chan error, 1)
	go func() { done <- cq.Wait(context.Background()) }()
	if err := cq.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
