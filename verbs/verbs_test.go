package verbs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// wantErr checks verb, parameter and errno of an error.
func wantErr(t *testing.T, err error, op, param string, errno error) {
	t.Helper()
	var e *OpError
	if !errors.As(err, &e) || e.Op != op || e.Param != param || !errors.Is(err, errno) {
		t.Errorf("error is %v (%#v); want verb %s, parameter %q, errno %v", err, e, op, param, errno)
	}
}

func TestCase101_OneBrokenProviderHidesNothing(t *testing.T) {
	ctx := context.Background()
	bad := &fakeProvider{err: syscall.EACCES}
	worse := &fakeProvider{err: syscall.EPERM}
	good := &fakeProvider{name: "fake0", dev: newFake()}
	list, err := Devices(ctx, bad, good, worse)
	if err != nil || len(list) != 1 || list[0].Name() != "fake0" || list[0].String() != "fake0" || list[0].GUID() != 7 {
		t.Fatalf("%v, %v", list, err)
	}
	_, err = Devices(ctx, bad, worse)
	wantErr(t, err, "get_device_list", "", syscall.EACCES)
	wantErr(t, err, "get_device_list", "", syscall.EPERM)
	if list, err := Devices(ctx, &fakeProvider{}); err != nil || len(list) != 0 {
		t.Errorf("no device: %v, %v", list, err)
	}

	// A device that is listed and cannot be opened gives the provider's errno.
	list, err = Devices(ctx, &fakeProvider{name: "gone"}, good)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	_, err = list[0].Open(ctx)
	wantErr(t, err, "open_device", "", syscall.ENODEV)
	c, err := list[1].Open(ctx)
	if err != nil || c.Device() != list[1] {
		t.Fatal(c, err)
	}
	// Each failing call keeps the errno of the provider.
	pd := must(c.AllocPD())(t)
	cq := must(c.CreateCQ(1, nil, nil))(t)
	good.dev.fail = syscall.ENOSPC
	good.dev.gids[0] = ib.GID{15: 1}
	for op, f := range map[string]func() error{
		"alloc_pd":      func() error { _, err := c.AllocPD(); return err },
		"create_cq":     func() error { _, err := c.CreateCQ(1, nil, nil); return err },
		"create_srq":    func() error { _, err := pd.CreateSRQ(&ib.SRQAttr{}, nil); return err },
		"create_qp":     func() error { _, err := pd.CreateQP(&QPInitAttr{SendCQ: cq, RecvCQ: cq}); return err },
		"reg_mr":        func() error { _, err := pd.RegMR(nil, 0); return err },
		"reg_mr_iova":   func() error { _, err := pd.RegMRPointerIOVA(1, 1, 1, 0); return err },
		"alloc_null_mr": func() error { _, err := pd.NullMR(); return err },
		"create_ah": func() error {
			_, err := pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GID{15: 1}, PortNum: 1})
			return err
		},
	} {
		wantErr(t, f(), op, "", syscall.ENOSPC)
	}
	// None of them left a child behind.
	good.dev.fail = nil
	for _, err := range []error{cq.Destroy(), pd.Dealloc(), c.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestCloseOrder(t *testing.T) {
	k := newKit(t)
	srq := must(k.pd.CreateSRQ(&ib.SRQAttr{MaxWR: 3}, nil))(t)
	mr := must(k.pd.RegMR(make([]byte, 8), 0))(t)
	k.dev.gids[0] = ib.GID{15: 1}
	ah := must(k.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GID{15: 2}, PortNum: 1}))(t)
	qp := must(k.pd.CreateQP(&QPInitAttr{SendCQ: k.cq, RecvCQ: k.cq, SRQ: srq, Type: ib.RC}))(t)

	wantErr(t, k.ctx.Close(), "close_device", "", syscall.EBUSY)
	wantErr(t, k.pd.Dealloc(), "dealloc_pd", "", syscall.EBUSY)
	wantErr(t, k.cq.Destroy(), "destroy_cq", "", syscall.EBUSY)
	wantErr(t, k.ch.Destroy(), "destroy_comp_channel", "", syscall.EBUSY)
	wantErr(t, srq.Destroy(), "destroy_srq", "", syscall.EBUSY)
	if k.dev.closed != 0 {
		t.Error("a busy device was closed")
	}
	// A parent that refused keeps working.
	if _, err := k.ctx.QueryDevice(); err != nil {
		t.Error(err)
	}
	for range 2 { // closing twice does no harm
		for _, f := range []func() error{qp.Destroy, srq.Destroy, k.cq.Destroy, k.ch.Destroy, mr.Dereg, ah.Destroy, k.pd.Dealloc, k.ctx.Close} {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	}
	if k.dev.closed != 1 || k.dev.qps[0].destroyed != 1 {
		t.Errorf("closed %d times, queue pair destroyed %d times", k.dev.closed, k.dev.qps[0].destroyed)
	}

	// What is gone says so.
	for op, f := range map[string]func() error{
		"query_device":        func() error { _, err := k.ctx.QueryDevice(); return err },
		"query_port":          func() error { _, err := k.ctx.QueryPort(1); return err },
		"query_gid_table":     func() error { _, err := k.ctx.QueryGIDTable(); return err },
		"alloc_pd":            func() error { _, err := k.ctx.AllocPD(); return err },
		"create_cq":           func() error { _, err := k.ctx.CreateCQ(1, nil, nil); return err },
		"create_comp_channel": func() error { _, err := k.ctx.CreateCompChannel(); return err },
		"poll_cq":             func() error { _, err := k.cq.Poll(nil); return err },
		"wait_cq":             func() error { return k.cq.Wait(t.Context()) },
		"resize_cq":           func() error { return k.cq.Resize(3) },
		"post_send":           func() error { return qp.PostSend(nil) },
		"post_recv":           func() error { return qp.PostRecv(nil) },
		"modify_qp":           func() error { return qp.Modify(&ib.QPAttr{}, 0) },
		"query_qp":            func() error { _, _, err := qp.Query(); return err },
		"query_srq":           func() error { _, err := srq.Query(); return err },
		"modify_srq":          func() error { return srq.Modify(&ib.SRQAttr{}, 0) },
		"post_srq_recv":       func() error { return srq.PostRecv(nil) },
		"reg_mr":              func() error { _, err := k.pd.RegMR(make([]byte, 1), 0); return err },
		"create_srq":          func() error { _, err := k.pd.CreateSRQ(&ib.SRQAttr{}, nil); return err },
		"create_ah":           func() error { _, err := k.pd.CreateAH(&ib.AHAttr{}); return err },
		"create_qp":           func() error { _, err := k.pd.CreateQP(&QPInitAttr{SendCQ: k.cq, RecvCQ: k.cq}); return err },
		"get_cq_event":        func() error { _, err := k.ch.GetCQEvent(t.Context()); return err },
		"get_async_event":     func() error { _, err := k.ctx.GetAsyncEvent(t.Context()); return err },
	} {
		wantErr(t, f(), op, "", net.ErrClosed)
	}
	if !k.cq.ReqNotify(false) || qp.State() != ib.QPStateUnknown {
		t.Error("destroyed objects look alive")
	}
}

