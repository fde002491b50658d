package rdmacm_test

import (
	"context"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// vport is the port that the passive side listens on.
const vport = 7471

// vendConn is a host's part of the connection.
type vendConn struct {
	m      *rdmacm.Manager
	ch     *rdmacm.EventChannel
	listen *rdmacm.ID
}

// start makes the host's manager.
func (e *vend) start() {
	opts := []rdmacm.Option{rdmacm.WithContexts(e.ctx)}
	if e.port != nil {
		opts = append(opts, rdmacm.WithManual(e.r.net.Now), rdmacm.WithSeed(uint64(e.addr.AsSlice()[3])+1))
	}
	e.m = rdmacm.NewManager(opts...)
	e.later(e.m.Close)
	e.ch = vok(e.m.NewEventChannel())(e.t)
	e.later(e.ch.Close)
}

// turn is the host's turn on the simulated network.
func (e *vend) turn(now int64) int64 {
	next := e.soft.Turn(now)
	// What the manager posts may give the device an earlier deadline.
	for _, turn := range []func(int64) int64{e.m.Turn, e.soft.Turn} {
		if at := turn(now); at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// newID makes an ID that is destroyed with the host.
func (e *vend) newID(ps rdmacm.PortSpace) *rdmacm.ID {
	e.t.Helper()
	return e.own(vok(e.m.NewID(e.ch, ps, nil))(e.t))
}

func (e *vend) own(id *rdmacm.ID) *rdmacm.ID {
	e.later(func() error { return id.DestroyEP(context.Background()) })
	return id
}

// nextEvent waits for the next event of the channel.
func (e *vend) nextEvent() (ev *rdmacm.Event) {
	e.t.Helper()
	var err error
	if e.r.net != nil {
		e.r.all(func() bool { ev, err = e.ch.Poll(); return err == nil })
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), vpatience)
		defer cancel()
		ev, err = e.ch.Get(ctx)
	}
	if err != nil {
		e.t.Fatalf("no event: %v", err)
	}
	return ev
}

// cmEvent is the next event, which must be of the type and tell success. It is to be acknowledged.
func (e *vend) cmEvent(want rdmacm.EventType) *rdmacm.Event {
	e.t.Helper()
	ev := e.nextEvent()
	if ev.Type != want || ev.Status != 0 {
		e.t.Fatalf("event %v, want %v", ev, want)
	}
	return ev
}

// cm waits for the next event, which must be of the type and tell success,
// acknowledges it, and gives its ID.
func (e *vend) cm(want rdmacm.EventType) *rdmacm.ID {
	e.t.Helper()
	ev := e.cmEvent(want)
	if err := ev.Ack(); err != nil {
		e.t.Fatal(err)
	}
	return ev.ID
}

func (r *vrig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// resolve gives the active side an ID that knows the way to the passive one.
func (r *vrig) resolve(ps rdmacm.PortSpace) {
	r.t.Helper()
	a := r.a
	a.id = a.newID(ps)
	ctx := context.Background()
	r.must(a.id.ResolveAddr(ctx, netip.AddrPortFrom(a.addr, 0), netip.AddrPortFrom(r.b.addr, vport), 0))
	a.cm(rdmacm.EventAddrResolved)
	r.must(a.id.ResolveRoute(ctx, 0))
	a.cm(rdmacm.EventRouteResolved)
	r.must(a.id.CreateQP(nil, a.attr()))
}

// prepare has one side listen, and the other one ready to connect.
func (r *vrig) prepare() {
	r.t.Helper()
	r.resolve(rdmacm.PSTCP)
	b := r.b
	b.listen = b.newID(rdmacm.PSTCP)
	r.must(b.listen.Bind(netip.AddrPortFrom(b.addr, vport)))
	r.must(b.listen.Listen(1))
}

// request has the passive side get the request, and make its queue pair.
func (r *vrig) request() {
	r.t.Helper()
	r.must(r.a.id.Connect(context.Background(), nil))
	b := r.b
	b.id = b.own(b.cm(rdmacm.EventConnectRequest))
	if r.shared {
		r.must(b.id.CreateSRQ(nil, &ib.SRQAttr{MaxWR: 16, MaxSGE: 4}))
	}
	r.must(b.id.CreateQP(nil, b.attr()))
}

// accept accepts it. What the other side does about that has not happened yet on the
// simulated network.
func (r *vrig) accept() {
	r.t.Helper()
	r.must(r.b.id.Accept(context.Background(), nil))
}

// establish waits until both sides know.
func (r *vrig) establish() {
	r.t.Helper()
	r.a.cm(rdmacm.EventEstablished)
	r.b.cm(rdmacm.EventEstablished)
}

// connect is all of it.
func (r *vrig) connect() {
	r.t.Helper()
	r.prepare()
	r.request()
	r.accept()
	r.establish()
}

// disconnect ends the connection from the active side.
func (r *vrig) disconnect() {
	r.t.Helper()
	r.must(r.a.id.Disconnect(context.Background()))
}

// datagrams gives both sides a queue pair for datagrams. Nobody connects.
func (r *vrig) datagrams() {
	r.t.Helper()
	r.resolve(rdmacm.PSUDP)
	b := r.b
	b.id = b.newID(rdmacm.PSUDP)
	r.must(b.id.Bind(netip.AddrPortFrom(b.addr, vport)))
	r.must(b.id.CreateQP(nil, b.attr()))
}
