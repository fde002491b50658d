package rdmacm_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// What rdma_post_ud_send(3) promises, statement by statement: CONFORMANCE.md has them.

const grh = 40

// ah makes an address handle for the other host.
func (e *vend) ah(to netip.Addr) *verbs.AH {
	e.t.Helper()
	ah := vok(e.id.PD().CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(to), PortNum: 1, HopLimit: 64}))(e.t)
	e.later(ah.Destroy)
	return ah
}

// post posts a receive of size bytes behind the GRH area.
func (e *vend) post(context uint64, size int) *verbs.MR {
	e.t.Helper()
	mr := e.msgs(grh + size)
	if err := e.id.PostRecv(context, mr.Bytes(), mr); err != nil {
		e.t.Fatal(err)
	}
	return mr
}

func TestU1_OneDatagramToTheQueuePair(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		other := r.b.another(rdmacm.UDPQKey) // on the same host: it gets nothing
		packets := 0
		if r.net != nil {
			defer r.net.Sniff(func(*simnet.Event) { packets++ })()
		}
		ah, src := r.a.ah(r.b.addr), r.a.msgs(1024)
		for round, n := range []int{1, 3, 1023, 1024} {
			dst := r.b.post(uint64(round), 1024)
			fill(src.Bytes(), round)
			r.meet()
			if err := r.a.id.PostUDSend(uint64(round), src.Bytes()[:n], src, ib.SendSignaled, ah, r.b.id.QP().Num()); err != nil {
				t.Fatal(err)
			}
			r.a.good(r.a.sent(), uint64(round))
			wc := r.b.received()
			r.b.good(wc, uint64(round))
			if int(wc.ByteLen) != grh+n || !bytes.Equal(dst.Bytes()[grh:grh+n], src.Bytes()[:n]) {
				t.Errorf("%d bytes: %+v", n, wc)
			}
			if r.net != nil && packets != round+1 {
				t.Errorf("%d packets", packets)
			}
		}
		r.a.none(r.a.id.SendCQ())
		r.b.none(other.RecvCQ())
	})
}

// another makes a datagram queue pair of its own, with a receive posted.
func (e *vend) another(key ib.QKey) *verbs.QP {
	e.t.Helper()
	cq := vok(e.ctx.CreateCQ(16, nil, nil))(e.t)
	e.later(cq.Destroy)
	pd := e.id.PD()
	q := vok(pd.CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.UD, Cap: ib.QPCap{MaxRecvWR: 4, MaxRecvSGE: 1, MaxSendWR: 4}}))(e.t)
	e.later(q.Destroy)
	mr := vok(pd.RegMR(make([]byte, grh+1024), ib.AccessLocalWrite))(e.t)
	e.later(mr.Dereg)
	for _, s := range []struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{{ib.QPStateInit, ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrQKey}, {ib.QPStateRTR, 0}, {ib.QPStateRTS, ib.QPAttrSQPSN}} {
		if err := q.Modify(&ib.QPAttr{QPState: s.state, PortNum: 1, QKey: key}, s.mask|ib.QPAttrState); err != nil {
			e.t.Fatal(err)
		}
	}
	if err := q.PostRecvOne(&verbs.RecvWR{WRID: 99, SGList: []verbs.SGE{mr.SGE(0, grh+1024)}}); err != nil {
		e.t.Fatal(err)
	}
	return q
}

func TestU2_NilOrTheErrno(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		ah, src := r.a.ah(r.b.addr), r.a.msgs(4096)
		_, init, _ := r.a.id.QP().Query()
		post := func(n int, flags ib.SendFlags, ah *verbs.AH, qpn ib.QPN) error {
			return r.a.id.PostUDSend(4, src.Bytes()[:n], src, flags, ah, qpn)
		}
		for what, err := range map[string]error{
			"no address":          post(1, 0, nil, 1),
			"no such number":      post(1, 0, ah, ib.QPNMax+1),
			"too long for inline": post(int(init.Cap.MaxInlineData)+1, ib.SendInline, ah, 1),
			"unknown flag":        post(1, 1<<20, ah, 1),
		} {
			var oe *rdmacm.OpError
			if !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Op != "post_ud_send" {
				t.Errorf("%s: %v", what, err)
			}
		}
		// Nothing leaves in SQD, so that the queue fills.
		r.a.hold()
		for range init.Cap.MaxSendWR {
			if err := post(1, ib.SendSignaled, ah, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := post(1, 0, ah, 1); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("full queue: %v", err)
		}
		r.a.revive()
		for range init.Cap.MaxSendWR {
			r.a.good(r.a.sent(), 4)
		}
	})
}

