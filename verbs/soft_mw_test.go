package verbs_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
)

const bindable = allRights | ib.AccessMWBind

func (n *node) mw(typ ib.MWType) *verbs.MW {
	n.t.Helper()
	w := ok(n.pd.AllocMW(typ))(n.t)
	n.later(w.Dealloc)
	return w
}

// bind is a bind of a window of type 2 as a work request.
func bind(w *verbs.MW, key ib.RKey, mr *verbs.MR, off, n uint64, access ib.Access) *verbs.SendWR {
	return &verbs.SendWR{
		Opcode: ib.WRBindMW, Flags: ib.SendSignaled, RKey: key,
		Bind: &verbs.BindInfo{MW: w, MR: mr, Addr: mr.Addr() + off, Length: n, Access: access},
	}
}

func localInv(key ib.RKey) *verbs.SendWR {
	return &verbs.SendWR{Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: key}
}

// do posts a request and gives the status of its completion.
func (r *rig) do(n *node, q *verbs.QP, wr *verbs.SendWR) ib.WCStatus {
	r.t.Helper()
	if err := q.PostSendOne(wr); err != nil {
		r.t.Fatal(err)
	}
	return r.wcs(n.cq, 1)[0].Status
}

func (r *rig) ends(what string, got, want ib.WCStatus) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// access is one RDMA operation of 8 bytes at addr under key.
func access(local *verbs.MR, op ib.WROpcode, addr uint64, key ib.RKey) *verbs.SendWR {
	return &verbs.SendWR{Opcode: op, Flags: ib.SendSignaled, SGList: []verbs.SGE{local.SGE(0, 8)}, RemoteAddr: addr, RKey: key}
}

func TestCase38_BindWithTheSameKeyByte(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	mr, w, local := r.b.memWith(make([]byte, 64), bindable), r.b.mw(ib.MWType2), r.a.mem(8)
	key := w.RKey()
	for range 3 {
		r.ends("bind", r.do(r.b, qb, bind(w, key, mr, 0, 64, ib.AccessRemoteRead)), ib.WCSuccess)
		r.ends("read", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr(), key)), ib.WCSuccess)
		r.ends("invalidate", r.do(r.b, qb, localInv(key)), ib.WCSuccess)
	}
	r.ends("bind", r.do(r.b, qb, bind(w, key, mr, 0, 64, ib.AccessRemoteRead)), ib.WCSuccess)
	r.ends("second bind", r.do(r.b, qb, bind(w, ib.IncRKey(key), mr, 0, 64, ib.AccessRemoteRead)), ib.WCMWBindErr)
	if qb.State() != ib.QPStateErr {
		t.Errorf("state %v", qb.State())
	}
}

