package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// A connection: every event with what it tells, and the queue pairs with what the two
// sides agreed on.
func TestConnect(t *testing.T) {
	for _, c := range []struct{ from, to string }{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		t.Run(c.to, func(t *testing.T) {
			r := newCMRig(t)
			to := netip.AddrPortFrom(netip.MustParseAddr(c.to), testPort)
			l := r.b.listen(rdmacm.PSTCP, to, 0)
			l.SetUserContext("listener")
			a := r.a.id(rdmacm.PSTCP)
			r.a.must(a.ResolveAddr(t.Context(), netip.AddrPort{}, to, 1e9))
			if e := r.a.event(rdmacm.EventAddrResolved); e.ID != a || e.Status != 0 {
				t.Errorf("%+v", e)
			}
			if a.Verbs() != r.a.ctx || a.PD() == nil || a.PortNum() != 1 || a.LocalAddr().Addr() != netip.MustParseAddr(c.from) || a.SrcPort() == 0 || a.PeerAddr() != to {
				t.Errorf("after ResolveAddr: %v %v %v %v", a.Verbs(), a.PD(), a.LocalAddr(), a.PeerAddr())
			}
			mr := cmOK(a.PD().RegMR(make([]byte, 64), ib.AccessLocalWrite))(t) // registration works from now on
			r.a.must(mr.Dereg())
			r.a.must(a.ResolveRoute(t.Context(), 1e9))
			r.a.event(rdmacm.EventRouteResolved)
			// 1500 less Linux's 96 bytes holds 1024.
			if p := a.Route(); len(p) != 1 || p[0].MTU != ib.MTU1024 || p[0].SGID.Addr().String() != c.from || p[0].DGID.Addr().String() != c.to || p[0].HopLimit != 64 {
				t.Errorf("route %+v", p)
			}
			r.a.must(a.CreateQP(nil, cmAttr()))
			if s := a.QP().State(); s != ib.QPStateInit {
				t.Errorf("active queue pair: %v", s)
			}
			p := &rdmacm.ConnParam{PrivateData: []byte("hello"), ResponderResources: 3, InitiatorDepth: 5, FlowControl: true, RetryCount: 6, RNRRetryCount: 4}
			r.a.must(a.Connect(t.Context(), p))

			e := r.b.event(rdmacm.EventConnectRequest)
			b := e.ID
			if e.ListenID != l || b == l || b.UserContext() != "listener" || b.Channel() != r.b.ch || b.PortSpace() != rdmacm.PSTCP || b.QPType() != ib.RC {
				t.Errorf("request: %+v", e)
			}
			sameBytes(t, "request", e.Conn.PrivateData, padded([]byte("hello"), 56))
			if q := e.Conn; q.ResponderResources != 5 || q.InitiatorDepth != 3 || !q.FlowControl || q.RetryCount != 6 || q.RNRRetryCount != 4 || q.SRQ || q.QPNum != a.QP().Num() {
				t.Errorf("request: %+v", q)
			}
			if b.LocalAddr() != to || b.PeerAddr() != a.LocalAddr() || b.Verbs() != r.b.ctx || b.PD() == nil || b.PortNum() != 1 {
				t.Errorf("request: %v %v", b.LocalAddr(), b.PeerAddr())
			}
			r.b.must(b.CreateQP(nil, cmAttr()))
			if s := b.QP().State(); s != ib.QPStateInit {
				t.Errorf("passive queue pair: %v", s)
			}
			r.b.must(b.Accept(t.Context(), &rdmacm.ConnParam{PrivateData: []byte("welcome"), ResponderResources: 2, InitiatorDepth: 1, RNRRetryCount: 2}))
			if s := b.QP().State(); s != ib.QPStateRTS { // before the answer was sent
				t.Errorf("passive queue pair after Accept: %v", s)
			}
			e = r.a.event(rdmacm.EventEstablished)
			sameBytes(t, "answer", e.Conn.PrivateData, padded([]byte("welcome"), 196))
			if q := e.Conn; q.ResponderResources != 1 || q.InitiatorDepth != 2 || q.RNRRetryCount != 2 || q.QPNum != b.QP().Num() {
				t.Errorf("answer: %+v", q)
			}
			if e := r.b.event(rdmacm.EventEstablished); e.Conn.PrivateData != nil || e.ID != b {
				t.Errorf("%+v", e)
			}

			qa, _, _ := a.QP().Query()
			qb, _, _ := b.QP().Query()
			for _, s := range []struct {
				name                string
				q                   ib.QPAttr
				rd, dest, retry, rn uint8
				peer                *verbs.QP
			}{{"active", qa, 2, 1, 6, 2, b.QP()}, {"passive", qb, 1, 2, 6, 4, a.QP()}} {
				if s.q.QPState != ib.QPStateRTS || s.q.MaxRDAtomic != s.rd || s.q.MaxDestRDAtomic != s.dest || s.q.RetryCnt != s.retry || s.q.RNRRetry != s.rn ||
					s.q.PathMTU != ib.MTU1024 || s.q.DestQPN != s.peer.Num() || s.q.MinRNRTimer != 0 || s.q.Timeout < 17 || s.q.Timeout > 18 {
					t.Errorf("%s queue pair: %+v", s.name, s.q)
				}
			}
			if qa.SQPSN&0xFFFFFF != qb.RQPSN || qb.SQPSN != qa.RQPSN || qa.SQPSN == qb.SQPSN {
				t.Errorf("PSNs %#x %#x, %#x %#x", qa.SQPSN, qa.RQPSN, qb.SQPSN, qb.RQPSN)
			}
			r.exchange(a, b)
			r.exchange(b, a)
		})
	}
}