// Without a receive the datagram is dropped and counted, and that is all.
func TestU3_NoReceivePosted(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		ah, src := r.a.ah(r.b.addr), r.a.msgs(8)
		post := func(c uint64) {
			t.Helper()
			if err := r.a.id.PostUDSend(c, src.Bytes(), src, ib.SendSignaled, ah, r.b.id.QP().Num()); err != nil {
				t.Fatal(err)
			}
			r.a.good(r.a.sent(), c)
		}
		post(1)
		post(2)
		r.until(func() bool { return r.b.counter("drop_no_recv") == 2 })
		dst := r.b.post(7, 8)
		fill(src.Bytes(), 1)
		r.meet()
		post(3)
		r.b.good(r.b.received(), 7)
		if !bytes.Equal(dst.Bytes()[grh:], src.Bytes()) {
			t.Error("other bytes")
		}
		r.b.none(r.b.id.RecvCQ())
	})
}

func TestU4_Flags(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		ah, src, qpn := r.a.ah(r.b.addr), r.a.msgs(8), r.b.id.QP().Num()
		// SIGNALED.
		for i, flags := range []ib.SendFlags{0, ib.SendSignaled, ib.SendFence, ib.SendFence | ib.SendSignaled} {
			r.b.post(uint64(i), 8)
			if err := r.a.id.PostUDSend(uint64(i), src.Bytes(), src, flags, ah, qpn); err != nil {
				t.Fatal(err)
			}
		}
		r.a.good(r.a.sent(), 1)
		r.a.good(r.a.sent(), 3)
		for i := range uint64(4) {
			r.b.good(r.b.received(), i)
		}
		r.a.none(r.a.id.SendCQ())
		// SOLICITED: only the second one notifies.
		r.b.post(10, 8)
		r.b.post(11, 8)
		if r.b.id.RecvCQ().ReqNotify(true) {
			t.Fatal("completions before anything was sent")
		}
		if err := errors.Join(
			r.a.id.PostUDSend(0, src.Bytes(), src, 0, ah, qpn),
			r.a.id.PostUDSend(0, src.Bytes(), src, ib.SendSolicited, ah, qpn),
		); err != nil {
			t.Fatal(err)
		}
		r.b.good(r.b.received(), 10)
		r.b.good(r.b.received(), 11)
		if cq, err := r.b.id.RecvChannel().GetCQEvent(t.Context()); err != nil || cq.AckEvents(1) != nil {
			t.Fatal(cq, err)
		}
		// IP_CSUM is not offered.
		if err := r.a.id.PostUDSend(0, src.Bytes(), src, ib.SendIPCSum, ah, qpn); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
	})
}

func TestU5_Registration(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		ah, qpn := r.a.ah(r.b.addr), r.b.id.QP().Num()
		// INLINE needs no region, and the buffer is free at once.
		dst := r.b.post(1, 64)
		buf := []byte("not registered")
		if err := r.a.id.PostUDSend(1, buf, nil, ib.SendInline|ib.SendSignaled, ah, qpn); err != nil {
			t.Fatal(err)
		}
		clear(buf)
		r.a.good(r.a.sent(), 1)
		r.b.good(r.b.received(), 1)
		if string(dst.Bytes()[grh:grh+14]) != "not registered" {
			t.Errorf("%q", dst.Bytes()[grh:])
		}
		// Nothing needs none either.
		r.b.post(2, 64)
		if err := r.a.id.PostUDSend(2, nil, nil, ib.SendSignaled, ah, qpn); err != nil {
			t.Fatal(err)
		}
		r.a.good(r.a.sent(), 2)
		if wc := r.b.received(); wc.ByteLen != grh {
			t.Errorf("%+v", wc)
		}
		// All else does.
		dead, mr := r.a.msgs(8), r.a.msgs(8)
		if err := rdmacm.DeregMR(dead); err != nil {
			t.Fatal(err)
		}
		for what, post := range map[string]func() error{
			"no region":     func() error { return r.a.id.PostUDSend(3, buf, nil, 0, ah, qpn) },
			"deregistered":  func() error { return r.a.id.PostUDSend(3, dead.Bytes(), dead, 0, ah, qpn) },
			"another slice": func() error { return r.a.id.PostUDSend(3, buf, mr, 0, ah, qpn) },
		} {
			if err := post(); err != nil {
				t.Fatal(what, err)
			}
			r.a.bad(r.a.sent(), ib.WCLocProtErr, 3)
			if s := r.a.id.QP().State(); s != ib.QPStateSQE {
				t.Errorf("%s: state %v", what, s)
			}
			r.a.revive()
		}
		r.b.none(r.b.id.RecvCQ())
	})
}

