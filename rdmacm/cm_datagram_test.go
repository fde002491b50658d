package rdmacm_test

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// A datagram service is looked up: the active side learns address, number and Q_Key,
// and sends; the passive side gets no ESTABLISHED.
func TestDatagrams(t *testing.T) {
	for _, ps := range []rdmacm.PortSpace{rdmacm.PSUDP, rdmacm.PSIPoIB} {
		for _, to := range []string{"192.0.2.2", "2001:db8::2"} {
			r := newCMRig(t)
			at := netip.AddrPortFrom(netip.MustParseAddr(to), testPort)
			r.b.listen(ps, at, 0)
			c := r.a.active(ps, at)
			if q, _, _ := c.QP().Query(); q.QPState != ib.QPStateRTS || q.QKey != 0x01234567 {
				t.Fatalf("%+v", q)
			}
			r.a.must(c.Connect(t.Context(), &rdmacm.ConnParam{PrivateData: []byte("who")}))
			e := r.b.event(rdmacm.EventConnectRequest)
			sameBytes(t, "request", e.UD.PrivateData, padded([]byte("who"), 180))
			s := e.ID
			if s.PeerAddr() != c.LocalAddr() || s.LocalAddr() != at || s.QPType() != ib.UD {
				t.Errorf("%v %v", s.PeerAddr(), s.LocalAddr())
			}
			r.b.must(s.CreateQP(nil, cmAttr()))
			r.b.must(s.Accept(t.Context(), nil))
			e = r.a.event(rdmacm.EventEstablished)
			if e.UD.QPNum != s.QP().Num() || e.UD.QKey != 0x01234567 || e.UD.AHAttr.DGID.Addr().String() != to || len(e.UD.PrivateData) != 136 {
				t.Errorf("%+v", e.UD)
			}
			r.b.none(10e9)
			r.datagram(c, s, e.UD.AHAttr, e.UD.QPNum, e.UD.QKey)
			r.b.must(s.Disconnect(t.Context())) // as in Linux: no error, no event
			r.b.none(1e9)
		}
	}
	// Nobody listens.
	r := newCMRig(t)
	r.b.listen(rdmacm.PSUDP, netip.AddrPortFrom(r.b.addr, 1), 0)
	c := r.a.active(rdmacm.PSUDP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil))
	if e := r.a.event(rdmacm.EventUnreachable); e.Status != 1 {
		t.Error(e)
	}
	// No queue pair and no number: nothing to tell.
	r = newCMRig(t)
	r.b.listen(rdmacm.PSUDP, r.b.at(), 0)
	c = r.a.route(rdmacm.PSUDP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil)) // the active side needs none
	s := r.b.event(rdmacm.EventConnectRequest).ID
	if err := s.Accept(t.Context(), nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	r.b.must(s.Accept(t.Context(), &rdmacm.ConnParam{QPNum: 77}))
	if e := r.a.event(rdmacm.EventEstablished); e.UD.QPNum != 77 {
		t.Errorf("%+v", e.UD)
	}
}

// A peer whose Q_Key is another one than that of the queue pair, or 0, is an error.
func TestDatagramQKeys(t *testing.T) {
	for _, key := range []uint32{0, 0x11111111} {
		r := newCMRig(t)
		r.b.listen(rdmacm.PSUDP, r.b.at(), 0)
		c := r.a.active(rdmacm.PSUDP, r.b.at())
		// The answer is changed on its way, and sent again as our own.
		var reply []byte
		remove := r.net.Filter(func(e *simnet.Event) simnet.Verdict {
			if len(e.Payload) == 256 && e.Payload[17] == 0x18 {
				reply = slices.Clone(e.B)
				return simnet.Verdict{Drop: true}
			}
			return simnet.Verdict{}
		})
		r.a.must(c.Connect(t.Context(), nil))
		s := r.b.event(rdmacm.EventConnectRequest).ID
		r.b.must(s.CreateQP(nil, cmAttr()))
		r.b.must(s.Accept(t.Context(), nil))
		r.net.Kick(r.b.port)
		r.net.RunFor(1e6)
		remove()
		if reply == nil {
			t.Fatal("no answer")
		}
		qkey := reply[12+8+24+20:][:4]
		copy(qkey, []byte{byte(key >> 24), byte(key >> 16), byte(key >> 8), byte(key)})
		r.inject(r.b.addr, r.a.addr, reply)
		if e := r.a.event(rdmacm.EventAddrError); e.Status != -int(syscall.EINVAL) {
			t.Errorf("key %#x: %v", key, e)
		}
	}
}

