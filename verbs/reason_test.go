package verbs_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// fails posts a work request that fails and gives its completion.
func (r *rig) fails(n *node, q *verbs.QP, wr *verbs.SendWR) verbs.WC {
	r.t.Helper()
	wr.Flags |= ib.SendSignaled
	if err := q.PostSendOne(wr); err != nil {
		r.t.Fatal(err)
	}
	r.net.Kick(n.port)
	r.net.RunFor(1e8)
	return r.wcs(n.cq, 1)[0]
}

// The completion of a local operation that failed says why.
func TestMemoryManagementErrorsTellWhy(t *testing.T) {
	r := newRig(t, 9000)
	mr, plain := r.b.memWith(make([]byte, 64), bindable), r.b.memWith(make([]byte, 64), allRights)
	readOnly := r.b.memWith(make([]byte, 64), ib.AccessMWBind)
	pd := ok(r.b.ctx.AllocPD())(t)
	r.b.later(pd.Dealloc)
	other := ok(pd.RegMR(make([]byte, 64), bindable))(t)
	r.b.later(other.Dereg)
	fast := ok(r.b.pd.AllocMR(4))(t)
	r.b.later(fast.Dereg)
	w := r.b.mw(ib.MWType2)
	inv := func(k ib.RKey) *verbs.SendWR { return &verbs.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: k} }
	for _, c := range []struct {
		wr   *verbs.SendWR
		code ib.VendorErr
		say  string
	}{
		{bind(w, w.RKey(), plain, 0, 8, 0), ib.VendorErrBindNoMWBind, "lacks ib.AccessMWBind"},
		{bind(w, w.RKey(), mr, 60, 8, 0), ib.VendorErrBindRange, "not inside the region"},
		{bind(w, w.RKey(), mr, 0, 0, 0), ib.VendorErrBindLength, "length is 0"},
		{bind(w, w.RKey(), mr, 0, 8, ib.AccessLocalWrite), ib.VendorErrBindRights, "remote ones"},
		{bind(w, w.RKey(), readOnly, 0, 8, ib.AccessRemoteWrite), ib.VendorErrBindNoLocalWrite, "lacks ib.AccessLocalWrite"},
		{bind(w, w.RKey(), other, 0, 8, 0), ib.VendorErrBindDomain, "one protection domain"},
		{inv(0xDEAD00), ib.VendorErrInvKey, "no such key"},
		{inv(mr.RKey()), ib.VendorErrInvKind, "window of type 2"},
		{&verbs.SendWR{Opcode: ib.WRRegMR, RKey: fast.RKey(), Bind: &verbs.BindInfo{MR: fast}}, ib.VendorErrRegNoMemory, "MapSG"},
	} {
		_, qb := r.pair(ib.RC)
		wc := r.fails(r.b, qb, c.wr)
		if wc.Status != ib.WCMWBindErr || ib.VendorErr(wc.VendorErr) != c.code || !strings.Contains(wc.Err().Error(), c.say) {
			t.Errorf("%v, code %v, want %v", wc.Err(), ib.VendorErr(wc.VendorErr), c.code)
		}
	}
	// Bound already; what is flushed behind it has no reason of its own. On UC too.
	for _, typ := range []ib.QPType{ib.RC, ib.UC} {
		_, qb := r.pair(typ)
		wrs := []verbs.SendWR{*bind(w, w.RKey(), mr, 0, 8, 0), *bind(w, w.RKey(), mr, 0, 8, 0), *inv(w.RKey())}
		for i := range wrs {
			wrs[i].Flags = ib.SendSignaled
		}
		if err := qb.PostSend(wrs); err != nil {
			t.Fatal(err)
		}
		got := r.wcs(r.b.cq, 3)
		if got[0].VendorErr != 0 || got[1].Status != ib.WCMWBindErr || ib.VendorErr(got[1].VendorErr) != ib.VendorErrBindBound ||
			got[2].Status != ib.WCWRFlushErr || got[2].VendorErr != 0 {
			t.Errorf("%v: %+v", typ, got)
		}
		if err := qb.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState); err != nil {
			t.Error(err)
		}
	}
	if s := ib.VendorErr(0x81).String(); s != "vendor error 0x81" {
		t.Error(s)
	}
}

