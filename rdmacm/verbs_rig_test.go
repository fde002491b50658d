package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// vpatience is how long a test waits before it takes something for lost.
const vpatience = 30 * time.Second

// vrig is two hosts, on the simulated network or on real sockets of the loopback
// interface, with an ID each.
type vrig struct {
	t    testing.TB
	net  *simnet.Net // nil: real sockets
	a, b *vend
	six  bool // IPv6

	shared bool // the passive ID has a shared receive queue

	tune func(e *vend, attr *verbs.QPInitAttr) // changes what a queue pair is made with
}

// vend is one of them. a is the active side.
type vend struct {
	r    *vrig
	t    testing.TB
	port *simnet.Port
	ctx  *verbs.Context
	soft *soft.Device
	addr netip.Addr
	id   *rdmacm.ID

	report func(soft.Netdev) // tells of the interface, on the simulated network

	rest []func() error // what is to be destroyed, last first
	vendConn
}

// overBoth runs a test on the simulated network and on real sockets.
func overBoth(t *testing.T, f func(t *testing.T, r *vrig)) {
	t.Helper()
	t.Run("simulated", func(t *testing.T) { f(t, newVRig(t, true, false)) })
	t.Run("sockets", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("no sockets of ours here")
		}
		f(t, newVRig(t, false, false))
	})
}

func newVRig(t testing.TB, sim, six bool) *vrig {
	t.Helper()
	r := &vrig{t: t, six: six}
	addrs := [2]string{"192.0.2.1", "192.0.2.2"}
	switch {
	case !sim:
		for i := range addrs {
			addrs[i] = netip.AddrFrom4([4]byte{127, byte(10 + rand.IntN(200)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))}).String()
		}
	case six:
		addrs = [2]string{"2001:db8::1", "2001:db8::2"}
	}
	if sim {
		r.net = simnet.New(1)
	}
	r.a, r.b = r.host(addrs[0], 1), r.host(addrs[1], 2)
	return r
}

func (r *vrig) host(addr string, seed uint64) *vend {
	r.t.Helper()
	e := &vend{r: r, t: r.t, addr: netip.MustParseAddr(addr)}
	cfg := soft.Config{Name: "soft_" + addr, Addrs: []netip.Addr{e.addr}, LinkMTU: 1500}
	if r.net != nil {
		e.port = r.net.NewPort(simnet.Config{})
		cfg.Port, cfg.Clock, cfg.Seed, cfg.Manual = e.port, r.net.Now, seed, true
		cfg.NetDev, cfg.IfIndex = "vrig", int(seed)
		cfg.Watch = func(report func(soft.Netdev)) (func(), error) {
			e.report = report
			report(soft.Netdev{Up: true, Enabled: true, MTU: cfg.LinkMTU, Addrs: cfg.Addrs})
			return func() {}, nil
		}
	} else {
		cfg.Port, cfg.NetDev = vok(udp.Open(udp.Config{}))(r.t), "lo"
	}
	e.soft = vok(soft.NewDevice(cfg))(r.t)
	e.ctx = verbs.NewContext(e.soft)
	r.t.Cleanup(e.close)
	e.start()
	if e.port != nil {
		r.net.Attach(e.port, e.turn)
	}
	return e
}

// later has f called, in reverse order, when the host is closed.
func (e *vend) later(f func() error) { e.rest = append(e.rest, f) }

func (e *vend) close() {
	for i := len(e.rest) - 1; i >= 0; i-- {
		if err := e.rest[i](); err != nil {
			e.t.Error(err)
		}
	}
	if err := errors.Join(e.soft.Leaks(), e.ctx.Close()); err != nil {
		e.t.Error(err)
	}
}

func vok[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// attr describes a queue pair of moderate size, whose completion queues the ID makes.
func (e *vend) attr() *verbs.QPInitAttr {
	a := &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 128}}
	if e.r.tune != nil {
		e.r.tune(e, a)
	}
	return a
}

// all runs the simulated network until done.
func (r *vrig) all(done func() bool) bool {
	for _, e := range []*vend{r.a, r.b} {
		r.net.Kick(e.port)
	}
	return r.net.Run(done, 60e9)
}

// calm lets everything happen that is under way, on the simulated network.
func (r *vrig) calm() {
	if r.net != nil {
		r.net.Kick(r.a.port)
		r.net.Kick(r.b.port)
		r.net.RunFor(1e9)
	}
}

