package verbs_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
)

// make makes a queue pair of any type, with what it needs.
func (n *node) make(typ ib.QPType) *verbs.QP {
	n.t.Helper()
	if typ == ib.XRCRecv {
		return n.target(n.xrcd(verbs.XRCDInitAttr{}))
	}
	return n.qp(n.attr(typ))
}

var allTypes = []ib.QPType{ib.RC, ib.UC, ib.UD, ib.XRCSend, ib.XRCRecv}

// In every state query tells what modify set, and nothing else.
func TestQueryQPInEveryState(t *testing.T) {
	av := ib.AHAttr{
		IsGlobal: true, PortNum: 1, HopLimit: 17, TrafficClass: 0x68, FlowLabel: 0x12345, SL: 3, StaticRate: ib.Rate5Gbps, SGIDIndex: 1,
	}
	for _, typ := range allTypes {
		r := newRig(t, 9000)
		six6(r)
		av.DGID = ib.GIDFromAddr(r.b.addr)
		q := r.a.make(typ)
		var set ib.QPAttr // what the queue pair should tell
		want := func(state ib.QPState) {
			t.Helper()
			a, init, err := q.Query()
			if err != nil {
				t.Fatal(err)
			}
			w := set
			w.QPState, w.CurQPState, w.Cap = state, state, init.Cap
			if a != w {
				t.Errorf("%v in %v:\n got %+v\nwant %+v", typ, state, a, w)
			}
			if init.Type != typ || typ != ib.XRCRecv && (init.SendCQ != r.a.cq || init.Cap.MaxSendWR < 16 || init.Cap.MaxSendSGE < 4 || init.Cap.MaxInlineData < 128) ||
				typ == ib.XRCRecv && init.Cap != (ib.QPCap{}) {
				t.Errorf("%v in %v: created with %+v", typ, state, init)
			}
		}
		step := func(state ib.QPState, mask ib.QPAttrMask, a ib.QPAttr) {
			t.Helper()
			a.QPState = state
			if err := q.Modify(&a, mask|ib.QPAttrState); err != nil {
				t.Fatalf("%v to %v: %v", typ, state, err)
			}
		}
		want(ib.QPStateReset)
		required := func(from, to ib.QPState) ib.QPAttrMask {
			req, _, _ := ib.Transition(typ, from, to)
			return req
		}
		all := ib.QPAttr{
			PortNum: 1, QPAccessFlags: ib.AccessRemoteRead | ib.AccessRemoteWrite, QKey: 0x1234, AHAttr: av, PathMTU: ib.MTU512,
			DestQPN: 0x4321, RQPSN: 0xABCDEF, SQPSN: 0xFEDCBA, MaxDestRDAtomic: 7, MinRNRTimer: 9, Timeout: 11, RetryCnt: 3, RNRRetry: 5, MaxRDAtomic: 6,
		}
		keep := func(mask ib.QPAttrMask) {
			for bit, f := range map[ib.QPAttrMask]func(){
				ib.QPAttrPort: func() { set.PortNum = 1 }, ib.QPAttrAccessFlags: func() { set.QPAccessFlags = all.QPAccessFlags },
				ib.QPAttrQKey: func() { set.QKey = all.QKey }, ib.QPAttrAV: func() { set.AHAttr = av },
				ib.QPAttrPathMTU: func() { set.PathMTU = all.PathMTU }, ib.QPAttrDestQPN: func() { set.DestQPN = all.DestQPN },
				ib.QPAttrRQPSN: func() { set.RQPSN = all.RQPSN }, ib.QPAttrSQPSN: func() { set.SQPSN = all.SQPSN },
				ib.QPAttrMaxDestRDAtomic: func() { set.MaxDestRDAtomic = 7 }, ib.QPAttrMinRNRTimer: func() { set.MinRNRTimer = 9 },
				ib.QPAttrTimeout: func() { set.Timeout = 11 }, ib.QPAttrRetryCnt: func() { set.RetryCnt = 3 },
				ib.QPAttrRNRRetry: func() { set.RNRRetry = 5 }, ib.QPAttrMaxRDAtomic: func() { set.MaxRDAtomic = 6 },
			} {
				if mask&bit != 0 {
					f()
				}
			}
		}
		state := ib.QPStateReset
		for _, next := range []ib.QPState{ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS} {
			mask := required(state, next)
			step(next, mask, all)
			keep(mask)
			state = next
			want(state)
		}
		// The state that the caller takes it to be.
		if err := q.Modify(&ib.QPAttr{CurQPState: ib.QPStateSQD, QPAccessFlags: 0}, ib.QPAttrCurState); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: modified a queue pair in another state than named: %v", typ, err)
		}
		if err := q.Modify(&ib.QPAttr{CurQPState: ib.QPStateRTS}, ib.QPAttrCurState); err != nil {
			t.Errorf("%v: %v", typ, err)
		}
		want(ib.QPStateRTS)
		step(ib.QPStateSQD, 0, ib.QPAttr{})
		want(ib.QPStateSQD)
		step(ib.QPStateErr, 0, ib.QPAttr{})
		want(ib.QPStateErr)
		step(ib.QPStateReset, 0, ib.QPAttr{})
		set = ib.QPAttr{}
		want(ib.QPStateReset)
		// Sizes are for ever, and pacing is not offered; both name what is wrong.
		for mask, param := range map[ib.QPAttrMask]string{ib.QPAttrCap: "QPAttrCap", ib.QPAttrRateLimit: "QPAttrRateLimit"} {
			err := q.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState|mask)
			if !errors.Is(err, syscall.EINVAL) || !contains(err, param) {
				t.Errorf("%v, %v: %v", typ, mask, err)
			}
		}
	}
}

