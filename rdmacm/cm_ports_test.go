package rdmacm_test

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Which addresses may be bound together: pairs on one port of one space, the second
// with its error. EADDRINUSE of a wildcard is EADDRNOTAVAIL too.
func TestCase98_PortPairs(t *testing.T) {
	const none, inuse, wild = 0, 1, 2
	for _, c := range []struct {
		a, b         string
		only, reuse  bool // SetAFOnly of IPv6 addresses; SetReuseAddr of both
		want, listen int
	}{
		{"192.0.2.1", "192.0.2.1", false, false, inuse, 0},
		{"192.0.2.1", "192.0.2.9", false, false, none, none},
		{"192.0.2.1", "0.0.0.0", false, false, wild, 0},
		{"0.0.0.0", "192.0.2.1", false, false, wild, 0},
		{"0.0.0.0", "0.0.0.0", false, false, wild, 0},
		{"0.0.0.0", "::", false, false, wild, 0},
		{"0.0.0.0", "::", true, false, none, none},
		{"::", "0.0.0.0", true, false, none, none},
		{"::", "192.0.2.1", false, false, wild, 0},
		{"::", "192.0.2.1", true, false, none, none},
		{"::", "2001:db8::1", true, false, wild, 0},
		{"2001:db8::1", "192.0.2.1", false, false, none, none},
		{"2001:db8::1", "2001:db8::1", false, false, inuse, 0},
		{"192.0.2.1", "192.0.2.1", false, true, none, inuse},
		{"0.0.0.0", "192.0.2.1", false, true, none, wild},
		{"192.0.2.1", "192.0.2.9", false, true, none, none},
	} {
		both := twoDevices(t)
		bind := func(addr string) (*rdmacm.ID, error) {
			id := both.id(rdmacm.PSTCP)
			a := netip.MustParseAddr(addr)
			if c.only && a.Is6() {
				both.must(id.SetAFOnly(true))
			}
			if c.reuse {
				both.must(id.SetReuseAddr(true))
			}
			return id, id.Bind(netip.AddrPortFrom(a, 4000))
		}
		check := func(what string, err error, want int) {
			t.Helper()
			if (err == nil) != (want == none) || want != none && !errors.Is(err, syscall.EADDRINUSE) ||
				errors.Is(err, syscall.EADDRNOTAVAIL) != (want == wild) {
				t.Errorf("%+v: %s: %v", c, what, err)
			}
		}
		one, err := bind(c.a)
		both.must(err)
		two, err := bind(c.b)
		check("bind", err, c.want)
		if err == nil {
			check("listen", two.Listen(0), c.listen)
			if c.listen == none && !c.reuse {
				both.must(one.Listen(0))
			}
		}
		both.gone(one)
		both.gone(two)
		_, err = bind(c.b) // free again
		both.must(err)
		other := both.id(rdmacm.PSUDP) // another space
		both.must(other.Bind(netip.AddrPortFrom(netip.MustParseAddr(c.a), 4000)))
	}
}

// twoDevices is a host with two devices.
func twoDevices(t *testing.T) *cmHost {
	t.Helper()
	r := &cmRig{t: t, net: simnet.New(1)}
	h := r.host("d1", 1, "192.0.2.1", "2001:db8::1")
	p := r.net.NewPort(simnet.Config{})
	dev := cmOK(soft.NewDevice(soft.Config{
		Name: "d2", Port: p, Clock: r.net.Now, Seed: 2, Manual: true, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")},
	}))(t)
	ctx := verbs.NewContext(dev)
	h.must(errors.Join(h.ch.Close(), h.m.Close()))
	h.m = rdmacm.NewManager(rdmacm.WithContexts(h.ctx, ctx), rdmacm.WithManual(r.net.Now), rdmacm.WithSeed(1))
	h.ch = cmOK(h.m.NewEventChannel())(t)
	r.net.Attach(p, func(now int64) int64 {
		next := dev.Turn(now)
		r.net.Kick(h.port) // whose turn is the manager's too
		return next
	})
	t.Cleanup(func() { h.must(ctx.Close()) })
	t.Cleanup(h.close)
	return h
}