// exchange sends a message.
func (r *cmRig) exchange(from, to *rdmacm.ID) {
	r.t.Helper()
	src, dst := []byte("a message of 24 bytes..."), make([]byte, 24)
	ms, md := cmOK(from.PD().RegMR(src, ib.AccessLocalWrite))(r.t), cmOK(to.PD().RegMR(dst, ib.AccessLocalWrite))(r.t)
	if err := to.QP().PostRecvOne(&verbs.RecvWR{WRID: 2, SGList: []verbs.SGE{md.SGE(0, 24)}}); err != nil {
		r.t.Fatal(err)
	}
	if err := from.QP().PostSendOne(&verbs.SendWR{WRID: 1, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{ms.SGE(0, 24)}}); err != nil {
		r.t.Fatal(err)
	}
	for _, cq := range []*verbs.CQ{from.SendCQ(), to.RecvCQ()} {
		if wc := r.wc(cq); wc.Status != ib.WCSuccess {
			r.t.Errorf("%+v", wc)
		}
	}
	if !bytes.Equal(src, dst) {
		r.t.Errorf("received %q", dst)
	}
	r.a.must(errors.Join(ms.Dereg(), md.Dereg()))
}

// wc runs the network until the queue has a completion.
func (r *cmRig) wc(cq *verbs.CQ) verbs.WC {
	r.t.Helper()
	var wc [1]verbs.WC
	r.net.Kick(r.a.port)
	r.net.Kick(r.b.port)
	if !r.net.Run(func() bool {
		n, err := cq.Poll(wc[:])
		if err != nil {
			r.t.Fatal(err)
		}
		return n == 1
	}, 60e9) {
		r.t.Fatal("no completion")
	}
	return wc[0]
}

// nil parameters are the device's maximum and 7 retries.
func TestDefaultParameters(t *testing.T) {
	r := newCMRig(t)
	c, s := r.connect(nil, nil)
	qa, _, _ := c.QP().Query()
	qb, _, _ := s.QP().Query()
	for _, q := range []ib.QPAttr{qa, qb} {
		if q.MaxRDAtomic != 128 || q.MaxDestRDAtomic != 128 || q.RetryCnt != 7 || q.RNRRetry != 7 {
			t.Errorf("%+v", q)
		}
	}
}