func TestQueries(t *testing.T) {
	k := newKit(t)
	a, b := ib.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), ib.GIDFromAddr(netip.MustParseAddr("2001:db8::1"))
	k.dev.gids = map[int]ib.GID{1: a, 6: b}
	list := must(k.ctx.QueryGIDTable())(t)
	if len(list) != 2 || list[0].GID != a || list[1].GID != b || list[1].Index != 6 {
		t.Errorf("table %v", list)
	}
	if g, err := k.ctx.QueryGID(1, 6); g != b || err != nil {
		t.Error(g, err)
	}
	_, err := k.ctx.QueryGID(1, 0)
	wantErr(t, err, "query_gid", "", ib.ErrNoData)
	_, err = k.ctx.QueryGIDEntry(1, 8)
	wantErr(t, err, "query_gid_ex", "", syscall.EINVAL)
	if i, err := k.ctx.FindGIDIndex(1, b, ib.GIDTypeRoCEv2); i != 6 || err != nil {
		t.Error(i, err)
	}
	_, err = k.ctx.FindGIDIndex(1, b, ib.GIDTypeRoCEv1)
	wantErr(t, err, "find_gid_index", "gid", ib.ErrNoData)
	if i, err := k.ctx.PKeyIndex(1, 0x0001); i != 2 || err != nil {
		t.Error(i, err)
	}
	_, err = k.ctx.PKeyIndex(1, 0x7777)
	wantErr(t, err, "get_pkey_index", "pkey", syscall.EINVAL)
	if key, err := k.ctx.QueryPKey(1, 1); key != 0x8001 || err != nil {
		t.Error(key, err)
	}
	_, err = k.ctx.QueryPKey(1, 3)
	wantErr(t, err, "query_pkey", "", syscall.EINVAL)
	_, err = k.ctx.QueryPort(2)
	wantErr(t, err, "query_port", "", syscall.EINVAL)
}

