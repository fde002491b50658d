package verbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// badUnwrapper is an address handle of nobody, and a broken one.
type badUnwrapper struct{}

func (badUnwrapper) Destroy() error      { return nil }
func (badUnwrapper) UnwrapAH() driver.AH { panic("broken") }

// A request with a handle that is no handle is refused, or panics, and the
// device works on.
func TestBadAddressHandles(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.UD)
	none, err := r.a.pd.CreateAH(&ib.AHAttr{})
	if err == nil || none != nil {
		t.Fatal(none, err)
	}
	pd := ok(r.a.ctx.AllocPD())(t)
	r.a.later(pd.Dealloc)
	good := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}
	other := ok(pd.CreateAH(&good))(t)
	r.a.later(other.Destroy)
	wr := verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, RemoteQPN: qb.Num(), RemoteQKey: qkey}
	for say, ah := range map[string]driver.AH{"AH: is nil, PD.CreateAH makes one": none, "AH: is of another protection domain": other} {
		wr.AH = ah
		var oe *verbs.OpError
		if err := qa.PostSendOne(&wr); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Param != "AH" || !strings.Contains(err.Error(), say) {
			t.Errorf("%v, want it to say %s", err, say)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		wr.AH = badUnwrapper{}
		qa.PostSendOne(&wr)
	}()
	ah := ok(r.a.pd.CreateAH(&good))(t)
	r.a.later(ah.Destroy)
	wr.AH = ah
	if err := qa.PostSendOne(&wr); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil {
		t.Error(wc.Err())
	}
}

// Ports count from 1: create_ah and modify_qp of Linux refuse 0.
func TestAddressOfPortZero(t *testing.T) {
	r := newRig(t, 9000)
	a := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr)}
	q := r.a.qp(r.a.attr(ib.UC))
	r.a.to(q, ib.QPStateInit, q, r.b.addr)
	_, err := r.a.pd.CreateAH(&a)
	err2 := q.Modify(&ib.QPAttr{QPState: ib.QPStateRTR, PathMTU: ib.MTU1024, DestQPN: 5, AHAttr: a},
		ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN)
	for _, err := range []error{err, err2} {
		var oe *verbs.OpError
		if !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Param != "AHAttr.PortNum" {
			t.Error(err)
		}
	}
}

func TestPostNil(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	srq := ok(r.a.pd.CreateSRQ(&ib.SRQAttr{MaxWR: 1}, nil))(t)
	r.a.later(srq.Destroy)
	for _, err := range []error{qa.PostSendOne(nil), qa.PostRecvOne(nil), srq.PostRecvOne(nil)} {
		var oe *verbs.OpError
		if !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Param != "wr" {
			t.Error(err)
		}
	}
}

// Only what the opcode needs is read of a request.
func TestPostIgnoresOtherFields(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	other := r.b.mem(64) // of another device
	window := ok(r.a.pd.AllocMW(ib.MWType2))(t)
	r.a.later(window.Dealloc)
	wr := verbs.SendWR{
		Opcode: ib.WRLocalInv, Flags: ib.SendSignaled, InvalidateRKey: window.RKey(), RKey: other.RKey(), RemoteSRQN: 1 << 31,
		Bind: &verbs.BindInfo{MR: other}, FlushType: 99, Length: 1 << 31, RemoteQPN: 1 << 31,
	}
	if err := qa.PostSendOne(&wr); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCSuccess {
		t.Error(wc.Err())
	}
}

