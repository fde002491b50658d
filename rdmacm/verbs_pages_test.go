package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// What the pages that the helpers' pages refer to promise, as far as no other test shows
// it: CONFORMANCE.md has the statements.

// The flows of rdma_cm(7), call by call, of client and server.
func TestClientAndServerFlow(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		ctx := context.Background()
		a, b := r.a, r.b
		// Server: channel, ID, address, listen. (rig: event channel)
		b.listen = vok(b.m.NewID(b.ch, rdmacm.PSTCP, "server"))(t)
		r.must(b.listen.Bind(netip.AddrPortFrom(b.addr, vport)))
		r.must(b.listen.Listen(8))
		// Client: address information, ID, address, queue pair, route, connect.
		ai := vok(rdmacm.GetAddrInfo(ctx, b.addr.String(), "7471", nil))(t)
		if ai.Dst != netip.AddrPortFrom(b.addr, vport) || ai.PortSpace != rdmacm.PSTCP || ai.QPType != ib.RC {
			t.Fatalf("%+v", ai)
		}
		a.id = vok(a.m.NewID(a.ch, ai.PortSpace, "client"))(t)
		r.must(a.id.ResolveAddr(ctx, netip.AddrPort{}, ai.Dst, 2e9))
		a.cm(rdmacm.EventAddrResolved)
		r.must(a.id.CreateQP(nil, a.attr())) // before the route is known
		r.must(a.id.ResolveRoute(ctx, 2e9))
		a.cm(rdmacm.EventRouteResolved)
		r.must(a.id.Connect(ctx, &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}))
		// Server: request, queue pair, accept.
		b.id = b.cm(rdmacm.EventConnectRequest)
		r.must(b.id.CreateQP(nil, b.attr()))
		r.must(b.id.Accept(ctx, nil))
		r.establish()
		if a.id.UserContext() != "client" || b.id.UserContext() != "server" {
			t.Error(a.id.UserContext(), b.id.UserContext())
		}
		// Data.
		ma, mb := vok(a.id.RegMsgs(make([]byte, 8)))(t), vok(b.id.RegMsgs(make([]byte, 8)))(t)
		fill(ma.Bytes(), 1)
		r.must(b.id.PostRecv(1, mb.Bytes(), mb))
		r.must(a.id.PostSend(2, ma.Bytes(), ma, ib.SendSignaled))
		a.good(a.sent(), 2)
		b.good(b.received(), 1)
		if !bytes.Equal(ma.Bytes(), mb.Bytes()) {
			t.Error("other bytes")
		}
		r.must(errors.Join(rdmacm.DeregMR(ma), rdmacm.DeregMR(mb)))
		// Both ends: disconnect, queue pair, IDs.
		r.must(a.id.Disconnect(ctx))
		b.cm(rdmacm.EventDisconnected)
		r.must(b.id.Disconnect(ctx))
		a.cm(rdmacm.EventDisconnected)
		for _, id := range []*rdmacm.ID{a.id, b.id} {
			r.must(errors.Join(id.DestroyQP(ctx), id.Destroy(ctx)))
			if id.QP() != nil || id.SendCQ() != nil || id.RecvCQ() != nil || id.SendChannel() != nil || id.RecvChannel() != nil {
				t.Error("the ID still has a queue pair")
			}
		}
		r.must(b.listen.Destroy(ctx))
		a.id, b.id = nil, nil
	})
}

// hosts gives two hosts on real sockets, where synchronous calls wait.
func hosts(t *testing.T) (r *vrig, a, b *vend) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("no sockets of ours here")
	}
	r = newVRig(t, false, false)
	return r, r.a, r.b
}

