package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// cmRig is two hosts with a manager each on a simulated network.
type cmRig struct {
	t    testing.TB
	net  *simnet.Net
	a, b *cmHost // the client and the server, as far as tests have those

	watch soft.Watch // of hosts that are made from now on
}

// cmHost is a device with a manager and an event channel.
type cmHost struct {
	t    testing.TB
	net  *simnet.Net
	port *simnet.Port
	soft *soft.Device
	ctx  *verbs.Context
	m    *rdmacm.Manager
	ch   *rdmacm.EventChannel
	addr netip.Addr
	ids  []*rdmacm.ID
	dead bool
}

func newCMRig(t testing.TB) *cmRig {
	r := &cmRig{t: t, net: simnet.New(1)}
	r.a = r.host("a", 1, "192.0.2.1", "2001:db8::1")
	r.b = r.host("b", 2, "192.0.2.2", "2001:db8::2")
	return r
}

func (r *cmRig) host(name string, seed uint64, addrs ...string) *cmHost {
	r.t.Helper()
	return r.hostWith(name, seed, seed, addrs...)
}

// hostWith is host with different seeds for the device's numbers and the manager's.
func (r *cmRig) hostWith(name string, seed, cmSeed uint64, addrs ...string) *cmHost {
	r.t.Helper()
	h := &cmHost{t: r.t, net: r.net, port: r.net.NewPort(simnet.Config{}), addr: netip.MustParseAddr(addrs[0])}
	cfg := soft.Config{Name: name, LinkMTU: 1500, Port: h.port, Clock: r.net.Now, Seed: seed, Manual: true, GUID: 0x1000 + seed&0xFF, Watch: r.watch}
	for _, a := range addrs {
		cfg.Addrs = append(cfg.Addrs, netip.MustParseAddr(a))
	}
	var err error
	if h.soft, err = soft.NewDevice(cfg); err != nil {
		r.t.Fatal(err)
	}
	h.ctx = verbs.NewContext(h.soft)
	h.m = rdmacm.NewManager(rdmacm.WithContexts(h.ctx), rdmacm.WithManual(r.net.Now), rdmacm.WithSeed(cmSeed))
	r.net.Attach(h.port, func(now int64) int64 {
		next := h.soft.Turn(now)
		if at := h.m.Turn(now); at != 0 && (next == 0 || at < next) {
			next = at
		}
		// The manager has posted: the device may have an earlier deadline now.
		if at := h.soft.Turn(now); at != 0 && (next == 0 || at < next) {
			next = at
		}
		return next
	})
	h.ch = cmOK(h.m.NewEventChannel())(r.t)
	r.t.Cleanup(h.close)
	return h
}

// close destroys what the test has left, and looks for leaks.
func (h *cmHost) close() {
	if h.dead {
		return
	}
	h.dead = true
	h.t.Helper()
	ctx := context.Background()
	for _, id := range h.ids {
		if err := id.DestroyEP(ctx); err != nil {
			h.t.Error(err)
		}
	}
	h.net.Kick(h.port)
	h.net.RunFor(1e9)
	if err := errors.Join(h.ch.Close(), h.m.Close(), h.soft.Leaks(), h.ctx.Close()); err != nil {
		h.t.Error(err)
	}
}

// die ends a host without a word, as kill -9 does.
func (h *cmHost) die() {
	h.dead = true
	h.port.Close()
	h.soft.Close()
}

func cmOK[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// must is for what cannot fail.
func (h *cmHost) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *cmHost) id(ps rdmacm.PortSpace) *rdmacm.ID {
	h.t.Helper()
	id := cmOK(h.m.NewID(h.ch, ps, nil))(h.t)
	h.ids = append(h.ids, id)
	return id
}

// event runs the network until the host has an event, which must be of the type; it
// is acknowledged.
func (h *cmHost) event(want rdmacm.EventType) *rdmacm.Event {
	h.t.Helper()
	e := h.raw()
	if e == nil {
		h.t.Fatalf("no event, want %v", want)
	}
	h.must(e.Ack())
	if e.Type != want {
		h.t.Fatalf("%v, want %v", e, want)
	}
	if e.Type == rdmacm.EventConnectRequest {
		h.ids = append(h.ids, e.ID)
	}
	return e
}

