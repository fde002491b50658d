package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestCase78_EmptyGIDEntries(t *testing.T) {
	r := newRig(t, 9000)
	port := ok(r.a.ctx.QueryPort(1))(t)
	table := ok(r.a.ctx.QueryGIDTable())(t)
	if len(table) != 2 || table[0].GID.Addr() != r.a.addr {
		t.Fatalf("%+v", table)
	}
	for i := range port.GIDTblLen {
		e, err := r.a.ctx.QueryGIDEntry(1, i)
		g, err2 := r.a.ctx.QueryGID(1, i)
		if i < len(table) {
			if err != nil || err2 != nil || e != table[i] || g != e.GID || e.Type != ib.GIDTypeRoCEv2 {
				t.Errorf("%d: %+v, %v, %v", i, e, err, err2)
			}
			continue
		}
		if !errors.Is(err, ib.ErrNoData) || !errors.Is(err2, ib.ErrNoData) || e != (ib.GIDEntry{}) || !g.IsZero() {
			t.Fatalf("%d: %+v, %v, %v", i, e, err, err2)
		}
	}
	if _, err := r.a.ctx.QueryGID(1, port.GIDTblLen); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if i, err := r.a.ctx.FindGIDIndex(1, table[1].GID, ib.GIDTypeRoCEv2); i != 1 || err != nil {
		t.Error(i, err)
	}
	if i, err := r.a.ctx.PKeyIndex(1, ib.PKeyDefault); i != 0 || err != nil {
		t.Error(i, err)
	}
}

// A datagram is answered by what its completion and its GRH area tell.
func TestAnswerDatagram(t *testing.T) {
	for _, to := range []string{"192.0.2.2", "2001:db8::2"} {
		r := newRig(t, 9000)
		qa, qb := r.pair(ib.UD)
		dst := netip.MustParseAddr(to)
		attr := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(dst), PortNum: 1, HopLimit: 33, TrafficClass: 0x20}
		if dst.Is6() {
			attr.SGIDIndex = 1
		}
		ah := ok(r.a.pd.CreateAH(&attr))(t)
		r.a.later(ah.Destroy)
		ma, mb := r.a.mem(100), r.b.mem(100)
		copy(ma.Bytes(), "ping")
		if err := errors.Join(
			qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{mb.SGE(0, 100)}}),
			qa.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{ma.SGE(0, 100)}}),
			qa.PostSendOne(&verbs.SendWR{
				Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{ma.SGE(0, 4)}, AH: ah, RemoteQPN: qb.Num(), RemoteQKey: qkey,
			}),
		); err != nil {
			t.Fatal(err)
		}
		wc := r.wcs(r.b.cq, 1)[0]
		r.wcs(r.a.cq, 1)
		if wc.Err() != nil || wc.ByteLen != 44 || wc.Flags&ib.WCGRH == 0 || wc.SrcQP != qa.Num() || string(mb.Bytes()[40:44]) != "ping" {
			t.Fatalf("%+v %q", wc, mb.Bytes()[:44])
		}
		back, err := r.b.ctx.InitAHFromWC(1, &wc, mb.Bytes())
		if err != nil || back.DGID.Addr().Is4() != dst.Is4() || back.SGIDIndex != attr.SGIDIndex || !back.IsGlobal || back.TrafficClass != 0x20 || back.PortNum != 1 {
			t.Fatalf("%+v, %v", back, err)
		}
		answer := ok(r.b.pd.CreateAHFromWC(&wc, mb.Bytes(), 1))(t)
		r.b.later(answer.Destroy)
		if err := qb.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: []byte("pong"), AH: answer, RemoteQPN: wc.SrcQP, RemoteQKey: qkey,
		}); err != nil {
			t.Fatal(err)
		}
		if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || string(ma.Bytes()[40:44]) != "pong" {
			t.Errorf("%+v %q", wc, ma.Bytes()[40:44])
		}
	}
}

// Posting with a wrapped address handle leaves the caller's request alone.
func TestPostLeavesTheRequestAlone(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.UD)
	ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(t)
	r.a.later(ah.Destroy)
	wrs := []verbs.SendWR{{Opcode: ib.WRSend, Flags: ib.SendSignaled, AH: ah, RemoteQPN: qb.Num(), RemoteQKey: qkey}}
	if err := qa.PostSend(wrs); err != nil {
		t.Fatal(err)
	}
	if wrs[0].AH != ah {
		t.Errorf("AH became a %T", wrs[0].AH)
	}
	r.wcs(r.a.cq, 1)
	other := ok(r.b.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.a.addr), PortNum: 1}))(t)
	r.b.later(other.Destroy)
	wrs[0].AH = other
	if err := qa.PostSend(wrs); !errors.Is(err, syscall.EINVAL) {
		t.Error("an address handle of another device:", err)
	}
}