func TestMR(t *testing.T) {
	k := newKit(t)
	b := make([]byte, 100)
	mr := must(k.pd.RegMR(b, ib.AccessLocalWrite))(t)
	if mr.Addr() != 0x1000 || mr.Length() != 100 || mr.LKey() != 0x11 || mr.RKey() != 0x22 || &mr.Bytes()[0] != &b[0] || mr.PD() != k.pd {
		t.Errorf("%+v", mr)
	}
	if s := mr.SGE(40, 60); s != (SGE{Addr: 0x1000 + 40, Length: 60, LKey: 0x11}) {
		t.Errorf("%+v", s)
	}
	for _, c := range [][2]int{{-1, 1}, {0, -1}, {0, 101}, {100, 1}, {101, 0}, {1 << 62, 1 << 62}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("SGE(%d, %d) is in range", c[0], c[1])
				}
			}()
			mr.SGE(c[0], c[1])
		}()
	}
	if m := must(k.pd.RegMRIOVA(b, 1<<63, 0))(t); m.Addr() != 1<<63 {
		t.Errorf("%#x", m.Addr())
	}
	if m := must(k.pd.RegMRPointer(0x5000, 10, 0))(t); m.Addr() != 0x5000 || m.Bytes() != nil {
		t.Errorf("%#x", m.Addr())
	}
	if m := must(k.pd.NullMR())(t); m.SGE(0, 1<<31).Length != 1<<31 {
		t.Error("null region")
	}
}

func TestCreateQP(t *testing.T) {
	k := newKit(t)
	other := newKit(t)
	srq := must(k.pd.CreateSRQ(&ib.SRQAttr{MaxWR: 3}, nil))(t)
	for param, attr := range map[string]*QPInitAttr{
		"attr": nil, "SendCQ": {RecvCQ: k.cq}, "RecvCQ": {SendCQ: k.cq},
		"SRQ": {SendCQ: k.cq, RecvCQ: k.cq, SRQ: must(other.pd.CreateSRQ(&ib.SRQAttr{}, nil))(t)},
	} {
		_, err := k.pd.CreateQP(attr)
		wantErr(t, err, "create_qp", param, syscall.EINVAL)
	}
	_, err := k.pd.CreateQP(&QPInitAttr{SendCQ: other.cq, RecvCQ: k.cq})
	wantErr(t, err, "create_qp", "SendCQ", syscall.EINVAL)
	_, err = k.pd.CreateQP(&QPInitAttr{SendCQ: k.cq, RecvCQ: other.cq})
	wantErr(t, err, "create_qp", "RecvCQ", syscall.EINVAL)

	// The real sizes come back; with a SRQ the receive sizes are ignored.
	attr := &QPInitAttr{SendCQ: k.cq, RecvCQ: k.cq, SRQ: srq, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 7, MaxRecvWR: 1 << 31}, UserContext: 5}
	qp := must(k.pd.CreateQP(attr))(t)
	if attr.Cap.MaxSendWR != 8 || attr.Cap.MaxRecvWR != 0 {
		t.Errorf("%+v", attr.Cap)
	}
	if qp.Num() != 0x100 || qp.Type() != ib.RC || qp.SendCQ() != k.cq || qp.RecvCQ() != k.cq || qp.SRQ() != srq || qp.UserContext() != 5 || qp.PD() != k.pd || qp.Context() != k.ctx {
		t.Error("accessors")
	}
	if err := qp.Modify(&ib.QPAttr{QPState: ib.QPStateInit}, ib.QPAttrState); err != nil {
		t.Fatal(err)
	}
	a, init, err := qp.Query()
	if err != nil || a.QPState != ib.QPStateInit || init.Cap != attr.Cap || init.SRQ != srq || qp.State() != ib.QPStateInit {
		t.Error(a, init, err)
	}
	wantErr(t, qp.Modify(nil, 0), "modify_qp", "attr", syscall.EINVAL)
	wantErr(t, qp.Modify(&ib.QPAttr{RetryCnt: 8}, 0), "modify_qp", "RetryCnt", syscall.EINVAL)

	// A failed create changes nothing.
	k.dev.fail = syscall.ENOMEM
	was := *attr
	if _, err := k.pd.CreateQP(attr); !errors.Is(err, syscall.ENOMEM) || *attr != was {
		t.Error(err, attr)
	}
}

