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
	h := newLoop(t, ctx, byte(nr+1), limits, force, qps, workers*part, 5)
	list, buf, remote := h.qps, h.buf, h.remote

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
	t.Logf("%d times there was no room", again.Load())
	h.close()
}

// Whoever handles a completion destroys the context and uses it for the next transfer at
// once, perhaps before the post has returned to who made it.
func TestCallbacksGoOnWithTheContext(t *testing.T) {
	for i, force := range []bool{false, true} {
		t.Run(fmt.Sprintf("forced %v", force), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			const qps, workers, part = 2, 8, 6 * page
			turns := 200
			if raceEnabled {
				turns = 50
			}
			h := newLoop(t, ctx, byte(100+i), soft.Limits{MaxFastRegPages: 4}, force, qps, workers*part, 2*workers)
			var work sync.WaitGroup
			for n := range workers {
				q, c, left := h.qps[n%qps], new(rdmarw.Ctx), turns
				sg := manyPages(h.buf.Bytes()[n*part:][:part], 6)
				at := h.remote.Addr() + uint64(n*part)
				e := new(rdmarw.CQE)
				start := func() error {
					_, err := c.Init(q, 1, sg, 0, at, h.remote.RKey(), directions[left%2])
					if err == nil {
						err = c.Post(q, 1, e, nil)
					}
					return err
				}
				work.Add(1)
				e.Done = func(_ *rdmarw.CQ, wc *verbs.WC) {
					err := errors.Join(wc.Err(), c.Destroy(q, 1, sg, directions[left%2]))
					left--
					last := left == 0
					if err == nil && !last {
						err = start() // from here on all is the next callback's
					}
					if err != nil {
						t.Error(err)
					}
					if err != nil || last {
						work.Done()
					}
				}
				must(t, start())
			}
			done := make(chan struct{})
			go func() { work.Wait(); close(done) }()
			select {
			case <-done:
			case <-ctx.Done():
				t.Error(ctx.Err())
			}
			h.close()
		})
	}
}

// loop is a device on the loopback interface with queue pairs that are connected to
// others of its own, and goroutines that handle completions, one by Run, one by Process.
type loop struct {
	t      *testing.T
	dev    *soft.Device
	vctx   *verbs.Context
	pd     *verbs.PD
	vcq    *verbs.CQ
	cq     *rdmarw.CQ
	buf    *verbs.Buffer
	remote *verbs.MR
	qps    []*rdmarw.QP
	peers  []*verbs.QP
	stop   func()
	poll   sync.WaitGroup
}

func newLoop(t *testing.T, ctx context.Context, addr byte, limits soft.Limits, force bool, qps, size int, ctxs uint32) *loop {
	h := &loop{t: t}
	port := ok(udp.Open(udp.Config{}))(t)
	h.dev = ok(soft.NewDevice(soft.Config{
		Name: "rw", NetDev: "lo", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{127, 77, 31, addr})}, Port: port, Limits: limits,
	}))(t)
	h.vctx = verbs.NewContext(h.dev)
	h.pd = ok(h.vctx.AllocPD())(t)
	h.vcq = ok(h.vctx.CreateCQ(1<<12, nil, nil))(t)
	h.cq = rdmarw.NewCQ(h.vcq, func(_ *rdmarw.CQ, wc *verbs.WC) { t.Errorf("for nobody: %+v", wc) })
	h.buf = ok(h.pd.AllocBuffer(size, ib.AccessLocalWrite))(t)
	h.remote = ok(h.pd.RegMR(make([]byte, size), allRights))(t)
	gid := ok(h.vctx.QueryGID(1, 0))(t)
	for range qps {
		attr := rdmarw.QPInitAttr{CQ: h.cq, MaxRDMACtxs: ctxs, ForceMR: force}
		attr.QPInitAttr = verbs.QPInitAttr{SendCQ: h.vcq, RecvCQ: h.vcq, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 3, MaxRecvSGE: 1}}
		q := ok(rdmarw.CreateQP(h.pd, &attr))(t)
		peer := ok(h.pd.CreateQP(&attr.QPInitAttr))(t)
		connect(q.QP(), peer, gid)
		connect(peer, q.QP(), gid)
		h.qps, h.peers = append(h.qps, q), append(h.peers, peer)
	}
	stop, stopped := context.WithCancel(ctx)
	h.stop = stopped
	h.poll.Go(func() {
		if err := h.cq.Run(stop); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	h.poll.Go(func() {
		for stop.Err() == nil {
			if _, err := h.cq.Process(3); err != nil {
				t.Error(err)
				return
			}
			if h.vcq.Wait(stop) != nil {
				return
			}
		}
	})
	return h
}

// close ends all, and looks for what is left.
func (h *loop) close() {
	h.t.Helper()
	h.stop()
	h.poll.Wait()
	for i, q := range h.qps {
		if free, size := q.MRs(); free != size {
			h.t.Errorf("%d of %d regions", free, size)
		}
		must(h.t, errors.Join(q.CleanupMRs(), q.QP().Destroy(), h.peers[i].Destroy()))
	}
	must(h.t, errors.Join(h.remote.Dereg(), h.buf.Close(), h.vcq.Destroy(), h.pd.Dealloc(), h.dev.Leaks(), h.vctx.Close()))
	if h.t.Failed() {
		h.t.Log(fmt.Sprint(h.dev.Stats()))
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
