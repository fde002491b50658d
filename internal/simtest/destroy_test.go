package simtest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// stage is two hosts with one object of each kind and an exchange between them
// that uses them all.
type stage struct {
	*rig
	side [2]*actor
	sent int // packets
}

// actor is one host of a stage.
type actor struct {
	*host
	xcq       driver.CQ // of XRC: its receive queue's, and the initiator's
	srq, xsrq driver.SRQ
	xrcd      driver.XRCD
	rc, ud    driver.QP
	ini, tgt  driver.QP
	data      driver.MR // for local work and for RDMA without a window
	base      driver.MR // what the window is bound to
	mw        driver.MW
	ah        driver.AH
	closed    bool
	posted    map[ib.QPN]int // send requests
	done      map[ib.QPN][]driver.WC
	gone      map[ib.QPN]bool
}

const stageMemory = 64 << 10

func newStage(t testing.TB, seed uint64, link simnet.Link) *stage {
	s := &stage{rig: &rig{t: t, net: simnet.New(seed)}}
	s.net.SetDefault(link)
	for i := range s.side {
		h := &host{r: s.rig, addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), mem: make([]byte, stageMemory)}
		h.port = s.net.NewPort(simnet.Config{MaxSegs: 1 + 63*int(seed&1)})
		var err error
		h.dev, err = soft.NewDevice(soft.Config{
			Name: "soft", Port: h.port, Addrs: []netip.Addr{h.addr}, Clock: s.net.Now, Seed: seed*16 + uint64(i) + 1, Manual: true, Shards: 1 + int(seed&1),
		})
		s.must(err)
		s.net.Attach(h.port, h.dev.Turn)
		h.pd = ok(h.dev.AllocPD())(t)
		h.cq = ok(h.dev.CreateCQ(256, nil))(t)
		h.mr = ok(h.pd.RegMR(h.mem, 0, false, allRights))(t)
		a := &actor{host: h, posted: map[ib.QPN]int{}, done: map[ib.QPN][]driver.WC{}, gone: map[ib.QPN]bool{}}
		a.data = ok(h.pd.RegMR(h.mem, 0, false, allRights))(t)
		a.base = ok(h.pd.RegMR(h.mem, 0, false, allRights|ib.AccessMWBind))(t)
		a.mw = ok(h.pd.(driver.MWPD).AllocMW(ib.MWType2))(t)
		a.xcq = ok(h.dev.CreateCQ(256, nil))(t)
		a.xrcd = ok(h.dev.OpenXRCD(&driver.XRCDInitAttr{Create: true}))(t)
		a.srq = ok(h.dev.CreateSRQ(h.pd, &ib.SRQAttr{MaxWR: 32, MaxSGE: 1}, nil))(t)
		a.xsrq = ok(h.dev.CreateXRCSRQ(h.pd, a.xrcd, a.xcq, &ib.SRQAttr{MaxWR: 32, MaxSGE: 1}, nil))(t)
		capacity := ib.QPCap{MaxSendWR: 64, MaxSendSGE: 1}
		a.rc = ok(h.dev.CreateQP(h.pd, &driver.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, SRQ: a.srq, Type: ib.RC, SQSigAll: true, Cap: capacity}, nil))(t)
		a.ini = ok(h.dev.CreateQP(h.pd, &driver.QPInitAttr{SendCQ: a.xcq, Type: ib.XRCSend, SQSigAll: true, Cap: capacity}, nil))(t)
		a.tgt = ok(h.dev.CreateQP(nil, &driver.QPInitAttr{Type: ib.XRCRecv, XRCD: a.xrcd}, nil))(t)
		a.ud = h.qp(ib.UD)
		s.side[i] = a
		t.Cleanup(func() { _ = h.dev.Close() })
	}
	p := usual
	p.timeout, p.retry = 10, 7
	for i, x := range s.side {
		y := s.side[1-i]
		x.ah = ok(x.dev.CreateAH(x.pd, &ib.AHAttr{DGID: ib.GIDFromAddr(y.addr), HopLimit: 64, IsGlobal: true, PortNum: 1}))(t)
		s.must(x.ud.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: 7}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey))
		s.must(x.ud.Modify(&ib.QPAttr{QPState: ib.QPStateRTR}, ib.QPAttrState))
		s.must(x.ud.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState|ib.QPAttrSQPSN))
		x.join(x.rc, y.host, y.rc, p, ib.RC)
		x.join(x.ini, y.host, y.tgt, p, ib.XRCSend)
		x.join(x.tgt, y.host, y.ini, p, ib.XRCRecv)
		for j := range 16 {
			w := []driver.RecvWR{{WRID: 1000 + uint64(j), SGList: x.from(x.data, 40<<10+j*256, 2600)}}
			for _, q := range []interface {
				PostRecv([]driver.RecvWR) (int, error)
			}{x.srq, x.xsrq, x.ud} {
				if _, err := q.PostRecv(w); err != nil {
					t.Fatal(err)
				}
			}
		}
		x.post(x.rc, driver.SendWR{Opcode: ib.WRBindMW, RKey: ib.IncRKey(x.mw.RKey()), Bind: &driver.BindInfo{
			MW: x.mw, MR: x.base, Addr: x.base.Addr() + 8<<10, Length: 16 << 10, Access: remoteRights,
		}})
	}
	for i, x := range s.side {
		if x.collect(); x.mw.RKey() == 0 || len(x.done[x.rc.Num()]) != 1 {
			t.Fatalf("host %d: the window is not bound", i)
		}
	}
	s.net.Sniff(func(e *simnet.Event) { s.sent++ })
	return s
}