// Every call at the wrong time, or with what is wrong, is refused with its errno, and
// the ID works on.
func TestWrongCalls(t *testing.T) {
	r := newCMRig(t)
	ctx := t.Context()
	in := func(what string, err error, want syscall.Errno) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	_, err := r.a.m.NewID(r.a.ch, 7, nil)
	in("port space", err, syscall.EINVAL)
	_, err = r.a.m.NewIDType(r.a.ch, rdmacm.PSTCP, ib.UD, nil)
	in("type", err, syscall.EINVAL)
	_, err = r.a.m.NewID(r.b.ch, rdmacm.PSTCP, nil)
	in("channel", err, syscall.EINVAL)
	in("open channel", r.a.m.Close(), syscall.EBUSY)

	id := r.a.id(rdmacm.PSTCP)
	in("channel in use", r.a.ch.Close(), syscall.EBUSY)
	in("resolve_route", id.ResolveRoute(ctx, 0), syscall.EINVAL)
	in("connect", id.Connect(ctx, &rdmacm.ConnParam{}), syscall.EINVAL)
	in("accept", id.Accept(ctx, &rdmacm.ConnParam{}), syscall.EINVAL)
	in("reject", id.Reject(nil), syscall.EINVAL)
	in("notify", id.Notify(ib.EventCommEst), syscall.EINVAL)
	in("create_qp", id.CreateQP(nil, cmAttr()), syscall.EINVAL)
	in("create_srq", id.CreateSRQ(nil, &ib.SRQAttr{MaxWR: 1, MaxSGE: 1}), syscall.EINVAL)
	_, err = id.InitQPAttr(&ib.QPAttr{QPState: ib.QPStateInit})
	in("init_qp_attr", err, syscall.EINVAL)
	_, err = id.GetRequest(ctx)
	in("get_request", err, syscall.EINVAL)
	in("join", id.JoinMulticast(ctx, netip.MustParseAddr("239.0.0.1"), nil), syscall.EINVAL)
	in("leave", id.LeaveMulticast(ctx, netip.MustParseAddr("239.0.0.1")), syscall.EADDRNOTAVAIL)
	in("path", id.SetIBPath(rdmacm.PathRecord{}), syscall.EINVAL)
	in("ece", id.SetLocalECE(ib.ECE{}), syscall.EINVAL)
	in("bind: nothing", id.Bind(netip.AddrPort{}), syscall.EAFNOSUPPORT)
	in("bind: foreign", id.Bind(netip.MustParseAddrPort("192.0.2.77:1")), syscall.EADDRNOTAVAIL)
	in("bind: no zone", id.Bind(netip.MustParseAddrPort("[fe80::1]:1")), syscall.EINVAL)
	in("resolve: nothing", id.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPort{}, 0), syscall.EAFNOSUPPORT)
	in("resolve: no zone", id.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort("[fe80::1]:1"), 0), syscall.EINVAL)
	in("resolve: families", id.ResolveAddr(ctx, netip.MustParseAddrPort("[2001:db8::1]:0"), r.b.at(), 0), syscall.EINVAL)

	r.a.must(id.Bind(netip.MustParseAddrPort("192.0.2.1:0")))
	if id.SrcPort() < 32768 {
		t.Errorf("port %d", id.SrcPort())
	}
	in("bind again", id.Bind(netip.MustParseAddrPort("192.0.2.1:0")), syscall.EINVAL)
	r.a.must(id.CreateQP(nil, cmAttr())) // bound to a device
	in("second queue pair", id.CreateQP(nil, cmAttr()), syscall.EINVAL)
	in("ece with queue pair", id.SetLocalECE(ib.ECE{VendorID: 1}), syscall.EINVAL)
	in("establish", id.Establish(), syscall.EINVAL)
	r.a.must(id.ResolveAddr(ctx, netip.AddrPort{}, r.b.at(), 0))
	r.a.event(rdmacm.EventAddrResolved)
	in("resolve again", id.ResolveAddr(ctx, netip.AddrPort{}, r.b.at(), 0), syscall.EINVAL)
	in("AF only too late", id.SetAFOnly(true), syscall.EINVAL)
	in("listen", id.Listen(0), syscall.EINVAL)
	in("wrong path", id.SetIBPath(rdmacm.PathRecord{MTU: ib.MTU1024}), syscall.EINVAL)
	p := rdmacm.PathRecord{
		SGID: ib.GIDFromAddr(r.a.addr), DGID: ib.GIDFromAddr(r.b.addr), MTU: ib.MTU512, HopLimit: 7, TrafficClass: 12, PKey: ib.PKeyDefault, PacketLifeTime: 14,
	}
	r.a.must(id.SetIBPath(p))
	r.a.event(rdmacm.EventRouteResolved)
	in("route again", id.ResolveRoute(ctx, 0), syscall.EINVAL)
	in("too many resources", id.Connect(ctx, &rdmacm.ConnParam{ResponderResources: 129}), syscall.EINVAL)
	in("too much depth", id.Connect(ctx, &rdmacm.ConnParam{InitiatorDepth: 129}), syscall.EINVAL)
	l := r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	in("reuse of a listener", l.SetReuseAddr(true), syscall.EINVAL)
	in("listen again", l.Listen(0), syscall.EINVAL)
	r.a.must(id.Connect(ctx, nil))
	in("connect again", id.Connect(ctx, nil), syscall.EINVAL)
	s := r.b.event(rdmacm.EventConnectRequest).ID
	if q := s.Route(); len(q) != 1 || q[0].MTU != ib.MTU512 || q[0].HopLimit != 7 || q[0].TrafficClass != 12 {
		t.Errorf("route of the request: %+v", q)
	}
	r.b.must(s.CreateQP(nil, cmAttr()))
	r.b.must(s.Accept(ctx, nil))
	r.a.event(rdmacm.EventEstablished)
	r.b.event(rdmacm.EventEstablished)
	in("accept again", s.Accept(ctx, nil), syscall.EINVAL)
	in("notify", s.Notify(ib.EventCommEst), syscall.EISCONN)
	in("notify", s.Notify(ib.EventSQDrained), syscall.EINVAL)
	qa, _, _ := id.QP().Query()
	qb, _, _ := s.QP().Query()
	if qa.PathMTU != ib.MTU512 || qb.PathMTU != ib.MTU512 || qa.AHAttr.TrafficClass != 12 || qb.AHAttr.TrafficClass != 12 || qa.AHAttr.HopLimit != 7 {
		t.Errorf("%+v\n%+v", qa, qb)
	}
	r.exchange(id, s)

	r.a.gone(id)
	in("destroyed", id.Bind(netip.MustParseAddrPort("192.0.2.1:0")), syscall.EINVAL)
	r.a.must(id.Destroy(ctx))
	listening := r.b.id(rdmacm.PSTCP)
	r.b.must(listening.Listen(0)) // without Bind
	if a := listening.LocalAddr(); a.Addr().String() != "0.0.0.0" || a.Port() == 0 {
		t.Error(a)
	}
	if got := rdmacm.EventStr(99); got != "UNKNOWN EVENT" {
		t.Error(got)
	}
	if got := rdmacm.EventMulticastError.String(); got != "RDMA_CM_EVENT_MULTICAST_ERROR" || rdmacm.EventTimewaitExit != 15 {
		t.Error(got)
	}
}