// Without a channel each call waits, and its event stays until the next call.
func TestSynchronous(t *testing.T) {
	r, a, b := hosts(t)
	ctx, cancel := context.WithTimeout(t.Context(), vpatience)
	defer cancel()
	l := b.own(vok(b.m.NewID(nil, rdmacm.PSTCP, nil))(t))
	if l.Channel() != nil || l.Event() != nil {
		t.Error(l.Channel(), l.Event())
	}
	r.must(l.Bind(netip.AddrPortFrom(b.addr, vport)))
	r.must(l.Listen(1))
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			id, err := l.GetRequest(ctx)
			if err != nil {
				return err
			}
			b.id = b.own(id)
			if e := id.Event(); e == nil || e.Type != rdmacm.EventConnectRequest || string(e.Conn.PrivateData[:5]) != "hello" || e.ListenID != l {
				t.Errorf("%+v", e)
			}
			if id.Channel() != nil || id.QP() != nil {
				t.Error(id.Channel(), id.QP())
			}
			// Parameters of the event, which is not acknowledged yet.
			p := id.Event().Conn
			p.PrivateData = nil
			return errors.Join(id.CreateQP(nil, b.attr()), id.Accept(ctx, &p))
		}()
	}()
	a.id = a.own(vok(a.m.NewID(nil, rdmacm.PSTCP, nil))(t))
	if a.id.Verbs() != nil || a.id.PD() != nil || a.id.PortNum() != 0 {
		t.Error("bound to a device before anybody said which")
	}
	for _, c := range []struct {
		want rdmacm.EventType
		call func() error
	}{
		{rdmacm.EventAddrResolved, func() error {
			return a.id.ResolveAddr(ctx, netip.AddrPortFrom(a.addr, 0), netip.AddrPortFrom(b.addr, vport), 0)
		}},
		{rdmacm.EventRouteResolved, func() error { return a.id.ResolveRoute(ctx, 0) }},
		{rdmacm.EventEstablished, func() error {
			return errors.Join(a.id.CreateQP(nil, a.attr()), a.id.Connect(ctx, &rdmacm.ConnParam{PrivateData: []byte("hello"), RNRRetryCount: 7, RetryCount: 7}))
		}},
	} {
		if err := c.call(); err != nil {
			t.Fatal(c.want, err)
		}
		if e := a.id.Event(); e == nil || e.Type != c.want || e.ID != a.id {
			t.Fatalf("%v, want %v", e, c.want)
		}
	}
	r.must(<-done)
	if e := b.id.Event(); e == nil || e.Type != rdmacm.EventEstablished {
		t.Errorf("%v after Accept", e)
	}
	// Both ends at once, as each waits for the other.
	go func() { done <- b.id.Disconnect(ctx) }()
	r.must(a.id.Disconnect(ctx))
	r.must(<-done)
}

// A refusal is an error of the call.
func TestSynchronousRefusals(t *testing.T) {
	r, a, b := hosts(t)
	ctx, cancel := context.WithTimeout(t.Context(), vpatience)
	defer cancel()
	l := b.own(vok(b.m.NewID(nil, rdmacm.PSTCP, nil))(t))
	r.must(l.Bind(netip.AddrPortFrom(b.addr, vport)))
	if _, err := l.GetRequest(ctx); !errors.Is(err, syscall.EINVAL) {
		t.Error("a request before listening:", err)
	}
	r.must(l.Listen(0))
	to := func(port string) *rdmacm.ID {
		ai := vok(rdmacm.GetAddrInfo(ctx, b.addr.String(), port, nil))(t)
		return a.own(vok(a.m.CreateEP(ctx, ai, nil, a.attr()))(t))
	}
	var re *rdmacm.RejectError
	if err := to("7472").Connect(ctx, nil); !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &re) || re.Reason != rdmacm.RejectBadServiceID {
		t.Error("nobody listens:", err)
	}
	done := make(chan error, 1)
	go func() {
		id, err := l.GetRequest(ctx)
		if err == nil {
			err = b.own(id).Reject([]byte("no"))
		}
		done <- err
	}()
	if err := to("7471").Connect(ctx, nil); !errors.As(err, &re) || re.Reason != rdmacm.RejectConsumer || string(re.PrivateData[:3]) != "no\x00" {
		t.Error("rejected:", err)
	}
	r.must(<-done)
	// The context ends a wait.
	ctx2, cancel2 := context.WithCancel(ctx)
	cancel2()
	if _, err := l.GetRequest(ctx2); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Accept is for the ID of a request, not for the one that listens.
