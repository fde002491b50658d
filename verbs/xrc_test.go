package verbs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
)

func (n *node) xrcd(attr verbs.XRCDInitAttr) *verbs.XRCD {
	n.t.Helper()
	x := ok(n.ctx.OpenXRCD(&attr))(n.t)
	n.later(x.Close)
	return x
}

// xsrq makes a receive queue for XRC in a domain of protection of its own.
func (n *node) xsrq(x *verbs.XRCD, pd *verbs.PD, cq *verbs.CQ) *verbs.SRQ {
	n.t.Helper()
	s := ok(pd.CreateSRQEx(&verbs.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 16, MaxSGE: 2}, Type: ib.SRQXRC, XRCD: x, CQ: cq}))(n.t)
	n.later(s.Destroy)
	return s
}

func (n *node) target(x *verbs.XRCD) *verbs.QP {
	n.t.Helper()
	q := ok(n.ctx.CreateQPEx(&verbs.QPInitAttrEx{QPInitAttr: verbs.QPInitAttr{Type: ib.XRCRecv}, XRCD: x}))(n.t)
	n.later(q.Destroy)
	return q
}

func (n *node) newCQ() *verbs.CQ {
	n.t.Helper()
	cq := ok(n.ctx.CreateCQ(64, nil, nil))(n.t)
	n.later(cq.Destroy)
	return cq
}

// xrc connects an initiator at a with a target at b.
func (r *rig) xrc(x *verbs.XRCD) (ini, tgt *verbs.QP) {
	r.t.Helper()
	attr := r.a.attr(ib.XRCSend)
	attr.RecvCQ = nil
	ini, tgt = r.a.qp(attr), r.b.target(x)
	r.a.to(ini, ib.QPStateRTS, tgt, r.b.addr)
	r.b.to(tgt, ib.QPStateRTR, ini, r.a.addr)
	return ini, tgt
}