func contains(err error, s string) bool {
	for i := range len(err.Error()) - len(s) + 1 {
		if err.Error()[i:i+len(s)] == s {
			return true
		}
	}
	return false
}

// SQD: what has started goes on, what is posted waits, the end is told once, and
// only if that was asked for.
func TestSendQueueDrained(t *testing.T) {
	for _, typ := range []ib.QPType{ib.RC, ib.XRCSend} {
		for _, tell := range []bool{true, false} {
			r := newRig(t, 9000)
			r.b.mtu = ib.MTU1024
			var q, peer *verbs.QP
			var srqn uint32
			if typ == ib.RC {
				q, peer = r.pair(typ)
			} else {
				x := r.b.xrcd(verbs.XRCDInitAttr{})
				srqn = r.b.xsrq(x, r.b.pd, r.b.newCQ()).Num()
				q, peer = r.xrc(x)
			}
			_ = peer
			src, dst := r.a.mem(8192), r.b.mem(8192)
			write := func(id uint64, n int) error {
				return q.PostSendOne(&verbs.SendWR{
					WRID: id, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, n)},
					RemoteAddr: dst.Addr(), RKey: dst.RKey(), RemoteSRQN: srqn,
				})
			}
			r.net.SetPartition(r.a.addr, r.b.addr, true)
			if err := write(1, 5000); err != nil {
				t.Fatal(err)
			}
			sqd := ib.QPAttr{QPState: ib.QPStateSQD, EnSQDAsyncNotify: tell}
			if err := q.Modify(&sqd, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify); err != nil {
				t.Fatal(err)
			}
			draining := func(want bool) {
				t.Helper()
				if a, _, err := q.Query(); err != nil || a.SQDraining != want || a.QPState != ib.QPStateSQD {
					t.Errorf("%v: %v, draining %v, want %v: %v", typ, a.QPState, a.SQDraining, want, err)
				}
			}
			draining(true)
			if err := write(2, 8); err != nil { // allowed, and waits
				t.Fatal(err)
			}
			if !tell {
				r.a.noEvent()
			}
			// Attributes may change, those of the table.
			if err := q.Modify(&ib.QPAttr{RetryCnt: 7, Timeout: 9}, ib.QPAttrRetryCnt|ib.QPAttrTimeout); err != nil {
				t.Error(err)
			}
			for _, mask := range []ib.QPAttrMask{ib.QPAttrPathMTU, ib.QPAttrDestQPN, ib.QPAttrSQPSN, ib.QPAttrRQPSN, ib.QPAttrQKey} {
				if err := q.Modify(&ib.QPAttr{PathMTU: ib.MTU512}, mask); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("%v in SQD: %v", mask, err)
				}
			}
			draining(true)
			r.net.SetPartition(r.a.addr, r.b.addr, false)
			if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || wc.WRID != 1 {
				t.Fatalf("%+v", wc)
			}
			draining(false)
			if tell {
				if e := r.a.event(ib.EventSQDrained); e.QP != q {
					t.Error("another queue pair's event")
				}
			}
			r.quiet(r.a.cq) // the second one is not sent
			r.a.noEvent()
			if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState); err != nil {
				t.Fatal(err)
			}
			if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || wc.WRID != 2 {
				t.Fatalf("%+v", wc)
			}
			// With nothing under way the end is at once.
			if err := q.Modify(&sqd, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify); err != nil {
				t.Fatal(err)
			}
			draining(false)
			if tell {
				r.a.event(ib.EventSQDrained)
			}
			r.a.noEvent()
		}
	}
}