// raw runs the network until there is an event, or for ten minutes.
func (h *cmHost) raw() (e *rdmacm.Event) {
	h.t.Helper()
	h.net.Kick(h.port)
	h.net.Run(func() bool {
		var err error
		if e, err = h.ch.Poll(); err != nil && !errors.Is(err, syscall.EAGAIN) {
			h.t.Fatal(err)
		}
		return e != nil
	}, 600e9)
	return e
}

// none runs the network for d ns and checks that there is no event but, in the end,
// the end of TIMEWAIT.
func (h *cmHost) none(d int64) {
	h.t.Helper()
	h.net.Kick(h.port)
	h.net.RunFor(d)
	for {
		e, err := h.ch.Poll()
		if err != nil {
			return
		}
		if e.Type != rdmacm.EventTimewaitExit {
			h.t.Errorf("unexpected: %v", e)
		}
		e.Ack()
	}
}

func cmAttr() *verbs.QPInitAttr {
	return &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}
}

// listen makes an ID that listens on an address.
func (h *cmHost) listen(ps rdmacm.PortSpace, at netip.AddrPort, backlog int) *rdmacm.ID {
	h.t.Helper()
	l := h.id(ps)
	h.must(l.Bind(at))
	h.must(l.Listen(backlog))
	return l
}

// route makes an ID that may connect.
func (h *cmHost) route(ps rdmacm.PortSpace, to netip.AddrPort) *rdmacm.ID {
	h.t.Helper()
	c := h.id(ps)
	h.must(c.ResolveAddr(h.t.Context(), netip.AddrPort{}, to, 1e9))
	h.event(rdmacm.EventAddrResolved)
	h.must(c.ResolveRoute(h.t.Context(), 1e9))
	h.event(rdmacm.EventRouteResolved)
	return c
}

// active is route with a queue pair.
func (h *cmHost) active(ps rdmacm.PortSpace, to netip.AddrPort) *rdmacm.ID {
	h.t.Helper()
	c := h.route(ps, to)
	h.must(c.CreateQP(nil, cmAttr()))
	return c
}

const testPort = 7471

func (h *cmHost) at() netip.AddrPort { return netip.AddrPortFrom(h.addr, testPort) }

// connect makes a connection from a to b: both sides' IDs.
func (r *cmRig) connect(pa, pb *rdmacm.ConnParam) (c, s *rdmacm.ID) {
	r.t.Helper()
	l := r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c, s = r.to(pa, pb)
	r.b.must(l.Destroy(r.t.Context()))
	return c, s
}

// to makes a connection from a to what listens at b.
func (r *cmRig) to(pa, pb *rdmacm.ConnParam) (c, s *rdmacm.ID) {
	r.t.Helper()
	c = r.a.active(rdmacm.PSTCP, r.b.at())
	r.a.must(c.Connect(r.t.Context(), pa))
	s = r.b.event(rdmacm.EventConnectRequest).ID
	r.b.must(s.CreateQP(nil, cmAttr()))
	r.b.must(s.Accept(r.t.Context(), pb))
	r.a.event(rdmacm.EventEstablished)
	r.b.event(rdmacm.EventEstablished)
	return c, s
}

// gone destroys an ID now.
func (h *cmHost) gone(id *rdmacm.ID) {
	h.t.Helper()
	h.must(id.DestroyEP(h.t.Context()))
	h.ids = slices.DeleteFunc(h.ids, func(o *rdmacm.ID) bool { return o == id })
}

// padded is private data as it arrives: of full length.
func padded(b []byte, n int) []byte { return append(slices.Clone(b), make([]byte, n-len(b))...) }

func sameBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes % x, want %d bytes % x", what, len(got), got, len(want), want)
	}
}

// inject sends a UDP payload again with a right ICRC.
func (r *cmRig) inject(src, dst netip.Addr, b []byte) {
	path := roce.NewPath(src, dst, roce.Port)
	roce.PutICRC(b[len(b)-roce.ICRCLen:], path.Compute(b, 0))
	r.net.Inject(netip.AddrPortFrom(src, roce.Port), dst, b, 0)
}