// A wildcard listens on all devices and both families, and tells where a request came in.
func TestListenOnAll(t *testing.T) {
	for _, only := range []bool{false, true} {
		r := newCMRig(t)
		l := r.b.id(rdmacm.PSTCP)
		r.b.must(l.SetAFOnly(only))
		r.b.must(l.Bind(netip.MustParseAddrPort("[::]:7471")))
		r.b.must(l.Listen(3))
		if l.Verbs() != nil || l.PD() != nil {
			t.Error("bound to a device")
		}
		for _, to := range []string{"192.0.2.2", "2001:db8::2"} {
			at := netip.AddrPortFrom(netip.MustParseAddr(to), testPort)
			c := r.a.active(rdmacm.PSTCP, at)
			r.a.must(c.Connect(t.Context(), nil))
			if only && to == "192.0.2.2" {
				if e := r.a.event(rdmacm.EventRejected); e.Status != int(rdmacm.RejectConsumer) {
					t.Error(e)
				}
				continue
			}
			s := r.b.event(rdmacm.EventConnectRequest).ID
			if s.LocalAddr() != at {
				t.Errorf("%v, want %v", s.LocalAddr(), at)
			}
		}
	}
}

// A device has one manager: the second one finds none that it can use.
func TestOneManagerADevice(t *testing.T) {
	r := newCMRig(t)
	if _, err := r.a.m.Devices(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := rdmacm.NewManager(rdmacm.WithContexts(r.a.ctx), rdmacm.WithManual(r.net.Now))
	if _, err := m.Devices(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	// Beside one that works it does not hurt (case 101).
	m = rdmacm.NewManager(rdmacm.WithContexts(r.a.ctx, r.b.ctx), rdmacm.WithManual(r.net.Now))
	if list, err := m.Devices(t.Context()); err != nil || len(list) != 1 || list[0] != r.b.ctx {
		t.Errorf("%v %v", list, err)
	}
	r.a.must(m.Close())
	m = rdmacm.NewManager(rdmacm.WithProviders())
	if _, err := m.Devices(t.Context()); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
	r.a.must(m.Close())
}

// A wildcard listens on every device; IDs of one process connect to each other over one
// device and over two, from an address to itself too.
func TestListenOnAllDevices(t *testing.T) {
	h := twoDevices(t)
	l := h.listen(rdmacm.PSTCP, netip.MustParseAddrPort("0.0.0.0:7471"), 0)
	for _, src := range []string{"192.0.2.1", "192.0.2.9"} {
		for _, dst := range []string{"192.0.2.1", "192.0.2.9"} {
			c := h.id(rdmacm.PSTCP)
			h.must(c.ResolveAddr(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(src), 0), netip.AddrPortFrom(netip.MustParseAddr(dst), testPort), 0))
			h.event(rdmacm.EventAddrResolved)
			h.must(c.ResolveRoute(t.Context(), 0))
			h.event(rdmacm.EventRouteResolved)
			h.must(c.CreateQP(nil, cmAttr()))
			h.must(c.Connect(t.Context(), nil))
			e := h.event(rdmacm.EventConnectRequest)
			s := e.ID
			if e.ListenID != l || s.LocalAddr().Addr().String() != dst || s.PeerAddr() != c.LocalAddr() || (s.Verbs() == c.Verbs()) != (src == dst) {
				t.Errorf("%s to %s: %v %v", src, dst, s.LocalAddr(), s.PeerAddr())
			}
			h.must(s.CreateQP(nil, cmAttr()))
			h.must(s.Accept(t.Context(), nil))
			told := map[*rdmacm.ID]bool{}
			for range 2 {
				told[h.event(rdmacm.EventEstablished).ID] = true
			}
			if !told[c] || !told[s] {
				t.Errorf("%s to %s: %v", src, dst, told)
			}
			h.must(c.Disconnect(t.Context()))
			if e := h.event(rdmacm.EventDisconnected); e.ID != s {
				t.Error(e)
			}
			h.must(s.Disconnect(t.Context()))
			if e := h.event(rdmacm.EventDisconnected); e.ID != c {
				t.Error(e)
			}
			h.gone(c)
			h.gone(s)
		}
	}
}

// Events are in order and belong to somebody: Destroy and Migrate wait for those that
// were got, and only for their own; what nobody got is moved, or discarded with its request.
func TestEventsAndTheirOwners(t *testing.T) {
	r := newCMRig(t)
	l := r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	connect := func() *rdmacm.ID {
		c := r.a.active(rdmacm.PSTCP, r.b.at())
		r.a.must(c.Connect(t.Context(), nil))
		return c
	}
	connect()
	e := r.b.raw() // a request, not acknowledged
	s := e.ID
	r.b.ids = append(r.b.ids, s)
	other := r.b.id(rdmacm.PSTCP)
	r.b.must(other.Destroy(t.Context())) // an event of somebody else
	r.b.ids = slices.DeleteFunc(r.b.ids, func(o *rdmacm.ID) bool { return o == other })

	connect()
	connect() // two that nobody gets
	r.net.Kick(r.a.port)
	r.net.RunFor(1e9)
	done := make(chan error, 1)
	go func() { done <- l.Destroy(t.Context()) }()
	for l.Listen(0) == nil || !errors.Is(l.Listen(0), syscall.EINVAL) {
	}
	select {
	case err := <-done:
		t.Fatalf("Destroy did not wait for the event: %v", err)
	default:
	}
	r.b.must(e.Ack())
	r.b.must(e.Ack())
	r.b.must(<-done)
	r.b.ids = slices.DeleteFunc(r.b.ids, func(o *rdmacm.ID) bool { return o == l })
	for range 2 {
		if e := r.a.event(rdmacm.EventRejected); e.Status != int(rdmacm.RejectConsumer) {
			t.Error(e)
		}
	}
	// The first request lives: its listener is gone, it is not.
	r.b.must(s.CreateQP(nil, cmAttr()))
	r.b.must(s.Accept(t.Context(), nil))
	r.a.event(rdmacm.EventEstablished)

	ch := cmOK(r.b.m.NewEventChannel())(t)
	r.net.Kick(r.b.port)
	r.net.RunFor(1e9) // ESTABLISHED waits to be got
	r.b.must(s.Migrate(t.Context(), ch))
	if _, err := r.b.ch.Poll(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("the old channel: %v", err)
	}
	e, err := ch.Get(t.Context())
	if err != nil || e.Type != rdmacm.EventEstablished || e.ID != s || s.Channel() != ch {
		t.Fatalf("%v %v", e, err)
	}
	go func() { done <- s.Migrate(t.Context(), r.b.ch) }()
	for s.Channel() != r.b.ch {
	}
	select {
	case err := <-done:
		t.Fatalf("Migrate did not wait for the event: %v", err)
	default:
	}
	r.b.must(e.Ack())
	r.b.must(<-done)
	r.b.must(ch.Close())
	if _, err := ch.Get(t.Context()); err == nil {
		t.Error("Get on a closed channel")
	}
	r.b.must(s.Migrate(t.Context(), nil))
	if s.Channel() != nil {
		t.Error("not synchronous")
	}
	if err := s.Migrate(t.Context(), nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("synchronous to synchronous: %v", err)
	}
}

// COMM_EST makes an accepted connection an established one when the RTU is lost.
func TestNotify(t *testing.T) {
	r := newCMRig(t)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c := r.a.active(rdmacm.PSTCP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil))
	s := r.b.event(rdmacm.EventConnectRequest).ID
	r.b.must(s.CreateQP(nil, cmAttr()))
	r.b.must(s.Accept(t.Context(), nil))
	r.b.must(s.Notify(ib.EventCommEst))
	r.b.event(rdmacm.EventEstablished)
	r.a.event(rdmacm.EventEstablished)
	r.b.none(1e9)
}
