package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// exRig is two nodes with connected queue pairs that may do everything.
type exRig struct {
	*rig
	qa, qb   *verbs.QP
	x        *verbs.QPEx
	src, dst *verbs.MR
	sb, db   []byte
}

const flushRights = ib.AccessFlushGlobal | ib.AccessFlushPersistent

func newExRig(t testing.TB, attr func(*verbs.QPInitAttr)) *exRig {
	t.Helper()
	r := &exRig{rig: newRig(t, 9000)}
	aa, ab := r.a.attr(ib.RC), r.b.attr(ib.RC)
	if attr != nil {
		attr(aa)
		attr(ab)
	}
	r.qa, r.qb = r.connect(aa, ab)
	for _, q := range []*verbs.QP{r.qa, r.qb} {
		if err := q.Modify(&ib.QPAttr{QPAccessFlags: ib.AccessRemote}, ib.QPAttrAccessFlags); err != nil {
			t.Fatal(err)
		}
	}
	r.sb, r.db = make([]byte, 4096), make([]byte, 4096)
	r.src, r.dst = r.a.memWith(r.sb, allRights|flushRights), r.b.memWith(r.db, allRights|flushRights)
	r.x = ok(r.qa.Ex())(t)
	return r
}

func TestWRPostsEverything(t *testing.T) {
	r := newExRig(t, nil)
	x := r.x
	for i := range r.sb {
		r.sb[i] = byte(i * 7)
	}
	in := r.b.mem(4096)
	for i := range uint64(3) {
		if err := r.qb.PostRecvOne(&verbs.RecvWR{WRID: 100 + i, SGList: []verbs.SGE{in.SGE(int(i)*1000, 1000)}}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(off uint64) (ib.RKey, uint64) { return r.dst.RKey(), r.dst.Addr() + off }
	sge := func(off uint64, n uint32) { x.SetSGE(r.src.LKey(), r.src.Addr()+off, n) }

	x.Start()
	x.WRFlags = ib.SendSignaled
	next := func() { x.WRID++ }
	x.WRID = 1
	x.Send()
	sge(0, 100)
	next()
	x.SendImm(0x11223344)
	inline := []byte("inline data")
	x.SetInlineData(inline)
	copy(inline, "overwritten")
	next()
	x.RDMAWrite(at(0))
	list := []verbs.SGE{r.src.SGE(0, 10), r.src.SGE(500, 20)}
	x.SetSGEList(list)
	clear(list)
	next()
	key, addr := at(100)
	x.RDMAWriteImm(key, addr, 7)
	x.SetInlineDataList([][]byte{[]byte("one "), []byte("two "), nil, []byte("three")})
	next()
	x.RDMARead(at(0))
	sge(1000, 30)
	next()
	key, addr = at(200)
	x.AtomicFetchAdd(key, addr, 5)
	sge(1100, 8)
	next()
	x.AtomicCmpSwp(key, addr, 5, 9)
	sge(1108, 8)
	next()
	key, addr = at(208)
	x.AtomicWrite(key, addr, [8]byte{1, 2, 3, 4, 5, 6, 7, 8})
	next()
	x.Flush(key, addr, 8, ib.FlushGlobal, ib.FlushRange)
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	got := r.wcs(r.a.cq, 9)
	ops := []ib.WCOpcode{
		ib.WCSend, ib.WCSend, ib.WCRDMAWrite, ib.WCRDMAWrite, ib.WCRDMARead, ib.WCFetchAdd, ib.WCCompSwap, ib.WCAtomicWrite, ib.WCFlush,
	}
	for i, wc := range got {
		if wc.WRID != uint64(i+1) || wc.Status != ib.WCSuccess || wc.Opcode != ops[i] {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
	recv := r.wcs(r.b.cq, 3)
	if recv[0].ByteLen != 100 || recv[1].ImmData != 0x11223344 || recv[1].ByteLen != 11 || recv[2].ImmData != 7 ||
		recv[2].Opcode != ib.WCRecvRDMAWithImm || recv[2].ByteLen != 13 {
		t.Errorf("receives: %+v", recv)
	}
	want := slices.Concat(r.sb[:10], r.sb[500:520])
	switch {
	case !bytes.Equal(r.db[:30], want):
		t.Error("WRITE from a list")
	case !bytes.Equal(r.sb[1000:1030], want):
		t.Error("READ")
	case string(r.db[100:113]) != "one two three":
		t.Errorf("inline list: %q", r.db[100:113])
	case !bytes.Equal(r.db[208:216], []byte{1, 2, 3, 4, 5, 6, 7, 8}):
		t.Errorf("ATOMIC WRITE: %v", r.db[208:216])
	case r.db[200] != 9 || r.sb[1100] != 0 || r.sb[1108] != 5:
		t.Errorf("atomics: %d, %d, %d", r.db[200], r.sb[1100], r.sb[1108])
	}
}

// Whatever is wrong with one request, Complete says so and posts none.
func TestWRAllOrNothing(t *testing.T) {
	r := newExRig(t, nil)
	good := func(x *verbs.QPEx) {
		x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
		x.SetSGE(r.src.LKey(), r.src.Addr(), 8)
	}
	two := func(x *verbs.QPEx) { good(x); x.WRID = 2 }
	few := ok(r.qa.Ex(ib.WRRDMAWrite))(t)
	for _, c := range []struct {
		name  string
		x     *verbs.QPEx
		build func(*verbs.QPEx)
		index int
		errno syscall.Errno
		param string
	}{
		{"setter without request", r.x, func(x *verbs.QPEx) { x.SetSGE(1, 2, 3) }, -1, syscall.EINVAL, "SetSGE"},
		{"two payloads", r.x, func(x *verbs.QPEx) { two(x); good(x); x.SetInlineData([]byte{1}) }, 1, syscall.EINVAL, "SetInlineData"},
		{"payload of a FLUSH", r.x, func(x *verbs.QPEx) {
			two(x)
			x.Flush(1, 2, 3, ib.FlushGlobal, ib.FlushMR)
			x.SetSGE(1, 2, 3)
		}, 1, syscall.EINVAL, "SetSGE"},
		{"payload of an ATOMIC WRITE", r.x, func(x *verbs.QPEx) {
			x.WRID = 2
			x.AtomicWrite(1, 8, [8]byte{})
			x.SetSGEList(nil)
			good(x)
		}, 0, syscall.EINVAL, "SetSGEList"},
		{"misaligned ATOMIC WRITE", r.x, func(x *verbs.QPEx) { two(x); x.AtomicWrite(1, 4, [8]byte{}) }, 1, syscall.EINVAL, "RemoteAddr"},
		{"FLUSH of no type", r.x, func(x *verbs.QPEx) { two(x); x.Flush(1, 2, 3, 0, 0) }, 1, syscall.EINVAL, "FlushType"},
		{"too many elements", r.x, func(x *verbs.QPEx) { two(x); x.Send(); x.SetSGEList(make([]verbs.SGE, 5)) }, 1, syscall.EINVAL, "SetSGEList"},
		{"too much inline", r.x, func(x *verbs.QPEx) { two(x); x.Send(); x.SetInlineData(make([]byte, 129)) }, 1, syscall.EINVAL, "SetInlineData"},
		{"too much inline in pieces", r.x, func(x *verbs.QPEx) {
			two(x)
			x.Send()
			x.SetInlineDataList([][]byte{make([]byte, 65), make([]byte, 65)})
		}, 1, syscall.EINVAL, "SetInlineDataList"},
		{"inline READ", r.x, func(x *verbs.QPEx) { two(x); x.RDMARead(1, 2); x.SetInlineData(make([]byte, 8)) }, 1, syscall.EINVAL, "Flags"},
		{"atomic without memory", r.x, func(x *verbs.QPEx) { two(x); x.AtomicFetchAdd(1, 8, 1); x.WRID = 3; good(x) }, 1, syscall.EINVAL, "SGList"},
		{"datagram address", r.x, func(x *verbs.QPEx) { two(x); x.Send(); x.SetUDAddr(nil, 1, 2) }, 1, syscall.EINVAL, "SetUDAddr"},
		{"XRC receive queue", r.x, func(x *verbs.QPEx) { two(x); x.Send(); x.SetXRCSRQN(1) }, 1, syscall.EINVAL, "SetXRCSRQN"},
		{"unknown flag", r.x, func(x *verbs.QPEx) { two(x); x.WRFlags = 1 << 9; good(x) }, 1, syscall.EINVAL, "Flags"},
		{"bind without window", r.x, func(x *verbs.QPEx) { two(x); x.BindMW(1, nil) }, 1, syscall.EINVAL, "Bind"},
		{"not asked for", few, func(x *verbs.QPEx) { two(x); x.Send() }, 1, syscall.EINVAL, "Opcode"},
		{"more than the queue holds", r.x, func(x *verbs.QPEx) {
			for i := range 20 {
				x.WRID = uint64(i)
				if i == 16 {
					x.WRID = 2
				}
				good(x)
			}
		}, 16, syscall.ENOMEM, "MaxSendWR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.x.Start()
			c.x.WRID, c.x.WRFlags = 1, ib.SendSignaled
			c.build(c.x)
			err := c.x.Complete()
			var oe *verbs.OpError
			var pe *verbs.PostError
			switch {
			case !errors.Is(err, c.errno) || !errors.As(err, &oe) || oe.Op != "wr_complete" || oe.Param != c.param:
				t.Errorf("%v", err)
			case c.index < 0:
				if errors.As(err, &pe) {
					t.Errorf("%v", err)
				}
			case !errors.As(err, &pe) || pe.Index != c.index:
				t.Errorf("%v, want index %d", err, c.index)
			}
			r.quiet(r.a.cq)
			// The next batch knows nothing of it.
			c.x.Start()
			c.x.WRID, c.x.WRFlags = 7, ib.SendSignaled
			good(c.x)
			if err := c.x.Complete(); err != nil {
				t.Fatal(err)
			}
			if got := r.wcs(r.a.cq, 1); got[0].WRID != 7 || got[0].Status != ib.WCSuccess {
				t.Errorf("%+v", got)
			}
		})
	}
	// A queue that lacks room for the whole takes nothing of it.
	wrs := make([]verbs.SendWR, 15)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, RKey: r.dst.RKey(), RemoteAddr: r.dst.Addr()}
	}
	if err := r.qa.PostSend(wrs); err != nil {
		t.Fatal(err)
	}
	r.x.Start()
	good(r.x)
	good(r.x)
	if err := r.x.Complete(); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v", err)
	}
	if got := r.wcs(r.a.cq, 15); len(got) != 15 {
		t.Errorf("%d", len(got))
	}
	r.quiet(r.a.cq)
}

