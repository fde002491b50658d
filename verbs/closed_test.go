package verbs_test

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Whatever is made on something that was destroyed is refused, and the error
// names what is gone.
func TestCreateOnClosedParent(t *testing.T) {
	r := newRig(t, 9000)
	c, pd := r.a.ctx, r.a.pd
	deadPD := ok(c.AllocPD())(t)
	mr := ok(deadPD.RegMR(make([]byte, 8), bindable))(t)
	deadChannel := ok(c.CreateCompChannel())(t)
	deadCQ := ok(c.CreateCQ(4, nil, nil))(t)
	deadSRQ := ok(pd.CreateSRQ(&ib.SRQAttr{MaxWR: 4, MaxSGE: 1}, nil))(t)
	deadXRCD := ok(c.OpenXRCD(&verbs.XRCDInitAttr{}))(t)
	deadTD := ok(c.AllocTD())(t)
	deadDM := ok(c.AllocDM(&verbs.DMAttr{Length: 8}))(t)
	deadCntr := ok(c.CreateCompCntr())(t)
	xrcd := ok(c.OpenXRCD(&verbs.XRCDInitAttr{}))(t)
	r.a.later(xrcd.Close)
	if err := errors.Join(mr.Dereg(), deadPD.Dealloc(), deadChannel.Destroy(), deadCQ.Destroy(), deadSRQ.Destroy(), deadXRCD.Close(),
		deadTD.Dealloc(), deadDM.Free(), deadCntr.Destroy()); err != nil {
		t.Fatal(err)
	}
	ud := r.a.qp(r.a.attr(ib.UD))
	attr := func(f func(*verbs.QPInitAttr)) *verbs.QPInitAttr { a := r.a.attr(ib.RC); f(a); return a }
	same := func(*verbs.QPInitAttr) {}
	one := func(_ any, err error) error { return err }
	xsrq := func(x *verbs.XRCD, cq *verbs.CQ) *verbs.SRQInitAttr {
		return &verbs.SRQInitAttr{Type: ib.SRQXRC, XRCD: x, CQ: cq, Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}
	}
	for _, c := range []struct {
		what string
		err  error
		want string
	}{
		{"queue pair, domain", one(deadPD.CreateQP(attr(same))), "create_qp: protection domain is closed"},
		{"queue pair, send queue", one(pd.CreateQP(attr(func(a *verbs.QPInitAttr) { a.SendCQ = deadCQ }))), "SendCQ: completion queue is closed"},
		{"queue pair, receive queue", one(pd.CreateQP(attr(func(a *verbs.QPInitAttr) { a.RecvCQ = deadCQ }))), "RecvCQ: completion queue is closed"},
		{"queue pair, SRQ", one(pd.CreateQP(attr(func(a *verbs.QPInitAttr) { a.SRQ = deadSRQ }))), "SRQ: shared receive queue is closed"},
		{"extended queue pair", one(c.CreateQPEx(&verbs.QPInitAttrEx{PD: deadPD, QPInitAttr: *attr(same)})), "protection domain is closed"},
		{"XRC target", one(c.CreateQPEx(&verbs.QPInitAttrEx{XRCD: deadXRCD, QPInitAttr: verbs.QPInitAttr{Type: ib.XRCRecv}})), "XRC domain is closed"},
		{"open a queue pair", one(c.OpenQP(&verbs.QPOpenAttr{XRCD: deadXRCD, Type: ib.XRCRecv})), "XRC domain is closed"},
		{"SRQ", one(deadPD.CreateSRQ(&ib.SRQAttr{MaxWR: 4}, nil)), "protection domain is closed"},
		{"XRC SRQ, domain", one(deadPD.CreateSRQEx(xsrq(xrcd, r.a.cq))), "protection domain is closed"},
		{"XRC SRQ, XRC domain", one(pd.CreateSRQEx(xsrq(deadXRCD, r.a.cq))), "XRCD: XRC domain is closed"},
		{"XRC SRQ, queue", one(pd.CreateSRQEx(xsrq(xrcd, deadCQ))), "CQ: completion queue is closed"},
		{"completion queue", one(c.CreateCQ(4, deadChannel, nil)), ": completion channel is closed"},
		{"extended completion queue", one(c.CreateCQEx(&verbs.CQInitAttrEx{CQE: 4, Channel: deadChannel})), ": completion channel is closed"},
		{"region", one(deadPD.RegMR(make([]byte, 8), 0)), "protection domain is closed"},
		{"fast region", one(deadPD.AllocMR(4)), "protection domain is closed"},
		{"signature region", one(deadPD.AllocMRIntegrity(1, 1)), "protection domain is closed"},
		{"window", one(deadPD.AllocMW(ib.MWType2)), "protection domain is closed"},
		{"address handle", one(deadPD.CreateAH(&ib.AHAttr{})), "protection domain is closed"},
		{"region on device memory", one(pd.RegDMMR(deadDM, 0, 8, ib.AccessZeroBased)), "dm: device memory is closed"},
		{"parent domain, domain", one(c.AllocParentDomain(&verbs.ParentDomainAttr{PD: deadPD})), "PD: protection domain is closed"},
		{"parent domain, thread domain", one(c.AllocParentDomain(&verbs.ParentDomainAttr{PD: pd, TD: deadTD})), "TD: thread domain is closed"},
		{"completion counter", ud.AttachCompCntr(deadCntr, ib.CompCntrAll), "completion counter is closed"},
	} {
		if !errors.Is(c.err, syscall.EINVAL) || !errors.Is(c.err, net.ErrClosed) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, c.err, c.want)
		}
	}
	if _, err := pd.CreateSRQEx(&verbs.SRQInitAttr{Type: ib.SRQBasic}); err == nil || !strings.Contains(err.Error(), "create_srq_ex: ") {
		t.Errorf("the call is not named: %v", err)
	}
}

