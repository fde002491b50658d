package verbs_test

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// A queue that overruns while many poll it and it is resized and moderated:
// each completion comes once at most, in order, and every poller learns of the
// overrun in the end.
func TestCQExOverrunUnderLoad(t *testing.T) {
	for _, flags := range []ib.CQFlags{0, ib.CQIgnoreOverrun} {
		r, x := exCQ(t, verbs.CQInitAttrEx{CQE: 8, WCFlags: ib.WCExCompletionTimestamp, Flags: flags})
		var mu sync.Mutex
		seen := make(map[uint64]int)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for g := range 3 {
			wg.Go(func() {
				var buf [3]verbs.WC
				last := uint64(0)
				note := func(id uint64) {
					mu.Lock()
					defer mu.Unlock()
					if seen[id]++; seen[id] > 1 || id <= last {
						t.Errorf("%d came %d times, after %d", id, seen[id], last)
					}
					last = id
				}
				for {
					done := false
					select {
					case <-stop:
						done = true
					default:
					}
					var err error
					if g == 0 {
						var n int
						n, err = x.Poll(buf[:])
						for _, wc := range buf[:n] {
							if wc.Status == ib.WCSuccess {
								note(wc.WRID)
							}
						}
						done = done && n == 0
					} else if err = x.StartPoll(); err == nil {
						for ; err == nil; err = x.NextPoll() {
							if x.Status() == ib.WCSuccess {
								note(x.WRID())
							}
						}
						x.EndPoll()
						continue
					}
					switch {
					case errors.Is(err, syscall.EOVERFLOW) && flags == 0:
						return
					case err != nil && !errors.Is(err, verbs.ErrNoCompletion):
						t.Error(err)
						return
					case done && flags != 0:
						return
					}
				}
			})
		}
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				_ = x.Resize(8 + i%8) // may be fewer than it holds
				if err := x.Modify(&verbs.ModifyCQAttr{AttrMask: ib.CQAttrModerate, Moderate: ib.ModerateCQ{CQCount: uint16(i % 4), CQPeriod: uint16(i % 2)}}); err != nil {
					t.Error(err)
				}
				x.ReqNotify(false)
			}
		})
		for i := uint64(0); i < 50; i++ {
			r.x.Start()
			r.x.WRFlags = ib.SendSignaled
			for k := range uint64(40) {
				r.x.WRID = 1 + i*40 + k
				r.x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
			}
			if err := r.x.Complete(); err != nil {
				break // the overrun has ended the queue pair, whose queue is full
			}
			r.net.Kick(r.a.port)
			r.net.RunFor(1e7)
		}
		close(stop)
		wg.Wait()
		if flags == 0 {
			for range 2 { // the queue's and the queue pair's
				ok(r.a.ctx.GetAsyncEvent(t.Context()))(t).Ack()
			}
		} else if len(seen) == 0 || r.qa.State() != ib.QPStateRTS {
			t.Errorf("%d completions, %v", len(seen), r.qa.State())
		}
	}
}

// Queue pair and completion queue vanish under who posts and polls: errors, and
// nobody hangs.
func TestWRDestroyUnderLoad(t *testing.T) {
	for range 20 {
		r := newRig(t, 9000)
		cq := ok(r.a.ctx.CreateCQEx(&verbs.CQInitAttrEx{CQE: 4096}))(t)
		aa := r.a.attr(ib.RC)
		aa.SendCQ, aa.RecvCQ = cq.CQ, cq.CQ
		qa := ok(r.a.pd.CreateQP(aa))(t)
		qb := r.b.qp(r.b.attr(ib.RC))
		r.a.to(qa, ib.QPStateRTS, qb, r.b.addr)
		r.b.to(qb, ib.QPStateRTS, qa, r.a.addr)
		dst := r.b.mem(64)
		started := make(chan struct{}, 4)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				x, err := qa.Ex()
				if err != nil {
					t.Error(err)
					return
				}
				for i := 0; ; i++ {
					x.Start()
					x.RDMAWrite(dst.RKey(), dst.Addr())
					x.SetInlineData([]byte{1})
					err := x.Complete()
					if i == 0 {
						started <- struct{}{}
					}
					switch {
					case err == nil, errors.Is(err, syscall.ENOMEM):
					case errors.Is(err, syscall.EINVAL):
						return
					default:
						t.Error(err)
						return
					}
				}
			})
			wg.Go(func() {
				for i := 0; ; i++ {
					err := cq.StartPoll()
					if i == 0 {
						started <- struct{}{}
					}
					if errors.Is(err, syscall.EINVAL) {
						return
					}
					if err == nil {
						_ = cq.NextPoll()
						cq.EndPoll()
					}
				}
			})
		}
		for range 4 {
			<-started
		}
		if err := qa.Destroy(); err != nil {
			t.Fatal(err)
		}
		if err := cq.Destroy(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
}