// Datagrams and unreliable connections drain as fast as they send.
func TestSendQueueDrainedAtOnce(t *testing.T) {
	for _, typ := range []ib.QPType{ib.UC, ib.UD} {
		r := newRig(t, 9000)
		q, _ := r.pair(typ)
		for range 2 {
			if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateSQD, EnSQDAsyncNotify: true}, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify); err != nil {
				t.Fatal(err)
			}
			r.net.Kick(r.a.port)
			r.net.RunFor(1e6)
			r.a.event(ib.EventSQDrained)
			r.a.noEvent()
			if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Traffic class, hop limit and flow label of an address are those of every packet
// that goes there, responses too; a change in SQD counts from then on.
func TestAddressFieldsOnTheWire(t *testing.T) {
	for _, six := range []bool{false, true} {
		r := newRig(t, 9000)
		if six {
			six6(r)
		}
		qa, qb := r.a.qp(r.a.attr(ib.RC)), r.b.qp(r.b.attr(ib.RC))
		av := func(n *node, peer *node, class, hops uint8, label uint32) ib.AHAttr {
			a := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(peer.addr), PortNum: 1, TrafficClass: class, HopLimit: hops, FlowLabel: label, StaticRate: ib.Rate10Gbps}
			if six {
				a.SGIDIndex = 1
			}
			return a
		}
		connect := func(n, peer *node, q, to *verbs.QP, a ib.AHAttr) {
			t.Helper()
			n.to(q, ib.QPStateInit, to, peer.addr)
			rtr := ib.QPAttr{
				QPState: ib.QPStateRTR, AHAttr: a, PathMTU: ib.MTU1024, DestQPN: to.Num(), RQPSN: 100, MaxDestRDAtomic: 4, MinRNRTimer: 1,
			}
			if err := q.Modify(&rtr, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|
				ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer); err != nil {
				t.Fatal(err)
			}
			n.step(q, ib.QPStateRTS, to, peer.addr)
		}
		connect(r.a, r.b, qa, qb, av(r.a, r.b, 0x68, 33, 0x12345))
		connect(r.b, r.a, qb, qa, av(r.b, r.a, 0xB8, 44, 0x54321))
		seen := map[string]int{}
		r.net.Sniff(func(e *simnet.Event) {
			from := "a"
			if e.Src.Addr() == r.b.addr {
				from = "b"
			}
			seen[fmt.Sprintf("%s %#x %d %#x", from, e.TOS, e.TTL, e.FlowLabel)]++
		})
		src, dst := r.a.mem(8192), r.b.mem(8192)
		work := func() {
			t.Helper()
			for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead, ib.WRAtomicFetchAndAdd} {
				n := 5000
				if op == ib.WRAtomicFetchAndAdd {
					n = 8
				}
				if err := qa.PostSendOne(&verbs.SendWR{Opcode: op, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, n)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()}); err != nil {
					t.Fatal(err)
				}
				if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil {
					t.Fatal(wc.Err())
				}
			}
		}
		check := func(want ...string) {
			t.Helper()
			for _, w := range want {
				if seen[w] == 0 {
					t.Errorf("no packet %q in %v", w, seen)
				}
			}
			if len(seen) != len(want) {
				t.Errorf("packets %v, want %v", seen, want)
			}
			clear(seen)
		}
		label := func(l uint32) uint32 {
			if six {
				return l
			}
			return 0
		}
		work()
		check(fmt.Sprintf("a 0x68 33 %#x", label(0x12345)), fmt.Sprintf("b 0xb8 44 %#x", label(0x54321)))
		// Changed in SQD.
		if err := qa.Modify(&ib.QPAttr{QPState: ib.QPStateSQD}, ib.QPAttrState); err != nil {
			t.Fatal(err)
		}
		next := av(r.a, r.b, 0x20, 5, 0x777)
		if err := qa.Modify(&ib.QPAttr{AHAttr: next}, ib.QPAttrAV); err != nil {
			t.Fatal(err)
		}
		if err := qa.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState); err != nil {
			t.Fatal(err)
		}
		if a, _, err := qa.Query(); err != nil || a.AHAttr != next {
			t.Errorf("%+v, %v, want %+v", a.AHAttr, err, next)
		}
		work()
		check(fmt.Sprintf("a 0x20 5 %#x", label(0x777)), fmt.Sprintf("b 0xb8 44 %#x", label(0x54321)))
	}
}