// The acceptor's RNR retry count is the client's queue pair's, the client's is the
// acceptor's; a client with 7 waits for a receive.
func TestCase04_RNRRetryOfTheAcceptor(t *testing.T) {
	r := newCMRig(t)
	c, s := r.connect(&rdmacm.ConnParam{RNRRetryCount: 1, RetryCount: 3}, &rdmacm.ConnParam{RNRRetryCount: 7})
	qa, _, _ := c.QP().Query()
	qb, _, _ := s.QP().Query()
	if qa.RNRRetry != 7 || qb.RNRRetry != 1 || qb.RetryCnt != 3 {
		t.Errorf("client %d, server %d and %d", qa.RNRRetry, qb.RNRRetry, qb.RetryCnt)
	}
	mr := cmOK(c.PD().RegMR(make([]byte, 8), ib.AccessLocalWrite))(t)
	r.a.must(c.QP().PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 8)}}))
	r.net.Kick(r.a.port)
	r.net.RunFor(30e9) // of 655 ms each, far more than 7
	mb := cmOK(s.PD().RegMR(make([]byte, 8), ib.AccessLocalWrite))(t)
	r.b.must(s.QP().PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{mb.SGE(0, 8)}}))
	if wc := r.wc(c.SendCQ()); wc.Status != ib.WCSuccess {
		t.Error(wc.Status)
	}
	r.a.must(errors.Join(mr.Dereg(), mb.Dereg()))
}