// datagram sends one from an ID to another, or to a group.
func (r *cmRig) datagram(from, to *rdmacm.ID, av ib.AHAttr, n ib.QPN, key ib.QKey) {
	r.t.Helper()
	src, dst := []byte("a datagram"), make([]byte, 64)
	ms, md := cmOK(from.PD().RegMR(src, ib.AccessLocalWrite))(r.t), cmOK(to.PD().RegMR(dst, ib.AccessLocalWrite))(r.t)
	r.b.must(to.QP().PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{md.SGE(0, 64)}}))
	ah := cmOK(from.PD().CreateAH(&av))(r.t)
	r.a.must(from.QP().PostSendOne(&verbs.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{ms.SGE(0, len(src))}, AH: ah, RemoteQPN: n, RemoteQKey: key,
	}))
	if wc := r.wc(from.SendCQ()); wc.Status != ib.WCSuccess {
		r.t.Errorf("%+v", wc)
	}
	if wc := r.wc(to.RecvCQ()); wc.Status != ib.WCSuccess || wc.ByteLen != 50 || wc.SrcQP != from.QP().Num() {
		r.t.Errorf("%+v", wc)
	}
	if !bytes.Equal(dst[40:50], src) {
		r.t.Errorf("received % x", dst)
	}
	r.a.must(errors.Join(ah.Destroy(), ms.Dereg(), md.Dereg()))
}

// Joining a group, sending to it, leaving it; both families, both kinds of members.
func TestMulticast(t *testing.T) {
	for _, c := range []struct{ group, bind string }{{"239.1.2.3", "192.0.2.2"}, {"ff0e::1234", "2001:db8::2"}, {"ff0e::1234", "192.0.2.2"}} {
		r := newCMRig(t)
		group := netip.MustParseAddr(c.group)
		member := r.b.id(rdmacm.PSUDP)
		r.b.must(member.Bind(netip.AddrPortFrom(netip.MustParseAddr(c.bind), 0)))
		r.b.must(member.CreateQP(nil, cmAttr()))
		r.b.must(member.JoinMulticast(t.Context(), group, "user"))
		e := r.b.event(rdmacm.EventMulticastJoin)
		if e.UserContext != "user" || e.UD.QPNum != 0xFFFFFF || e.UD.QKey != 0x01234567 || e.UD.AHAttr.DGID.Addr() != group || e.UD.AHAttr.HopLimit != 64 || !e.UD.AHAttr.IsGlobal {
			t.Errorf("%+v", e)
		}
		if err := member.JoinMulticast(t.Context(), group, nil); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("again: %v", err)
		}
		sender := r.a.id(rdmacm.PSUDP)
		r.a.must(sender.ResolveAddr(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(group, 0), 0))
		r.a.event(rdmacm.EventAddrResolved)
		r.a.must(sender.CreateQP(nil, cmAttr()))
		r.a.must(sender.JoinMulticastEx(t.Context(), group, rdmacm.JoinSendOnlyFullMember, nil))
		e = r.a.event(rdmacm.EventMulticastJoin)
		r.datagram(sender, member, e.UD.AHAttr, e.UD.QPNum, e.UD.QKey)

		r.b.must(member.LeaveMulticast(t.Context(), group))
		if err := member.LeaveMulticast(t.Context(), group); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("left twice: %v", err)
		}
		r.b.must(member.QP().AttachMcast(ib.GIDFromAddr(group), 0)) // not by the ID
		if err := member.DestroyQP(t.Context()); !errors.Is(err, syscall.EBUSY) || member.QP() == nil {
			t.Errorf("attached: %v", err)
		}
		r.b.must(member.QP().DetachMcast(ib.GIDFromAddr(group), 0))
		r.b.must(member.JoinMulticast(t.Context(), group, nil)) // Destroy leaves it
		e = r.b.raw()
		if err := member.JoinMulticastEx(t.Context(), group, 2, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("flags: %v", err)
		}
		if err := member.JoinMulticast(t.Context(), r.a.addr, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("no group: %v", err)
		}
		r.b.must(e.Ack())
	}
	// A device without address of the family.
	h := twoDevices(t)
	id := h.id(rdmacm.PSUDP)
	h.must(id.Bind(netip.MustParseAddrPort("192.0.2.9:0")))
	h.must(id.JoinMulticast(t.Context(), netip.MustParseAddr("ff0e::1"), nil))
	if e := h.event(rdmacm.EventMulticastError); e.Status != -int(syscall.EADDRNOTAVAIL) {
		t.Error(e)
	}
}