// until waits for something that nobody is told of: on real sockets it polls, which makes
// progress.
func (r *vrig) until(done func() bool) {
	r.t.Helper()
	r.calm()
	var wcs [1]verbs.WC
	for end := time.Now().Add(vpatience); !done(); {
		if r.net != nil || time.Now().After(end) {
			r.t.Fatal("it does not come")
		}
		if n, err := r.b.id.RecvCQ().Poll(wcs[:]); n != 0 || err != nil {
			r.t.Fatal(wcs, err)
		}
	}
}

// sent is the next completion of the ID's sends.
func (e *vend) sent() verbs.WC {
	e.t.Helper()
	return e.next(e.id.GetSendComp)
}

// received is the next completion of its receives.
func (e *vend) received() verbs.WC {
	e.t.Helper()
	return e.next(e.id.GetRecvComp)
}

func (e *vend) next(get func(context.Context) (verbs.WC, error)) (wc verbs.WC) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), vpatience)
	defer cancel()
	if e.r.net == nil {
		wc = vok(get(ctx))(e.t)
		e.r.meet()
		return wc
	}
	// In a simulation nobody waits: the network runs until there is something.
	cancel()
	var err error
	e.r.all(func() bool {
		wc, err = get(ctx)
		return err == nil || !errors.Is(err, context.Canceled)
	})
	return vok(wc, err)(e.t)
}

// meet passes through the locks of both devices: on real sockets nothing else tells the race
// detector that a peer's access to memory and the test's are one after the other.
func (r *vrig) meet() {
	for _, e := range []*vend{r.a, r.b} {
		if e.id != nil && e.id.QP() != nil {
			e.id.QP().State()
		}
	}
}

// none checks that nothing has completed.
func (e *vend) none(cq *verbs.CQ) {
	e.t.Helper()
	e.r.calm()
	wcs := make([]verbs.WC, 4)
	if n, err := cq.Poll(wcs); n != 0 || err != nil {
		e.t.Errorf("unexpected: %+v, %v", wcs[:n], err)
	}
}

// good checks a completion.
func (e *vend) good(wc verbs.WC, context uint64) {
	e.t.Helper()
	if wc.Status != ib.WCSuccess || wc.WRID != context || wc.QPNum != e.id.QP().Num() {
		e.t.Fatalf("%+v, want success of %d", wc, context)
	}
}

// bad checks a completion with an error.
func (e *vend) bad(wc verbs.WC, status ib.WCStatus, context uint64) {
	e.t.Helper()
	if wc.Status != status || wc.WRID != context {
		e.t.Fatalf("%+v, want %v of %d", wc, status, context)
	}
}

// revive takes a queue pair from SQE or SQD to RTS.
func (e *vend) revive() {
	e.t.Helper()
	if err := e.id.QP().Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState); err != nil {
		e.t.Fatal(err)
	}
}

// hold takes a queue pair to SQD, where work waits.
func (e *vend) hold() {
	e.t.Helper()
	if err := e.id.QP().Modify(&ib.QPAttr{QPState: ib.QPStateSQD}, ib.QPAttrState); err != nil {
		e.t.Fatal(err)
	}
}

// event is the next asynchronous event of the device's; it fails if there is none of the type.
func (e *vend) event(typ ib.EventType) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), vpatience)
	defer cancel()
	if e.r.net != nil {
		e.r.calm()
		cancel() // take what there is
	}
	for {
		ev, err := e.ctx.GetAsyncEvent(ctx)
		if err != nil {
			e.t.Fatalf("no event %v: %v", typ, err)
		}
		ev.Ack()
		if ev.Type == typ {
			return
		}
	}
}

// counter is one of the device's counters.
func (e *vend) counter(name string) uint64 {
	e.t.Helper()
	for _, c := range vok(e.ctx.HWCounters(1))(e.t) {
		if c.Name == name {
			return c.Value
		}
	}
	e.t.Fatalf("no counter %q", name)
	return 0
}

// msgs, read and write register memory through the ID.
func (e *vend) msgs(size int) *verbs.MR  { return e.mr(e.id.RegMsgs, make([]byte, size)) }
func (e *vend) read(size int) *verbs.MR  { return e.mr(e.id.RegRead, make([]byte, size)) }
func (e *vend) write(size int) *verbs.MR { return e.mr(e.id.RegWrite, make([]byte, size)) }

func (e *vend) mr(reg func([]byte) (*verbs.MR, error), b []byte) *verbs.MR {
	e.t.Helper()
	mr := vok(reg(b))(e.t)
	e.later(func() error {
		if err := rdmacm.DeregMR(mr); err != nil && !errors.Is(err, syscall.EINVAL) { // the test may have done it
			return err
		}
		return nil
	})
	return mr
}

// fill makes a pattern that tells position and round.
func fill(b []byte, round int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + round*31 + 1)
	}
}
