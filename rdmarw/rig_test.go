package rdmarw_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const page = 4096

const allRights = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead

// setup is how a test wants a rig; zero values are usual.
type setup struct {
	limits soft.Limits // of the target's device
	link   simnet.Link
	seed   uint64
	faults *faults // of the target's device; nil: none
	pool   uint32  // MaxRDMACtxs; 0: 16
	small  bool    // 1,500 bytes of MTU, not 9,000
}

// rig is a target a with contexts, and a client b whose memory they go to, on a
// simulated network.
type rig struct {
	t    testing.TB
	net  *simnet.Net
	rnd  *rand.Rand
	a, b *node
}

// node is an open device.
type node struct {
	t    testing.TB
	port *simnet.Port
	soft *soft.Device
	ctx  *verbs.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	rcq  *verbs.CQ
	rw   *rdmarw.CQ
	lost []verbs.WC // completions that belonged to no CQE
	addr netip.Addr
	shut bool
	// report tells the device what its interface is now.
	report func(soft.Netdev)
	rest   []func() error // to be called before the device is closed, last first
}

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	s.seed = max(s.seed, 1)
	r := &rig{t: t, net: simnet.New(s.seed), rnd: rand.New(rand.NewPCG(s.seed, 7))}
	r.net.SetDefault(s.link)
	r.a = r.node("a", "192.0.2.1", s.small, s.limits, s.faults)
	r.b = r.node("b", "192.0.2.2", s.small, soft.Limits{}, nil)
	return r
}

