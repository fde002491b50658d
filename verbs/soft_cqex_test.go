package verbs_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// exCQ makes an extended completion queue of node a, with a pair of queue pairs
// whose one side completes there.
func exCQ(t testing.TB, attr verbs.CQInitAttrEx) (*exRig, *verbs.CQEx) {
	t.Helper()
	var x *verbs.CQEx
	r := &exRig{rig: newRig(t, 9000)}
	x = ok(r.a.ctx.CreateCQEx(&attr))(t)
	r.a.later(x.Destroy)
	aa, ab := r.a.attr(ib.RC), r.b.attr(ib.RC)
	aa.SendCQ, aa.RecvCQ = x.CQ, x.CQ
	aa.Cap.MaxSendWR, aa.Cap.MaxRecvWR = 256, 256
	r.qa, r.qb = r.connect(aa, ab)
	r.sb, r.db = make([]byte, 4096), make([]byte, 4096)
	r.src, r.dst = r.a.memWith(r.sb, allRights), r.b.memWith(r.db, allRights)
	r.x = ok(r.qa.Ex())(t)
	return r, x
}

// writes posts n WRITEs of 8 bytes with the WRIDs from first on and lets them end.
func (r *exRig) writes(first uint64, n int) {
	r.t.Helper()
	r.x.Start()
	r.x.WRFlags = ib.SendSignaled
	for i := range n {
		r.x.WRID = first + uint64(i)
		r.x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
		r.x.SetInlineData(make([]byte, 8))
	}
	if err := r.x.Complete(); err != nil {
		r.t.Fatal(err)
	}
	r.net.Kick(r.a.port)
	r.net.RunFor(1e8)
}