// A READ on a queue pair without depth says so.
func TestReadWithoutDepthTellsWhy(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.a.qp(r.a.attr(ib.RC)), r.b.qp(r.b.attr(ib.RC))
	r.a.to(qa, ib.QPStateRTR, qb, r.b.addr)
	rts := ib.QPAttr{QPState: ib.QPStateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7}
	if err := qa.Modify(&rts, ib.QPAttrState|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrSQPSN|ib.QPAttrMaxRDAtomic); err != nil {
		t.Fatal(err)
	}
	wc := r.fails(r.a, qa, &verbs.SendWR{Opcode: ib.WRRDMARead})
	if wc.Status != ib.WCLocQPOpErr || !strings.Contains(wc.Err().Error(), "(RDMA_READ)") || !strings.Contains(wc.Err().Error(), "MaxRDAtomic is 0") {
		t.Error(wc.Err())
	}
}

// A parent that has children says which.
func TestBusyTellsByWhom(t *testing.T) {
	r := newRig(t, 9000)
	c := r.a.ctx
	pd := ok(c.AllocPD())(t)
	ch := ok(c.CreateCompChannel())(t)
	cq := ok(c.CreateCQ(8, ch, nil))(t)
	xrcd := ok(c.OpenXRCD(&verbs.XRCDInitAttr{}))(t)
	attr := r.a.attr(ib.UD)
	attr.SendCQ, attr.RecvCQ = cq, cq
	q := ok(pd.CreateQP(attr))(t)
	s := ok(pd.CreateSRQEx(&verbs.SRQInitAttr{Type: ib.SRQXRC, XRCD: xrcd, CQ: cq, Attr: ib.SRQAttr{MaxWR: 1, MaxSGE: 1}}))(t)
	s2 := ok(pd.CreateSRQ(&ib.SRQAttr{MaxWR: 1, MaxSGE: 1}, nil))(t)
	mr := ok(pd.RegMR(make([]byte, 8), bindable))(t)
	mw := ok(pd.AllocMW(ib.MWType2))(t)
	ah := ok(pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(t)
	if err := q.AttachMcast(ib.GIDFromAddr(group4), 0); err != nil {
		t.Fatal(err)
	}
	_, qr := r.pair(ib.RC)
	_ = qr
	for _, c := range []struct {
		err  error
		want string
	}{
		{pd.Dealloc(), "1 memory region, 1 memory window, 1 address handle, 2 shared receive queues, 1 queue pair still use it"},
		{cq.Destroy(), "1 shared receive queue, 1 queue pair still use it"},
		{ch.Destroy(), "1 completion queue still uses it"},
		{xrcd.Close(), "1 shared receive queue still uses it"},
		{c.Close(), "2 protection domains, 1 completion channel, 2 completion queues, 1 XRC domain still use it"},
		{q.Destroy(), "attached to the group " + group4.String() + ", DetachMcast first"},
	} {
		if !errors.Is(c.err, syscall.EBUSY) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
	if err := errors.Join(q.DetachMcast(ib.GIDFromAddr(group4), 0), q.Destroy(), s.Destroy(), s2.Destroy(), ah.Destroy(), mw.Dealloc(), mr.Dereg(),
		xrcd.Close(), cq.Destroy(), ch.Destroy(), pd.Dealloc()); err != nil {
		t.Error(err)
	}
}

// Both addresses of a datagram, that of a group too, from its first 40 bytes.
func TestGRHAddrs(t *testing.T) {
	r := newMcastRig(t, 1)
	from, to := r.a.listener(0, false), r.b.listener(1, false).join(group4)
	from.toGroup(r, group4, ib.QPNMulticast, []byte("x"))
	wc := r.wcs(to.cq, 1)[0]
	grh := to.buf[:40]
	src, dst, err := verbs.GRHAddrs(grh)
	if err != nil || src != r.a.addr || dst != group4 {
		t.Errorf("%v to %v, %v", src, dst, err)
	}
	if _, err := r.b.ctx.InitAHFromWC(1, &wc, grh); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "GRHAddrs") {
		t.Error(err)
	}
	if _, _, err := verbs.GRHAddrs(grh[:39]); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// An event says to what it happened.
func TestEventTellsOfWhat(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	r.write(qa, 0xDEAD00)
	r.net.RunFor(1e8)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		e, err := r.b.ctx.GetAsyncEvent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		e.Ack()
		if e.Type == ib.EventQPAccessErr {
			if s := e.String(); !strings.HasPrefix(s, "queue pair 0x") || !strings.HasSuffix(s, ": local access violation work queue error") || e.QP != qb {
				t.Error(s)
			}
			return
		}
	}
}