// ACK timeout 0 is no timer at the queue pair; the REQ carries the default.
func TestCase26_AckTimeoutZero(t *testing.T) {
	for _, c := range []struct{ set, qp, wire uint8 }{{0, 0, 17}, {20, 20, 20}, {14, 14, 15}} {
		r := newCMRig(t)
		r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
		id := r.a.id(rdmacm.PSTCP)
		r.a.must(id.SetAckTimeout(c.set))
		if v, ok := id.AckTimeout(); !ok || v != c.set {
			t.Errorf("AckTimeout %d %v", v, ok)
		}
		r.a.must(id.ResolveAddr(t.Context(), netip.AddrPort{}, r.b.at(), 1e9))
		r.a.event(rdmacm.EventAddrResolved)
		r.a.must(id.ResolveRoute(t.Context(), 1e9))
		r.a.event(rdmacm.EventRouteResolved)
		r.a.must(id.CreateQP(nil, cmAttr()))
		var wire []uint8
		r.net.Sniff(func(e *simnet.Event) {
			if len(e.Payload) == 256 && e.Payload[17] == 0x10 {
				wire = append(wire, e.Payload[24+95]>>3)
			}
		})
		r.a.must(id.Connect(t.Context(), nil))
		s := r.b.event(rdmacm.EventConnectRequest).ID
		r.b.must(s.CreateQP(nil, cmAttr()))
		r.b.must(s.Accept(t.Context(), nil))
		r.a.event(rdmacm.EventEstablished)
		r.b.event(rdmacm.EventEstablished)
		q, _, _ := id.QP().Query()
		if q.Timeout != c.qp || len(wire) != 1 || wire[0] < c.wire || wire[0] > c.wire+2 {
			t.Errorf("set %d: queue pair %d, wire %v, want about %d", c.set, q.Timeout, wire, c.wire)
		}
	}
	r := newCMRig(t)
	if err := r.a.id(rdmacm.PSTCP).SetAckTimeout(32); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := r.a.id(rdmacm.PSUDP).SetAckTimeout(3); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// Private data at each limit, and one byte beyond it: EINVAL, nothing is sent, and the
// ID can try again.
func TestCase81_PrivateDataLimits(t *testing.T) {
	fill := func(n int) []byte { return bytes.Repeat([]byte{0xA5}, n) }
	for _, n := range []int{0, 1, 56} {
		r := newCMRig(t)
		r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
		c := r.a.active(rdmacm.PSTCP, r.b.at())
		sent := r.net.Stats().Sent
		if err := c.Connect(t.Context(), &rdmacm.ConnParam{PrivateData: fill(57)}); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("57 bytes: %v", err)
		}
		if got := r.net.Stats().Sent; got != sent {
			t.Errorf("%d packets were sent", got-sent)
		}
		r.a.must(c.Connect(t.Context(), &rdmacm.ConnParam{PrivateData: fill(n)}))
		e := r.b.event(rdmacm.EventConnectRequest)
		sameBytes(t, "connect", e.Conn.PrivateData, padded(fill(n), 56))
		s := e.ID
		if n == 1 { // reject
			if err := s.Reject(fill(149)); !errors.Is(err, syscall.EINVAL) {
				t.Fatalf("reject with 149 bytes: %v", err)
			}
			r.b.must(s.Reject(fill(148)))
			e := r.a.event(rdmacm.EventRejected)
			sameBytes(t, "reject", e.Conn.PrivateData, fill(148))
			continue
		}
		r.b.must(s.CreateQP(nil, cmAttr()))
		if err := s.Accept(t.Context(), &rdmacm.ConnParam{PrivateData: fill(197)}); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("accept with 197 bytes: %v", err)
		}
		if st := s.QP().State(); st != ib.QPStateInit {
			t.Errorf("the refused Accept has moved the queue pair to %v", st)
		}
		most := n * 196 / 56
		r.b.must(s.Accept(t.Context(), &rdmacm.ConnParam{PrivateData: fill(most)}))
		sameBytes(t, "accept", r.a.event(rdmacm.EventEstablished).Conn.PrivateData, padded(fill(most), 196))
		sameBytes(t, "RTU", r.b.event(rdmacm.EventEstablished).Conn.PrivateData, nil) // no call can give it any
	}
	for _, n := range []int{0, 1, 180} {
		r := newCMRig(t)
		r.b.listen(rdmacm.PSUDP, r.b.at(), 0)
		c := r.a.active(rdmacm.PSUDP, r.b.at())
		if err := c.Connect(t.Context(), &rdmacm.ConnParam{PrivateData: fill(181)}); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("181 bytes: %v", err)
		}
		r.a.must(c.Connect(t.Context(), &rdmacm.ConnParam{PrivateData: fill(n)}))
		e := r.b.event(rdmacm.EventConnectRequest)
		sameBytes(t, "SIDR_REQ", e.UD.PrivateData, padded(fill(n), 180))
		if n == 1 {
			if err := e.ID.Reject(fill(137)); !errors.Is(err, syscall.EINVAL) {
				t.Fatalf("reject with 137 bytes: %v", err)
			}
			r.b.must(e.ID.Reject(fill(136)))
			e := r.a.event(rdmacm.EventUnreachable)
			sameBytes(t, "rejecting SIDR_REP", e.UD.PrivateData, fill(136))
			var se *rdmacm.SIDRError
			if e.Status != 2 || !errors.As(e.Err(), &se) || !errors.Is(e.Err(), syscall.ECONNREFUSED) {
				t.Errorf("%v, %v", e, e.Err())
			}
			continue
		}
		r.b.must(e.ID.CreateQP(nil, cmAttr()))
		if err := e.ID.Accept(t.Context(), &rdmacm.ConnParam{PrivateData: fill(137)}); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("accept with 137 bytes: %v", err)
		}
		most := n * 136 / 180
		r.b.must(e.ID.Accept(t.Context(), &rdmacm.ConnParam{PrivateData: fill(most)}))
		sameBytes(t, "SIDR_REP", r.a.event(rdmacm.EventEstablished).UD.PrivateData, padded(fill(most), 136))
	}
}