// Options of enhanced connection establishment travel both ways: those of the library's
// queue pairs by themselves, others by hand.
func TestECE(t *testing.T) {
	r := newCMRig(t)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c := r.a.route(rdmacm.PSTCP, r.b.at())
	r.a.must(c.SetLocalECE(ib.ECE{VendorID: 0xABCDEF, Options: 0x12345678}))
	r.a.must(c.Connect(t.Context(), &rdmacm.ConnParam{QPNum: 5}))
	s := r.b.event(rdmacm.EventConnectRequest).ID
	if e, err := s.RemoteECE(); err != nil || e.VendorID != 0xABCDEF || e.Options != 0x12345678 {
		t.Errorf("%+v %v", e, err)
	}
	r.b.must(s.CreateQP(nil, cmAttr()))
	if _, err := s.RemoteECE(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("with a queue pair: %v", err)
	}
	r.b.must(s.Accept(t.Context(), nil))
	r.a.event(rdmacm.EventConnectResponse)
	e, err := c.RemoteECE()
	if err != nil || e.VendorID != 0xABCDEF || e.Options != 0x12345678 { // what the queue pair has taken over
		t.Errorf("%+v %v", e, err)
	}
	r.a.must(c.Reject([]byte("no")))
	if e := r.b.event(rdmacm.EventRejected); e.Status != int(rdmacm.RejectConsumer) || string(e.Conn.PrivateData[:2]) != "no" {
		t.Error(e)
	}
}

// Shared receive queues and XRC by the ID, with what is made by default.
func TestSharedReceiveQueues(t *testing.T) {
	r := newCMRig(t)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c := r.a.active(rdmacm.PSTCP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil))
	s := r.b.event(rdmacm.EventConnectRequest).ID
	srq := ib.SRQAttr{MaxWR: 8, MaxSGE: 1}
	r.b.must(s.CreateSRQ(nil, &srq))
	if err := s.CreateSRQ(nil, &srq); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a second one: %v", err)
	}
	r.b.must(s.CreateQP(nil, cmAttr()))
	if s.QP().SRQ() != s.SRQ() || s.RecvCQ() == nil || s.RecvChannel() == nil || s.SendCQ() == nil || s.SendChannel() == nil {
		t.Error("the queue pair does not use the ID's queues")
	}
	r.b.must(s.Accept(t.Context(), nil))
	if e := r.a.event(rdmacm.EventEstablished); !e.Conn.SRQ {
		t.Errorf("%+v", e.Conn)
	}
	if err := s.DestroySRQ(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("in use: %v", err)
	}

	// XRC: the request and the answer tell of initiator and target.
	at := netip.AddrPortFrom(r.b.addr, 99)
	l := cmOK(r.b.m.NewIDType(r.b.ch, rdmacm.PSIB, ib.XRCRecv, nil))(t)
	r.b.ids = append(r.b.ids, l)
	r.b.must(l.Bind(at))
	r.b.must(l.CreateSRQEx(nil, &verbs.SRQInitAttr{Attr: srq, Type: ib.SRQXRC}))
	r.b.must(l.Listen(0))
	x := cmOK(r.a.m.NewIDType(r.a.ch, rdmacm.PSIB, ib.XRCSend, nil))(t)
	r.a.ids = append(r.a.ids, x)
	r.a.must(x.ResolveAddr(t.Context(), netip.AddrPort{}, at, 0))
	r.a.event(rdmacm.EventAddrResolved)
	r.a.must(x.ResolveRoute(t.Context(), 0))
	r.a.event(rdmacm.EventRouteResolved)
	r.a.must(x.CreateQP(nil, cmAttr()))
	r.a.must(x.Connect(t.Context(), nil))
	var y *rdmacm.ID
	for y == nil {
		if e := r.b.raw(); e.Type == rdmacm.EventConnectRequest {
			y = e.ID
			r.b.ids = append(r.b.ids, y)
			r.b.must(e.Ack())
		} else {
			r.b.must(e.Ack())
		}
	}
	r.b.must(y.CreateQPEx(&verbs.QPInitAttrEx{}))
	r.b.must(y.Accept(t.Context(), nil))
	r.a.event(rdmacm.EventEstablished)
	r.b.event(rdmacm.EventEstablished)
	src, dst := []byte("eXtended"), make([]byte, 8)
	ms, md := cmOK(x.PD().RegMR(src, ib.AccessLocalWrite))(t), cmOK(l.PD().RegMR(dst, ib.AccessLocalWrite))(t)
	r.b.must(l.SRQ().PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{md.SGE(0, 8)}}))
	num := l.SRQ().Num()
	r.a.must(x.QP().PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{ms.SGE(0, 8)}, RemoteSRQN: num}))
	if wc := r.wc(x.SendCQ()); wc.Status != ib.WCSuccess {
		t.Errorf("%+v", wc)
	}
	if wc := r.wc(l.RecvCQ()); wc.Status != ib.WCSuccess || !bytes.Equal(src, dst) {
		t.Errorf("%+v %q", wc, dst)
	}
	r.a.must(errors.Join(ms.Dereg(), md.Dereg()))
}
