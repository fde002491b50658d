package rdmacm_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Each call of rdma_cma.h at least once, for docs/rdmacm.md.

func TestOptionsOfAnID(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	ctx := t.Context()
	id := r.a.newID(rdmacm.PSTCP)
	if _, ok := id.AckTimeout(); id.TOS() != 0 || id.ReuseAddr() || id.AFOnly() || ok {
		t.Error("options that nobody has set")
	}
	r.must(errors.Join(id.SetTOS(0x28), id.SetReuseAddr(true), id.SetAFOnly(true), id.SetAckTimeout(15)))
	if v, ok := id.AckTimeout(); id.TOS() != 0x28 || !id.ReuseAddr() || !id.AFOnly() || v != 15 || !ok {
		t.Error("options that were set")
	}
	r.must(id.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(r.b.addr, vport), 0))
	r.a.cm(rdmacm.EventAddrResolved)
	// A path by hand, in place of ResolveRoute.
	way := rdmacm.PathRecord{SGID: ib.GIDFromAddr(r.a.addr), DGID: ib.GIDFromAddr(r.b.addr), MTU: ib.MTU512, HopLimit: 9, TrafficClass: 0x28, PKey: ib.PKeyDefault}
	for what, bad := range map[string][]rdmacm.PathRecord{"none": nil, "of others": {{SGID: way.DGID, DGID: way.SGID, MTU: ib.MTU512}}} {
		if err := id.SetIBPath(bad...); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.must(id.SetIBPath(way))
	r.a.cm(rdmacm.EventRouteResolved)
	if got := id.Route(); len(got) != 1 || got[0] != way {
		t.Errorf("%+v", got)
	}
	r.must(id.CreateQP(nil, r.a.attr()))
	tos := map[uint8]bool{}
	defer r.net.Sniff(func(e *simnet.Event) {
		if e.Src.Addr() == r.a.addr {
			tos[e.TOS] = true
		}
	})()
	r.must(id.Connect(ctx, nil))
	r.a.id = id
	b := r.b
	b.id = b.own(b.cm(rdmacm.EventConnectRequest))
	r.must(b.id.CreateQP(nil, b.attr()))
	r.accept()
	r.establish()
	q, _, _ := id.QP().Query()
	if q.PathMTU != ib.MTU512 || q.Timeout != 15 || q.AHAttr.TrafficClass != 0x28 {
		t.Errorf("%+v", q)
	}
	if len(tos) != 1 || !tos[0x28] {
		t.Errorf("packets with %v", tos)
	}
	if err := r.b.listen.SetReuseAddr(true); !errors.Is(err, syscall.EINVAL) {
		t.Error("an ID that listens:", err)
	}
}