func TestECE(t *testing.T) {
	for _, typ := range allTypes {
		r := newRig(t, 9000)
		q := r.a.make(typ)
		want := func(w ib.ECE) {
			t.Helper()
			if e, err := q.QueryECE(); err != nil || e != w {
				t.Errorf("%v: %+v, %v, want %+v", typ, e, err, w)
			}
		}
		want(ib.ECE{})
		some, more := ib.ECE{VendorID: 0x15B3, Options: 0x10002001}, ib.ECE{VendorID: 0x15B3, Options: 7}
		for _, c := range []struct {
			ece  *ib.ECE
			want error
		}{
			{nil, syscall.EINVAL},
			{&ib.ECE{Options: 1}, syscall.EOPNOTSUPP},
			{&ib.ECE{VendorID: 1, CompMask: 1}, syscall.EINVAL},
			{&ib.ECE{VendorID: 1 << 24}, syscall.EINVAL},
			{&some, nil},
		} {
			if err := q.SetECE(c.ece); !errors.Is(err, c.want) {
				t.Errorf("%v: %+v: %v, want %v", typ, c.ece, err, c.want)
			}
		}
		want(some)
		r.a.to(q, ib.QPStateInit, nil, r.b.addr)
		if err := q.SetECE(&more); err != nil {
			t.Error(err)
		}
		want(more)
		r.a.to(q, ib.QPStateRTS, nil, r.b.addr)
		if err := q.SetECE(&some); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: set in RTS: %v", typ, err)
		}
		want(more)
		if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState); err != nil {
			t.Fatal(err)
		}
		want(ib.ECE{})
		// What else there is to ask.
		if err := q.ModifyRateLimit(&ib.QPRateLimitAttr{RateLimit: 1000}); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Error(err)
		}
		if err := q.ModifyRateLimit(nil); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
		if in, err := q.QueryDataInOrder(ib.WRRDMAWrite, 0); in || err != nil {
			t.Errorf("data in order: %v, %v", in, err)
		}
		if _, err := q.QueryDataInOrder(ib.WRRDMAWrite, 1); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
		if err := q.Destroy(); err != nil {
			t.Fatal(err)
		}
		_, e1 := q.QueryECE()
		_, e2 := q.QueryDataInOrder(ib.WRSend, 0)
		for i, err := range []error{e1, e2, q.SetECE(&some), q.ModifyRateLimit(&ib.QPRateLimitAttr{})} {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%d of a destroyed queue pair: %v", i, err)
			}
		}
	}
}