func TestCQExPoll(t *testing.T) {
	r, x := exCQ(t, verbs.CQInitAttrEx{CQE: 100, WCFlags: ib.WCExStandard | ib.WCExCompletionTimestamp, UserContext: 5})
	if x.CQE() < 100 || x.UserContext() != 5 {
		t.Errorf("%d, %v", x.CQE(), x.UserContext())
	}
	if err := x.StartPoll(); !errors.Is(err, verbs.ErrNoCompletion) || !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("empty: %v", err)
	}
	x.EndPoll() // harmless
	before := ok(r.a.ctx.QueryRTValues())(t).RawClock
	r.writes(0, 40)
	after := ok(r.a.ctx.QueryRTValues())(t).RawClock
	want, last := uint64(0), uint64(0)
	for want < 40 {
		err := x.StartPoll()
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; err == nil; err = x.NextPoll() {
			if x.WRID() != want || x.Status() != ib.WCSuccess || x.ReadOpcode() != ib.WCRDMAWrite || x.ReadQPNum() != r.qa.Num() {
				t.Fatalf("completion %d: %+v", want, x.WC())
			}
			ts := x.ReadCompletionTS()
			if ts < before || ts > after || ts < last {
				t.Errorf("timestamp %d is not in %d..%d", ts, before, after)
			}
			if d := time.Since(time.Unix(0, int64(x.ReadCompletionWallclockNS()))); d < 0 || d > time.Hour {
				t.Errorf("wall clock of %v ago", d)
			}
			want, last = want+1, ts
			if i++; want == 5 || want == 23 {
				break
			}
		}
		x.EndPoll()
	}
	if err := x.StartPoll(); !errors.Is(err, verbs.ErrNoCompletion) {
		t.Fatalf("after the last: %v", err)
	}
	// Receives: all fields, and the queue is an ordinary one too.
	if err := r.qa.PostRecv([]verbs.RecvWR{{WRID: 9, SGList: []verbs.SGE{r.src.SGE(0, 100)}}, {WRID: 10}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.qb.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRRDMAWriteWithImm, RemoteAddr: r.src.Addr(), RKey: r.src.RKey(), ImmData: 77,
			Flags: ib.SendInline, InlineData: []byte("abc"),
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.net.Kick(r.b.port)
	r.net.RunFor(1e8)
	if err := x.StartPoll(); err != nil {
		t.Fatal(err)
	}
	if x.WRID() != 9 || x.ReadOpcode() != ib.WCRecvRDMAWithImm || x.ReadByteLen() != 3 || x.ReadImmData() != 77 ||
		x.ReadWCFlags() != ib.WCWithImm || x.ReadSrcQP() != r.qb.Num() || x.ReadVendorErr() != 0 || x.ReadSLID() != 0 ||
		x.ReadSL() != 0 || x.ReadDLIDPathBits() != 0 || x.ReadPKeyIndex() != 0 || x.ReadInvalidatedRKey() != 0 {
		t.Errorf("%+v", x.WC())
	}
	x.EndPoll()
	var wc [4]verbs.WC
	if n, err := x.Poll(wc[:]); n != 1 || err != nil || wc[0].WRID != 10 {
		t.Errorf("%d, %v", n, err)
	}
	// Without being asked for there are no timestamps.
	r2, x2 := exCQ(t, verbs.CQInitAttrEx{CQE: 10, Flags: ib.CQSingleThreaded})
	r2.writes(1, 1)
	if err := x2.StartPoll(); err != nil || x2.ReadCompletionTS() != 0 || x2.ReadCompletionWallclockNS() != 0 {
		t.Error(err, x2.ReadCompletionTS())
	}
	x2.EndPoll()
}

// Completions of one time have one wall-clock time, however often and in whatever
// batch it is read.
func TestCQExWallclockIsThatOfTheTick(t *testing.T) {
	r, x := exCQ(t, verbs.CQInitAttrEx{CQE: 100, WCFlags: ib.WCExCompletionTimestampWallclock})
	r.writes(0, 40)
	var ts, wall uint64
	for seen := 0; seen < 40; {
		if err := x.StartPoll(); err != nil {
			t.Fatal(err)
		}
		for err := error(nil); err == nil; err = x.NextPoll() {
			a, b, now := x.ReadCompletionWallclockNS(), x.ReadCompletionWallclockNS(), x.ReadCompletionTS()
			if a != b || seen > 0 && a-wall != now-ts {
				t.Fatalf("completion %d at %d: %d and %d, the one before at %d: %d", seen, now, a, b, ts, wall)
			}
			ts, wall = now, a
			if seen++; seen%7 == 0 {
				break
			}
		}
		x.EndPoll()
	}
}

func TestCQExRefusals(t *testing.T) {
	r := newRig(t, 9000)
	for name, c := range map[string]struct {
		attr  verbs.CQInitAttrEx
		errno syscall.Errno
		param string
	}{
		"size":          {verbs.CQInitAttrEx{}, syscall.EINVAL, "cqe"},
		"huge":          {verbs.CQInitAttrEx{CQE: 1 << 30}, syscall.EINVAL, "cqe"},
		"vector":        {verbs.CQInitAttrEx{CQE: 1, CompVector: 1}, syscall.EINVAL, "CompVector"},
		"VLAN":          {verbs.CQInitAttrEx{CQE: 1, WCFlags: ib.WCExCVLAN}, syscall.EOPNOTSUPP, "WCFlags"},
		"flow tag":      {verbs.CQInitAttrEx{CQE: 1, WCFlags: ib.WCExFlowTag}, syscall.EOPNOTSUPP, "WCFlags"},
		"tag matching":  {verbs.CQInitAttrEx{CQE: 1, WCFlags: ib.WCExTMInfo}, syscall.EOPNOTSUPP, "WCFlags"},
		"unknown field": {verbs.CQInitAttrEx{CQE: 1, WCFlags: 1 << 40}, syscall.EINVAL, "WCFlags"},
		"unknown flag":  {verbs.CQInitAttrEx{CQE: 1, Flags: 4}, syscall.EINVAL, "Flags"},
	} {
		x, err := r.a.ctx.CreateCQEx(&c.attr)
		var oe *verbs.OpError
		if x != nil || !errors.Is(err, c.errno) || !errors.As(err, &oe) || oe.Op != "create_cq_ex" || oe.Param != c.param {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.a.ctx.CreateCQEx(nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	x := ok(r.a.ctx.CreateCQEx(&verbs.CQInitAttrEx{CQE: 1}))(t)
	if err := x.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := x.StartPoll(); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	a := ok(r.a.ctx.QueryDevice())(t)
	if a.HCACoreClock != 1_000_000 || a.CompletionTimestampMask != math.MaxUint64 || a.MaxCQModeration.CQPeriod != 65535 || a.MaxCompCntr == 0 {
		t.Errorf("%+v", a)
	}
	const caps = ib.DeviceCapFlushGlobal | ib.DeviceCapAtomicWrite
	if a.DeviceCapFlags&caps != caps {
		t.Errorf("capabilities %#x", a.DeviceCapFlags)
	}
}

func TestCQExOverrun(t *testing.T) {
	// The plain behaviour: what is there comes, then EOVERFLOW.
	r, x := exCQ(t, verbs.CQInitAttrEx{CQE: 4})
	r.writes(0, 6)
	n := 0
	err := x.StartPoll()
	for ; err == nil; err = x.NextPoll() {
		n++
	}
	x.EndPoll()
	if n != 4 {
		t.Errorf("%d completions", n)
	}
	if err := x.StartPoll(); !errors.Is(err, syscall.EOVERFLOW) {
		t.Errorf("%v", err)
	}
	e := ok(r.a.ctx.GetAsyncEvent(t.Context()))(t)
	if e.Type != ib.EventCQErr || e.CQ != x.CQ {
		t.Errorf("%+v", e)
	}
	e.Ack()
	if r.qa.State() != ib.QPStateErr { // its queue pair has lost completions: it ends
		t.Errorf("state %v", r.qa.State())
	}
	e = ok(r.a.ctx.GetAsyncEvent(t.Context()))(t)
	e.Ack()

	// Ignored: the newest stay, and nobody hears of it.
	r, x = exCQ(t, verbs.CQInitAttrEx{CQE: 4, Flags: ib.CQIgnoreOverrun})
	r.writes(0, 6)
	want := uint64(2)
	err = x.StartPoll()
	for ; err == nil; err = x.NextPoll() {
		if x.WRID() != want {
			t.Errorf("%d, want %d", x.WRID(), want)
		}
		want++
	}
	x.EndPoll()
	if want != 6 || r.qa.State() != ib.QPStateRTS {
		t.Errorf("%d, %v", want, r.qa.State())
	}
	r.writes(10, 1)
	if err := x.StartPoll(); err != nil || x.WRID() != 10 {
		t.Error(err)
	}
	x.EndPoll()
}

// tell reports whether a notification is there.
func tell(t testing.TB, ch *verbs.CompChannel) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cq, err := ch.GetCQEvent(ctx)
	if err != nil {
		return false
	}
	if err := cq.AckEvents(1); err != nil {
		t.Error(err)
	}
	return true
}

func TestCQModeration(t *testing.T) {
	r := &exRig{rig: newRig(t, 9000)}
	ch := ok(r.a.ctx.CreateCompChannel())(t)
	r.a.later(ch.Destroy)
	cq := ok(r.a.ctx.CreateCQ(1000, ch, nil))(t)
	r.a.later(cq.Destroy)
	aa := r.a.attr(ib.RC)
	aa.SendCQ, aa.RecvCQ = cq, cq
	r.qa, r.qb = r.connect(aa, r.b.attr(ib.RC))
	r.dst = r.b.memWith(make([]byte, 64), allRights)
	r.x = ok(r.qa.Ex())(t)
	moderate := func(count, period uint16) {
		t.Helper()
		if err := cq.Modify(&verbs.ModifyCQAttr{AttrMask: ib.CQAttrModerate, Moderate: ib.ModerateCQ{CQCount: count, CQPeriod: period}}); err != nil {
			t.Fatal(err)
		}
	}
	// run posts n WRITEs and lets us microseconds pass.
	run := func(n, us int) bool {
		t.Helper()
		r.x.Start()
		r.x.WRFlags = ib.SendSignaled
		for range n {
			r.x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
			r.x.SetInlineData([]byte{1})
		}
		if err := r.x.Complete(); err != nil {
			t.Fatal(err)
		}
		r.net.Kick(r.a.port)
		r.net.RunFor(int64(us) * 1000)
		return tell(t, ch)
	}
	cq.ReqNotify(false)
	if !run(1, 1000) {
		t.Error("not moderated, not told")
	}
	moderate(4, 50_000)
	cq.ReqNotify(false)
	if run(3, 1000) {
		t.Error("told of 3 of 4")
	}
	if !run(1, 1000) {
		t.Error("not told of the fourth")
	}
	if run(4, 100_000) {
		t.Error("told without being armed")
	}
	cq.ReqNotify(false)
	if run(1, 30_000) {
		t.Error("told after 30 ms of 50")
	}
	if !run(0, 30_000) {
		t.Error("not told after the period")
	}
	moderate(0, 1000)
	cq.ReqNotify(false)
	if run(10, 200) || !run(0, 2000) {
		t.Error("any number in the period")
	}
	cq.ReqNotify(false)
	if run(1, 500) {
		t.Error("told too early")
	}
	moderate(0, 0)
	if !tell(t, ch) {
		t.Error("what waited is not told")
	}
	cq.ReqNotify(false)
	if !run(1, 500) {
		t.Error("moderation is over, not told")
	}
	// A failure does not wait.
	moderate(100, 60_000)
	cq.ReqNotify(false)
	r.x.Start()
	r.x.RDMAWrite(r.dst.RKey()^0x100, r.dst.Addr())
	r.x.SetInlineData([]byte{1})
	if err := r.x.Complete(); err != nil {
		t.Fatal(err)
	}
	r.net.Kick(r.a.port)
	r.net.RunFor(1e6)
	if !tell(t, ch) {
		t.Error("a failure is not told")
	}
	// What is held back when the queue is destroyed is forgotten (by the rig's end).
	for _, a := range []*verbs.ModifyCQAttr{nil, {AttrMask: 2}} {
		if err := cq.Modify(a); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v", err)
		}
	}
	if err := cq.Modify(&verbs.ModifyCQAttr{}); err != nil {
		t.Error(err)
	}
}

// The queue is polled by several goroutines in every way while it is resized,
// moderated and armed; every completion comes once.
func TestCQExPolledByMany(t *testing.T) {
	const total = 1500
	r, x := exCQ(t, verbs.CQInitAttrEx{CQE: 2000, WCFlags: ib.WCExCompletionTimestamp})
	var mu sync.Mutex
	seen := make([]int, total)
	left := total
	note := func(id uint64) {
		mu.Lock()
		seen[id]++
		left--
		mu.Unlock()
	}
	more := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return left > 0
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var buf [8]verbs.WC
			for i := 0; more(); i++ {
				if g == 0 {
					n, err := x.Poll(buf[:])
					if err != nil {
						t.Error(err)
						return
					}
					for _, wc := range buf[:n] {
						note(wc.WRID)
					}
					continue
				}
				err := x.StartPoll()
				if err != nil {
					continue
				}
				for k := 0; err == nil; err = x.NextPoll() {
					note(x.WRID())
					if k++; k > i%7 {
						break
					}
				}
				x.EndPoll()
			}
		})
	}
	wg.Go(func() {
		for i := 0; more(); i++ {
			if err := x.Resize(2000 + i%10); err != nil {
				t.Error(err)
			}
			if err := x.Modify(&verbs.ModifyCQAttr{AttrMask: ib.CQAttrModerate, Moderate: ib.ModerateCQ{CQCount: uint16(i % 3), CQPeriod: uint16(i % 2 * 10)}}); err != nil {
				t.Error(err)
			}
			x.ReqNotify(i%2 == 0)
		}
	})
	for i := 0; i < total; i += 10 {
		r.writes(uint64(i), 10)
	}
	wg.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Fatalf("completion %d came %d times", id, n)
		}
	}
}