func TestWRAbort(t *testing.T) {
	r := newExRig(t, nil)
	r.x.Start()
	r.x.WRFlags = ib.SendSignaled
	r.x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
	r.x.SetInlineData([]byte{1})
	r.x.Abort()
	r.x.Abort() // again is harmless
	if err := r.x.Complete(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Complete without Start: %v", err)
	}
	r.quiet(r.a.cq)
	if r.db[0] != 0 {
		t.Error("it was executed")
	}
	// What is built outside of a batch is forgotten; an empty one is fine.
	r.x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
	r.x.Start()
	if err := r.x.Complete(); err != nil {
		t.Error(err)
	}
	r.quiet(r.a.cq)
}

func TestWRRefusals(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.UC)
	if _, err := qa.Ex(ib.WRSend, ib.WRRDMARead); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("READ on UC: %v", err)
	}
	if _, err := qa.Ex(ib.WRDriver1); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("not offered: %v", err)
	}
	x := ok(qa.Ex())(t)
	x.Start()
	x.RDMARead(1, 2)
	if err := x.Complete(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("READ on UC: %v", err)
	}
	q := r.a.qp(r.a.attr(ib.RC))
	x = ok(q.Ex())(t)
	x.Start()
	x.Send()
	var pe *verbs.PostError
	if err := x.Complete(); !errors.Is(err, syscall.EINVAL) || errors.As(err, &pe) {
		t.Errorf("in RESET: %v", err)
	}
	r.a.qps = slices.DeleteFunc(r.a.qps, func(o *verbs.QP) bool { return o == q })
	x.Start()
	x.Send()
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := x.Complete(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("destroyed: %v", err)
	}
	if _, err := q.Ex(); err == nil {
		t.Error("interface of a destroyed queue pair")
	}
}