// A reject arrives with reason 28 and its private data; the queue pair is in ERR.
func TestCase83_Reject(t *testing.T) {
	for _, ece := range []bool{false, true} {
		r := newCMRig(t)
		r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
		c := r.a.active(rdmacm.PSTCP, r.b.at())
		r.a.must(c.Connect(t.Context(), nil))
		s := r.b.event(rdmacm.EventConnectRequest).ID
		want := rdmacm.RejectConsumer
		if ece {
			want = rdmacm.RejectVendorOption
			r.b.must(s.RejectECE([]byte("ten bytes.")))
		} else {
			r.b.must(s.Reject([]byte("ten bytes.")))
		}
		e := r.a.event(rdmacm.EventRejected)
		var re *rdmacm.RejectError
		if e.Status != int(want) || !errors.As(e.Err(), &re) || re.Reason != want || !errors.Is(e.Err(), syscall.ECONNREFUSED) {
			t.Errorf("%v, %v", e, e.Err())
		}
		sameBytes(t, "private data", re.PrivateData, padded([]byte("ten bytes."), 148))
		if st := c.QP().State(); st != ib.QPStateErr {
			t.Errorf("queue pair in %v", st)
		}
		if err := s.Reject(nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a second reject: %v", err)
		}
		if err := s.Accept(t.Context(), &rdmacm.ConnParam{}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("accept after reject: %v", err)
		}
		r.b.none(1e9)
	}
	// Nobody listens.
	r := newCMRig(t)
	c := r.a.active(rdmacm.PSTCP, r.b.at())
	r.b.listen(rdmacm.PSTCP, netip.AddrPortFrom(r.b.addr, testPort+1), 0)
	r.a.must(c.Connect(t.Context(), nil))
	if e := r.a.event(rdmacm.EventRejected); e.Status != int(rdmacm.RejectBadServiceID) {
		t.Error(e)
	}
}

// Whoever disconnects, in whatever order: one event a side, calls that come too late
// return nil as in Linux, and the queue pairs are in ERR only after the own call.
func TestCase85_DisconnectInAllOrders(t *testing.T) {
	const first, second, both = "first", "second", "both"
	for _, passive := range []bool{false, true} {
		for _, answer := range []string{"disconnect", "destroy", "never"} {
			t.Run(fmt.Sprintf("passive=%v/%s", passive, answer), func(t *testing.T) {
				r := newCMRig(t)
				c, s := r.connect(nil, nil)
				h, o, id, peer := r.a, r.b, c, s
				if passive {
					h, o, id, peer = r.b, r.a, s, c
				}
				h.must(id.Disconnect(t.Context()))
				if st := id.QP().State(); st != ib.QPStateErr {
					t.Errorf("own queue pair in %v", st)
				}
				if e := o.event(rdmacm.EventDisconnected); e.Status != 0 {
					t.Error(e)
				}
				if st := peer.QP().State(); st != ib.QPStateRTS {
					t.Errorf("the peer's queue pair in %v before it disconnects", st)
				}
				status := 0
				switch answer {
				case "disconnect":
					o.must(peer.Disconnect(t.Context()))
					o.must(peer.Disconnect(t.Context()))
					if st := peer.QP().State(); st != ib.QPStateErr {
						t.Errorf("the peer's queue pair in %v", st)
					}
				case "destroy":
					o.gone(peer)
				case "never":
					status = -int(syscall.ETIMEDOUT)
				}
				if e := h.event(rdmacm.EventDisconnected); e.Status != status {
					t.Error(e)
				}
				h.must(id.Disconnect(t.Context()))
				h.none(20e9)
				o.none(20e9)
			})
		}
	}
	t.Run("simultaneous", func(t *testing.T) {
		r := newCMRig(t)
		c, s := r.connect(nil, nil)
		r.a.must(c.Disconnect(t.Context()))
		r.b.must(s.Disconnect(t.Context()))
		for _, h := range []*cmHost{r.a, r.b} {
			if e := h.event(rdmacm.EventDisconnected); e.Status != 0 {
				t.Error(e)
			}
		}
		r.a.must(c.Disconnect(t.Context()))
		r.b.must(s.Disconnect(t.Context()))
		r.a.none(20e9)
		r.b.none(20e9)
	})
	_, _, _ = first, second, both
	r := newCMRig(t)
	if err := r.a.id(rdmacm.PSTCP).Disconnect(t.Context()); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("without a connection: %v", err)
	}
}