// Each refusal names the parameter as Go does, and says what is wrong with it.
func TestRefusalsNameTheParameter(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	q := r.a.qp(r.a.attr(ib.RC))
	av := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}
	create := func(change func(*verbs.QPInitAttr)) error {
		a := r.a.attr(ib.RC)
		change(a)
		_, err := r.a.pd.CreateQP(a)
		return err
	}
	address := func(change func(*ib.AHAttr)) error {
		a := av
		change(&a)
		_, err := r.a.pd.CreateAH(&a)
		return err
	}
	srq := func(a ib.SRQAttr) error { _, err := r.a.pd.CreateSRQ(&a, nil); return err }
	region := func(b []byte, rights ib.Access) error { _, err := r.a.pd.RegMR(b, rights); return err }
	const toRTR = ib.QPAttrState | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
	const toInit = ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags
	init := r.a.qp(r.a.attr(ib.RC))
	r.a.to(init, ib.QPStateInit, nil, r.b.addr)
	for _, c := range []struct {
		err        error
		param, say string
	}{
		{create(func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = 1 << 30 }), "MaxSendWR", "at most"},
		{create(func(a *verbs.QPInitAttr) { a.Cap.MaxRecvSGE = 1 << 30 }), "MaxRecvSGE", "at most"},
		{create(func(a *verbs.QPInitAttr) { a.SRQ = new(verbs.SRQ) }), "SRQ", "another device"},
		{create(func(a *verbs.QPInitAttr) { a.SendCQ = new(verbs.CQ) }), "SendCQ", "another device"},
		{create(func(a *verbs.QPInitAttr) { a.Type = ib.RawPacket }), "Type", "not offered"},
		{address(func(a *ib.AHAttr) { a.FlowLabel = 1 << 20 }), "AHAttr.FlowLabel", "20 bits"},
		{address(func(a *ib.AHAttr) { a.DGID = ib.GID{15: 1} }), "AHAttr.SGIDIndex", "both"},
		{srq(ib.SRQAttr{}), "MaxWR", "1 to"},
		{srq(ib.SRQAttr{MaxWR: 1, MaxSGE: 1 << 20}), "MaxSGE", "at most"},
		{region(nil, 0), "b", "is empty"},
		{region(make([]byte, 8), ib.AccessRemoteWrite), "access", "local write"},
		{q.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 2}, toInit), "PortNum", "want 1"},
		{q.Modify(&ib.QPAttr{QPState: ib.QPStateInit}, ib.QPAttrState), "mask", "mask lacks QPAttrAccessFlags|QPAttrPKeyIndex|QPAttrPort: invalid argument"},
		{q.Modify(&ib.QPAttr{QPState: ib.QPStateRTR}, toRTR), "QPState", "RESET to RTR: no such transition: invalid argument"},
		{init.Modify(&ib.QPAttr{QPState: ib.QPStateRTR, AHAttr: av, PathMTU: 6}, toRTR), "PathMTU", "want a code, ib.MTU256 to ib.MTU4096"},
		{init.Modify(&ib.QPAttr{QPState: ib.QPStateRTR, AHAttr: av}, toRTR), "PathMTU", "want a code, ib.MTU256 to ib.MTU4096"},
		{qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRTSO}), "Opcode", "TSO is not for queue pairs of type RC"},
		{qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRBindMW}), "Bind", "is nil"},
		{qa.PostSendOne(&verbs.SendWR{InlineData: []byte{1}}), "InlineData", "lacks ib.SendInline"},
		{qa.PostRecvOne(&verbs.RecvWR{SGList: make([]verbs.SGE, 9)}), "SGList", "at most"},
		{q.PostRecvOne(&verbs.RecvWR{}), "", "in state RESET, receives need INIT or later"},
		{init.PostRecv(make([]verbs.RecvWR, 17)), "", "is full: poll completions, then post again"},
		{init.PostSendOne(&verbs.SendWR{}), "", "in state INIT, sends need RTS"},
	} {
		var oe *verbs.OpError
		switch {
		case !errors.As(c.err, &oe):
			t.Errorf("%s: %v", c.say, c.err)
		case oe.Param != c.param || !strings.Contains(c.err.Error(), c.say):
			t.Errorf("Param %q, want %q: %v, want it to say %s", oe.Param, c.param, c.err, c.say)
		}
	}
}