// An XRC target sends and receives nothing by itself.
func TestXRCTargetHasNoQueues(t *testing.T) {
	r := newRig(t, 9000)
	xrcd := ok(r.a.ctx.OpenXRCD(&verbs.XRCDInitAttr{}))(t)
	r.a.later(xrcd.Close)
	q := ok(r.a.ctx.CreateQPEx(&verbs.QPInitAttrEx{XRCD: xrcd, QPInitAttr: verbs.QPInitAttr{Type: ib.XRCRecv}}))(t)
	r.a.qps = append(r.a.qps, q)
	_, all := q.Ex()
	_, send := q.Ex(ib.WRSend)
	for what, c := range map[string]struct {
		err  error
		want string
	}{
		"PostSend": {q.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend}), "no send queue"},
		"PostRecv": {q.PostRecvOne(&verbs.RecvWR{}), "no receive queue"},
		"Ex":       {all, "no send queue"},
		"Ex SEND":  {send, "not for queue pairs of type XRC_RECV"},
	} {
		if !errors.Is(c.err, syscall.EINVAL) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
}

// A GID that is there, but as of another version.
func TestFindGIDIndexTellsTheOtherType(t *testing.T) {
	r := newRig(t, 9000)
	gid := ib.GIDFromAddr(r.a.addr)
	_, err := r.a.ctx.FindGIDIndex(1, gid, ib.GIDTypeRoCEv1)
	if !errors.Is(err, ib.ErrNoData) || !strings.Contains(err.Error(), "192.0.2.1 is there as RoCE v2 (index 0), not as RoCE v1") {
		t.Error(err)
	}
	_, err = r.a.ctx.FindGIDIndex(1, ib.GIDFromAddr(r.b.addr), ib.GIDTypeRoCEv2)
	if !errors.Is(err, ib.ErrNoData) || !strings.Contains(err.Error(), "192.0.2.2 is not in the table") {
		t.Error(err)
	}
}
