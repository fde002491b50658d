package rdmarw_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits before it takes something for lost.
const patience = 60 * time.Second

// Goroutines with contexts of their own share queue pairs, pools that are too small and
// send queues that are full, over real sockets, while others process the queue, one by
// Run, one by Process.
func TestConcurrentContexts(t *testing.T) {
	for i, c := range []struct {
		name   string
		limits soft.Limits
		force  bool
	}{
		{"several WRs", soft.Limits{}, false},
		{"regions", soft.Limits{MaxFastRegPages: 4}, true},
		{"READ with invalidate", soft.Limits{MaxFastRegPages: 4, ReadWithInv: true}, true},
		{"regions if there are some", soft.Limits{MaxSGLRd: 3, MaxFastRegPages: 8}, false},
	} {
		t.Run(c.name, func(t *testing.T) { concurrent(t, i, c.limits, c.force) })
	}
}

func concurrent(t *testing.T, nr int, limits soft.Limits, force bool) {
	const (
		qps, workers = 3, 12
		elements     = 10
		part         = elements * page
	)
	turns := 60
	if raceEnabled {
		turns = 15
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addr := netip.AddrFrom4([4]byte{127, 77, 31, byte(nr + 1)})
	port := ok(udp.Open(udp.Config{}))(t)
	dev := ok(soft.NewDevice(soft.Config{Name: "rw", NetDev: "lo", Addrs: []netip.Addr{addr}, Port: port, Limits: limits}))(t)
	vctx := verbs.NewContext(dev)
	pd := ok(vctx.AllocPD())(t)
	vcq := ok(vctx.CreateCQ(1<<12, nil, nil))(t)
	cq := rdmarw.NewCQ(vcq, func(_ *rdmarw.CQ, wc *verbs.WC) { t.Errorf("for nobody: %+v", wc) })
	buf := ok(pd.AllocBuffer(workers*part, ib.AccessLocalWrite))(t)
	remote := ok(pd.RegMR(make([]byte, workers*part), allRights))(t)
	gid := ok(vctx.QueryGID(1, 0))(t)

	var list []*rdmarw.QP
	var peers []*verbs.QP
	for range qps {
		attr := rdmarw.QPInitAttr{CQ: cq, MaxRDMACtxs: 5, ForceMR: force}
		attr.QPInitAttr = verbs.QPInitAttr{SendCQ: vcq, RecvCQ: vcq, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 3, MaxRecvSGE: 1}}
		q := ok(rdmarw.CreateQP(pd, &attr))(t)
		peer := ok(pd.CreateQP(&attr.QPInitAttr))(t)
		connect(q.QP(), peer, gid)
		connect(peer, q.QP(), gid)
		list, peers = append(list, q), append(peers, peer)
	}

	var poll sync.WaitGroup
	stop, stopped := context.WithCancel(ctx)
	poll.Go(func() {
		if err := cq.Run(stop); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	poll.Go(func() {
		for stop.Err() == nil {
			if _, err := cq.Process(3); err != nil {
				t.Error(err)
				return
			}
			if vcq.Wait(stop) != nil {
				return
			}
		}
	})

	// Whoever found no room waits until somebody has made some.
	var room roomSignal
	room.init()
	var again atomic.Int64
	var work sync.WaitGroup
	for n := range workers {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(n), 5))
			q := list[n%qps]
			here, there := buf.Bytes()[n*part:][:part], remote.Bytes()[n*part:][:part]
			var c rdmarw.Ctx
			done := make(chan error, 1)
			e := rdmarw.CQE{Done: func(_ *rdmarw.CQ, wc *verbs.WC) { done <- wc.Err() }}
			for turn := range turns {
				sg := manyPages(here, 1+rnd.IntN(elements))
				rnd.Shuffle(len(sg), func(i, j int) { sg[i], sg[j] = sg[j], sg[i] })
				dir, src, size := directions[rnd.IntN(2)], here, len(sg)*page
				if dir == rdmarw.DMAFromDevice {
					src = there
				}
				for i := range src {
					src[i] = byte(rnd.Uint32())
				}
				try := func(f func() error) bool {
					for ctx.Err() == nil {
						freed := room.now()
						err := f()
						if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ENOMEM) {
							if err != nil {
								t.Error(err)
							}
							return err == nil
						}
						again.Add(1)
						select {
						case <-freed:
						case <-ctx.Done():
						}
					}
					t.Error(ctx.Err())
					return false
				}
				if !try(func() error {
					_, err := c.Init(q, 1, sg, 0, remote.Addr()+uint64(n*part), remote.RKey(), dir)
					return err
				}) {
					return
				}
				posted := try(func() error { return c.Post(q, 1, &e, nil) })
				if posted {
					select {
					case err := <-done:
						if err != nil {
							t.Error(err)
						}
					case <-ctx.Done():
						t.Errorf("worker %d, turn %d: %v", n, turn, ctx.Err())
						return
					}
				}
				if err := c.Destroy(q, 1, sg, dir); err != nil {
					t.Error(err)
				}
				room.signal()
				if !posted {
					return
				}
				if !bytes.Equal(join(sg, 0), there[:size]) {
					t.Errorf("worker %d, turn %d: other bytes", n, turn)
					return
				}
			}
		})
	}
	work.Wait()
	stopped()
	poll.Wait()
	t.Logf("%d times there was no room", again.Load())
	for i, q := range list {
		if free, size := q.MRs(); free != size {
			t.Errorf("%d of %d regions", free, size)
		}
		must(t, errors.Join(q.CleanupMRs(), q.QP().Destroy(), peers[i].Destroy()))
	}
	must(t, errors.Join(remote.Dereg(), buf.Close(), vcq.Destroy(), pd.Dealloc(), dev.Leaks(), vctx.Close()))
	if t.Failed() {
		t.Log(fmt.Sprint(dev.Stats()))
	}
}

// roomSignal tells all who wait that there may be room.
type roomSignal struct {
	mu sync.Mutex
	ch chan struct{}
}

func (r *roomSignal) init() { r.ch = make(chan struct{}) }

// now gives what is closed by the next signal.
func (r *roomSignal) now() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ch
}

func (r *roomSignal) signal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.ch)
	r.ch = make(chan struct{})
}