// ok gives a value without its error.
func ok[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// join brings a queue pair to RTS, with the attributes that its type takes.
func (x *actor) join(q driver.QP, far *host, peer driver.QP, p params, typ ib.QPType) {
	x.r.t.Helper()
	attr := ib.QPAttr{
		QPState: ib.QPStateInit, PortNum: 1, QPAccessFlags: remoteRights,
		PathMTU: p.mtu, DestQPN: peer.Num(), MaxDestRDAtomic: p.rdAtomic, MinRNRTimer: p.rnrTimer,
		AHAttr:  ib.AHAttr{DGID: ib.GIDFromAddr(far.addr), HopLimit: 64, IsGlobal: true, PortNum: 1},
		Timeout: p.timeout, RetryCnt: p.retry, RNRRetry: p.rnrRetry, MaxRDAtomic: p.rdAtomic,
		SQPSN: uint32(q.Num()), RQPSN: uint32(peer.Num()),
	}
	for _, to := range []ib.QPState{ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS} {
		need, _, _ := ib.Transition(typ, to-1, to)
		attr.QPState = to
		x.r.must(q.Modify(&attr, need|ib.QPAttrState))
	}
}

func (x *actor) from(mr driver.MR, off, n int) []driver.SGE {
	return []driver.SGE{{Addr: mr.Addr() + uint64(off), Length: uint32(n), LKey: mr.LKey()}}
}

func (x *actor) post(q driver.QP, wrs ...driver.SendWR) {
	x.r.t.Helper()
	for i := range wrs {
		wrs[i].WRID = uint64(x.posted[q.Num()] + i)
	}
	x.posted[q.Num()] += len(wrs)
	x.send(q, wrs...)
}

// play posts everything there is.
func (s *stage) play() {
	for i, x := range s.side {
		y := s.side[1-i]
		at := func(off int) uint64 { return y.data.Addr() + uint64(off) }
		src, dst := x.from(x.data, 0, 2500), x.from(x.data, 26<<10, 2500)
		win, key := y.base.Addr()+8<<10, y.mw.RKey()
		word := x.from(x.data, 30<<10, 8)
		x.post(x.rc,
			driver.SendWR{Opcode: ib.WRSend, SGList: src},
			driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: src, RemoteAddr: at(32 << 10), RKey: y.data.RKey()},
			driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: src, RemoteAddr: win, RKey: key},
			driver.SendWR{Opcode: ib.WRRDMARead, SGList: dst, RemoteAddr: at(32 << 10), RKey: y.data.RKey()},
			driver.SendWR{Opcode: ib.WRRDMARead, SGList: dst, RemoteAddr: win + 4096, RKey: key},
			driver.SendWR{Opcode: ib.WRAtomicFetchAndAdd, SGList: word, RemoteAddr: at(36 << 10), RKey: y.data.RKey(), CompareAdd: 1},
			driver.SendWR{Opcode: ib.WRFlush, RemoteAddr: win, RKey: key, Length: 100, FlushType: ib.FlushGlobal},
			driver.SendWR{Opcode: ib.WRAtomicWrite, SGList: word, RemoteAddr: at(37 << 10), RKey: y.data.RKey()},
			driver.SendWR{Opcode: ib.WRSendWithImm, SGList: src[:1], ImmData: 5},
		)
		x.post(x.ini,
			driver.SendWR{Opcode: ib.WRSend, SGList: src, RemoteSRQN: y.xsrq.Num()},
			driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: src, RemoteAddr: at(34 << 10), RKey: y.data.RKey(), RemoteSRQN: y.xsrq.Num()},
			driver.SendWR{Opcode: ib.WRRDMARead, SGList: dst, RemoteAddr: at(34 << 10), RKey: y.data.RKey(), RemoteSRQN: y.xsrq.Num()},
		)
		for range 3 {
			x.post(x.ud, driver.SendWR{Opcode: ib.WRSend, SGList: src, AH: x.ah, RemoteQPN: y.ud.Num(), RemoteQKey: 7})
		}
	}
}