func TestSRQ(t *testing.T) {
	k := newKit(t)
	attr := ib.SRQAttr{MaxWR: 2, SRQLimit: 9}
	s := must(k.pd.CreateSRQ(&attr, "x"))(t)
	if attr.MaxWR != 3 || s.UserContext() != "x" || s.Num() != 5 || s.PD() != k.pd {
		t.Errorf("%+v", attr)
	}
	if got := must(s.Query())(t); got.MaxWR != 3 || got.SRQLimit != 0 {
		t.Errorf("%+v", got)
	}
	attr = ib.SRQAttr{}
	wantErr(t, s.Modify(&attr, ib.SRQMaxWR), "modify_srq", "", syscall.EINVAL)
	if attr != (ib.SRQAttr{}) {
		t.Errorf("a failed modify changed attr to %+v", attr)
	}
	wantErr(t, s.Modify(nil, ib.SRQMaxWR), "modify_srq", "attr", syscall.EINVAL)
	_, err := k.pd.CreateSRQ(nil, nil)
	wantErr(t, err, "create_srq", "attr", syscall.EINVAL)
	if err := s.PostRecvOne(&RecvWR{WRID: 1}); err != nil {
		t.Fatal(err)
	}
	err = s.PostRecv([]RecvWR{{WRID: 2}, {WRID: 3}, {WRID: 4}})
	var pe *PostError
	if !errors.As(err, &pe) || pe.Index != 2 || pe.WRID != 4 || !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
}

func TestPostListNamesTheBadOne(t *testing.T) {
	k := newKit(t)
	qp := k.qp(t, ib.RC)
	err := qp.PostSend([]SendWR{{WRID: 10}, {WRID: 11}, {WRID: 12, Opcode: 99}, {WRID: 13}})
	var pe *PostError
	if !errors.As(err, &pe) || pe.Index != 2 || pe.WRID != 12 || !errors.Is(err, syscall.EINVAL) {
		t.Fatal(err)
	}
	if s := err.Error(); !strings.Contains(s, "post_send") || !strings.Contains(s, "12") {
		t.Error(s)
	}
	wcs := make([]WC, 4)
	n, err := k.cq.Poll(wcs)
	if n != 2 || err != nil || wcs[0].WRID != 10 || wcs[1].WRID != 11 || wcs[0].Err() != nil {
		t.Errorf("%v %v %v", n, err, wcs[:n])
	}
	err = qp.PostRecv([]RecvWR{{}, {}, {}, {}, {}, {WRID: 5}})
	if !errors.As(err, &pe) || pe.Index != 5 || pe.WRID != 5 || !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
}

func TestWCError(t *testing.T) {
	wc := WC{WRID: 9, Status: ib.WCRetryExcErr, QPNum: 0x17, VendorErr: 0x81}
	err := wc.Err()
	var e *WCError
	if !errors.As(err, &e) || e.Status != ib.WCRetryExcErr || e.QPNum != 0x17 {
		t.Fatal(err)
	}
	if s := err.Error(); s != "work request 9 (SEND) on queue pair 0x17: transport retry counter exceeded (vendor error 0x81)" {
		t.Error(s)
	}
	if !errors.Is(err, &WCError{Status: ib.WCRetryExcErr}) || errors.Is(err, &WCError{Status: ib.WCWRFlushErr}) {
		t.Error("errors.Is asks for something else than the status")
	}
}