func (r *rig) node(name, addr string, small bool, l soft.Limits, f *faults) *node {
	r.t.Helper()
	n := &node{t: r.t, port: r.net.NewPort(simnet.Config{}), addr: netip.MustParseAddr(addr)}
	mtu := 9000
	if small {
		mtu = 1500
	}
	var err error
	n.soft, err = soft.NewDevice(soft.Config{
		Name: name, LinkMTU: mtu, Port: n.port, Clock: r.net.Now, Seed: 1, Manual: true, Limits: l, Addrs: []netip.Addr{n.addr},
		Watch: func(report func(soft.Netdev)) (func(), error) { n.report = report; return func() {}, nil },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.net.Attach(n.port, n.soft.Turn)
	var dev driver.Device = n.soft
	if f != nil {
		dev = &faultDevice{n.soft, f}
	}
	n.ctx = verbs.NewContext(dev)
	n.pd = ok(n.ctx.AllocPD())(r.t)
	n.cq = ok(n.ctx.CreateCQ(1<<16, nil, nil))(r.t)
	n.rcq = ok(n.ctx.CreateCQ(1024, nil, nil))(r.t)
	n.rw = rdmarw.NewCQ(n.cq, func(_ *rdmarw.CQ, wc *verbs.WC) { n.lost = append(n.lost, *wc) })
	r.t.Cleanup(func() {
		r.net.RunFor(1e9)
		n.close()
	})
	return n
}

// shut closes both nodes now.
func (r *rig) shut() {
	r.net.RunFor(1e9)
	r.a.close()
	r.b.close()
}

// close destroys everything and looks for what is left, once.
func (n *node) close() {
	if n.shut {
		return
	}
	n.shut = true
	for _, f := range slices.Backward(n.rest) {
		if err := f(); err != nil {
			n.t.Error(err)
		}
	}
	if err := errors.Join(n.cq.Destroy(), n.rcq.Destroy(), n.pd.Dealloc(), n.soft.Leaks(), n.ctx.Close()); err != nil {
		n.t.Error(err)
	}
}

func (n *node) later(f func() error) { n.rest = append(n.rest, f) }

func ok[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// mem registers size bytes of Go's memory with the rights that peers need.
func (n *node) mem(size int) *verbs.MR {
	n.t.Helper()
	m := ok(n.pd.RegMR(make([]byte, size), allRights))(n.t)
	n.later(m.Dereg)
	return m
}

// buffer allocates pages that the local DMA key reaches.
func (n *node) buffer(size int) []byte {
	n.t.Helper()
	b := ok(n.pd.AllocBuffer(size, ib.AccessLocalWrite))(n.t)
	n.later(b.Close)
	return b.Bytes()
}

// attr describes a queue pair of the target's.
func (n *node) attr() *rdmarw.QPInitAttr {
	a := &rdmarw.QPInitAttr{CQ: n.rw, MaxRDMACtxs: 16}
	a.SendCQ, a.RecvCQ, a.Type = n.cq, n.rcq, ib.RC
	a.Cap = ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4}
	return a
}

// target makes a queue pair for contexts, connected to one of the client's.
func (r *rig) target(change func(*rdmarw.QPInitAttr)) (*rdmarw.QP, *verbs.QP) {
	r.t.Helper()
	attr := r.a.attr()
	if change != nil {
		change(attr)
	}
	q := ok(rdmarw.CreateQP(r.a.pd, attr))(r.t)
	r.a.later(func() error { return errors.Join(q.QP().Destroy(), q.CleanupMRs()) })
	return q, r.peer(q.QP())
}

// peer connects a queue pair of the target's with a new one of the client's.
func (r *rig) peer(qa *verbs.QP) *verbs.QP {
	r.t.Helper()
	attr := r.b.attr().QPInitAttr
	qb := ok(r.b.pd.CreateQP(&attr))(r.t)
	r.b.later(qb.Destroy)
	r.a.connect(qa, qb, r.b.addr)
	r.b.connect(qb, qa, r.a.addr)
	return qb
}

// connect takes a queue pair to RTS.
func (n *node) connect(q, peer *verbs.QP, addr netip.Addr) {
	n.t.Helper()
	a := ib.QPAttr{
		PortNum: 1, QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead, PathMTU: ib.MTU1024, DestQPN: peer.Num(), RQPSN: 100, SQPSN: 100,
		MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 1, Timeout: 8, RetryCnt: 7, RNRRetry: 7,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(addr), PortNum: 1, HopLimit: 64},
	}
	for _, s := range []struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{
		{ib.QPStateInit, ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags},
		{ib.QPStateRTR, ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer},
		{ib.QPStateRTS, ib.QPAttrSQPSN | ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic},
	} {
		if a.QPState = s.state; q.State() >= s.state {
			continue
		}
		if err := q.Modify(&a, ib.QPAttrState|s.mask); err != nil {
			n.t.Fatal(err)
		}
	}
}

// What filters of the network are made of.
type (
	netEvent   = simnet.Event
	netVerdict = simnet.Verdict
)

var netDrop = simnet.Drop

// watch is a CQE that keeps what it was told.
type watch struct {
	rdmarw.CQE
	got []verbs.WC
}

func newWatch() *watch {
	w := new(watch)
	w.Done = func(_ *rdmarw.CQ, wc *verbs.WC) { w.got = append(w.got, *wc) }
	return w
}

// process runs the network until done, or for a second of its time.
func (r *rig) process(done func() bool) bool {
	r.t.Helper()
	return r.net.Run(func() bool {
		if _, err := r.a.rw.Process(-1); err != nil {
			r.t.Fatal(err)
		}
		return done()
	}, 300e9)
}

func (r *rig) kick() {
	r.net.Kick(r.a.port)
	r.net.Kick(r.b.port)
}

// wait runs the network until w was told of n completions.
func (r *rig) wait(w *watch, n int) {
	r.t.Helper()
	r.kick()
	if !r.process(func() bool { return len(w.got) >= n }) {
		r.t.Fatalf("%d of %d completions: %+v; for nobody: %+v", len(w.got), n, w.got, r.a.lost)
	}
	if len(w.got) != n {
		r.t.Fatalf("%d completions, want %d: %+v", len(w.got), n, w.got)
	}
}

// done waits for one completion, and checks that it is a success and that there is
// nothing else.
func (r *rig) done(w *watch) {
	r.t.Helper()
	r.wait(w, 1)
	if err := w.got[0].Err(); err != nil {
		r.t.Fatalf("%v; for nobody: %+v", err, r.a.lost)
	}
	if len(r.a.lost) != 0 {
		r.t.Fatalf("for nobody: %+v", r.a.lost)
	}
}

// quiet runs the network for a while and checks that nobody is told of anything.
func (r *rig) quiet(ws ...*watch) {
	r.t.Helper()
	was := make([]int, len(ws))
	for i, w := range ws {
		was[i] = len(w.got)
	}
	r.kick()
	r.net.RunFor(1e9)
	if n, err := r.a.rw.Process(-1); n != 0 || err != nil {
		r.t.Fatalf("%d completions, %v; for nobody: %+v", n, err, r.a.lost)
	}
	for i, w := range ws {
		if len(w.got) != was[i] {
			r.t.Fatalf("told of %+v", w.got[was[i]:])
		}
	}
}

// fill gives memory recognizable content.
func (r *rig) fill(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.rnd.Uint64())
	}
	for i := range b {
		b[i] = byte(r.rnd.Uint32())
	}
}