func TestXRC(t *testing.T) {
	for _, six := range []bool{false, true} {
		r := newRig(t, 9000)
		if six {
			six6(r)
		}
		x := r.b.xrcd(verbs.XRCDInitAttr{})
		pd2 := ok(r.b.ctx.AllocPD())(t)
		r.b.later(pd2.Dealloc)
		cqs := []*verbs.CQ{r.b.newCQ(), r.b.newCQ()}
		srqs := []*verbs.SRQ{r.b.xsrq(x, r.b.pd, cqs[0]), r.b.xsrq(x, pd2, cqs[1])}
		mrs := []*verbs.MR{r.b.mem(8192), ok(pd2.RegMR(make([]byte, 8192), allRights))(t)}
		r.b.later(mrs[1].Dereg)
		if a := ok(r.b.ctx.QueryDevice())(t); a.DeviceCapFlags&ib.DeviceCapXRC == 0 {
			t.Error("the device does not tell of XRC")
		}
		ini, tgt := r.xrc(x)
		if tgt.PD() != nil || tgt.SendCQ() != nil || tgt.RecvCQ() != nil || tgt.XRCD() != x || tgt.Context() != r.b.ctx ||
			ini.XRCD() != nil || ini.RecvCQ() != nil || srqs[0].XRCD() != x {
			t.Error("getters tell something else")
		}
		if srqs[0].Num() == 0 || srqs[0].Num() == srqs[1].Num() {
			t.Errorf("numbers %d, %d", srqs[0].Num(), srqs[1].Num())
		}
		src := r.a.mem(16384)
		for i := range src.Bytes() {
			src.Bytes()[i] = byte(i * 7)
		}
		for round := range 4 {
			k := round % 2
			dst := mrs[k]
			clear(dst.Bytes())
			binary.NativeEndian.PutUint64(dst.Bytes()[8000:], 41)
			for i, sge := range []verbs.SGE{dst.SGE(0, 3000), dst.SGE(3000, 8)} {
				if err := srqs[k].PostRecvOne(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{sge}}); err != nil {
					t.Fatal(err)
				}
			}
			base := verbs.SendWR{RemoteSRQN: srqs[k].Num(), RKey: dst.RKey(), Flags: ib.SendSignaled}
			wr := func(op ib.WROpcode, sge verbs.SGE, off uint64) verbs.SendWR {
				w := base
				w.Opcode, w.SGList, w.RemoteAddr, w.ImmData, w.CompareAdd = op, []verbs.SGE{sge}, dst.Addr()+off, 77, 1
				return w
			}
			if err := ini.PostSend([]verbs.SendWR{
				wr(ib.WRSend, src.SGE(0, 3000), 0),
				wr(ib.WRRDMAWrite, src.SGE(100, 2000), 4000),
				wr(ib.WRRDMAWriteWithImm, src.SGE(200, 100), 6000),
				wr(ib.WRRDMARead, src.SGE(9000, 2000), 4000),
				wr(ib.WRAtomicFetchAndAdd, src.SGE(12000, 8), 8000),
			}); err != nil {
				t.Fatal(err)
			}
			for _, wc := range r.wcs(r.a.cq, 5) {
				if wc.Err() != nil || wc.QPNum != ini.Num() {
					t.Fatalf("%+v", wc)
				}
			}
			got := r.wcs(cqs[k], 2)
			for i, want := range []verbs.WC{
				{WRID: 0, Opcode: ib.WCRecv, ByteLen: 3000, QPNum: tgt.Num(), SrcQP: ini.Num()},
				{WRID: 1, Opcode: ib.WCRecvRDMAWithImm, ByteLen: 100, QPNum: tgt.Num(), SrcQP: ini.Num(), Flags: ib.WCWithImm, ImmData: 77},
			} {
				if got[i] != want {
					t.Errorf("receive %+v, want %+v", got[i], want)
				}
			}
			s, d := src.Bytes(), dst.Bytes()
			if string(d[:3000]) != string(s[:3000]) || string(d[4000:6000]) != string(s[100:2100]) ||
				string(d[6000:6100]) != string(s[200:300]) || string(s[9000:11000]) != string(s[100:2100]) ||
				binary.NativeEndian.Uint64(s[12000:]) != 41 || binary.NativeEndian.Uint64(d[8000:]) != 42 {
				t.Errorf("round %d: wrong content", round)
			}
		}
		// COMM_EST came with the first packet, to the target.
		if e := r.b.event(ib.EventCommEst); e.QP != tgt {
			t.Error("COMM_EST is not the target's")
		}
		r.b.noEvent()
		// What is in use cannot go.
		for name, err := range map[string]error{
			"domain": x.Close(), "CQ": cqs[0].Destroy(), "PD": pd2.Dealloc(),
		} {
			if !errors.Is(err, syscall.EBUSY) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// six6 makes a rig talk IPv6.
func six6(r *rig) {
	for _, n := range []*node{r.a, r.b} {
		g := ok(n.ctx.QueryGID(1, 1))(r.t)
		n.addr = g.Addr()
	}
}

func TestXRCDomainOfAFile(t *testing.T) {
	r := newRig(t, 9000)
	dir := t.TempDir()
	open := func(name string) *os.File {
		f := ok(os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600))(t)
		t.Cleanup(func() { f.Close() })
		return f
	}
	f, again, other := open("x"), open("x"), open("y")
	try := func(f *os.File, flags int, want error) *verbs.XRCD {
		t.Helper()
		x, err := r.b.ctx.OpenXRCD(&verbs.XRCDInitAttr{File: f, OFlags: flags})
		if want != nil {
			if !errors.Is(err, want) {
				t.Fatalf("%v, want %v", err, want)
			}
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	try(f, 0, syscall.EAGAIN)
	try(f, os.O_EXCL, syscall.EAGAIN)
	try(f, os.O_TRUNC|os.O_CREATE, syscall.EINVAL)
	x1 := try(f, os.O_CREATE|os.O_EXCL, nil)
	try(again, os.O_CREATE|os.O_EXCL, syscall.EINVAL)
	try(other, 0, syscall.EAGAIN)
	x2, x3 := try(again, 0, nil), try(other, os.O_CREATE, nil)

	// A queue of one opening is found by a target of the other, not by one of another domain.
	srq := ok(r.b.pd.CreateSRQEx(&verbs.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}, Type: ib.SRQXRC, XRCD: x1, CQ: r.b.cq}))(t)
	for _, c := range []struct {
		x    *verbs.XRCD
		want ib.WCStatus
	}{{x2, ib.WCSuccess}, {x3, ib.WCRemInvReqErr}} {
		if err := srq.PostRecvOne(&verbs.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		attr := r.a.attr(ib.XRCSend)
		ini := r.a.qp(attr)
		tgt := ok(r.b.ctx.CreateQPEx(&verbs.QPInitAttrEx{QPInitAttr: verbs.QPInitAttr{Type: ib.XRCRecv}, XRCD: c.x}))(t)
		r.a.to(ini, ib.QPStateRTS, tgt, r.b.addr)
		r.b.to(tgt, ib.QPStateRTR, ini, r.a.addr)
		if err := ini.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, RemoteSRQN: srq.Num()}); err != nil {
			t.Fatal(err)
		}
		if got := r.wcs(r.a.cq, 1)[0].Status; got != c.want {
			t.Errorf("status %v, want %v", got, c.want)
		}
		if err := tgt.Destroy(); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.wcs(r.b.cq, 1); got[0].Status != ib.WCSuccess {
		t.Errorf("%+v", got)
	}

	if err := x1.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closed under a receive queue: %v", err)
	}
	if err := errors.Join(x2.Close(), x2.Close(), srq.Destroy(), x1.Close(), x3.Close()); err != nil {
		t.Fatal(err)
	}
	try(f, 0, syscall.EAGAIN) // the last one took the domain along
	if _, err := r.b.ctx.OpenXRCD(nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	f.Close()
	if _, err := r.b.ctx.OpenXRCD(&verbs.XRCDInitAttr{File: f}); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

func TestOpenQP(t *testing.T) {
	r := newRig(t, 9000)
	x, y := r.b.xrcd(verbs.XRCDInitAttr{}), r.b.xrcd(verbs.XRCDInitAttr{})
	srq := r.b.xsrq(x, r.b.pd, r.b.cq)
	first := ok(r.b.ctx.CreateQPEx(&verbs.QPInitAttrEx{QPInitAttr: verbs.QPInitAttr{Type: ib.XRCRecv}, XRCD: x}))(t)
	for name, a := range map[string]*verbs.QPOpenAttr{
		"nil": nil, "no domain": {QPNum: first.Num(), Type: ib.XRCRecv}, "type": {QPNum: first.Num(), XRCD: x, Type: ib.RC},
		"number": {QPNum: first.Num() + 1, XRCD: x, Type: ib.XRCRecv}, "other domain": {QPNum: first.Num(), XRCD: y, Type: ib.XRCRecv},
	} {
		if q, err := r.b.ctx.OpenQP(a); !errors.Is(err, syscall.EINVAL) || q != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	second := ok(r.b.ctx.OpenQP(&verbs.QPOpenAttr{QPNum: first.Num(), XRCD: x, Type: ib.XRCRecv, UserContext: "second"}))(t)
	if second.Num() != first.Num() || second.UserContext() != "second" || second.Type() != ib.XRCRecv {
		t.Errorf("opened %#x, %v", second.Num(), second.Type())
	}
	ini := r.a.qp(r.a.attr(ib.XRCSend))
	r.a.to(ini, ib.QPStateRTS, first, r.b.addr)
	// Each handle sees what the other one did.
	r.b.step(second, ib.QPStateInit, ini, r.a.addr)
	r.b.step(first, ib.QPStateRTR, ini, r.a.addr)
	if second.State() != ib.QPStateRTR {
		t.Errorf("state %v", second.State())
	}
	send := func() {
		t.Helper()
		if err := srq.PostRecvOne(&verbs.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		if err := ini.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, RemoteSRQN: srq.Num()}); err != nil {
			t.Fatal(err)
		}
		for _, wc := range append(r.wcs(r.a.cq, 1), r.wcs(r.b.cq, 1)...) {
			if wc.Err() != nil {
				t.Fatal(wc.Err())
			}
		}
	}
	send()
	// Both are told.
	seen := map[*verbs.QP]int{}
	for range 2 {
		seen[r.b.event(ib.EventCommEst).QP]++
	}
	if seen[first] != 1 || seen[second] != 1 {
		t.Errorf("events: %v", seen)
	}
	if err := errors.Join(first.Destroy(), first.Destroy()); err != nil {
		t.Fatal(err)
	}
	if err := first.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a handle that is gone modifies: %v", err)
	}
	send() // the queue pair lives with its second handle
	if err := x.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	if err := second.Destroy(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.b.ctx.OpenQP(&verbs.QPOpenAttr{QPNum: first.Num(), XRCD: x, Type: ib.XRCRecv}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("opened a queue pair that is gone: %v", err)
	}
	r.b.noEvent()
}

func TestXRCRefusals(t *testing.T) {
	r := newRig(t, 9000)
	x := r.b.xrcd(verbs.XRCDInitAttr{})
	ax := r.a.xrcd(verbs.XRCDInitAttr{})
	srq := r.b.xsrq(x, r.b.pd, r.b.cq)
	tgt := r.b.target(x)
	attr := r.b.attr(ib.XRCSend)
	attr.SRQ, attr.Cap.MaxRecvWR = srq, 1<<31
	ini := r.b.qp(attr) // receive side is ignored
	if ini.SRQ() != nil || attr.Cap.MaxRecvWR != 0 {
		t.Errorf("an initiator with a receive side: %+v", attr.Cap)
	}
	r.b.to(ini, ib.QPStateRTS, tgt, r.b.addr)
	r.b.to(tgt, ib.QPStateRTS, ini, r.b.addr)
	rcAttr := r.b.attr(ib.RC)
	rcAttr.SRQ = srq
	init := func(f func(a *verbs.SRQInitAttr)) error {
		a := verbs.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}, Type: ib.SRQXRC, XRCD: x, CQ: r.b.cq}
		f(&a)
		_, err := r.b.pd.CreateSRQEx(&a)
		return err
	}
	qpx := func(f func(a *verbs.QPInitAttrEx)) error {
		a := verbs.QPInitAttrEx{QPInitAttr: *r.b.attr(ib.RC), PD: r.b.pd}
		f(&a)
		q, err := r.b.ctx.CreateQPEx(&a)
		if err == nil {
			err = q.Destroy()
		}
		return err
	}
	_, nilQP := r.b.ctx.CreateQPEx(nil)
	_, nilSRQ := r.b.pd.CreateSRQEx(nil)
	_, plain := r.b.pd.CreateQP(&verbs.QPInitAttr{Type: ib.XRCRecv})
	_, withSRQ := r.b.pd.CreateQP(rcAttr)
	for name, c := range map[string]struct{ err, want error }{
		"target sends":        {tgt.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend}), syscall.EINVAL},
		"target receives":     {tgt.PostRecvOne(&verbs.RecvWR{}), syscall.EINVAL},
		"initiator receives":  {ini.PostRecvOne(&verbs.RecvWR{}), syscall.EINVAL},
		"RC with XRC's SRQ":   {withSRQ, syscall.EINVAL},
		"target by CreateQP":  {plain, syscall.EINVAL},
		"nil attr of QP":      {nilQP, syscall.EINVAL},
		"nil attr of SRQ":     {nilSRQ, syscall.EINVAL},
		"SRQ type":            {init(func(a *verbs.SRQInitAttr) { a.Type = 9 }), syscall.EINVAL},
		"tag matching":        {init(func(a *verbs.SRQInitAttr) { a.Type = ib.SRQTM }), syscall.EOPNOTSUPP},
		"SRQ without domain":  {init(func(a *verbs.SRQInitAttr) { a.XRCD = nil }), syscall.EINVAL},
		"SRQ, other device":   {init(func(a *verbs.SRQInitAttr) { a.XRCD = ax }), syscall.EINVAL},
		"SRQ without CQ":      {init(func(a *verbs.SRQInitAttr) { a.CQ = nil }), syscall.EINVAL},
		"SRQ, CQ of another":  {init(func(a *verbs.SRQInitAttr) { a.CQ = r.a.cq }), syscall.EINVAL},
		"SRQ too deep":        {init(func(a *verbs.SRQInitAttr) { a.Attr.MaxWR = 1 << 30 }), syscall.EINVAL},
		"basic SRQ with XRCD": {init(func(a *verbs.SRQInitAttr) { a.Type = ib.SRQBasic }), syscall.EINVAL},
		"TSO":                 {qpx(func(a *verbs.QPInitAttrEx) { a.MaxTSOHeader = 64 }), syscall.EOPNOTSUPP},
		"source QPN":          {qpx(func(a *verbs.QPInitAttrEx) { a.CreateFlags, a.SourceQPN = ib.QPCreateSourceQPN, 5 }), syscall.EOPNOTSUPP},
		"source QPN, no flag": {qpx(func(a *verbs.QPInitAttrEx) { a.SourceQPN = 5 }), syscall.EINVAL},
		"FCS":                 {qpx(func(a *verbs.QPInitAttrEx) { a.CreateFlags = ib.QPCreateScatterFCS }), syscall.EOPNOTSUPP},
		"VLAN":                {qpx(func(a *verbs.QPInitAttrEx) { a.CreateFlags = ib.QPCreateCVLANStripping }), syscall.EOPNOTSUPP},
		"padding":             {qpx(func(a *verbs.QPInitAttrEx) { a.CreateFlags = ib.QPCreatePCIWriteEndPadding }), syscall.EOPNOTSUPP},
		"unknown flag":        {qpx(func(a *verbs.QPInitAttrEx) { a.CreateFlags = 1 << 30 }), syscall.EINVAL},
		"no PD":               {qpx(func(a *verbs.QPInitAttrEx) { a.PD = nil }), syscall.EINVAL},
		"RC with XRCD":        {qpx(func(a *verbs.QPInitAttrEx) { a.XRCD = x }), syscall.EINVAL},
		"target with PD":      {qpx(func(a *verbs.QPInitAttrEx) { a.Type, a.XRCD = ib.XRCRecv, x }), syscall.EINVAL},
		"initiator, XRCD":     {qpx(func(a *verbs.QPInitAttrEx) { a.Type, a.XRCD = ib.XRCSend, x }), syscall.EINVAL},
		"block loopback":      {qpx(func(a *verbs.QPInitAttrEx) { a.Type, a.CreateFlags = ib.UD, ib.QPCreateBlockSelfMcastLB }), nil},
		"basic SRQ":           {init(func(a *verbs.SRQInitAttr) { a.Type, a.XRCD, a.CQ = ib.SRQXRC, nil, nil }), syscall.EINVAL},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	basic := verbs.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}}
	s := ok(r.b.pd.CreateSRQEx(&basic))(t)
	if err := s.Destroy(); err != nil {
		t.Error(err)
	}
	// Closed parents.
	dead := ok(r.b.ctx.OpenXRCD(&verbs.XRCDInitAttr{}))(t)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := r.b.ctx.CreateQPEx(&verbs.QPInitAttrEx{QPInitAttr: verbs.QPInitAttr{Type: ib.XRCRecv}, XRCD: dead})
	if !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	// What the target's transitions take is the table's.
	if err := tgt.Modify(&ib.QPAttr{RetryCnt: 1}, ib.QPAttrRetryCnt); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := tgt.Drain(context.Background(), nil); err != nil {
		t.Error(err)
	}
}