// Every set of rights that a window may have, over regions with every set that
// they may have: bind and access obey the rules, and the region's own remote
// rights play no part.
func TestCase39_EveryAccessMaskOverWindows(t *testing.T) {
	r := newRig(t, 9000)
	local := r.a.mem(8)
	for mrMask := range ib.Access(32) { // bits 0 to 4
		mr, err := r.b.pd.RegMR(make([]byte, 8), mrMask)
		if err != nil {
			continue // TestCase35
		}
		for mask := range ib.Access(8) {
			mask <<= 1 // write, read, atomic
			for _, typ := range []ib.MWType{ib.MWType1, ib.MWType2} {
				qa, qb := r.pair(ib.RC)
				w := ok(r.b.pd.AllocMW(typ))(t)
				want := ib.WCSuccess
				if mrMask&ib.AccessMWBind == 0 || mask&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && mrMask&ib.AccessLocalWrite == 0 {
					want = ib.WCMWBindErr
				}
				if typ == ib.MWType1 {
					b := verbs.MWBind{Flags: ib.SendSignaled, Info: verbs.BindInfo{MR: mr, Addr: mr.Addr(), Length: 8, Access: mask}}
					if err := qb.BindMW(w, &b); err != nil {
						t.Fatal(err)
					}
					r.ends("bind of type 1", r.wcs(r.b.cq, 1)[0].Status, want)
				} else {
					r.ends("bind of type 2", r.do(r.b, qb, bind(w, ib.IncRKey(w.RKey()), mr, 0, 8, mask)), want)
				}
				for op, need := range map[ib.WROpcode]ib.Access{
					ib.WRRDMAWrite: ib.AccessRemoteWrite, ib.WRRDMARead: ib.AccessRemoteRead, ib.WRAtomicFetchAndAdd: ib.AccessRemoteAtomic,
				} {
					if want != ib.WCSuccess || mask&need == 0 && qa.State() != ib.QPStateRTS {
						continue
					}
					st := ib.WCSuccess
					if mask&need == 0 {
						st = ib.WCRemAccessErr
					} else if qa.State() != ib.QPStateRTS {
						continue // ended by an operation without right; the order is random
					}
					r.ends(op.String(), r.do(r.a, qa, access(local, op, mr.Addr(), w.RKey())), st)
				}
				if err := errors.Join(w.Dealloc(), qa.Destroy(), qb.Destroy()); err != nil {
					t.Fatal(err)
				}
				r.a.drop()
				r.b.drop()
			}
		}
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCase40_WindowLargerThanItsRegion(t *testing.T) {
	r := newRig(t, 9000)
	mr := r.b.memWith(make([]byte, 4096), bindable)
	for _, c := range [][2]uint64{ // offset, length
		{0, math.MaxUint64},
		{0, 4097},
		{1, 4096},
		{4095, 2},
		{4096, 1},
		{1, math.MaxUint64},
		{math.MaxUint64, 2},
		{-mr.Addr(), 1},
		{2048, math.MaxUint64 - 2047},
		{0, 1 << 63},
		{0, 0},
	} {
		for _, zero := range []ib.Access{0, ib.AccessZeroBased} {
			_, qb := r.pair(ib.RC)
			w := r.b.mw(ib.MWType2)
			r.ends("bind", r.do(r.b, qb, bind(w, w.RKey(), mr, c[0], c[1], ib.AccessRemoteRead|zero)), ib.WCMWBindErr)
		}
		if c[1] == 0 {
			continue
		}
		_, qb := r.pair(ib.RC)
		w := r.b.mw(ib.MWType1)
		if err := qb.BindMW(w, &verbs.MWBind{Info: verbs.BindInfo{MR: mr, Addr: mr.Addr() + c[0], Length: c[1]}}); err != nil {
			t.Fatal(err)
		}
		r.ends("bind of type 1", r.wcs(r.b.cq, 1)[0].Status, ib.WCMWBindErr)
	}
	// A region at the top of the address space, and a window that ends with it.
	top := ok(r.b.pd.RegMRIOVA(make([]byte, 64), math.MaxUint64-63, bindable))(t)
	r.b.later(top.Dereg)
	qa, qb := r.pair(ib.RC)
	w, local := r.b.mw(ib.MWType2), r.a.mem(8)
	r.ends("bind at the top", r.do(r.b, qb, bind(w, w.RKey(), top, 32, 32, ib.AccessRemoteRead)), ib.WCSuccess)
	r.ends("read of the last bytes", r.do(r.a, qa, access(local, ib.WRRDMARead, math.MaxUint64-7, w.RKey())), ib.WCSuccess)
	r.ends("read over the top", r.do(r.a, qa, access(local, ib.WRRDMARead, math.MaxUint64-6, w.RKey())), ib.WCRemAccessErr)
}

func TestCase42_KeyInUseIsTheOneOfTheRequest(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	mr, w, local := r.b.memWith(make([]byte, 64), bindable), r.b.mw(ib.MWType2), r.a.mem(8)
	old := w.RKey()
	r.ends("bind", r.do(r.b, qb, bind(w, ib.IncRKey(old), mr, 0, 64, ib.AccessRemoteRead)), ib.WCSuccess)
	if w.RKey() != ib.IncRKey(old) {
		t.Errorf("the window shows %#x", w.RKey())
	}
	r.ends("new key", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr(), w.RKey())), ib.WCSuccess)
	r.ends("old key", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr(), old)), ib.WCRemAccessErr)

	// Type 1: the call changes the key at once, each time.
	qa, qb = r.pair(ib.RC)
	w1 := r.b.mw(ib.MWType1)
	keys := []ib.RKey{w1.RKey()}
	for i := range 3 {
		b := verbs.MWBind{WRID: uint64(i), Info: verbs.BindInfo{MR: mr, Addr: mr.Addr(), Length: 64, Access: ib.AccessRemoteRead}}
		if err := qb.BindMW(w1, &b); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, w1.RKey())
		if keys[i] == keys[i+1] {
			t.Error("the key did not change")
		}
	}
	r.ends("newest key", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr(), keys[3])), ib.WCSuccess)
	r.ends("key before", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr(), keys[2])), ib.WCRemAccessErr)
	r.quiet(r.b.cq) // the binds were not signaled
}