// collect polls, and holds what comes against what was posted.
func (x *actor) collect() {
	x.r.t.Helper()
	if x.closed {
		return
	}
	var b [64]driver.WC
	for _, c := range []driver.CQ{x.cq, x.xcq} {
		for n := len(b); n == len(b); {
			var err error
			if n, err = c.Poll(b[:]); err != nil {
				x.r.t.Fatal(err)
			}
			for _, wc := range b[:n] {
				if x.gone[wc.QPNum] {
					x.r.t.Fatalf("completion of a queue pair that was destroyed: %+v", wc)
				}
				if wc.WRID < 1000 {
					if want := uint64(len(x.done[wc.QPNum])); wc.WRID != want {
						x.r.t.Fatalf("completion of request %d, request %d is next: %+v", wc.WRID, want, wc)
					}
					x.done[wc.QPNum] = append(x.done[wc.QPNum], wc)
				}
			}
		}
	}
}

// destroyed ends one queue pair: what has come is polled before.
func (x *actor) destroyed(q driver.QP) error {
	x.collect()
	x.gone[q.Num()] = true
	return q.Destroy()
}

// victims are what is destroyed, with the errno that this gives and the statuses
// that it may cause, besides success: on its own side and on the other.
var victims = []struct {
	name      string
	end       func(x *actor) error
	errno     syscall.Errno
	here, far []ib.WCStatus
}{
	{
		"queue pair", func(x *actor) error { return x.destroyed(x.rc) }, 0,
		nil,
		[]ib.WCStatus{ib.WCRetryExcErr, ib.WCWRFlushErr},
	},
	{
		"XRC initiator", func(x *actor) error { return x.destroyed(x.ini) }, 0,
		nil, nil,
	},
	{
		"XRC target", func(x *actor) error { return x.destroyed(x.tgt) }, 0,
		nil,
		[]ib.WCStatus{ib.WCRetryExcErr, ib.WCWRFlushErr},
	},
	{"datagram queue pair", func(x *actor) error { return x.destroyed(x.ud) }, 0, nil, nil},
	{"completion queue", func(x *actor) error { return x.cq.Destroy() }, syscall.EBUSY, nil, nil},
	{"completion queue of XRC", func(x *actor) error { return x.xcq.Destroy() }, syscall.EBUSY, nil, nil},
	{"shared receive queue", func(x *actor) error { return x.srq.Destroy() }, syscall.EBUSY, nil, nil},
	{
		"XRC receive queue", func(x *actor) error { return x.xsrq.Destroy() }, 0,
		nil,
		[]ib.WCStatus{ib.WCRemInvReqErr, ib.WCWRFlushErr},
	},
	{
		"region", func(x *actor) error { return x.data.Dereg() }, 0,
		// Each side's work may fail for its own side's memory or the other's, and
		// for the other having failed.
		[]ib.WCStatus{ib.WCLocProtErr, ib.WCWRFlushErr, ib.WCRetryExcErr},
		[]ib.WCStatus{ib.WCRemAccessErr, ib.WCRemOpErr, ib.WCWRFlushErr, ib.WCRetryExcErr},
	},
	{"region with a window", func(x *actor) error { return x.base.Dereg() }, syscall.EBUSY, nil, nil},
	{
		"window", func(x *actor) error { return x.mw.Dealloc() }, 0,
		[]ib.WCStatus{ib.WCRetryExcErr, ib.WCWRFlushErr},
		[]ib.WCStatus{ib.WCRemAccessErr, ib.WCWRFlushErr},
	},
	{"address handle", func(x *actor) error { return x.ah.Destroy() }, 0, nil, nil},
	{"XRC domain", func(x *actor) error { return x.xrcd.Close() }, syscall.EBUSY, nil, nil},
	{"protection domain", func(x *actor) error { return x.pd.Dealloc() }, syscall.EBUSY, nil, nil},
	{
		"device", func(x *actor) error {
			x.collect()
			x.closed = true
			return x.dev.Close()
		}, 0,
		nil,
		[]ib.WCStatus{ib.WCRetryExcErr, ib.WCWRFlushErr},
	},
}