// A receive queue, its completion queue and its domain may go while a message for
// it arrives: the peer is refused, and nothing is touched any more.
func TestXRCDestroySRQInMessage(t *testing.T) {
	r := newRig(t, 9000)
	x := r.b.xrcd(verbs.XRCDInitAttr{})
	pd := ok(r.b.ctx.AllocPD())(t)
	cq := ok(r.b.ctx.CreateCQ(16, nil, nil))(t)
	mr := ok(pd.RegMR(make([]byte, 64<<10), allRights))(t)
	srq := ok(pd.CreateSRQEx(&verbs.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 4, MaxSGE: 1}, Type: ib.SRQXRC, XRCD: x, CQ: cq}))(t)
	ini, tgt := r.xrc(x)
	if err := srq.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 64<<10)}}); err != nil {
		t.Fatal(err)
	}
	src := r.a.mem(64 << 10)
	n := 0
	heal := r.net.Filter(func(e *simnet.Event) simnet.Verdict {
		if n++; e.Src.Addr() == r.a.addr && n > 20 {
			return simnet.Drop
		}
		return simnet.Verdict{}
	})
	if err := ini.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, RemoteSRQN: srq.Num(), SGList: []verbs.SGE{src.SGE(0, 64<<10)}}); err != nil {
		t.Fatal(err)
	}
	r.net.Kick(r.a.port)
	r.net.RunFor(200_000)
	if err := errors.Join(srq.Destroy(), cq.Destroy(), mr.Dereg(), pd.Dealloc()); err != nil {
		t.Fatal(err)
	}
	heal()
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCRemInvReqErr {
		t.Errorf("status %v", wc.Status)
	}
	if tgt.State() != ib.QPStateErr {
		t.Errorf("target is in %v", tgt.State())
	}
	r.b.event(ib.EventCommEst)
	r.b.event(ib.EventQPReqErr)
	r.b.noEvent()
}