// elements cuts b into n elements of odd places and lengths, in random order, with
// gaps.
func (r *rig) elements(b []byte, n int) [][]byte {
	list := make([][]byte, n)
	step := len(b) / n
	for i := range list {
		from := r.rnd.IntN(step/2 + 1)
		size := 1 + r.rnd.IntN(step-from)
		list[i] = b[i*step+from:][:size:size]
	}
	r.rnd.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// pages cuts b into elements of whole pages, in random order, of which the first may
// begin and the last end inside one: what a region can hold.
func (r *rig) pages(b []byte, n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		list[i] = b[i*page:][:page:page]
	}
	r.rnd.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
	list[n-1] = list[n-1][:1+r.rnd.IntN(page)]
	list[0] = list[0][r.rnd.IntN(len(list[0])):]
	return list
}

// pieces cuts b into n elements of odd places and lengths without gaps: runs of pages, in
// random order, each cut into neighbours.
func (r *rig) pieces(b []byte, n int) [][]byte {
	runs := 1 + r.rnd.IntN(min(n, len(b)/page))
	starts := r.rnd.Perm(len(b) / page)[:runs] // where runs begin; the first begins the list
	slices.Sort(starts)
	order := r.rnd.Perm(runs)
	var list [][]byte
	for i, k := range order {
		end := len(b) / page
		if k+1 < runs {
			end = starts[k+1]
		}
		run := b[starts[k]*page : end*page : end*page]
		if i == 0 {
			run = run[r.rnd.IntN(page):]
		}
		if i == runs-1 {
			run = run[:len(run)-r.rnd.IntN(min(page, len(run)))]
		}
		cuts := (n - len(list)) / (runs - i) // elements of this run
		for ; cuts > 1 && len(run) > cuts; cuts-- {
			k := 1 + r.rnd.IntN(max(min(2*len(run)/cuts, len(run)-cuts), 1))
			list, run = append(list, run[:k:k]), run[k:]
		}
		list = append(list, run)
	}
	return list
}

// join is a list one behind the other, from an offset on.
func join(list [][]byte, offset int) []byte { return slices.Concat(list...)[offset:] }

// opcodes are the operations of a chain.
func opcodes(wrs []verbs.SendWR) []ib.WROpcode {
	ops := make([]ib.WROpcode, len(wrs))
	for i := range wrs {
		ops[i] = wrs[i].Opcode
	}
	return ops
}

// is checks that an error is of a kind.
func is(t testing.TB, what string, err error, errno syscall.Errno) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("%s: %v, want %v", what, err, errno)
	}
	var op *rdmarw.OpError
	if err != nil && !errors.As(err, &op) {
		t.Errorf("%s: %v is of type %T", what, err, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