// TestDestroyAtEveryPacket destroys every kind of object after every packet of an
// exchange that uses them all, on either side: nobody panics, nothing is left,
// all work of whoever lives on ends once, in order, with a status that fits.
func TestDestroyAtEveryPacket(t *testing.T) {
	for _, c := range []struct {
		name string
		link simnet.Link
	}{
		{"clean", simnet.Link{Delay: 2 * micro}},
		{"lossy", simnet.Link{Delay: 2 * micro, Loss: 0.03, Dup: 0.05, Reorder: 0.05}},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole := newStage(t, 1, c.link)
			whole.play()
			whole.net.RunFor(second)
			packets, points, failed := whole.sent, 0, map[string]int{}
			step := 1
			if c.link.Loss > 0 {
				step = 3
			}
			if testing.Short() || raceEnabled {
				step = 7
			}
			for k := 0; k <= packets; k += step {
				for v := range victims {
					for side := range 2 {
						if n := destroyAt(t, uint64(k), c.link, v, side, k); n > 0 {
							failed[victims[v].name]++
						}
						if points++; t.Failed() {
							t.Fatalf("%s of side %d destroyed after %d packets", victims[v].name, side, k)
						}
					}
				}
			}
			t.Logf("%d packets, %d points; work failed after the end of: %v", packets, points, failed)
			for _, v := range victims {
				if (failed[v.name] > 0) != (len(v.far) > 0) {
					t.Errorf("%s: %d times work failed, possible are %v", v.name, failed[v.name], v.far)
				}
			}
		})
	}
}

// destroyAt plays until k packets were sent, ends the victim, and sees what
// becomes of the rest. It tells how many requests failed.
func destroyAt(t *testing.T, seed uint64, link simnet.Link, v, side, k int) (failed int) {
	s := newStage(t, seed, link)
	s.play()
	s.net.Run(func() bool { return s.sent >= k }, second)
	x, victim := s.side[side], &victims[v]
	err := victim.end(x)
	if victim.errno == 0 && err != nil || victim.errno != 0 && !errors.Is(err, victim.errno) {
		t.Fatalf("%s, side %d, after %d packets: %v", victim.name, side, k, err)
	}
	if victim.errno == 0 {
		if err := victim.end(x); err != nil {
			t.Fatalf("%s, side %d, after %d packets, again: %v", victim.name, side, k, err)
		}
	}
	for range 40 {
		s.net.RunFor(50 * milli)
		for _, y := range s.side {
			y.collect()
		}
	}
	for i, y := range s.side {
		if y.closed {
			continue
		}
		allowed := victim.far
		if i == side {
			allowed = victim.here
		}
		if link.Loss > 0 && len(allowed) > 0 {
			// The NAK may get lost, and who sent it is in Error.
			allowed = append([]ib.WCStatus{ib.WCRetryExcErr}, allowed...)
		}
		for _, q := range []driver.QP{y.rc, y.ini, y.ud} {
			if y.gone[q.Num()] {
				continue
			}
			done, bad := y.done[q.Num()], 0
			if len(done) != y.posted[q.Num()] {
				t.Errorf("%s, after %d packets: %d of %d requests of %#x on side %d completed", victim.name, k, len(done), y.posted[q.Num()], uint32(q.Num()), i)
			}
			for _, wc := range done {
				if wc.Status == ib.WCSuccess && bad == 0 {
					continue
				}
				if bad++; !slices.Contains(allowed, wc.Status) || (bad > 1) != (wc.Status == ib.WCWRFlushErr) && victim.name != "region" && victim.name != "window" {
					t.Errorf("%s, after %d packets: request %d of %#x on side %d: %v", victim.name, k, wc.WRID, uint32(q.Num()), i, wc.Status)
				}
			}
			failed += bad
			a, err := q.Query()
			s.must(err)
			if want := map[bool]ib.QPState{false: ib.QPStateRTS, true: ib.QPStateErr}[bad > 0]; a.QPState != want && bad > 0 {
				t.Errorf("%s, after %d packets: a queue pair of side %d is in %v", victim.name, k, i, a.QPState)
			}
		}
	}
	for i, y := range s.side {
		if err := y.end(); err != nil {
			t.Errorf("%s, after %d packets, side %d: %v", victim.name, k, i, err)
		}
	}
	if n := s.net.Buffers(); n != 0 {
		t.Errorf("%s, after %d packets: %d datagrams are left", victim.name, k, n)
	}
	return failed
}

// end destroys all that is there, in order, and looks for what is left.
func (x *actor) end() error {
	if x.closed {
		return nil
	}
	for i, f := range []func() error{
		x.rc.Destroy, x.ini.Destroy, x.tgt.Destroy, x.ud.Destroy, x.srq.Destroy, x.xsrq.Destroy, x.xrcd.Close, x.ah.Destroy,
		x.mw.Dealloc, x.base.Dereg, x.data.Dereg, x.mr.Dereg, x.cq.Destroy, x.xcq.Destroy, x.pd.Dealloc, x.dev.Leaks, x.dev.Close,
	} {
		if err := f(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}