func TestAcceptOnTheListeningID(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	for what, err := range map[string]error{
		"accept":         r.b.listen.Accept(t.Context(), &rdmacm.ConnParam{}),
		"reject":         r.b.listen.Reject(nil),
		"connect":        r.b.listen.Connect(t.Context(), &rdmacm.ConnParam{}),
		"active, accept": r.a.id.Accept(t.Context(), nil),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.request()
	r.accept()
	r.establish() // it went on all the same
}

// What comes before the route is known is refused, and changes nothing.
func TestConnectNeedsARoute(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	ctx := t.Context()
	id := r.a.newID(rdmacm.PSTCP)
	p := &rdmacm.ConnParam{}
	early := func(what string) {
		t.Helper()
		if err := id.Connect(ctx, p); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	early("new")
	r.must(id.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(r.b.addr, vport), 0))
	r.a.cm(rdmacm.EventAddrResolved)
	early("address resolved")
	r.must(id.ResolveRoute(ctx, 0))
	r.a.cm(rdmacm.EventRouteResolved)
	r.must(id.CreateQP(nil, r.a.attr()))
	r.must(id.Connect(ctx, p))
	early("connecting")
	r.a.id.DestroyEP(ctx)
	r.a.id = id
	b := r.b
	b.id = b.own(b.cm(rdmacm.EventConnectRequest))
	r.must(b.id.CreateQP(nil, b.attr()))
	r.accept()
	r.establish()
}

// The numbers of READs and atomics: as much as the device has, what the peer may lower,
// and not a bit more.
func TestResourcesOfAConnection(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	dev := vok(r.a.ctx.QueryDevice())(t)
	ctx := t.Context()
	for what, p := range map[string]*rdmacm.ConnParam{
		"ResponderResources": {ResponderResources: uint8(dev.MaxQPRDAtom) + 1},
		"InitiatorDepth":     {InitiatorDepth: uint8(dev.MaxQPInitRDAtom) + 1},
	} {
		if err := r.a.id.Connect(ctx, p); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("connect, %s: %v", what, err)
		}
	}
	r.must(r.a.id.Connect(ctx, &rdmacm.ConnParam{ResponderResources: 10, InitiatorDepth: rdmacm.MaxInitDepth, FlowControl: true, RetryCount: 15, RNRRetryCount: 9}))
	b := r.b
	b.id = b.own(b.cm(rdmacm.EventConnectRequest))
	r.must(b.id.CreateQP(nil, b.attr()))
	for what, p := range map[string]*rdmacm.ConnParam{
		"ResponderResources": {ResponderResources: uint8(dev.MaxQPRDAtom) + 1},
		"InitiatorDepth":     {InitiatorDepth: uint8(dev.MaxQPInitRDAtom) + 1},
	} {
		if err := b.id.Accept(ctx, p); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("accept, %s: %v", what, err)
		}
	}
	r.must(b.id.Accept(ctx, &rdmacm.ConnParam{ResponderResources: rdmacm.MaxRespRes, InitiatorDepth: 3, RetryCount: 2}))
	r.establish()
	qa, _, _ := r.a.id.QP().Query()
	qb, _, _ := b.id.QP().Query()
	if int(qa.MaxRDAtomic) != int(dev.MaxQPInitRDAtom) || qa.MaxDestRDAtomic != 3 || qb.MaxRDAtomic != 3 || int(qb.MaxDestRDAtomic) != int(dev.MaxQPRDAtom) {
		t.Errorf("%d and %d, %d and %d", qa.MaxRDAtomic, qa.MaxDestRDAtomic, qb.MaxRDAtomic, qb.MaxDestRDAtomic)
	}
	// Retry counts are of 3 bits; that of Accept is ignored.
	if qa.RetryCnt != 7 || qb.RetryCnt != 7 || qb.RNRRetry != 7 || qa.RNRRetry != 0 {
		t.Errorf("%d, %d; %d, %d", qa.RetryCnt, qb.RetryCnt, qa.RNRRetry, qb.RNRRetry)
	}
}