func TestWindowOfType1(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	qa2, qb2 := r.pair(ib.RC)
	mr, w, local := r.b.memWith(make([]byte, 64), bindable), r.b.mw(ib.MWType1), r.a.mem(8)
	b := verbs.MWBind{Flags: ib.SendSignaled, WRID: 5, Info: verbs.BindInfo{MR: mr, Addr: mr.Addr() + 8, Length: 16, Access: ib.AccessRemoteRead}}
	if err := qb.BindMW(w, &b); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.b.cq, 1)[0]; wc.Opcode != ib.WCBindMW || wc.WRID != 5 || wc.Err() != nil {
		t.Fatalf("%+v", wc)
	}
	// Every queue pair of the domain may use it; the region is not let go of.
	for _, q := range []*verbs.QP{qa, qa2} {
		r.ends("read", r.do(r.a, q, access(local, ib.WRRDMARead, mr.Addr()+16, w.RKey())), ib.WCSuccess)
	}
	if err := mr.Dereg(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("dereg under a window: %v", err)
	}
	r.ends("read after EBUSY", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr()+16, w.RKey())), ib.WCSuccess)
	// Bound anew by another queue pair; then unbound.
	old := w.RKey()
	b.Info.Access = ib.AccessRemoteWrite
	if err := qb2.BindMW(w, &b); err != nil {
		t.Fatal(err)
	}
	r.ends("bind anew", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
	r.ends("write", r.do(r.a, qa, access(local, ib.WRRDMAWrite, mr.Addr()+8, w.RKey())), ib.WCSuccess)
	r.ends("old key", r.do(r.a, qa2, access(local, ib.WRRDMARead, mr.Addr()+8, old)), ib.WCRemAccessErr)
	if err := qb.BindMW(w, &verbs.MWBind{Flags: ib.SendSignaled}); err != nil {
		t.Fatal(err)
	}
	r.ends("unbind", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
	if err := mr.Dereg(); err != nil {
		t.Errorf("dereg after the unbind: %v", err)
	}
	r.ends("unbound", r.do(r.a, qa, access(local, ib.WRRDMAWrite, mr.Addr()+8, w.RKey())), ib.WCRemAccessErr)
	// LOCAL_INV is not for windows of type 1.
	qa, qb = r.pair(ib.RC)
	_ = qa
	r.ends("LOCAL_INV", r.do(r.b, qb, localInv(w.RKey())), ib.WCMWBindErr)
}

func TestWindowRefusals(t *testing.T) {
	r := newRig(t, 9000)
	_, qb := r.pair(ib.RC)
	_, uc := r.pair(ib.UC)
	ud := r.b.qp(r.b.attr(ib.UD))
	r.b.to(ud, ib.QPStateRTS, nil, r.a.addr)
	reset := r.b.qp(r.b.attr(ib.RC))
	mr := r.b.memWith(make([]byte, 64), bindable)
	one, two, foreign := r.b.mw(ib.MWType1), r.b.mw(ib.MWType2), r.a.mw(ib.MWType2)
	pd := ok(r.b.ctx.AllocPD())(t)
	other := ok(pd.RegMR(make([]byte, 64), bindable))(t)
	fast := ok(r.b.pd.AllocMR(4))(t)
	r.b.later(pd.Dealloc)
	r.b.later(other.Dereg)
	r.b.later(fast.Dereg)
	info := verbs.BindInfo{MR: mr, Addr: mr.Addr(), Length: 64}
	with := func(f func(b *verbs.MWBind)) *verbs.MWBind { b := &verbs.MWBind{Info: info}; f(b); return b }
	same := func(*verbs.MWBind) {}
	for _, c := range []struct {
		what  string
		err   error
		want  error
		param string
	}{
		{"window of type 2 by call", qb.BindMW(two, with(same)), syscall.EINVAL, "mw"},
		{"window of type 1 by request", qb.PostSendOne(bind(one, one.RKey(), mr, 0, 8, 0)), syscall.EINVAL, "Bind.MW"},
		{"nil window", qb.BindMW(nil, with(same)), syscall.EINVAL, "mw"},
		{"nil bind", qb.BindMW(one, nil), syscall.EINVAL, "bind"},
		{"nil window in a request", qb.PostSendOne(bind(nil, 0, mr, 0, 8, 0)), syscall.EINVAL, "Bind.MW"},
		{"no window in a request", qb.PostSendOne(&verbs.SendWR{Opcode: ib.WRBindMW, Bind: &verbs.BindInfo{}}), syscall.EINVAL, "Bind.MW"},
		{"no bind in a request", qb.PostSendOne(&verbs.SendWR{Opcode: ib.WRBindMW}), syscall.EINVAL, "Bind"},
		{"window of another device", qb.PostSendOne(bind(foreign, foreign.RKey(), mr, 0, 8, 0)), syscall.EINVAL, "Bind.MW"},
		{"another index", qb.PostSendOne(bind(two, two.RKey()^0x100, mr, 0, 8, 0)), syscall.EINVAL, "RKey"},
		{"region of another domain", qb.BindMW(one, with(func(b *verbs.MWBind) { b.Info.MR, b.Info.Addr = other, other.Addr() })), syscall.EPERM, "MR"},
		{"no region, but a length", qb.BindMW(one, with(func(b *verbs.MWBind) { b.Info.MR = nil })), syscall.EINVAL, "MR"},
		{"zero-based", qb.BindMW(one, with(func(b *verbs.MWBind) { b.Info.Access = ib.AccessZeroBased })), syscall.EINVAL, "Access"},
		{"inline", qb.BindMW(one, with(func(b *verbs.MWBind) { b.Flags = ib.SendInline })), syscall.EINVAL, "Flags"},
		{"UD", ud.BindMW(one, with(same)), syscall.EINVAL, "Opcode"},
		{"UD request", ud.PostSendOne(bind(two, two.RKey(), mr, 0, 8, 0)), syscall.EINVAL, "Opcode"},
		{"UC SEND with invalidate", uc.PostSendOne(&verbs.SendWR{Opcode: ib.WRSendWithInv}), syscall.EINVAL, "Opcode"},
		{"state RESET", reset.BindMW(one, with(same)), syscall.EINVAL, ""},
		{"REG_MR of a plain region", qb.PostSendOne(&verbs.SendWR{Opcode: ib.WRRegMR, RKey: mr.RKey(), Bind: &verbs.BindInfo{MR: mr}}), syscall.EINVAL, "Bind.MR"},
		{"REG_MR of nothing", qb.PostSendOne(&verbs.SendWR{Opcode: ib.WRRegMR, Bind: &verbs.BindInfo{MR: (*verbs.MR)(nil)}}), syscall.EINVAL, "Bind.MR"},
		{"REG_MR, another index", qb.PostSendOne(&verbs.SendWR{Opcode: ib.WRRegMR, RKey: fast.RKey() ^ 0x100, Bind: &verbs.BindInfo{MR: fast}}), syscall.EINVAL, "RKey"},
	} {
		var oe *verbs.OpError
		if !errors.Is(c.err, c.want) || !errors.As(c.err, &oe) || oe.Param != c.param {
			t.Errorf("%s: %v, parameter %q", c.what, c.err, oe.Param)
		}
	}
	for _, typ := range []ib.MWType{0, 3} {
		if _, err := r.b.pd.AllocMW(typ); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("type %d: %v", typ, err)
		}
	}
	key := one.RKey()
	if err := errors.Join(one.Dealloc(), one.Dealloc()); err != nil {
		t.Error(err)
	}
	if err := qb.BindMW(one, with(same)); !errors.Is(err, syscall.EINVAL) || one.RKey() != key {
		t.Errorf("bind of a dead window: %v", err)
	}
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"no region in a request": {qb.PostSendOne(&verbs.SendWR{Opcode: ib.WRBindMW, RKey: two.RKey(), Bind: &verbs.BindInfo{MW: two, Length: 8}}), "Bind.MR: is nil"},
		"nil region in a request": {qb.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRBindMW, RKey: two.RKey(), Bind: &verbs.BindInfo{MW: two, MR: (*verbs.MR)(nil), Length: 8},
		}), "Bind.MR: is nil"},
		"request for a dead window": {func() error {
			_ = two.Dealloc()
			return qb.PostSendOne(bind(two, two.RKey(), mr, 0, 8, 0))
		}(), "Bind.MW: is deallocated"},
	} {
		if !errors.Is(c.err, syscall.EINVAL) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	if qb.State() != ib.QPStateRTS || uc.State() != ib.QPStateRTS {
		t.Error("states", qb.State(), uc.State())
	}
}