func TestAddressNeedsGRHOnRoCE(t *testing.T) {
	k := newKit(t)
	k.dev.gids[2] = ib.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	qp := k.qp(t, ib.RC)
	good := ib.AHAttr{IsGlobal: true, DGID: ib.GID{15: 9}, SGIDIndex: 2, PortNum: 1}
	for param, change := range map[string]func(*ib.AHAttr){
		"":                 func(*ib.AHAttr) {},
		"AHAttr.IsGlobal":  func(a *ib.AHAttr) { a.IsGlobal = false },
		"AHAttr.DGID":      func(a *ib.AHAttr) { a.DGID = ib.GID{} },
		"AHAttr.SGIDIndex": func(a *ib.AHAttr) { a.SGIDIndex = 3 },
	} {
		a := good
		change(&a)
		_, err := k.pd.CreateAH(&a)
		k.dev.qps[0].state = ib.QPStateInit
		merr := qp.Modify(&ib.QPAttr{QPState: ib.QPStateRTR, AHAttr: a}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|
			ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer)
		if param == "" {
			if err != nil || merr != nil {
				t.Error(err, merr)
			}
			continue
		}
		wantErr(t, err, "create_ah", param, syscall.EINVAL)
		wantErr(t, merr, "modify_qp", param, syscall.EINVAL)
	}
	if k.dev.qps[0].mods != 1 {
		t.Error("a bad address reached the provider")
	}
	_, err := k.pd.CreateAH(nil)
	wantErr(t, err, "create_ah", "attr", syscall.EINVAL)
	_, err = k.pd.CreateAH(&ib.AHAttr{PortNum: 2})
	wantErr(t, err, "create_ah", "AHAttr.PortNum", syscall.EINVAL)
	// Elsewhere LIDs do.
	k.dev.link = ib.LinkInfiniBand
	if _, err := k.pd.CreateAH(&ib.AHAttr{DLID: 3, PortNum: 1}); err != nil {
		t.Error(err)
	}
}

func TestInitAHFromWC(t *testing.T) {
	k := newKit(t)
	src4, dst4 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1")
	src6, dst6 := netip.MustParseAddr("2001:db8::9"), netip.MustParseAddr("2001:db8::1")
	k.dev.gids = map[int]ib.GID{1: ib.GIDFromAddr(dst4), 5: ib.GIDFromAddr(dst6)}
	wc := WC{Flags: ib.WCGRH, SLID: 3, SL: 4}
	grh := make([]byte, roce.GRHLen)

	roce.PutGRH4(grh, src4, dst4, 0x22, 63, 77, 100)
	a, err := k.ctx.InitAHFromWC(1, &wc, grh)
	want := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(src4), SGIDIndex: 1, TrafficClass: 0x22, HopLimit: 63, DLID: 3, SL: 4, PortNum: 1}
	if err != nil || a != want {
		t.Errorf("IPv4: %+v, %v", a, err)
	}
	roce.PutGRH6(grh, src6, dst6, 0x33, 0x54321, 62, 100)
	a, err = k.ctx.InitAHFromWC(1, &wc, grh)
	want = ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(src6), SGIDIndex: 5, TrafficClass: 0x33, HopLimit: 62, FlowLabel: 0x54321, DLID: 3, SL: 4, PortNum: 1}
	if err != nil || a != want {
		t.Errorf("IPv6: %+v, %v", a, err)
	}
	if _, err := k.pd.CreateAHFromWC(&wc, grh, 1); err != nil {
		t.Error(err)
	}
	_, err = k.pd.CreateAHFromWC(&wc, grh[:39], 1)
	wantErr(t, err, "create_ah_from_wc", "grh", syscall.EINVAL)
	_, err = k.ctx.InitAHFromWC(1, &WC{}, grh)
	wantErr(t, err, "init_ah_from_wc", "wc", syscall.EINVAL)
	_, err = k.ctx.InitAHFromWC(2, &wc, grh)
	wantErr(t, err, "init_ah_from_wc", "", syscall.EINVAL)
	roce.PutGRH4(grh, src4, netip.MustParseAddr("239.1.1.1"), 0, 1, 0, 100)
	_, err = k.ctx.InitAHFromWC(1, &wc, grh)
	wantErr(t, err, "init_ah_from_wc", "grh", syscall.EINVAL)
	roce.PutGRH4(grh, src4, netip.MustParseAddr("192.0.2.77"), 0, 1, 0, 100)
	_, err = k.ctx.InitAHFromWC(1, &wc, grh)
	wantErr(t, err, "init_ah_from_wc", "", ib.ErrNoData)
}