// Who accepts may want more READs under way than the request offers: the peer serves as
// many.
func TestMoreReadsThanTheRequestOffers(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	r.must(r.a.id.Connect(t.Context(), &rdmacm.ConnParam{ResponderResources: 2, InitiatorDepth: 2, RetryCount: 7, RNRRetryCount: 7}))
	b := r.b
	b.id = b.own(b.cm(rdmacm.EventConnectRequest))
	r.must(b.id.CreateQP(nil, b.attr()))
	r.must(b.id.Accept(t.Context(), &rdmacm.ConnParam{ResponderResources: 2, InitiatorDepth: 9}))
	r.establish()
	qa, _, _ := r.a.id.QP().Query()
	qb, _, _ := b.id.QP().Query()
	if qa.MaxDestRDAtomic != 9 || qb.MaxRDAtomic != 9 {
		t.Errorf("%d and %d", qa.MaxDestRDAtomic, qb.MaxRDAtomic)
	}
	src, dst := r.a.read(4096), b.msgs(4096)
	for i := range uint64(16) {
		r.must(b.id.PostRead(i, dst.Bytes(), dst, ib.SendSignaled, src.Addr(), src.RKey()))
	}
	for i := range uint64(16) {
		b.good(b.sent(), i)
	}
}

// Endpoints: made of address information, the passive one makes queue pairs for requests.
func TestEndpoints(t *testing.T) {
	r, a, b := hosts(t)
	ctx, cancel := context.WithTimeout(t.Context(), vpatience)
	defer cancel()
	pdA, pdB := vok(a.ctx.AllocPD())(t), vok(b.ctx.AllocPD())(t)
	a.later(pdA.Dealloc)
	b.later(pdB.Dealloc)
	passive := vok(rdmacm.GetAddrInfo(ctx, b.addr.String(), "7471", &rdmacm.AddrInfo{Flags: rdmacm.RAIPassive | rdmacm.RAINumericHost}))(t)
	active := vok(rdmacm.GetAddrInfo(ctx, b.addr.String(), "7471", &rdmacm.AddrInfo{PortSpace: rdmacm.PSTCP}))(t)
	for _, own := range []bool{false, true} {
		var pa, pb *verbs.PD
		if own {
			pa, pb = pdA, pdB
		}
		l := vok(b.m.CreateEP(ctx, passive, pb, b.attr()))(t)
		r.must(l.Listen(0)) // no Bind
		if l.QP() != nil || l.Channel() != nil {
			t.Error("the listening ID has a queue pair, or a channel")
		}
		done := make(chan error, 1)
		go func() {
			id, err := l.GetRequest(ctx)
			if err == nil {
				b.id = id
				err = id.Accept(ctx, nil)
			}
			done <- err
		}()
		attr := a.attr()
		attr.Cap.MaxSendWR = 5
		a.id = vok(a.m.CreateEP(ctx, active, pa, attr))(t)
		if a.id.Channel() != nil || attr.Cap.MaxSendWR < 5 || a.id.QP() == nil {
			t.Errorf("%+v", attr)
		}
		r.must(a.id.Connect(ctx, nil)) // no ResolveAddr, no ResolveRoute
		r.must(<-done)
		if own && (a.id.PD() != pdA || b.id.PD() != pdB) || !own && (a.id.PD() == pdA || b.id.PD() == pdB) {
			t.Error("another domain")
		}
		for _, id := range []*rdmacm.ID{a.id, b.id} {
			if id.PD() == nil || id.QP() == nil || id.QP().PD() != id.PD() || id.SendChannel() == nil || id.RecvChannel() == nil {
				t.Error("queue pair and domain do not belong together")
			}
		}
		ma, mb := vok(a.id.RegMsgs(make([]byte, 8)))(t), vok(b.id.RegWrite(make([]byte, 8)))(t)
		fill(ma.Bytes(), 1)
		r.must(a.id.PostWrite(1, ma.Bytes(), ma, ib.SendSignaled, mb.Addr(), mb.RKey()))
		a.good(a.sent(), 1)
		if !bytes.Equal(ma.Bytes(), mb.Bytes()) {
			t.Error("other bytes")
		}
		r.must(errors.Join(rdmacm.DeregMR(ma), rdmacm.DeregMR(mb)))
		for _, id := range []*rdmacm.ID{a.id, b.id, l} {
			r.must(id.DestroyEP(ctx))
			if id.QP() != nil || id.SendCQ() != nil {
				t.Error("something is left")
			}
		}
		a.id, b.id = nil, nil
	}
	// Without attributes there is no queue pair, and the domain is not looked at.
	id := a.own(vok(a.m.CreateEP(ctx, active, pdB, nil))(t))
	if id.QP() != nil || len(id.Route()) != 1 {
		t.Error(id.QP(), id.Route())
	}
	// It can be made asynchronous.
	r.must(id.Migrate(ctx, a.ch))
	if id.Channel() != a.ch {
		t.Error("not migrated")
	}
	r.must(id.CreateQP(nil, a.attr()))
	r.must(id.Connect(ctx, nil)) // nobody listens any more
	e := vok(a.ch.Get(ctx))(t)
	if e.Type != rdmacm.EventRejected || e.ID != id {
		t.Error(e)
	}
	r.must(e.Ack())
	// What is wrong is told, and nothing is left.
	for what, c := range map[string]struct {
		ai    *rdmacm.AddrInfo
		attr  *verbs.QPInitAttr
		errno syscall.Errno
	}{
		"none":            {nil, nil, syscall.EINVAL},
		"foreign address": {&rdmacm.AddrInfo{Flags: rdmacm.RAIPassive, Src: netip.MustParseAddrPort("192.0.2.77:1")}, nil, syscall.EADDRNOTAVAIL},
		"too large":       {active, &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 1 << 30}}, syscall.EINVAL},
	} {
		if id, err := a.m.CreateEP(ctx, c.ai, nil, c.attr); id != nil || !errors.Is(err, c.errno) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The service of a datagram port is looked up, not connected to: the answer tells
// address, number and Q_Key, and nobody disconnects.
func TestDatagramService(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		ctx := context.Background()
		a, b := r.a, r.b
		b.listen = b.newID(rdmacm.PSUDP)
		r.must(b.listen.Bind(netip.AddrPortFrom(b.addr, vport)))
		r.must(b.listen.Listen(0))
		r.resolve(rdmacm.PSUDP)
		r.must(a.id.Connect(ctx, &rdmacm.ConnParam{PrivateData: []byte("where")}))
		b.id = b.own(b.cm(rdmacm.EventConnectRequest))
		if s := a.id.QP().State(); s != ib.QPStateRTS {
			t.Errorf("%v", s)
		}
		r.must(b.id.CreateQP(nil, b.attr()))
		dst := b.post(7, 64)
		r.must(b.id.Accept(ctx, &rdmacm.ConnParam{PrivateData: []byte("here")}))
		e := a.cmEvent(rdmacm.EventEstablished)
		if e.UD.QPNum != b.id.QP().Num() || e.UD.QKey != rdmacm.UDPQKey || string(e.UD.PrivateData[:5]) != "here\x00" || e.UD.AHAttr.DGID != ib.GIDFromAddr(b.addr) {
			t.Errorf("%+v", e.UD)
		}
		ah := vok(a.id.PD().CreateAH(&e.UD.AHAttr))(t)
		r.must(e.Ack())
		a.later(ah.Destroy)
		r.must(a.id.PostUDSend(1, []byte("to the service"), nil, ib.SendInline|ib.SendSignaled, ah, e.UD.QPNum))
		a.good(a.sent(), 1)
		if wc := b.received(); wc.WRID != 7 || wc.SrcQP != a.id.QP().Num() || string(dst.Bytes()[grh:grh+14]) != "to the service" {
			t.Errorf("%+v %q", wc, dst.Bytes())
		}
		// Nothing listens on another port.
		other := a.newID(rdmacm.PSUDP)
		r.must(other.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(b.addr, vport+1), 0))
		a.cm(rdmacm.EventAddrResolved)
		r.must(other.ResolveRoute(ctx, 0))
		a.cm(rdmacm.EventRouteResolved)
		r.must(other.Connect(ctx, nil))
		e = a.nextEvent()
		var se *rdmacm.SIDRError
		if e.Type != rdmacm.EventUnreachable || !errors.As(e.Err(), &se) || se.Status != 1 || !errors.Is(e.Err(), syscall.ECONNREFUSED) {
			t.Errorf("%v", e)
		}
		r.must(e.Ack())
	})
}