func TestWRDatagram(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.UD)
	in := r.b.mem(200)
	if err := qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{in.SGE(0, 200)}}); err != nil {
		t.Fatal(err)
	}
	ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1, HopLimit: 64}))(t)
	r.a.later(ah.Destroy)
	x := ok(qa.Ex(ib.WRSendWithImm, ib.WRSend))(t)
	x.Start()
	x.WRFlags = ib.SendSignaled
	x.SendImm(5)
	x.SetUDAddr(ah, qb.Num(), qkey)
	x.SetInlineData([]byte("hello"))
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	if got := r.wcs(r.b.cq, 1); got[0].ByteLen != 45 || got[0].ImmData != 5 {
		t.Errorf("%+v", got)
	}
	r.wcs(r.a.cq, 1)
	for _, build := range []func(){x.Send, func() { x.Send(); x.SetUDAddr(nil, 1, 1) }} {
		x.Start()
		build()
		if err := x.Complete(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("without address: %v", err)
		}
	}
}

// Many goroutines post batches in both ways: each batch stays together.
func TestWRConcurrentBatches(t *testing.T) {
	const posters, batches, size = 4, 50, 4
	r := newExRig(t, func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = 1024 })
	var wg sync.WaitGroup
	shared := r.x
	for g := range posters {
		wg.Go(func() {
			x := shared
			if g%2 == 1 {
				x, _ = r.qa.Ex()
			}
			for b := range batches {
				if g == 3 {
					wrs := make([]verbs.SendWR, size)
					for i := range wrs {
						wrs[i] = verbs.SendWR{WRID: uint64(g<<16 | b<<4 | i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled}
					}
					if err := r.qa.PostSend(wrs); err != nil {
						t.Error(err)
					}
					continue
				}
				x.Start()
				x.WRFlags = ib.SendSignaled
				for i := range size {
					x.WRID = uint64(g<<16 | b<<4 | i)
					x.RDMAWrite(r.dst.RKey(), r.dst.Addr())
				}
				if b%5 == 0 {
					x.Abort()
				} else if err := x.Complete(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n := 3*size*(batches-batches/5) + size*batches
	got := r.wcs(r.a.cq, n)
	for i, wc := range got {
		if wc.WRID != got[i/size*size].WRID+uint64(i%size) {
			t.Fatalf("completion %d of %x follows %x", i, wc.WRID, got[max(i-1, 0)].WRID)
		}
	}
	r.quiet(r.a.cq)
}

func TestWRDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := newExRig(t, nil)
	if err := r.qa.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); err != nil {
		t.Fatal(err)
	}
	buf := make([]verbs.WC, 16)
	post := wrBatch(r, 8)
	if n := testing.AllocsPerRun(100, func() {
		post()
		if k, err := r.a.cq.Poll(buf); k != 8 || err != nil {
			t.Fatal(k, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// wrBatch posts n WRITEs with the new interface, listBatch with PostSend.
func wrBatch(r *exRig, n int) func() {
	key, addr, lkey, local, x := r.dst.RKey(), r.dst.Addr(), r.src.LKey(), r.src.Addr(), r.x
	return func() {
		x.Start()
		x.WRFlags = ib.SendSignaled
		for i := range n {
			x.WRID = uint64(i)
			x.RDMAWrite(key, addr)
			x.SetSGE(lkey, local, 64)
		}
		if err := x.Complete(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func listBatch(r *exRig, n int) func() {
	key, addr, lkey, local := r.dst.RKey(), r.dst.Addr(), r.src.LKey(), r.src.Addr()
	wrs, sges := make([]verbs.SendWR, n), make([]verbs.SGE, n)
	return func() {
		for i := range n {
			sges[i] = verbs.SGE{Addr: local, Length: 64, LKey: lkey}
			wrs[i] = verbs.SendWR{
				WRID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: sges[i : i+1],
				RKey: key, RemoteAddr: addr,
			}
		}
		if err := r.qa.PostSend(wrs); err != nil {
			r.t.Fatal(err)
		}
	}
}

// BenchmarkPost compares the two ways to post, on a queue pair that flushes.
func BenchmarkPost(b *testing.B) {
	for _, n := range []int{1, 16} {
		for name, batch := range map[string]func(*exRig, int) func(){"wr": wrBatch, "list": listBatch} {
			b.Run(fmt.Sprintf("%s-%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				r := newExRig(b, nil)
				if err := r.qa.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); err != nil {
					b.Fatal(err)
				}
				buf := make([]verbs.WC, 16)
				post := batch(r, n)
				for b.Loop() {
					post()
					if k, err := r.a.cq.Poll(buf); k != n || err != nil {
						b.Fatal(k, err)
					}
				}
			})
		}
	}
}
