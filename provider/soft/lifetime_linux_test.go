package soft

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Destroying a queue, or a domain, races creating a queue pair on it: one of the
// two loses, and says why.
func TestCreateRacesDestroy(t *testing.T) {
	h := newHost(t, setup{})
	for round := range 300 {
		pd, err := h.dev.AllocPD()
		must(t, err)
		cq, err := h.dev.CreateCQ(4, nil)
		must(t, err)
		srq, err := h.dev.CreateSRQ(pd, &ib.SRQAttr{MaxWR: 4, MaxSGE: 1}, nil)
		must(t, err)
		at := h.attr(ib.RC)
		at.SRQ, at.SendCQ, at.RecvCQ = srq, h.cq, cq
		victim := cq.Destroy
		if round%2 == 0 {
			victim = srq.Destroy
		}
		var wg sync.WaitGroup
		var q driver.QP
		var created, gone error
		wg.Go(func() { q, created = h.dev.CreateQP(pd, at, nil) })
		wg.Go(func() { gone = victim() })
		wg.Wait()
		switch {
		case created == nil && errors.Is(gone, syscall.EBUSY):
			must(t, q.Destroy())
		case gone == nil && errors.Is(created, syscall.EINVAL):
		default:
			t.Fatalf("create: %v, destroy: %v", created, gone)
		}
		must(t, errors.Join(cq.Destroy(), srq.Destroy(), pd.Dealloc()))
		must(t, errors.Join(cq.Destroy(), srq.Destroy(), pd.Dealloc()))
	}
}

// Destroying a completion queue ends everybody who waits for it.
func TestDestroyEndsWaiters(t *testing.T) {
	h := newHost(t, setup{})
	for range 30 {
		cq, err := h.dev.CreateCQ(4, nil)
		must(t, err)
		var wg, began sync.WaitGroup
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		for i := range 4 {
			began.Add(1)
			c := ctx
			if i%2 == 0 {
				c = context.Background()
			}
			wg.Go(func() {
				began.Done()
				if err := cq.Wait(c); !errors.Is(err, syscall.EIO) {
					t.Errorf("wait on a destroyed queue: %v", err)
				}
			})
		}
		began.Wait()
		must(t, cq.Destroy())
		wg.Wait()
		cancel()
	}
}

// What is used is not destroyed: EBUSY, and it goes on working.
func TestBusy(t *testing.T) {
	h := newHost(t, setup{})
	q := h.qp(ib.RC, 0)
	for what, f := range map[string]func() error{"cq": h.cq.Destroy, "pd": h.pd.Dealloc} {
		if err := f(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v", what, err)
		}
	}
	join(q, q, ib.MTU1024)
	exercise(t, q, q, 100)
}