// Resetting or destroying a queue pair takes back the windows that it bound;
// another one does not reach them before either.
func TestWindowsOfAQueuePair(t *testing.T) {
	r := newRig(t, 9000)
	mr, local := r.b.memWith(make([]byte, 64), bindable), r.a.mem(8)
	for _, how := range []string{"reset", "destroy", "other"} {
		qa, qb := r.pair(ib.RC)
		qa2, qb2 := r.pair(ib.RC)
		w := r.b.mw(ib.MWType2)
		r.ends("bind", r.do(r.b, qb, bind(w, w.RKey(), mr, 0, 64, ib.AccessRemoteRead|ib.AccessZeroBased)), ib.WCSuccess)
		r.ends("read", r.do(r.a, qa, access(local, ib.WRRDMARead, 8, w.RKey())), ib.WCSuccess)
		if how == "other" {
			r.ends("another queue pair reads", r.do(r.a, qa2, access(local, ib.WRRDMARead, 8, w.RKey())), ib.WCRemAccessErr)
			qa2, qb2 = r.pair(ib.RC)
			r.ends("another queue pair invalidates", r.do(r.b, qb2, localInv(w.RKey())), ib.WCMWBindErr)
			r.ends("read still", r.do(r.a, qa, access(local, ib.WRRDMARead, 8, w.RKey())), ib.WCSuccess)
			_ = qa2
			continue
		}
		if how == "reset" {
			if err := qb.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState); err != nil {
				t.Fatal(err)
			}
			r.b.to(qb, ib.QPStateRTS, qa, r.a.addr)
			if err := qa.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState); err != nil {
				t.Fatal(err)
			}
			r.a.to(qa, ib.QPStateRTS, qb, r.b.addr)
			r.ends("after reset", r.do(r.a, qa, access(local, ib.WRRDMARead, 8, w.RKey())), ib.WCRemAccessErr)
		} else if err := qb.Destroy(); err != nil {
			t.Fatal(err)
		}
		// Free again: another queue pair may bind it.
		r.ends(how+", bind", r.do(r.b, qb2, bind(w, w.RKey(), mr, 0, 64, ib.AccessRemoteRead)), ib.WCSuccess)
		r.ends(how+", read", r.do(r.a, qa2, access(local, ib.WRRDMARead, mr.Addr(), w.RKey())), ib.WCSuccess)
		if err := errors.Join(w.Dealloc()); err != nil { // bound
			t.Error(err)
		}
		r.ends(how+", read after dealloc", r.do(r.a, qa2, access(local, ib.WRRDMARead, mr.Addr(), w.RKey())), ib.WCRemAccessErr)
	}
}