// An opcode of XRC's class that nobody knows is refused as RC's are; RC's opcodes are
// not for XRC queue pairs, nor XRC's for theirs.
func TestXRCForeignOpcodes(t *testing.T) {
	r := newRig(t, 9000)
	_, tgt := r.xrc(r.b.xrcd(verbs.XRCDInitAttr{}))
	_, rc := r.pair(ib.RC)
	send := func(q *verbs.QP, op roce.Opcode) {
		i := op.Info()
		b := make([]byte, i.HdrLen+roce.ICRCLen)
		roce.BTH(b).Put(op, false, 0, uint16(ib.PKeyDefault), uint32(q.Num()), true, 100)
		p := roce.NewPath(r.a.addr, r.b.addr, 0xC000)
		roce.PutICRC(b[len(b)-roce.ICRCLen:], p.Compute(b, 0))
		r.net.Inject(netip.AddrPortFrom(r.a.addr, 0xC000), r.b.addr, b, 0)
		r.net.RunFor(1e6)
	}
	send(tgt, roce.OpRCSendOnly)
	send(rc, roce.OpXRCSendOnly)
	if n := r.b.soft.Stats().DropTransport; n != 2 {
		t.Errorf("%d packets dropped for their class, want 2", n)
	}
	r.b.noEvent()
	send(tgt, roce.Opcode(0xBF))
	r.b.event(ib.EventCommEst)
	r.b.event(ib.EventQPReqErr)
	if tgt.State() != ib.QPStateErr {
		t.Errorf("the target is in %v", tgt.State())
	}
}

// Drain ends an initiator's work.
func TestXRCDrain(t *testing.T) {
	r := newRig(t, 9000)
	ini, _ := r.xrc(r.b.xrcd(verbs.XRCDInitAttr{}))
	r.net.SetPartition(r.a.addr, r.b.addr, true)
	for id := range uint64(3) {
		if err := ini.PostSendOne(&verbs.SendWR{WRID: id, Opcode: ib.WRSend, RemoteSRQN: 1}); err != nil {
			t.Fatal(err)
		}
	}
	var got []verbs.WC
	if err := ini.Drain(context.Background(), func(wcs []verbs.WC) { got = append(got, wcs...) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[2].WRID != 2 || got[2].Status != ib.WCWRFlushErr {
		t.Errorf("%+v", got)
	}
}