// What was not got moves with the ID, what was got is waited for.
func TestMigrateID(t *testing.T) {
	r := newVRig(t, true, false)
	a := r.a
	other := vok(a.m.NewEventChannel())(t)
	a.later(other.Close)
	id := a.newID(rdmacm.PSUDP)
	ctx := t.Context()
	r.must(id.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(r.b.addr, vport), 0))
	r.must(id.ResolveRoute(ctx, 0))
	e := a.nextEvent()
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := id.Migrate(done, other); !errors.Is(err, context.Canceled) {
		t.Errorf("with an event that is not acknowledged: %v", err)
	}
	r.must(e.Ack())
	r.must(id.Migrate(ctx, other))
	if _, err := a.ch.Poll(); !errors.Is(err, syscall.EAGAIN) {
		t.Error(err)
	}
	select {
	case <-other.Ready():
	default:
		t.Error("the new channel is not ready")
	}
	e, err := other.Poll()
	if err != nil || e.Type != rdmacm.EventRouteResolved || e.ID != id {
		t.Fatal(e, err)
	}
	r.must(e.Ack())
	if err := other.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error("an ID uses it:", err)
	}
	r.must(id.Migrate(ctx, nil))
	if id.Channel() != nil {
		t.Error("not synchronous")
	}
	if err := id.Migrate(ctx, nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestGroupsOfAnID(t *testing.T) {
	r := newVRig(t, true, false)
	r.datagrams()
	a, b := r.a, r.b
	ctx := t.Context()
	group := netip.MustParseAddr("239.1.2.3")
	r.must(b.id.JoinMulticast(ctx, group, "member"))
	e := b.cmEvent(rdmacm.EventMulticastJoin)
	if e.UserContext != "member" || e.UD.QPNum != ib.QPNMulticast || e.UD.QKey != rdmacm.UDPQKey || e.UD.AHAttr.DGID != ib.GIDFromAddr(group) {
		t.Errorf("%+v", e)
	}
	r.must(e.Ack())
	if err := b.id.JoinMulticast(ctx, group, nil); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	// A sender receives nothing of its own.
	r.must(a.id.JoinMulticastEx(ctx, group, rdmacm.JoinSendOnlyFullMember, nil))
	e = a.cmEvent(rdmacm.EventMulticastJoin)
	ah := vok(a.id.PD().CreateAH(&e.UD.AHAttr))(t)
	r.must(e.Ack())
	a.later(ah.Destroy)
	a.post(1, 8)
	dst := b.post(2, 8)
	r.must(a.id.PostUDSend(3, []byte("to all"), nil, ib.SendInline|ib.SendSignaled, ah, ib.QPNMulticast))
	a.good(a.sent(), 3)
	b.good(b.received(), 2)
	if string(dst.Bytes()[grh:grh+6]) != "to all" {
		t.Errorf("%q", dst.Bytes())
	}
	a.none(a.id.RecvCQ())
	for what, err := range map[string]error{
		"no group":     a.id.JoinMulticast(ctx, b.addr, nil),
		"unknown flag": a.id.JoinMulticastEx(ctx, group, rdmacm.JoinFullMember+2, nil),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.must(b.id.LeaveMulticast(ctx, group))
	if err := b.id.LeaveMulticast(ctx, group); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Error(err)
	}
	b.post(4, 8)
	r.must(a.id.PostUDSend(5, []byte("to nobody"), nil, ib.SendInline|ib.SendSignaled, ah, ib.QPNMulticast))
	a.good(a.sent(), 5)
	b.none(b.id.RecvCQ())
}

// The options of enhanced connection establishment, for queue pairs of the application's own.
func TestECEOfAConnection(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	ctx := t.Context()
	if err := r.a.id.SetLocalECE(ib.ECE{VendorID: 1}); !errors.Is(err, syscall.EINVAL) {
		t.Error("with a queue pair:", err)
	}
	r.must(r.a.id.DestroyQP(ctx))
	if err := r.a.id.SetLocalECE(ib.ECE{}); !errors.Is(err, syscall.EINVAL) {
		t.Error("without a vendor:", err)
	}
	r.must(r.a.id.SetLocalECE(ib.ECE{VendorID: 0x2C9, Options: 7}))
	r.must(r.a.id.Connect(ctx, &rdmacm.ConnParam{QPNum: 0x123456, SRQ: true}))
	e := r.b.cmEvent(rdmacm.EventConnectRequest)
	if e.Conn.QPNum != 0x123456 || !e.Conn.SRQ {
		t.Errorf("%+v", e.Conn)
	}
	r.b.id = r.b.own(e.ID)
	r.must(e.Ack())
	if ece := vok(r.b.id.RemoteECE())(t); ece.VendorID != 0x2C9 || ece.Options != 7 {
		t.Errorf("%+v", ece)
	}
	r.must(r.b.id.SetLocalECE(ib.ECE{VendorID: 0x2C9, Options: 3}))
	r.must(r.b.id.Accept(ctx, &rdmacm.ConnParam{QPNum: 0x654321}))
	e = r.a.cmEvent(rdmacm.EventConnectResponse)
	if e.Conn.QPNum != 0x654321 || e.Conn.SRQ {
		t.Errorf("%+v", e.Conn)
	}
	r.must(e.Ack())
	if ece := vok(r.a.id.RemoteECE())(t); ece.VendorID != 0x2C9 || ece.Options != 3 {
		t.Errorf("%+v", ece)
	}
	r.must(r.a.id.Establish())
	r.b.cm(rdmacm.EventEstablished)
	// A peer whose options do not suit is told so.
	r.must(r.a.id.Disconnect(ctx))
	r.b.cm(rdmacm.EventDisconnected)
}

// The confirmation is lost: data that arrive tell that the connection is there.
func TestNotifyEstablishes(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	if err := r.a.id.Notify(ib.EventCommEst); !errors.Is(err, syscall.EINVAL) {
		t.Error("without a connection:", err)
	}
	r.request()
	dst := r.b.msgs(8)
	r.must(r.b.id.PostRecv(1, dst.Bytes(), dst))
	r.accept()
	remove := r.net.Filter(func(e *simnet.Event) simnet.Verdict {
		return simnet.Verdict{Drop: e.Err == nil && e.BTH.DestQP() == 1 && e.Src.Addr() == r.a.addr}
	})
	r.a.cm(rdmacm.EventEstablished)
	r.must(r.a.id.PostSend(2, []byte("12345678"), nil, ib.SendInline|ib.SendSignaled))
	r.a.good(r.a.sent(), 2)
	r.b.good(r.b.received(), 1)
	if err := r.b.id.Notify(ib.EventQPFatal); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	r.must(r.b.id.Notify(ib.EventCommEst))
	r.b.cm(rdmacm.EventEstablished)
	if err := r.b.id.Notify(ib.EventCommEst); !errors.Is(err, syscall.EISCONN) {
		t.Error(err)
	}
	remove()
}

func TestDevicesOfAManager(t *testing.T) {
	r := newVRig(t, true, false)
	list := vok(r.a.m.Devices(t.Context()))(t)
	if len(list) != 1 || list[0] != r.a.ctx {
		t.Error(list)
	}
	m := rdmacm.NewManager(rdmacm.WithContexts())
	if list, err := m.Devices(t.Context()); !errors.Is(err, syscall.ENODEV) {
		t.Error(list, err)
	}
	r.must(m.Close())
	if _, err := m.NewEventChannel(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestSharedReceiveQueuesOfIDs(t *testing.T) {
	r := newVRig(t, true, false)
	a := r.a
	id := a.newID(rdmacm.PSIB)
	if err := id.CreateSRQ(nil, &ib.SRQAttr{MaxWR: 1}); !errors.Is(err, syscall.EINVAL) {
		t.Error("not bound:", err)
	}
	r.must(id.DestroySRQ(t.Context())) // there is none
	r.must(id.Bind(netip.AddrPortFrom(a.addr, 0)))
	attr := &verbs.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}
	r.must(id.CreateSRQEx(nil, attr))
	if id.SRQ() == nil || attr.Attr.MaxWR < 4 {
		t.Errorf("%+v", attr)
	}
	if err := id.CreateSRQ(nil, &ib.SRQAttr{MaxWR: 1}); !errors.Is(err, syscall.EINVAL) {
		t.Error("a second one:", err)
	}
	r.must(id.CreateQP(nil, a.attr()))
	if id.QP().SRQ() != id.SRQ() {
		t.Error("the queue pair does not use it")
	}
	if err := id.DestroySRQ(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Error("in use:", err)
	}
	r.must(errors.Join(id.DestroyQP(t.Context()), id.DestroySRQ(t.Context())))
	if id.SRQ() != nil {
		t.Error("it is still there")
	}
	// Of type XRC it has a domain and a completion queue by itself.
	r.must(id.CreateSRQEx(nil, &verbs.SRQInitAttr{Type: ib.SRQXRC, Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}))
	if id.RecvCQ() == nil {
		t.Error("no completion queue")
	}
	r.must(id.PostRecv(1, nil, nil))
	r.must(id.DestroySRQ(t.Context()))
}

func TestAddressInformation(t *testing.T) {
	ctx := t.Context()
	type hints = rdmacm.AddrInfo
	ai := vok(rdmacm.GetAddrInfo(ctx, "192.0.2.1", "7", &hints{Flags: rdmacm.RAINumericHost | rdmacm.RAINoRoute, PortSpace: rdmacm.PSUDP, Src: netip.MustParseAddrPort("192.0.2.9:0")}))(t)
	if ai.Family != rdmacm.FamilyIPv4 || ai.QPType != ib.UD || ai.Dst.String() != "192.0.2.1:7" || ai.Src.String() != "192.0.2.9:0" || ai.DstCanonName != "192.0.2.1" || ai.Next != nil {
		t.Errorf("%+v", ai)
	}
	ai = vok(rdmacm.GetAddrInfo(ctx, "", "7", &hints{Flags: rdmacm.RAIPassive | rdmacm.RAIFamily, Family: rdmacm.FamilyIPv6, QPType: ib.RC}))(t)
	if ai.Family != rdmacm.FamilyIPv6 || ai.PortSpace != rdmacm.PSTCP || ai.Src.String() != "[::]:7" || ai.Dst.IsValid() || ai.SrcCanonName != "" {
		t.Errorf("%+v", ai)
	}
	ai = vok(rdmacm.GetAddrInfo(ctx, "", "", &hints{Dst: netip.MustParseAddrPort("[2001:db8::1]:9"), ConnectData: []byte("x"), Route: []rdmacm.PathRecord{{MTU: ib.MTU256}}}))(t)
	if ai.Dst.Port() != 9 || string(ai.ConnectData) != "x" || len(ai.Route) != 1 {
		t.Errorf("%+v", ai)
	}
	for what, c := range map[string]struct {
		node, service string
		h             *hints
		errno         syscall.Errno
	}{
		"nothing":        {"", "", nil, syscall.EINVAL},
		"AF_IB":          {"192.0.2.1", "", &hints{Flags: rdmacm.RAIFamily, Family: rdmacm.FamilyIB}, syscall.EAFNOSUPPORT},
		"another family": {"192.0.2.1", "", &hints{Flags: rdmacm.RAIFamily, Family: rdmacm.FamilyIPv6}, syscall.EADDRNOTAVAIL},
		"a name":         {"host.invalid", "", &hints{Flags: rdmacm.RAINumericHost}, syscall.EADDRNOTAVAIL},
		"unknown flag":   {"192.0.2.1", "", &hints{Flags: 1 << 20}, syscall.EINVAL},
		"contradiction":  {"192.0.2.1", "", &hints{PortSpace: rdmacm.PSTCP, QPType: ib.UD}, syscall.EINVAL},
		"port space":     {"192.0.2.1", "", &hints{PortSpace: 7}, syscall.EINVAL},
		"service":        {"192.0.2.1", "70000", nil, syscall.EADDRNOTAVAIL},
	} {
		if ai, err := rdmacm.GetAddrInfo(ctx, c.node, c.service, c.h); ai != nil || !errors.Is(err, c.errno) {
			t.Errorf("%s: %+v, %v", what, ai, err)
		}
	}
}

func TestPortsOfBothEnds(t *testing.T) {
	r := newVRig(t, true, false)
	r.connect()
	a, b := r.a.id, r.b.id
	if a.DstPort() != vport || b.SrcPort() != vport || a.SrcPort() == 0 || a.SrcPort() != b.DstPort() {
		t.Error(a.SrcPort(), a.DstPort(), b.SrcPort(), b.DstPort())
	}
	if r.b.listen.DstPort() != 0 {
		t.Error(r.b.listen.DstPort())
	}
}

// The address is resolved in vain, which is an event, and can be tried again.
func TestNoWayToTheAddress(t *testing.T) {
	r := newVRig(t, true, false)
	id := r.a.newID(rdmacm.PSTCP)
	r.must(id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("[2001:db8::7]:1"), 0)) // it has IPv4 only
	e := r.a.nextEvent()
	if e.Type != rdmacm.EventAddrError || e.ID != id || e.Status != -int(syscall.ENETUNREACH) || !errors.Is(e.Err(), syscall.ENETUNREACH) {
		t.Errorf("%v", e)
	}
	r.must(e.Ack())
	if err := id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.AddrPort{}, 0); !errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Error(err)
	}
}