// What a queue pair may have outstanding, and how large its queues are, is its own.
func TestQPLimits(t *testing.T) {
	r := newRig(t, 9000)
	dev := ok(r.a.ctx.QueryDevice())(t)
	for name, c := range map[string]struct {
		f  func(a *verbs.QPInitAttr)
		ok bool
	}{
		"most sends":      {func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = uint32(dev.MaxQPWR) }, true},
		"too many sends":  {func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = uint32(dev.MaxQPWR) + 1 }, false},
		"too many recvs":  {func(a *verbs.QPInitAttr) { a.Cap.MaxRecvWR = uint32(dev.MaxQPWR) + 1 }, false},
		"most SGEs":       {func(a *verbs.QPInitAttr) { a.Cap.MaxSendSGE = uint32(dev.MaxSGE) }, true},
		"too many SGEs":   {func(a *verbs.QPInitAttr) { a.Cap.MaxSendSGE = uint32(dev.MaxSGE) + 1 }, false},
		"most inline":     {func(a *verbs.QPInitAttr) { a.Cap.MaxInlineData = uint32(dev.MaxInlineData) }, true},
		"too much inline": {func(a *verbs.QPInitAttr) { a.Cap.MaxInlineData = uint32(dev.MaxInlineData) + 1 }, false},
		"nothing":         {func(a *verbs.QPInitAttr) { a.Cap = ib.QPCap{} }, true},
	} {
		for _, typ := range []ib.QPType{ib.RC, ib.XRCSend} {
			a := r.a.attr(typ)
			c.f(a)
			asked := a.Cap
			if typ == ib.XRCSend {
				if name == "too many recvs" {
					continue // ignored
				}
				asked.MaxRecvWR, asked.MaxRecvSGE = 0, 0
			}
			q, err := r.a.pd.CreateQP(a)
			if c.ok != (err == nil) || err != nil && !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if err != nil {
				continue
			}
			got := ok2(q.Query())(t).Cap
			if got != a.Cap || got.MaxSendWR < asked.MaxSendWR || got.MaxRecvWR < asked.MaxRecvWR || got.MaxSendSGE < asked.MaxSendSGE || got.MaxInlineData < asked.MaxInlineData {
				t.Errorf("%s: %+v, query %+v, asked for %+v", name, a.Cap, got, asked)
			}
			if err := q.Destroy(); err != nil {
				t.Error(err)
			}
		}
	}
	// The depth of READs: what two queue pairs of one device may have is each their own.
	for _, depth := range []uint8{1, 3} {
		qa, qb := r.a.qp(r.a.attr(ib.RC)), r.b.qp(r.b.attr(ib.RC))
		r.a.to(qa, ib.QPStateRTR, qb, r.b.addr)
		r.b.to(qb, ib.QPStateRTS, qa, r.a.addr)
		if err := qa.Modify(&ib.QPAttr{QPState: ib.QPStateRTS, SQPSN: 100, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: depth},
			ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRDAtomic); err != nil {
			t.Fatal(err)
		}
		src, dst := r.b.mem(64), r.a.mem(64)
		r.net.SetPartition(r.a.addr, r.b.addr, true)
		reads := 0
		stop := r.net.Sniff(func(e *simnet.Event) {
			if e.Src.Addr() == r.a.addr {
				reads++
			}
		})
		for range 8 {
			if err := qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: []verbs.SGE{dst.SGE(0, 8)}, RemoteAddr: src.Addr(), RKey: src.RKey()}); err != nil {
				t.Fatal(err)
			}
		}
		r.net.Kick(r.a.port)
		r.net.RunFor(1e6)
		stop()
		if reads != int(depth) {
			t.Errorf("%d READs under way, want %d", reads, depth)
		}
		r.net.SetPartition(r.a.addr, r.b.addr, false)
		for _, wc := range r.wcs(r.a.cq, 8) {
			if wc.Err() != nil {
				t.Error(wc.Err())
			}
		}
	}
	if err := r.a.qp(r.a.attr(ib.RC)).Modify(&ib.QPAttr{MaxRDAtomic: uint8(dev.MaxQPRDAtom) + 1}, ib.QPAttrMaxRDAtomic); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func ok2[T, U any](v T, _ U, err error) func(testing.TB) T { return ok(v, err) }