// Which queue pairs the port spaces are for.
func TestPortSpaces(t *testing.T) {
	a := newVRig(t, true, false).a
	if _, err := a.m.NewID(a.ch, 0x1234, nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	for ps, types := range map[rdmacm.PortSpace][]ib.QPType{
		rdmacm.PSTCP: {ib.RC, ib.UC}, rdmacm.PSUDP: {ib.UD}, rdmacm.PSIPoIB: {ib.UD},
		rdmacm.PSIB: {ib.RC, ib.UC, ib.UD, ib.XRCSend, ib.XRCRecv},
	} {
		if id := a.newID(ps); id.QPType() != types[0] || id.PortSpace() != ps {
			t.Errorf("%v: %v", ps, id.QPType())
		}
		for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD, ib.XRCSend, ib.XRCRecv} {
			legal := false
			for _, x := range types {
				legal = legal || x == typ
			}
			id, err := a.m.NewIDType(a.ch, ps, typ, nil)
			if legal != (err == nil) || !legal && !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%v, %v: %v", ps, typ, err)
			}
			if id == nil {
				continue
			}
			a.own(id)
			if err := id.Bind(netip.AddrPortFrom(a.addr, 0)); err != nil || id.SrcPort() == 0 {
				t.Fatal(id.SrcPort(), err)
			}
			attr := a.attr()
			if typ == ib.XRCRecv {
				attr.Cap = ib.QPCap{}
			}
			if err := id.CreateQPEx(&verbs.QPInitAttrEx{QPInitAttr: *attr}); err != nil {
				t.Errorf("%v, %v: %v", ps, typ, err)
				continue
			}
			want := ib.QPStateInit
			if typ == ib.UD {
				want = ib.QPStateRTS
			}
			if q := id.QP(); q.Type() != typ || q.State() != want {
				t.Errorf("%v, %v: %v in %v", ps, typ, q.Type(), q.State())
			}
		}
	}
}