func TestCompCntr(t *testing.T) {
	r := &exRig{rig: newRig(t, 9000)}
	caps := ok(r.a.ctx.QueryCompCntrCaps())(t)
	if caps.AttachOps != ib.CompCntrAll || caps.MaxValue != math.MaxUint64 || caps.MaxCounters < 1 {
		t.Errorf("%+v", caps)
	}
	cntr := func(n *node) *verbs.CompCntr { return ok(n.ctx.CreateCompCntr())(t) }
	own, writes, remote, recv := cntr(r.a), cntr(r.a), cntr(r.b), cntr(r.b)
	r.qa, r.qb = r.a.qp(r.a.attr(ib.RC)), r.b.qp(r.b.attr(ib.RC))
	for _, c := range []struct {
		q     *verbs.QP
		n     *verbs.CompCntr
		ops   ib.CompCntrOps
		errno error
	}{
		{r.qa, own, ib.CompCntrSend | ib.CompCntrRDMARead, nil},
		{r.qa, writes, ib.CompCntrRDMAWrite | ib.CompCntrSend, syscall.EBUSY},
		{r.qa, writes, ib.CompCntrRDMAWrite, nil},
		{r.qb, remote, ib.CompCntrRemoteRDMARead | ib.CompCntrRemoteRDMAWrite, nil},
		{r.qb, recv, ib.CompCntrRecv, nil},
		{r.qb, recv, 0, syscall.EINVAL},
		{r.qb, recv, 1 << 6, syscall.EOPNOTSUPP},
		{r.qb, nil, ib.CompCntrSend, syscall.EINVAL},
		{r.qb, own, ib.CompCntrSend, syscall.EINVAL}, // another device's
	} {
		if err := c.q.AttachCompCntr(c.n, c.ops); !errors.Is(err, c.errno) {
			t.Errorf("%v: %v, want %v", c.ops, err, c.errno)
		}
	}
	r.a.to(r.qa, ib.QPStateRTS, r.qb, r.b.addr)
	r.b.to(r.qb, ib.QPStateRTS, r.qa, r.a.addr)
	if err := r.qb.AttachCompCntr(recv, ib.CompCntrSend); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("in RTS: %v", err)
	}
	r.src, r.dst = r.a.mem(4096), r.b.mem(4096)
	if err := r.qb.PostRecv(make([]verbs.RecvWR, 5)); err != nil {
		t.Fatal(err)
	}
	x := ok(r.qa.Ex())(t)
	key, addr := r.dst.RKey(), r.dst.Addr()
	x.Start() // nothing is signaled but the last
	for range 3 {
		x.RDMAWrite(key, addr)
		x.SetSGE(r.src.LKey(), r.src.Addr(), 2000)
	}
	x.RDMAWriteImm(key, addr, 1)
	x.Send()
	x.Send()
	x.RDMARead(key, addr)
	x.SetSGE(r.src.LKey(), r.src.Addr(), 3000)
	x.AtomicWrite(key, addr, [8]byte{})
	x.AtomicFetchAdd(key, addr, 1)
	x.WRFlags = ib.SendSignaled
	x.SetSGE(r.src.LKey(), r.src.Addr(), 8)
	x.RDMARead(key, addr)
	x.SetSGE(r.src.LKey(), r.src.Addr(), 8)
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	r.wcs(r.a.cq, 1)
	r.wcs(r.b.cq, 3)
	check := func(what string, n *verbs.CompCntr, done, failed uint64) {
		t.Helper()
		if n.Read() != done || n.ReadErr() != failed {
			t.Errorf("%s: %d and %d, want %d and %d", what, n.Read(), n.ReadErr(), done, failed)
		}
	}
	check("sends and READs", own, 4, 0)
	check("WRITEs", writes, 5, 0)
	check("remote", remote, 7, 0)
	check("receives", recv, 3, 0)
	// A failure, and what is flushed behind it.
	x.Start()
	x.RDMAWrite(key^0x100, addr)
	x.SetSGE(r.src.LKey(), r.src.Addr(), 8)
	x.Send()
	x.Send()
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	r.wcs(r.a.cq, 3)
	check("sends and READs", own, 4, 2)
	check("WRITEs", writes, 5, 1)
	check("remote", remote, 7, 1)
	check("receives", recv, 3, 2)
	r.wcs(r.b.cq, 2)
	// By hand.
	if err := errors.Join(own.Set(10), own.SetErr(20), own.Inc(math.MaxUint64), own.IncErr(5)); err != nil {
		t.Error(err)
	}
	check("set", own, 9, 25)
	for _, n := range []*verbs.CompCntr{own, writes, remote, recv} {
		if err := n.Destroy(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("in use: %v", err)
		}
	}
	if err := errors.Join(r.qa.Destroy(), r.qb.Destroy()); err != nil {
		t.Fatal(err)
	}
	r.a.drop()
	r.b.drop()
	for _, n := range []*verbs.CompCntr{own, writes, remote, recv} {
		if err := errors.Join(n.Destroy(), n.Destroy()); err != nil {
			t.Error(err)
		}
		if err := n.Set(1); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("destroyed: %v", err)
		}
	}
}