// Any slice of some memory, with a region over a part of it that has any address: it is
// sent exactly if it lies in the region.
func TestU5_AnySlice(t *testing.T) {
	r := newVRig(t, true, false)
	r.datagrams()
	ah, qpn := r.a.ah(r.b.addr), r.b.id.QP().Num()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	memory := make([]byte, 64)
	fill(memory, 1)
	for range 40 {
		from := rnd.IntN(63)
		to := from + 1 + rnd.IntN(64-from)
		iova := []uint64{0, 1, rnd.Uint64() >> 1, 1 << 63, -uint64(to - from)}[rnd.IntN(5)]
		mr := vok(r.a.id.PD().RegMRIOVA(memory[from:to], iova, ib.AccessLocalWrite))(t)
		for range 10 {
			lo := rnd.IntN(65)
			hi := lo + rnd.IntN(65-lo)
			b := memory[lo:hi]
			if rnd.IntN(2) == 0 {
				b = b[: len(b) : len(b)+rnd.IntN(cap(b)-len(b)+1)]
			}
			dst := r.b.msgs(grh + 64)
			in := len(b) == 0 || lo >= from && hi <= to
			if in {
				r.must(r.b.id.PostRecv(2, dst.Bytes(), dst))
			}
			r.must(r.a.id.PostUDSend(1, b, mr, ib.SendSignaled, ah, qpn))
			if !in {
				r.a.bad(r.a.sent(), ib.WCLocProtErr, 1)
				r.a.revive()
				continue
			}
			r.a.good(r.a.sent(), 1)
			if wc := r.b.received(); int(wc.ByteLen) != grh+len(b) || !bytes.Equal(dst.Bytes()[grh:grh+len(b)], b) {
				t.Fatalf("[%d:%d] of [%d:%d] at %#x: %+v", lo, hi, from, to, iova, wc)
			}
		}
		r.must(mr.Dereg())
	}
	r.b.none(r.b.id.RecvCQ())
}

func TestU6_ContextComesBack(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		ah, src := r.a.ah(r.b.addr), r.a.msgs(8)
		for _, c := range []uint64{0, 1, 1 << 32, math.MaxUint64} {
			r.b.post(^c, 8)
			if err := r.a.id.PostUDSend(c, src.Bytes(), src, ib.SendSignaled, ah, r.b.id.QP().Num()); err != nil {
				t.Fatal(err)
			}
			r.a.good(r.a.sent(), c)
			r.b.good(r.b.received(), ^c)
		}
	})
}

// The datagram has the Q_Key of the port space; a queue pair with another one drops it.
func TestU7_QKey(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		var keys []uint32
		if r.net != nil {
			defer r.net.Sniff(func(e *simnet.Event) {
				if e.Err == nil {
					keys = append(keys, uint32(e.DETH().QKey()))
				}
			})()
		}
		wrong, right := r.b.another(0x11111111), r.b.another(0x01234567)
		ah, src := r.a.ah(r.b.addr), r.a.msgs(8)
		for i, q := range []*verbs.QP{wrong, right} {
			if err := r.a.id.PostUDSend(uint64(i), src.Bytes(), src, ib.SendSignaled, ah, q.Num()); err != nil {
				t.Fatal(err)
			}
			r.a.good(r.a.sent(), uint64(i))
		}
		r.until(func() bool { return r.b.counter("drop_qkey") == 1 })
		var wcs [2]verbs.WC
		n := 0
		r.until(func() bool {
			k, err := right.RecvCQ().Poll(wcs[:])
			n += k
			return err == nil && n == 1
		})
		r.b.none(wrong.RecvCQ())
		if r.net != nil && (len(keys) != 2 || keys[0] != 0x01234567 || keys[1] != 0x01234567) {
			t.Errorf("%#x", keys)
		}
	})
}