// The DREQ is not answered since the peer or the way is gone: the event comes all the
// same, with a status, and Destroy does not hang.
func TestCase87_DisconnectUnanswered(t *testing.T) {
	r := newCMRig(t)
	c, s := r.connect(nil, nil)
	r.net.SetPartition(r.a.addr, r.b.addr, true)
	at := r.net.Now()
	r.a.must(c.Disconnect(t.Context()))
	if e := r.a.event(rdmacm.EventDisconnected); e.Status != -int(syscall.ETIMEDOUT) {
		t.Error(e)
	}
	if d := r.net.Now() - at; d > 80e9 {
		t.Errorf("after %d s", d/1e9)
	}
	r.a.gone(c)
	r.b.must(s.Disconnect(t.Context()))
	r.b.gone(s) // while its DREQ is repeated
}

// What was sent before the disconnect is received, although the event may come first.
func TestCase88_DataBeforeDisconnect(t *testing.T) {
	r := newCMRig(t)
	c, s := r.connect(nil, nil)
	ms, md := cmOK(c.PD().RegMR(make([]byte, 640), ib.AccessLocalWrite))(t), cmOK(s.PD().RegMR(make([]byte, 640), ib.AccessLocalWrite))(t)
	for i := range 12 {
		r.b.must(s.QP().PostRecvOne(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{md.SGE(0, 64)}}))
	}
	for i := range 10 {
		r.a.must(c.QP().PostSendOne(&verbs.SendWR{WRID: uint64(i), Opcode: ib.WRSend, SGList: []verbs.SGE{ms.SGE(64*i, 64)}}))
	}
	r.a.must(c.Disconnect(t.Context()))
	r.b.event(rdmacm.EventDisconnected)
	r.b.must(s.Disconnect(t.Context()))
	for i := range 12 {
		want := ib.WCSuccess
		if i >= 10 {
			want = ib.WCWRFlushErr
		}
		if wc := r.wc(s.RecvCQ()); wc.WRID != uint64(i) || wc.Status != want {
			t.Errorf("%d: %v %v", i, wc.WRID, wc.Status)
		}
	}
	r.a.event(rdmacm.EventDisconnected)
	r.a.must(errors.Join(ms.Dereg(), md.Dereg()))
}