// An ID has to be destroyed: the manager cannot be closed before.
func TestIDHasToBeDestroyed(t *testing.T) {
	r := newVRig(t, true, false)
	m := rdmacm.NewManager(rdmacm.WithContexts(r.a.ctx), rdmacm.WithManual(r.net.Now))
	id := vok(m.NewID(nil, rdmacm.PSTCP, 5))(t)
	if id.UserContext() != 5 {
		t.Error(id.UserContext())
	}
	if err := m.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	r.must(id.Destroy(t.Context()))
	r.must(m.Close())
	if err := id.Bind(netip.AddrPortFrom(r.a.addr, 0)); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestNamesAndNumbers(t *testing.T) {
	for i, name := range []string{
		"RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED", "RDMA_CM_EVENT_ROUTE_ERROR",
		"RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE", "RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE",
		"RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_ESTABLISHED", "RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE", "RDMA_CM_EVENT_TIMEWAIT_EXIT",
		"UNKNOWN EVENT",
	} {
		if e := rdmacm.EventType(i); rdmacm.EventStr(e) != name || e.String() != name {
			t.Errorf("%d: %v", i, e)
		}
	}
	if rdmacm.EventRouteError != 3 || rdmacm.EventAddrChange != 14 || rdmacm.EventTimewaitExit != 15 {
		t.Error("events have moved")
	}
	for ps, name := range map[rdmacm.PortSpace]string{rdmacm.PSIPoIB: "RDMA_PS_IPOIB", rdmacm.PSTCP: "RDMA_PS_TCP", rdmacm.PSUDP: "RDMA_PS_UDP", rdmacm.PSIB: "RDMA_PS_IB"} {
		if ps.String() != name {
			t.Error(ps)
		}
	}
	if rdmacm.UDPQKey != 0x01234567 || rdmacm.MaxRespRes != 255 || rdmacm.MaxInitDepth != 255 {
		t.Error("constants")
	}
}

// A region without any right may still be read by this side.
func TestLocalReadingIsAlwaysAllowed(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		b := make([]byte, 8)
		fill(b, 1)
		mr, dst := vok(r.a.id.PD().RegMR(b, 0))(t), r.b.write(8)
		r.a.later(mr.Dereg)
		r.must(r.a.id.PostWrite(1, b, mr, ib.SendSignaled, dst.Addr(), dst.RKey()))
		r.a.good(r.a.sent(), 1)
		if !bytes.Equal(dst.Bytes(), b) {
			t.Error("other bytes")
		}
	})
}