// The peer has accepted, but the own queue pair cannot go on.
func TestLocalFailureAfterTheAnswer(t *testing.T) {
	r := newVRig(t, true, false)
	r.prepare()
	r.request()
	r.must(r.a.id.QP().Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
	r.accept()
	e := r.a.nextEvent()
	if e.Type != rdmacm.EventConnectError || e.Status != -int(syscall.EINVAL) {
		t.Errorf("%v", e)
	}
	r.must(e.Ack())
	e = r.b.nextEvent()
	if e.Type != rdmacm.EventRejected || e.Status != int(rdmacm.RejectConsumer) {
		t.Errorf("the peer: %v", e)
	}
	r.must(e.Ack())
}

// The device goes away: every ID on it is told, and is of no use but to be destroyed.
func TestDeviceOfAnIDIsRemoved(t *testing.T) {
	r := newVRig(t, true, false)
	r.connect()
	r.a.report(soft.Netdev{Gone: true})
	e := r.a.nextEvent()
	if e.Type != rdmacm.EventDeviceRemoval || e.ID != r.a.id {
		t.Errorf("%v", e)
	}
	r.must(e.Ack())
	if err := r.a.id.Disconnect(t.Context()); err == nil {
		t.Error("it can still be disconnected")
	}
	r.must(r.a.id.PostSend(1, []byte("x"), nil, ib.SendInline))
	r.a.bad(r.a.sent(), ib.WCWRFlushErr, 1)
}

func TestGroupOfAnotherFamily(t *testing.T) {
	r := newVRig(t, true, false)
	r.datagrams()
	r.must(r.a.id.JoinMulticast(t.Context(), netip.MustParseAddr("ff0e::1234"), "six"))
	e := r.a.nextEvent()
	if e.Type != rdmacm.EventMulticastError || e.Status != -int(syscall.EADDRNOTAVAIL) || e.UserContext != "six" {
		t.Errorf("%v", e)
	}
	r.must(e.Ack())
}

// Some time after the end of a connection packets of it have died out.
func TestTimewaitEnds(t *testing.T) {
	r := newVRig(t, true, false)
	r.connect()
	r.disconnect()
	r.b.cm(rdmacm.EventDisconnected)
	r.must(r.b.id.Disconnect(t.Context()))
	r.a.cm(rdmacm.EventDisconnected)
	r.a.cm(rdmacm.EventTimewaitExit)
}