// The library touches only queue pairs that it made.
func TestCase89_OwnQueuePair(t *testing.T) {
	r := newCMRig(t)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	own := func(h *cmHost) (*verbs.QP, func()) {
		pd := cmOK(h.ctx.AllocPD())(t)
		cq := cmOK(h.ctx.CreateCQ(64, nil, nil))(t)
		q := cmOK(pd.CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.RC, Cap: cmAttr().Cap}))(t)
		return q, func() { h.must(errors.Join(q.Destroy(), cq.Destroy(), pd.Dealloc())) }
	}
	step := func(h *cmHost, id *rdmacm.ID, q *verbs.QP, states ...ib.QPState) {
		t.Helper()
		for _, s := range states {
			a := ib.QPAttr{QPState: s}
			mask := cmOK(id.InitQPAttr(&a))(t)
			h.must(q.Modify(&a, mask))
		}
	}
	c := r.a.route(rdmacm.PSTCP, r.b.at())
	qa, enda := own(r.a)
	defer enda()
	step(r.a, c, qa, ib.QPStateInit)
	if _, err := c.InitQPAttr(&ib.QPAttr{QPState: ib.QPStateRTR}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTR before the peer is known: %v", err)
	}
	if err := c.Connect(t.Context(), nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no parameters, no queue pair: %v", err)
	}
	if err := c.Establish(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Establish too early: %v", err)
	}
	r.a.must(c.Connect(t.Context(), &rdmacm.ConnParam{QPNum: qa.Num(), ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7}))
	e := r.b.event(rdmacm.EventConnectRequest)
	s := e.ID
	if e.Conn.QPNum != qa.Num() {
		t.Errorf("%+v", e.Conn)
	}
	qb, endb := own(r.b)
	defer endb()
	step(r.b, s, qb, ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS)
	if err := s.Accept(t.Context(), nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no parameters, no queue pair: %v", err)
	}
	r.b.must(s.Accept(t.Context(), &rdmacm.ConnParam{QPNum: qb.Num(), ResponderResources: 4, InitiatorDepth: 4, SRQ: true}))
	e = r.a.event(rdmacm.EventConnectResponse)
	if e.Conn.QPNum != qb.Num() || !e.Conn.SRQ {
		t.Errorf("%+v", e.Conn)
	}
	r.b.none(1e9) // not established yet
	step(r.a, c, qa, ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS)
	r.a.must(c.Establish())
	r.b.event(rdmacm.EventEstablished)
	r.a.none(1e9)
	r.a.must(c.Disconnect(t.Context()))
	r.b.event(rdmacm.EventDisconnected)
	r.b.must(s.Disconnect(t.Context()))
	r.a.event(rdmacm.EventDisconnected)
	if qa.State() != ib.QPStateRTS || qb.State() != ib.QPStateRTS {
		t.Errorf("queue pairs in %v and %v", qa.State(), qb.State())
	}
}

// 64 clients at once, a backlog of 1: nobody is refused, or waits; 300 clients: nobody is
// refused. A request that its client gave
// up cannot be rejected any more, which is an error and no crash.
func TestCase91_Backlog(t *testing.T) {
	r := newCMRig(t)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 1)
	for _, n := range []int{64, 300} {
		at := r.net.Now()
		for range n {
			c := r.a.active(rdmacm.PSTCP, r.b.at())
			r.a.must(c.Connect(t.Context(), nil))
		}
		r.net.Kick(r.a.port)
		r.net.RunFor(1e9) // nobody fetches
		for done := 0; done < n; {
			e := r.b.raw()
			if e == nil {
				t.Fatalf("%d of %d", done, n)
			}
			r.b.must(e.Ack())
			switch e.Type {
			case rdmacm.EventConnectRequest:
				r.b.ids = append(r.b.ids, e.ID)
				r.b.must(e.ID.CreateQP(nil, cmAttr()))
				r.b.must(e.ID.Accept(t.Context(), nil))
			case rdmacm.EventEstablished:
				done++
			default:
				t.Fatal(e)
			}
		}
		for range n {
			r.a.event(rdmacm.EventEstablished)
		}
		if d := r.net.Now() - at; n == 64 && d > 2e9 || d > 40e9 {
			t.Errorf("%d clients: %d ms", n, d/1e6)
		}
	}

	c := r.a.active(rdmacm.PSTCP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil))
	s := r.b.event(rdmacm.EventConnectRequest).ID
	r.a.gone(c)
	e := r.b.event(rdmacm.EventRejected)
	if e.ID != s || e.Status != int(rdmacm.RejectTimeout) {
		t.Errorf("%+v", e)
	}
	if err := s.Reject(nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("reject after the peer gave up: %v", err)
	}
	if err := s.Accept(t.Context(), &rdmacm.ConnParam{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("accept after the peer gave up: %v", err)
	}
}