// The device's own addresses are there for its own queue pairs too.
func TestLoopbackQueuePair(t *testing.T) {
	r := newRig(t, 9000)
	for _, to := range []string{"192.0.2.1", "2001:db8::1"} {
		q := r.a.qp(r.a.attr(ib.RC))
		r.a.to(q, ib.QPStateRTS, q, netip.MustParseAddr(to))
		m := r.a.mem(20000)
		copy(m.Bytes(), bytes.Repeat([]byte("self"), 2500))
		if err := q.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{m.SGE(0, 10000)}, RemoteAddr: m.Addr() + 10000, RKey: m.RKey(),
		}); err != nil {
			t.Fatal(err)
		}
		if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || !bytes.Equal(m.Bytes()[:10000], m.Bytes()[10000:]) {
			t.Errorf("%s: %v", to, wc.Err())
		}
	}
}

// Destroy returns although a packet of the queue pair is under way; what comes
// late hurts nobody.
func TestCase121_DestroyWithPacketsUnderWay(t *testing.T) {
	for _, typ := range []ib.QPType{ib.RC, ib.UC} {
		r := newRig(t, 9000)
		qa, qb := r.pair(typ)
		src, dst := r.a.mem(64), r.b.mem(64)
		remove := r.net.Filter(func(*simnet.Event) simnet.Verdict { return simnet.Delay(30e9) })
		write := verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 64)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()}
		if err := qa.PostSendOne(&write); err != nil {
			t.Fatal(err)
		}
		r.net.RunFor(1e6)
		if r.net.InFlight() == 0 {
			t.Fatal("nothing is under way")
		}
		if err := errors.Join(qa.Destroy(), qb.Destroy()); err != nil {
			t.Error(err)
		}
		remove()
		copy(src.Bytes(), "late")
		r.net.RunFor(60e9)
		if !bytes.Equal(dst.Bytes(), make([]byte, 64)) {
			t.Error("a late packet was written to memory")
		}
	}
}

func TestDrainFlushesEverything(t *testing.T) {
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		for _, peer := range []bool{true, false} {
			r := newRig(t, 9000)
			attr := r.a.attr(typ)
			recvCQ := ok(r.a.ctx.CreateCQ(64, nil, nil))(t)
			r.a.later(recvCQ.Destroy)
			attr.RecvCQ = recvCQ
			qa, qb := r.connect(attr, r.b.attr(typ))
			if !peer {
				r.net.SetDefault(simnet.Link{Partition: true})
			}
			ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(t)
			r.a.later(ah.Destroy)
			m := r.a.mem(256)
			_, init, _ := qa.Query()
			for i := range uint64(init.Cap.MaxSendWR) { // full, so that the markers must wait for room
				if err := qa.PostSendOne(&verbs.SendWR{
					WRID: i, Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{m.SGE(0, 8)}, AH: ah, RemoteQPN: qb.Num(), RemoteQKey: qkey,
				}); err != nil {
					t.Fatal(err)
				}
			}
			for i := range uint64(init.Cap.MaxRecvWR) {
				if err := qa.PostRecvOne(&verbs.RecvWR{WRID: 100 + i}); err != nil {
					t.Fatal(err)
				}
			}
			sends, recvs := uint64(0), uint64(100)
			err := qa.Drain(t.Context(), func(wcs []verbs.WC) {
				for _, wc := range wcs {
					switch wc.WRID {
					case sends:
						sends++
					case recvs:
						recvs++
					default:
						t.Errorf("%v: unexpected %+v", typ, wc)
					}
				}
			})
			if err != nil || sends != uint64(init.Cap.MaxSendWR) || recvs != 100+uint64(init.Cap.MaxRecvWR) || qa.State() != ib.QPStateErr {
				t.Errorf("%v, peer there %v: %v; %d sends, %d receives, state %v", typ, peer, err, sends, recvs-100, qa.State())
			}
			// Again: only the markers.
			if err := qa.Drain(t.Context(), func(wcs []verbs.WC) { t.Errorf("%+v", wcs) }); err != nil {
				t.Error(err)
			}
			// In RESET there is nothing.
			if err := qa.Modify(&ib.QPAttr{}, ib.QPAttrState); err != nil {
				t.Fatal(err)
			}
			if err := qa.Drain(t.Context(), nil); err != nil {
				t.Error(err)
			}
		}
	}
}

