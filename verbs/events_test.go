package verbs

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

func TestCase66_EveryCQEventIsDelivered(t *testing.T) {
	k := newKit(t)
	other := must(k.ctx.CreateCQ(4, k.ch, nil))(t)
	qp := k.qp(t, ib.RC)
	qp2 := must(k.pd.CreateQP(&QPInitAttr{SendCQ: other, RecvCQ: other, Type: ib.RC}))(t)
	// Two queues fire before anybody asks; one of them twice.
	for range 2 {
		if k.cq.ReqNotify(false) {
			t.Fatal("missed")
		}
		if err := qp.PostSend([]SendWR{{}}); err != nil {
			t.Fatal(err)
		}
		if n, _ := k.cq.Poll(make([]WC, 2)); n != 1 {
			t.Fatal(n)
		}
	}
	other.ReqNotify(false)
	if err := qp2.PostSend([]SendWR{{}, {}}); err != nil {
		t.Fatal(err)
	}
	if !other.ReqNotify(false) {
		t.Error("completions were there when the queue was armed")
	}
	for i, want := range []*CQ{k.cq, k.cq, other} {
		if got, err := k.ch.GetCQEvent(t.Context()); got != want || err != nil {
			t.Fatalf("event %d: %v, %v", i, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := k.ch.GetCQEvent(ctx)
	wantErr(t, err, "get_cq_event", "", context.Canceled)
}

// Case 66 for several goroutines that wait: each event wakes one, none is lost.
func TestCase66_ManyWaiters(t *testing.T) {
	k := newKit(t)
	const events = 1000
	var wg sync.WaitGroup
	got := make(chan *CQ, events)
	ctx, cancel := context.WithCancel(t.Context())
	for range 4 {
		wg.Go(func() {
			for {
				cq, err := k.ch.GetCQEvent(ctx)
				if err != nil {
					return
				}
				got <- cq
			}
		})
	}
	for range events {
		k.ch.events.push(k.cq, &k.cq.comp)
	}
	for range events {
		if cq := <-got; cq != k.cq {
			t.Fatal(cq)
		}
	}
	cancel()
	wg.Wait()
	if err := k.cq.AckEvents(events); err != nil {
		t.Error(err)
	}
}

func TestCase67_DestroyCQWaitsForItsOwnEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t)
		other := must(k.ctx.CreateCQ(4, k.ch, nil))(t)
		qp := k.qp(t, ib.RC)
		for range 3 {
			k.cq.ReqNotify(false)
			if err := qp.PostSend([]SendWR{{}}); err != nil {
				t.Fatal(err)
			}
			if cq, err := k.ch.GetCQEvent(t.Context()); cq != k.cq || err != nil {
				t.Fatal(cq, err)
			}
		}
		// One more that nobody gets: it does not count.
		k.cq.ReqNotify(false)
		if err := errors.Join(qp.PostSend([]SendWR{{}}), qp.Destroy()); err != nil {
			t.Fatal(err)
		}
		wantErr(t, other.AckEvents(3), "ack_cq_events", "n", syscall.EINVAL)
		wantErr(t, k.cq.AckEvents(4), "ack_cq_events", "n", syscall.EINVAL)
		wantErr(t, k.cq.AckEvents(-1), "ack_cq_events", "n", syscall.EINVAL)
		if err := other.Destroy(); err != nil {
			t.Fatal(err) // the other's events are nothing to it
		}
		if err := k.cq.AckEvents(2); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- k.cq.Destroy() }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatal("did not wait for the third event", err)
		default:
		}
		// With a limit it gives up; the channel stays in use meanwhile.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantErr(t, k.cq.DestroyContext(ctx), "destroy_cq", "", context.DeadlineExceeded)
		wantErr(t, k.ch.Destroy(), "destroy_comp_channel", "", syscall.EBUSY)
		if err := k.cq.AckEvents(1); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := errors.Join(k.cq.Destroy(), k.ch.Destroy()); err != nil {
			t.Error(err)
		}
	})
}

func TestChannelDestroyEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t)
		if err := k.cq.Destroy(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { _, err := k.ch.GetCQEvent(t.Context()); done <- err }()
		synctest.Wait()
		if err := k.ch.Destroy(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, <-done, "get_cq_event", "", net.ErrClosed)
	})
}

func TestCase72_AsyncEventsOfAClosedDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := newFake()
		c := NewContext(dev)
		done := make(chan error, 1)
		go func() { _, err := c.GetAsyncEvent(t.Context()); done <- err }()
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{<-done, func() error { _, err := c.GetAsyncEvent(t.Context()); return err }()} {
			wantErr(t, err, "get_async_event", "", syscall.EIO)
			wantErr(t, err, "get_async_event", "", net.ErrClosed)
		}
		dev.sink(ib.EventDeviceFatal) // too late, does no harm
	})
}

func TestAsyncEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t)
		srq := must(k.pd.CreateSRQ(&ib.SRQAttr{MaxWR: 3}, nil))(t)
		qp := k.qp(t, ib.RC)
		fq := k.dev.qps[0]
		// None is lost, however many come; they keep their order.
		k.dev.sink(ib.EventGIDChange)
		k.dev.sink(ib.EventDeviceFatal)
		k.dev.cqs[0].sink(ib.EventCQErr)
		srq.srq.(*fakeSRQ).sink(ib.EventSRQLimitReached)
		for range 1000 {
			fq.sink(ib.EventCommEst)
		}
		for i, want := range []*AsyncEvent{
			{Type: ib.EventGIDChange, Port: 1},
			{Type: ib.EventDeviceFatal},
			{Type: ib.EventCQErr, CQ: k.cq},
			{Type: ib.EventSRQLimitReached, SRQ: srq},
			{Type: ib.EventCommEst, QP: qp},
		} {
			e := must(k.ctx.GetAsyncEvent(t.Context()))(t)
			if e.Type != want.Type || e.CQ != want.CQ || e.QP != want.QP || e.SRQ != want.SRQ || e.Port != want.Port {
				t.Errorf("event %d: %v %+v", i, e, e)
			}
			if e.QP == nil {
				e.Ack()
				e.Ack()
				continue
			}
			// Destroy waits for the one that was got; the other 999 are discarded.
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			wantErr(t, qp.DestroyContext(ctx), "destroy_qp", "", context.DeadlineExceeded)
			cancel()
			wantErr(t, k.cq.Destroy(), "destroy_cq", "", syscall.EBUSY)
			done := make(chan error, 1)
			go func() { done <- qp.Destroy() }()
			synctest.Wait()
			if len(done) != 0 {
				t.Fatal("did not wait")
			}
			e.Ack()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		fq.sink(ib.EventQPFatal) // late: of an object that is gone
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		e, err := k.ctx.GetAsyncEvent(ctx)
		wantErr(t, err, "get_async_event", "", context.DeadlineExceeded)
		if e != nil {
			t.Error(e)
		}
		if fq.destroyed != 1 {
			t.Errorf("destroyed %d times", fq.destroyed)
		}
		if err := errors.Join(srq.Destroy(), k.cq.Destroy(), k.ch.Destroy(), k.pd.Dealloc(), k.ctx.Close()); err != nil {
			t.Error(err)
		}
	})
}

// Creating and destroying at once never leaves a child of a dead parent.
func TestLifeUnderContention(t *testing.T) {
	for range 200 {
		k := newKit(t)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				mr, err := k.pd.RegMR(make([]byte, 1), 0)
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
					return
				}
				if err := mr.Dereg(); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				for {
					err := k.pd.Dealloc()
					if err == nil {
						return
					}
					if !errors.Is(err, syscall.EBUSY) {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := k.ctx.users.Load(); n != 2 { // the queue and its channel
			t.Fatalf("%d children", n)
		}
	}
}