// A client that is killed and begins anew connects soon, twenty times, whether the numbers of its
// queue pairs are others (as they are, being random) or the same: then the old connection is
// told to be over, and the second attempt gets through.
func TestCase93_ClientRestarts(t *testing.T) {
	for _, same := range []bool{false, true} {
		stale := 0
		r := newCMRig(t)
		r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
		for i := range 20 {
			seed := uint64(1 + 256*i)
			if same {
				seed = 1
			}
			h := r.hostWith("a", seed, uint64(1000+i), "192.0.2.3")
			c := h.active(rdmacm.PSTCP, r.b.at())
			at := r.net.Now()
			h.must(c.Connect(t.Context(), nil))
			for done := false; !done; {
				e := r.b.raw()
				if e == nil {
					t.Fatal("nothing happens")
				}
				switch e.Type {
				case rdmacm.EventConnectRequest:
					r.b.ids = append(r.b.ids, e.ID)
					r.b.must(e.ID.CreateQP(nil, cmAttr()))
					r.b.must(e.ID.Accept(t.Context(), nil))
				case rdmacm.EventEstablished:
					done = true
				case rdmacm.EventDisconnected:
					stale++
				case rdmacm.EventTimewaitExit:
				default:
					t.Error(e)
				}
				e.Ack()
				if ev, err := h.ch.Poll(); err == nil && ev.Type == rdmacm.EventRejected && ev.Status == int(rdmacm.RejectStaleConnection) {
					ev.Ack()
					h.gone(c)
					c = h.active(rdmacm.PSTCP, r.b.at())
					h.must(c.Connect(t.Context(), nil))
				}
			}
			if d := r.net.Now() - at; d > 2e9 {
				t.Errorf("same %v, %d: %d ms", same, i, d/1e6)
			}
			h.die()
		}
		if same != (stale > 0) {
			t.Errorf("same %v: %d old connections were told to be over", same, stale)
		}
	}
}

// The peer loses power: an idle connection notices nothing, work ends with RETRY_EXC
// within its retries.
func TestCase94_PeerGone(t *testing.T) {
	r := newCMRig(t)
	c, _ := r.connect(&rdmacm.ConnParam{RetryCount: 2}, nil)
	r.net.SetPartition(r.a.addr, r.b.addr, true)
	r.a.none(60e9)
	mr := cmOK(c.PD().RegMR(make([]byte, 8), ib.AccessLocalWrite))(t)
	at := r.net.Now()
	r.a.must(c.QP().PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 8)}}))
	if wc := r.wc(c.SendCQ()); wc.Status != ib.WCRetryExcErr {
		t.Error(wc.Status)
	}
	// 3 attempts, each waits at most 4 x 4.096 us x 2^18.
	if d := r.net.Now() - at; d > 3*4*4096<<18 {
		t.Errorf("after %d ms", d/1e6)
	}
	if st := c.QP().State(); st != ib.QPStateErr {
		t.Errorf("queue pair in %v", st)
	}
	r.a.must(mr.Dereg())
	r.net.SetPartition(r.a.addr, r.b.addr, false)
}

// A host that does not answer: UNREACHABLE after 16 attempts of 4.6 s, for connections
// and for datagrams.
func TestCase95_Unreachable(t *testing.T) {
	for _, ps := range []rdmacm.PortSpace{rdmacm.PSTCP, rdmacm.PSUDP} {
		r := newCMRig(t)
		c := r.a.active(ps, netip.MustParseAddrPort("192.0.2.99:1"))
		at := r.net.Now()
		r.a.must(c.Connect(t.Context(), nil))
		e := r.a.event(rdmacm.EventUnreachable)
		if e.Status != -int(syscall.ETIMEDOUT) || !errors.Is(e.Err(), syscall.ETIMEDOUT) {
			t.Error(e)
		}
		if d := r.net.Now() - at; d < 60e9 || d > 75e9 {
			t.Errorf("%v: after %d s", ps, d/1e9)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := newCMRig(t)
	if err := r.a.id(rdmacm.PSTCP).ResolveAddr(ctx, netip.AddrPort{}, r.b.at(), 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
