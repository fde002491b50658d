package verbs_test

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// One batch binds a window, tells its key, and revokes it; the peer gives another
// one back with its message: the work of keys by calls.
func TestWRKeys(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	mem, in := r.a.memWith(make([]byte, 4096), bindable), r.b.mem(64)
	mine, theirs := r.a.mw(ib.MWType2), r.a.mw(ib.MWType2)
	x := ok(qa.Ex())(t)
	info := func(w *verbs.MW) *verbs.BindInfo {
		return &verbs.BindInfo{MW: w, MR: mem, Addr: mem.Addr(), Length: 8, Access: ib.AccessRemoteRead | ib.AccessRemoteWrite}
	}
	key1, key2 := ib.IncRKey(mine.RKey()), ib.TagRKey(theirs.RKey(), 0x5A)

	r.recv(qb, 1)
	x.Start()
	x.WRID, x.WRFlags = 1, ib.SendSignaled
	x.BindMW(key1, info(mine))
	x.WRID = 2
	x.BindMW(key2, info(theirs))
	x.WRID = 3
	x.SendImm(uint32(key2))
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	for i, wc := range r.wcs(r.a.cq, 3) {
		if wc.Status != ib.WCSuccess || wc.WRID != uint64(i+1) || wc.Opcode != []ib.WCOpcode{ib.WCBindMW, ib.WCBindMW, ib.WCSend}[i] {
			t.Errorf("%+v", wc)
		}
	}
	if wc := r.wcs(r.b.cq, 1)[0]; wc.ImmData != uint32(key2) {
		t.Errorf("told key 0x%x, want 0x%x", wc.ImmData, uint32(key2))
	}
	if mine.RKey() != key1 || theirs.RKey() != key2 {
		t.Errorf("windows have the keys 0x%x and 0x%x", uint32(mine.RKey()), uint32(theirs.RKey()))
	}

	// The peer uses the window, then gives it back.
	y := ok(qb.Ex(ib.WRRDMAWrite, ib.WRSendWithInv, ib.WRRDMARead))(t)
	r.recv(qa, 1)
	y.Start()
	y.WRFlags = ib.SendSignaled
	y.RDMAWrite(key2, mem.Addr())
	y.SetInlineData([]byte("by key 2"))
	y.SendInv(key2)
	y.SetSGE(in.LKey(), in.Addr(), 8)
	if err := y.Complete(); err != nil {
		t.Fatal(err)
	}
	for _, wc := range r.wcs(r.b.cq, 2) {
		if wc.Err() != nil {
			t.Error(wc.Err())
		}
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Flags&ib.WCWithInv == 0 || wc.InvalidatedRKey != key2 || string(mem.Bytes()[:8]) != "by key 2" {
		t.Errorf("%+v, memory %q", wc, mem.Bytes()[:8])
	}

	// We revoke the other one: now neither is good.
	x.Start()
	x.LocalInv(key1)
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || wc.Opcode != ib.WCLocalInv {
		t.Errorf("%+v", wc)
	}
	y.Start()
	y.RDMARead(key1, mem.Addr())
	y.SetSGE(in.LKey(), in.Addr(), 8)
	if err := y.Complete(); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.b.cq, 1)[0]; wc.Status != ib.WCRemAccessErr {
		t.Errorf("a READ with a revoked key: %v", wc.Status)
	}
}

// Each request of an XRC initiator names a receive queue; one that does not is
// refused with the whole batch.
func TestWRXRC(t *testing.T) {
	r := newRig(t, 9000)
	xd := r.b.xrcd(verbs.XRCDInitAttr{})
	cqs := []*verbs.CQ{r.b.newCQ(), r.b.newCQ()}
	srqs := []*verbs.SRQ{r.b.xsrq(xd, r.b.pd, cqs[0]), r.b.xsrq(xd, r.b.pd, cqs[1])}
	ini, _ := r.xrc(xd)
	in := r.b.mem(64)
	for _, s := range srqs {
		if err := s.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{in.SGE(0, 64)}}}); err != nil {
			t.Fatal(err)
		}
	}
	x := ok(ini.Ex())(t)
	x.Start()
	x.WRFlags = ib.SendSignaled
	for i, s := range srqs {
		x.SendImm(uint32(i))
		x.SetXRCSRQN(s.Num())
	}
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	for _, wc := range r.wcs(r.a.cq, 2) {
		if wc.Err() != nil {
			t.Error(wc.Err())
		}
	}
	for i, cq := range cqs {
		if wc := r.wcs(cq, 1)[0]; wc.Err() != nil || wc.ImmData != uint32(i) {
			t.Errorf("queue %d: %+v", i, wc)
		}
	}
	x.Start()
	x.SendImm(1)
	x.SetXRCSRQN(srqs[0].Num())
	x.SendImm(2)
	if err := x.Complete(); err == nil {
		t.Error("a request without a receive queue was posted")
	}
	r.quiet(r.a.cq)
}