// A peer in another protection domain of the same device gets nothing.
func TestWindowsStayInTheirDomain(t *testing.T) {
	r := newRig(t, 9000)
	mr, local := r.b.memWith(make([]byte, 64), bindable), r.a.mem(8)
	pd := ok(r.b.ctx.AllocPD())(t)
	r.b.later(pd.Dealloc)
	q := func() (qa, qb *verbs.QP) {
		qa = r.a.qp(r.a.attr(ib.RC))
		qb = ok(pd.CreateQP(r.b.attr(ib.RC)))(t)
		r.b.qps = append(r.b.qps, qb)
		r.a.to(qa, ib.QPStateRTS, qb, r.b.addr)
		r.b.to(qb, ib.QPStateRTS, qa, r.a.addr)
		return qa, qb
	}
	_, qb := r.pair(ib.RC)
	one, two := r.b.mw(ib.MWType1), r.b.mw(ib.MWType2)
	if err := qb.BindMW(one, &verbs.MWBind{Flags: ib.SendSignaled, Info: verbs.BindInfo{MR: mr, Addr: mr.Addr(), Length: 64, Access: ib.AccessRemoteRead}}); err != nil {
		t.Fatal(err)
	}
	r.ends("bind", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
	qa, _ := q()
	r.ends("read from another domain", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr(), one.RKey())), ib.WCRemAccessErr)
	_, qb = q()
	r.ends("bind from another domain", r.do(r.b, qb, bind(two, two.RKey(), mr, 0, 64, ib.AccessRemoteRead)), ib.WCMWBindErr)
	_, qb = q()
	r.ends("invalidation from another domain", r.do(r.b, qb, localInv(two.RKey())), ib.WCMWBindErr)
	if err := r.b.pd.Dealloc(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
}