func TestDrain(t *testing.T) {
	for _, typ := range []ib.QPType{ib.RC, ib.UD} {
		k := newKit(t)
		k.dev.gids[0] = ib.GID{15: 1}
		qp := k.qp(t, typ)
		if err := qp.Drain(t.Context(), nil); err != nil { // in RESET
			t.Fatal(err)
		}
		k.dev.qps[0].state = ib.QPStateRTS
		for i := range uint64(5) { // all that fit: the marker must wait for room
			if err := qp.PostRecvOne(&RecvWR{WRID: i}); err != nil {
				t.Fatal(err)
			}
		}
		var got []uint64
		if err := qp.Drain(t.Context(), func(wcs []WC) {
			for _, wc := range wcs {
				if wc.Status != ib.WCWRFlushErr {
					t.Errorf("%+v", wc)
				}
				got = append(got, wc.WRID)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if len(got) != 5 || got[0] != 0 || got[4] != 4 || qp.State() != ib.QPStateErr {
			t.Errorf("%v: %v, state %v", typ, got, qp.State())
		}
		// A cancelled context ends it.
		k.dev.cqs[0].err = nil
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		k.dev.qps[0].recv = &fakeCQ{} // the receive marker never comes
		wantErr(t, qp.Drain(ctx, nil), "drain_qp", "", context.Canceled)
		for _, f := range []func() error{qp.Destroy, k.cq.Destroy, k.pd.Dealloc, k.ch.Destroy, k.ctx.Close} {
			if err := f(); err != nil {
				t.Error(err) // the address handle of the marker is gone too
			}
		}
	}
}

func TestCQ(t *testing.T) {
	k := newKit(t)
	if k.cq.CQE() != 16 || k.cq.UserContext() != "user" || k.cq.Channel() != k.ch || k.cq.Context() != k.ctx {
		t.Error("accessors")
	}
	if err := k.cq.Resize(32); err != nil || k.cq.CQE() != 32 {
		t.Error(err, k.cq.CQE())
	}
	wantErr(t, k.cq.Resize(0), "resize_cq", "cqe", syscall.EINVAL)
	_, err := k.ctx.CreateCQ(0, nil, nil)
	wantErr(t, err, "create_cq", "cqe", syscall.EINVAL)
	_, err = k.ctx.CreateCQ(1, newKit(t).ch, nil)
	wantErr(t, err, "create_cq", "channel", syscall.EINVAL)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, k.cq.Wait(ctx), "wait_cq", "", context.Canceled)
	k.dev.cqs[0].err = syscall.EOVERFLOW
	_, err = k.cq.Poll(make([]WC, 1))
	wantErr(t, err, "poll_cq", "", syscall.EOVERFLOW)
}

// Posting and polling allocate nothing when the slices are used again.
func TestDataPathAllocatesNothing(t *testing.T) {
	k := newKit(t)
	qp, ud := k.qp(t, ib.RC), k.qp(t, ib.UD)
	k.dev.gids[0] = ib.GID{15: 1}
	ah := must(k.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GID{15: 2}, PortNum: 1}))(t)
	mr := must(k.pd.RegMR(make([]byte, 64), 0))(t)
	sge := []SGE{mr.SGE(0, 64)}
	sends := []SendWR{{SGList: sge}, {SGList: sge}}
	dgram := SendWR{SGList: sge, AH: ah}
	recvs := []RecvWR{{SGList: sge}}
	wcs := make([]WC, 8)
	if n := testing.AllocsPerRun(100, func() {
		k.dev.qps[0].recvs = k.dev.qps[0].recvs[:0]
		sends[0].WRID++
		if qp.PostSend(sends) != nil || qp.PostSendOne(&sends[0]) != nil || ud.PostSendOne(&dgram) != nil ||
			qp.PostRecv(recvs) != nil || qp.PostRecvOne(&recvs[0]) != nil {
			t.Fatal("post failed")
		}
		if n, err := k.cq.Poll(wcs); n != 4 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

var _ driver.AH = (*AH)(nil)