func TestU8_LongerThanTheMTU(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		packets := 0
		if r.net != nil {
			defer r.net.Sniff(func(*simnet.Event) { packets++ })()
		}
		mtu := vok(r.a.ctx.QueryPort(1))(t).ActiveMTU.Bytes()
		ah, src, qpn := r.a.ah(r.b.addr), r.a.msgs(2<<20), r.b.id.QP().Num()
		for i, n := range []int{mtu + 1, 2 * mtu, 2 << 20} {
			for _, flags := range []ib.SendFlags{ib.SendSignaled, 0} { // an error always completes
				if err := r.a.id.PostUDSend(uint64(i), src.Bytes()[:n], src, flags, ah, qpn); err != nil {
					t.Fatal(err)
				}
				r.a.bad(r.a.sent(), ib.WCLocLenErr, uint64(i))
				if s := r.a.id.QP().State(); s != ib.QPStateSQE {
					t.Errorf("%d bytes: state %v", n, s)
				}
				// What comes behind it is flushed.
				if err := r.a.id.PostUDSend(9, src.Bytes()[:1], src, 0, ah, qpn); err != nil {
					t.Fatal(err)
				}
				r.a.bad(r.a.sent(), ib.WCWRFlushErr, 9)
				r.a.revive()
			}
		}
		if packets != 0 {
			t.Errorf("%d packets left", packets)
		}
		r.b.post(1, mtu)
		if err := r.a.id.PostUDSend(1, src.Bytes()[:mtu], src, ib.SendSignaled, ah, qpn); err != nil {
			t.Fatal(err)
		}
		r.a.good(r.a.sent(), 1)
		if wc := r.b.received(); int(wc.ByteLen) != grh+mtu {
			t.Errorf("%+v", wc)
		}
	})
}

// The 40 bytes before the data: IPv6 has its header there, IPv4 20 bytes of nothing
// that is defined, then its header (RoCEv2 annex A17.4.5.2).
func TestU9_WhatTheReceiverSees(t *testing.T) {
	check := func(t *testing.T, r *vrig) {
		r.datagrams()
		ah, src := r.a.ah(r.b.addr), r.a.msgs(8)
		fill(src.Bytes(), 1)
		r.meet()
		dst := r.b.post(1, 100)
		if err := r.a.id.PostUDSend(1, src.Bytes(), src, ib.SendSignaled, ah, r.b.id.QP().Num()); err != nil {
			t.Fatal(err)
		}
		r.a.good(r.a.sent(), 1)
		wc := r.b.received()
		r.b.good(wc, 1)
		if wc.Flags&ib.WCGRH == 0 || wc.SrcQP != r.a.id.QP().Num() || wc.ByteLen != grh+8 || wc.Opcode != ib.WCRecv {
			t.Errorf("%+v", wc)
		}
		b := dst.Bytes()
		if !bytes.Equal(b[grh:grh+8], src.Bytes()) || !bytes.Equal(b[grh+8:], make([]byte, 92)) {
			t.Error("other bytes")
		}
		from, to := b[8:24], b[24:40]
		if r.a.addr.Is4() {
			if b[20] != 0x45 {
				t.Errorf("version byte %#x", b[20])
			}
			from, to = b[32:36], b[36:40]
		} else if b[0]>>4 != 6 {
			t.Errorf("version byte %#x", b[0])
		}
		if !bytes.Equal(from, r.a.addr.AsSlice()) || !bytes.Equal(to, r.b.addr.AsSlice()) {
			t.Errorf("addresses % x, % x", from, to)
		}
		// What it sees is enough to answer.
		back := vok(r.b.id.PD().CreateAHFromWC(&wc, b, 1))(t)
		r.b.later(back.Destroy)
		r.a.post(2, 8)
		if err := r.b.id.PostUDSend(3, []byte("answer"), nil, ib.SendInline, back, wc.SrcQP); err != nil {
			t.Fatal(err)
		}
		if wc := r.a.received(); wc.SrcQP != r.b.id.QP().Num() || wc.ByteLen != grh+6 {
			t.Errorf("%+v", wc)
		}
	}
	overBoth(t, check)
	t.Run("IPv6", func(t *testing.T) { check(t, newVRig(t, true, true)) })
}

// From the creation of the queue pair on a datagram may be sent: no Connect was called.
func TestU10_NoConnectionIsNeeded(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.datagrams()
		for _, e := range []*vend{r.a, r.b} {
			if s := e.id.QP().State(); s != ib.QPStateRTS {
				t.Errorf("state %v", s)
			}
		}
		for i, e := range []*vend{r.a, r.b} {
			peer := []*vend{r.b, r.a}[i]
			ah, src := e.ah(peer.addr), e.msgs(8)
			peer.post(1, 8)
			if err := e.id.PostUDSend(2, src.Bytes(), src, ib.SendSignaled, ah, peer.id.QP().Num()); err != nil {
				t.Fatal(err)
			}
			e.good(e.sent(), 2)
			peer.good(peer.received(), 1)
		}
	})
}