// Random binds, invalidations and accesses on a network that loses packets.
func TestWindowsUnderLoss(t *testing.T) {
	for seed := range uint64(5) {
		r := newRig(t, 9000)
		rnd := rand.New(rand.NewPCG(seed, 2))
		mr, local := r.b.memWith(make([]byte, 1<<16), bindable), r.a.mem(1<<16)
		qa, qb := r.pair(ib.RC)
		r.net.SetDefault(simnet.Link{Loss: 0.02})
		w := r.b.mw(ib.MWType2)
		for i := range 60 {
			n := rnd.Uint64N(1<<16-8) + 8
			off := rnd.Uint64N(1<<16 - n + 1)
			key := ib.TagRKey(w.RKey(), uint8(rnd.Uint32()))
			if st := r.do(r.b, qb, bind(w, key, mr, off, n, ib.AccessRemoteRead|ib.AccessRemoteWrite)); st != ib.WCSuccess {
				t.Fatalf("seed %d, %d: bind %v", seed, i, st)
			}
			for range rnd.IntN(4) {
				k := rnd.Uint64N(n) + 1
				at := rnd.Uint64N(n - k + 1)
				wr := access(local, ib.WRRDMAWrite, mr.Addr()+off+at, key)
				if rnd.IntN(2) == 0 {
					wr.Opcode = ib.WRRDMARead
				}
				wr.SGList = []verbs.SGE{local.SGE(0, int(k))}
				if st := r.do(r.a, qa, wr); st != ib.WCSuccess {
					t.Fatalf("seed %d, %d: %v %v", seed, i, wr.Opcode, st)
				}
			}
			if i%2 == 0 {
				if st := r.do(r.b, qb, localInv(key)); st != ib.WCSuccess {
					t.Fatalf("seed %d, %d: invalidate %v", seed, i, st)
				}
				continue
			}
			if err := qb.PostRecvOne(&verbs.RecvWR{}); err != nil {
				t.Fatal(err)
			}
			if st := r.do(r.a, qa, &verbs.SendWR{Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, InvalidateRKey: key}); st != ib.WCSuccess {
				t.Fatalf("seed %d, %d: SEND with invalidate %v", seed, i, st)
			}
			if wc := r.wcs(r.b.cq, 1)[0]; wc.Err() != nil || wc.Flags&ib.WCWithInv == 0 || wc.InvalidatedRKey != key {
				t.Fatalf("seed %d, %d: %+v", seed, i, wc)
			}
		}
	}
}