// Events of a queue pair come with it, and its destruction waits for their
// acknowledgement.
func TestQPEvents(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.a.qp(r.a.attr(ib.RC)), r.b.qp(r.b.attr(ib.RC))
	r.a.to(qa, ib.QPStateRTS, qb, r.b.addr)
	r.b.to(qb, ib.QPStateRTR, qa, r.a.addr) // no message has come
	m := r.a.mem(8)
	if err := errors.Join(qb.PostRecvOne(&verbs.RecvWR{}), qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})); err != nil {
		t.Fatal(err)
	}
	r.wcs(r.a.cq, 1)
	r.wcs(r.b.cq, 1)
	if e := r.b.event(ib.EventCommEst); e.QP != qb {
		t.Error("event of another queue pair")
	}
	// A write with a bad key: the responder goes to ERR and says why.
	if err := qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRRDMAWrite, SGList: []verbs.SGE{m.SGE(0, 8)}, RKey: 1}); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCRemAccessErr {
		t.Error(wc.Status)
	}
	e, err := r.b.ctx.GetAsyncEvent(t.Context())
	if err != nil || e.Type != ib.EventQPAccessErr || e.QP != qb {
		t.Fatal(e, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := qb.DestroyContext(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	e.Ack()
	if err := qb.Destroy(); err != nil {
		t.Error(err)
	}
	r.b.noEvent()
}

func TestQueryDeviceAndQP(t *testing.T) {
	r := newRig(t, 9000)
	d := ok(r.a.ctx.QueryDevice())(t)
	if d.NodeGUID == 0 || d.SysImageGUID == 0 || d.PhysPortCnt != 1 || d.MaxQP == 0 || r.a.ctx.Device().Name() != "a" {
		t.Errorf("%+v", d)
	}
	qa, qb := r.pair(ib.RC)
	a, init, err := qa.Query()
	if err != nil || a.QPState != ib.QPStateRTS || a.DestQPN != qb.Num() || a.RNRRetry != 6 || a.AHAttr.DGID.Addr() != r.b.addr || init.Type != ib.RC || init.SendCQ != r.a.cq {
		t.Errorf("%+v %+v %v", a, init, err)
	}
	for _, c := range []struct {
		mask  ib.QPAttrMask
		attr  ib.QPAttr
		param string
	}{
		{ib.QPAttrMinRNRTimer, ib.QPAttr{MinRNRTimer: 32}, "MinRNRTimer"},
		{ib.QPAttrState, ib.QPAttr{QPState: ib.QPStateInit}, ""},
		{ib.QPAttrState | ib.QPAttrRetryCnt, ib.QPAttr{QPState: ib.QPStateRTS}, ""},
	} {
		err := qa.Modify(&c.attr, c.mask)
		var e *verbs.OpError
		if !errors.As(err, &e) || !errors.Is(err, syscall.EINVAL) || e.Op != "modify_qp" || c.param != "" && e.Param != c.param {
			t.Errorf("%v: %v", c.mask, err)
		}
		if qa.State() != ib.QPStateRTS {
			t.Error("a failed modify changed the state")
		}
	}
}

// Nothing on the data path of verbs over the software device allocates.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	src, dst := r.a.mem(4096), r.b.mem(4096)
	send := []verbs.SendWR{{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 4096)}}}
	recv := []verbs.RecvWR{{SGList: []verbs.SGE{dst.SGE(0, 4096)}}}
	wcs := make([]verbs.WC, 4)
	done := func() bool {
		n, err := r.a.cq.Poll(wcs)
		return n == 1 && err == nil
	}
	round := func() {
		if qb.PostRecv(recv) != nil || qa.PostSend(send) != nil {
			t.Fatal("post failed")
		}
		r.net.Kick(r.a.port)
		if !r.net.Run(done, 1e9) {
			t.Fatal("no completion")
		}
		if n, err := r.b.cq.Poll(wcs); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	for range 100 { // pools fill
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
