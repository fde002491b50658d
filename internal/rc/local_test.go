package rc

import (
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const bindFailed = "memory management operation error"

// bindable gives regions that windows may be bound to.
func bindable() options {
	o := defaults()
	o.mrAccess |= ib.AccessMWBind
	return o
}

func (s *side) window(typ ib.MWType) *mem.Window {
	s.w.t.Helper()
	win, err := s.tab.AllocWindow(s.pd, typ)
	if err != nil {
		s.w.t.Fatal(err)
	}
	s.w.t.Cleanup(func() { s.tab.FreeWindow(win) })
	return win
}

// pushBind queues a bind of n bytes from off on of the side's memory.
func (s *side) pushBind(id uint64, win *mem.Window, key ib.RKey, off, n int, access ib.Access, flags ib.SendFlags) {
	s.w.t.Helper()
	b := &driver.BindInfo{Addr: s.mr.Addr() + uint64(off), Length: uint64(n), Access: access}
	s.push(driver.SendWR{WRID: id, Opcode: ib.WRBindMW, RKey: key, Flags: flags, Bind: b})
	s.q.SQ.SetBind(win, s.mr, b)
}

func inv(id uint64, key ib.RKey, flags ib.SendFlags) driver.SendWR {
	return driver.SendWR{WRID: id, Opcode: ib.WRLocalInv, InvalidateRKey: key, Flags: flags}
}

func (s *side) sendInv(id uint64, key ib.RKey, flags ib.SendFlags) driver.SendWR {
	wr := s.sendWR(id, 0, 8)
	wr.Opcode, wr.InvalidateRKey, wr.Flags = ib.WRSendWithInv, key, flags
	return wr
}

// through names the peer's memory through a window.
func through(wr driver.SendWR, key ib.RKey) driver.SendWR {
	wr.RKey = key
	return wr
}

// valid reports whether a peer of the side's queue pair may read the window now.
func (s *side) valid(win *mem.Window) bool {
	_, ok := s.tab.Remote(s.pd, s.q.Num, win.RKey(), s.mr.Addr(), 1, ib.AccessRemoteRead, nil)
	return ok
}

// A bind takes no PSN and is done before what was posted behind it leaves.
func TestBindIsDoneBeforeLaterSends(t *testing.T) {
	w := newWorld(t, bindable())
	win := w.a.window(ib.MWType2)
	key := ib.IncRKey(win.RKey())
	w.b.recv(1, w.b.sge(0, 8))
	w.hook = func(s *seen, _ *roce.Packet) fate {
		if s.from == w.a && s.op == roce.OpRCSendOnly && !w.a.valid(win) {
			t.Error("the send left before the bind was done")
		}
		return pass
	}
	w.a.push(w.a.write(1, 0, 0, 3000))
	w.a.pushBind(2, win, key, 0, 4096, ib.AccessRemoteRead, 0)
	w.a.push(w.a.sendWR(3, 0, 8))
	w.a.push(inv(4, key, 0))
	w.a.push(w.a.write(5, 0, 0, 8))
	w.a.kick()
	if n := len(poll(w.a.scq)); n != 0 {
		t.Errorf("%d completions before the work ahead of them", n)
	}
	w.run(0)
	w.want("packets", w.ops(w.a, 0xFFFFF0), "RDMA_WRITE_FIRST@0 RDMA_WRITE_MIDDLE@1 RDMA_WRITE_LAST@2 SEND_ONLY@3 RDMA_WRITE_ONLY@4")
	var got []string
	for _, wc := range poll(w.a.scq) {
		got = append(got, wc.Opcode.String()+" "+wc.Status.String())
	}
	w.want("completions", got, []string{"RDMA_WRITE success", "BIND_MW success", "SEND success", "LOCAL_INV success", "RDMA_WRITE success"})
	if w.a.valid(win) {
		t.Error("the window is still bound")
	}
	w.idle()
}

// Row 14: a LOCAL_INV with a fence waits for all earlier work, one without for
// nothing; a bind with a fence for READs.
func TestCase14_FenceOfLocalOperations(t *testing.T) {
	for _, c := range []struct {
		name          string
		fence         ib.SendFlags
		before        func(w *world) driver.SendWR
		bound, inval  bool // whether they are done while the work before them is under way
		wantBindFirst bool
	}{
		{"WRITE, no fence", 0, func(w *world) driver.SendWR { return w.a.write(1, 0, 0, 8) }, true, true, true},
		{"READ, no fence", 0, func(w *world) driver.SendWR { return w.a.read(1, 0, 0, 8) }, true, true, true},
		{"WRITE, fence", ib.SendFence, func(w *world) driver.SendWR { return w.a.write(1, 0, 0, 8) }, true, false, true},
		{"READ, fence", ib.SendFence, func(w *world) driver.SendWR { return w.a.read(1, 0, 0, 8) }, false, false, false},
	} {
		w := newWorld(t, bindable())
		held, old := w.a.window(ib.MWType2), w.a.window(ib.MWType2)
		if !w.a.tab.Bind(w.a.pd, w.a.q.Num, old, w.a.mr, old.RKey(), w.a.mr.Addr(), 64, ib.AccessRemoteRead) {
			t.Fatal("bind")
		}
		w.hook = func(s *seen, _ *roce.Packet) fate {
			if s.from == w.b {
				return hold
			}
			return pass
		}
		w.a.push(c.before(w))
		w.a.pushBind(2, held, held.RKey(), 0, 64, ib.AccessRemoteRead, c.fence)
		w.a.push(inv(3, old.RKey(), c.fence))
		w.a.kick()
		w.run(w.now + 1000)
		if w.a.valid(held) != c.bound || w.a.valid(old) == c.inval {
			t.Errorf("%s: bound %v, invalidated %v", c.name, w.a.valid(held), !w.a.valid(old))
		}
		w.want(c.name, wcs(w.a.scq), "")
		w.hook = nil
		w.release()
		w.run(0)
		w.want(c.name, wcs(w.a.scq), "1:success 2:success 3:success")
		if !w.a.valid(held) || w.a.valid(old) {
			t.Errorf("%s: not done in the end", c.name)
		}
		w.idle()
	}
}

// What is sent again passes over local operations that are done: a second bind
// of the same window would fail.
func TestLocalOperationsAreExecutedOnce(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, bindable())
		rnd := rand.New(rand.NewPCG(seed, 1))
		w.hook = func(s *seen, _ *roce.Packet) fate {
			if rnd.IntN(5) == 0 {
				return drop
			}
			return pass
		}
		var wins []*mem.Window
		want := ""
		id := uint64(0)
		next := func() uint64 {
			id++
			if id > 1 {
				want += " "
			}
			want += string(rune('0'+id/10)) + string(rune('0'+id%10))
			return id
		}
		for i := range 8 {
			win := w.a.window(ib.MWType2)
			wins = append(wins, win)
			w.a.push(w.a.write(next(), i*64, i*64, 2000))
			w.a.pushBind(next(), win, win.RKey(), 0, 64, ib.AccessRemoteRead, 0)
			if i%2 == 0 {
				w.a.push(w.a.read(next(), i*64, i*64, 2000))
				w.a.push(inv(next(), win.RKey(), 0))
			}
		}
		w.a.kick()
		w.run(0)
		got := ""
		for i, wc := range poll(w.a.scq) {
			if wc.Status != ib.WCSuccess {
				t.Fatalf("seed %d: request %d: %v", seed, wc.WRID, wc.Status)
			}
			if i > 0 {
				got += " "
			}
			got += string(rune('0'+wc.WRID/10)) + string(rune('0'+wc.WRID%10))
		}
		if got != want {
			t.Fatalf("seed %d: %s, want %s", seed, got, want)
		}
		for i, win := range wins {
			if w.a.valid(win) != (i%2 == 1) {
				t.Errorf("seed %d: window %d", seed, i)
			}
		}
		w.idle()
	}
}

// A local operation that fails ends the queue pair when its turn has come: what
// was posted before is done, what is behind it is flushed.
func TestLocalOperationFails(t *testing.T) {
	for _, c := range []struct {
		name string
		push func(w *world)
	}{
		{"bind of a bound window", func(w *world) {
			win := w.a.window(ib.MWType2)
			w.a.pushBind(2, win, win.RKey(), 0, 64, ib.AccessRemoteRead, 0)
			w.a.pushBind(3, win, ib.IncRKey(win.RKey()), 0, 64, ib.AccessRemoteRead, 0)
		}},
		{"case 40: bind that wraps", func(w *world) {
			w.a.push(w.a.write(2, 0, 0, 8))
			win := w.a.window(ib.MWType2)
			b := &driver.BindInfo{Addr: w.a.mr.Addr(), Length: 1<<64 - 1, Access: ib.AccessRemoteRead}
			w.a.push(driver.SendWR{WRID: 3, Opcode: ib.WRBindMW, RKey: win.RKey(), Bind: b})
			w.a.q.SQ.SetBind(win, w.a.mr, b)
		}},
		{"invalidation of a plain region", func(w *world) {
			w.a.push(w.a.write(2, 0, 0, 8))
			w.a.push(inv(3, w.a.mr.RKey(), 0))
		}},
		{"invalidation of nothing", func(w *world) {
			w.a.push(w.a.write(2, 0, 0, 8))
			w.a.push(inv(3, 0, 0))
		}},
		{"registration without memory", func(w *world) {
			w.a.push(w.a.write(2, 0, 0, 8))
			r, err := w.a.tab.RegisterFast(w.a.pd, 4)
			if err != nil {
				t.Fatal(err)
			}
			b := &driver.BindInfo{Access: ib.AccessRemoteRead}
			w.a.push(driver.SendWR{WRID: 3, Opcode: ib.WRRegMR, RKey: r.RKey(), Bind: b})
			w.a.q.SQ.SetBind(nil, r, b)
		}},
	} {
		w := newWorld(t, bindable())
		w.a.push(w.a.write(1, 0, 64, 3000))
		c.push(w)
		w.a.push(w.a.write(4, 0, 4096, 8))
		w.a.push(inv(5, 0, 0))
		w.a.kick()
		w.run(0)
		w.want(c.name, wcs(w.a.scq), "1:success 2:success 3:"+bindFailed+" 4:"+flushed+" 5:"+flushed)
		w.want(c.name, w.a.q.State, ib.QPStateErr)
		w.idle()
	}
}

// In the state SQD nothing starts, local operations neither.
func TestLocalOperationsRestInSQD(t *testing.T) {
	w := newWorld(t, bindable())
	win := w.a.window(ib.MWType2)
	w.a.to(ib.QPStateSQD)
	w.a.pushBind(1, win, win.RKey(), 0, 64, ib.AccessRemoteRead, 0)
	w.a.kick()
	w.run(0)
	if w.a.valid(win) || wcs(w.a.scq) != "" {
		t.Error("bound in SQD")
	}
	w.a.to(ib.QPStateRTS)
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success")
	if !w.a.valid(win) {
		t.Error("not bound in RTS")
	}
}

// Windows are used over the wire with their own rights and bounds.
func TestAccessThroughWindow(t *testing.T) {
	for _, c := range []struct {
		name string
		a    ib.Access
		wr   func(w *world, key ib.RKey) driver.SendWR
		want string
	}{
		{"write", ib.AccessRemoteWrite, func(w *world, key ib.RKey) driver.SendWR { return through(w.a.write(1, 0, 100, 3000), key) }, "success"},
		{"read", ib.AccessRemoteRead, func(w *world, key ib.RKey) driver.SendWR { return through(w.a.read(1, 0, 100, 3000), key) }, "success"},
		{"atomic", ib.AccessRemoteAtomic, func(w *world, key ib.RKey) driver.SendWR {
			return through(w.a.atomicWR(1, ib.WRAtomicFetchAndAdd, 0, 104, 1, 0), key)
		}, "success"},
		{"write without the right", ib.AccessRemoteRead | ib.AccessRemoteAtomic, func(w *world, key ib.RKey) driver.SendWR { return through(w.a.write(1, 0, 100, 8), key) }, "remote access error"},
		{"read without the right", ib.AccessRemoteWrite | ib.AccessRemoteAtomic, func(w *world, key ib.RKey) driver.SendWR { return through(w.a.read(1, 0, 100, 8), key) }, "remote access error"},
		{"atomic without the right", ib.AccessRemoteWrite | ib.AccessRemoteRead, func(w *world, key ib.RKey) driver.SendWR {
			return through(w.a.atomicWR(1, ib.WRAtomicCmpAndSwp, 0, 104, 1, 0), key)
		}, "remote access error"},
		{"over the end", allRemote, func(w *world, key ib.RKey) driver.SendWR { return through(w.a.write(1, 0, 100, 3997), key) }, "remote access error"},
		{"before the start", allRemote, func(w *world, key ib.RKey) driver.SendWR { return through(w.a.read(1, 0, 99, 2), key) }, "remote access error"},
		{"old key", allRemote, func(w *world, key ib.RKey) driver.SendWR {
			return through(w.a.read(1, 0, 100, 2), key&^0xFF|(key-1)&0xFF)
		}, "remote access error"},
		{"no bytes under a garbage key", allRemote, func(w *world, key ib.RKey) driver.SendWR { return through(w.a.read(1, 0, 0, 0), 0xDEAD) }, "success"},
	} {
		w := newWorld(t, bindable())
		fill(w.a.buf[:4096], 1)
		fill(w.b.buf[:8192], 9)
		win := w.b.window(ib.MWType2)
		key := ib.IncRKey(win.RKey())
		w.b.pushBind(9, win, key, 100, 3996, c.a, 0)
		w.b.kick()
		w.a.post(c.wr(w, key))
		w.run(0)
		w.want(c.name, wcs(w.a.scq), "1:"+c.want)
		if c.name == "write" && !same(w.b.buf[100:3100], w.a.buf[:3000]) || c.name == "read" && !same(w.b.buf[100:3100], w.a.buf[:3000]) {
			t.Errorf("%s: other bytes", c.name)
		}
	}
}

// A window of type 2 serves the queue pair that bound it and no other.
func TestWindowOfOtherQueuePair(t *testing.T) {
	w := newWorld(t, bindable())
	win := w.b.window(ib.MWType2)
	if !w.b.tab.Bind(w.b.pd, w.b.q.Num+1, win, w.b.mr, win.RKey(), w.b.mr.Addr(), 64, allRemote) {
		t.Fatal("bind")
	}
	w.a.post(through(w.a.read(1, 0, 0, 8), win.RKey()))
	w.run(0)
	w.want("completion", wcs(w.a.scq), "1:remote access error")
}

func TestSendWithInvalidate(t *testing.T) {
	w := newWorld(t, bindable())
	win := w.b.window(ib.MWType2)
	w.b.pushBind(9, win, win.RKey(), 0, 4096, allRemote, 0)
	w.b.kick()
	w.b.recv(7, w.b.sge(8192, 64))
	w.a.post(through(w.a.write(1, 0, 0, 8), win.RKey()))
	w.a.post(w.a.sendInv(2, win.RKey(), 0))
	w.run(0)
	w.want("requests", wcs(w.a.scq), "1:success 2:success")
	got := poll(w.b.rcq)
	if len(got) != 1 || got[0].WRID != 7 || got[0].Status != ib.WCSuccess || got[0].Flags != ib.WCWithInv || got[0].InvalidatedRKey != win.RKey() {
		t.Errorf("receive: %+v", got)
	}
	if w.b.valid(win) {
		t.Error("the window is still bound")
	}
	// It may be bound again with the same key; then the peer uses it again.
	w.b.pushBind(10, win, win.RKey(), 0, 64, ib.AccessRemoteRead, 0)
	w.b.kick()
	w.a.post(through(w.a.read(3, 0, 0, 8), win.RKey()))
	w.run(0)
	w.want("bound again", wcs(w.a.scq), "3:success")
	w.want("binds", wcs(w.b.scq), "9:success 10:success")
	w.idle()
	// Once it is free, or of another queue pair, it is a bad key: class J.
	for _, q := range []ib.QPN{0, 1} {
		w := newWorld(t, bindable())
		win := w.b.window(ib.MWType2)
		if q != 0 && !w.b.tab.Bind(w.b.pd, w.b.q.Num+q, win, w.b.mr, win.RKey(), w.b.mr.Addr(), 64, allRemote) {
			t.Fatal("bind")
		}
		w.b.recv(7, w.b.sge(8192, 64))
		w.a.post(w.a.sendInv(2, win.RKey(), 0))
		w.run(0)
		w.want("bad key", wcs(w.a.scq), "2:transport retry counter exceeded")
		w.want("receive", wcs(w.b.rcq), "7:remote invalid request error")
	}
}

// A fast-registration region, of several pieces, is used by the peer, who takes
// it back with a SEND with invalidate.
func TestFastRegistrationOverTheWire(t *testing.T) {
	w := newWorld(t, bindable())
	const k = 4096
	off := int(-mem.Address(w.b.buf) & (k - 1))
	p := w.b.buf[off:]
	fill(p[:10*k], 3)
	r, err := w.b.tab.RegisterFast(w.b.pd, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.b.tab.Release(r) })
	list := [][]byte{p[100:k], p[5*k : 6*k], p[2*k : 3*k], p[8*k : 8*k+50]}
	if n, _, err := w.b.tab.Map(r, list, 0, k); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	key := ib.IncRKey(r.RKey())
	b := &driver.BindInfo{Access: allRemote | ib.AccessLocalWrite}
	w.b.push(driver.SendWR{WRID: 1, Opcode: ib.WRRegMR, RKey: key, Bind: b})
	w.b.q.SQ.SetBind(nil, r, b)
	w.b.kick()
	w.want("registration", wcs(w.b.scq), "1:success")
	read := w.a.read(1, 0, 0, int(r.Length()))
	read.RemoteAddr, read.RKey = r.Addr(), key
	w.a.post(read)
	w.run(0)
	w.want("read", wcs(w.a.scq), "1:success")
	var all []byte
	for _, s := range list {
		all = append(all, s...)
	}
	if !same(w.a.buf[:len(all)], all) {
		t.Error("read other bytes")
	}
	fill(w.a.buf[:len(all)], 77)
	write := w.a.write(2, 0, 0, len(all))
	write.RemoteAddr, write.RKey = r.Addr(), key
	w.a.post(write)
	// An atomic on the first word of the second piece.
	add := w.a.atomicWR(3, ib.WRAtomicFetchAndAdd, 60000, 0, 5, 0)
	add.RemoteAddr, add.RKey = (r.Addr()+k-100+7)&^7, key
	w.a.post(add)
	w.b.recv(7, w.b.sge(400<<10, 64))
	w.a.post(w.a.sendInv(4, key, 0))
	w.run(0)
	w.want("write, atomic, invalidate", wcs(w.a.scq), "2:success 3:success 4:success")
	at := 0
	for i, s := range list {
		from := 0
		if i == 1 {
			from = 16 // the atomic changed a word
		}
		if !same(s[from:], w.a.buf[at+from:at+len(s)]) {
			t.Errorf("piece %d: other bytes", i)
		}
		at += len(s)
	}
	w.a.post(read)
	w.run(0)
	w.want("after it was invalidated", wcs(w.a.scq), "1:remote access error")
}

// Row 6 for keys: a READ that is being answered when its key is invalidated ends
// in one error; with a fence the invalidation comes behind it.
func TestCase06_InvalidateUnderRead(t *testing.T) {
	for _, fence := range []bool{false, true} {
		o := bindable()
		o.mtu = ib.MTU256
		w := newWorld(t, o)
		win := w.b.window(ib.MWType2)
		w.b.pushBind(9, win, win.RKey(), 0, 64<<10, ib.AccessRemoteRead, 0)
		w.b.kick()
		w.b.recv(7, w.b.sge(100<<10, 64))
		flags := ib.SendFlags(0)
		if fence {
			flags = ib.SendFence
		}
		w.a.push(through(w.a.read(1, 0, 0, 64<<10), win.RKey())) // 256 responses: more than one go
		w.a.push(w.a.sendInv(2, win.RKey(), flags))
		w.a.push(w.a.write(3, 0, 0, 8))
		w.a.kick()
		w.run(0)
		want := "1:success 2:success 3:success"
		if !fence {
			want = "1:remote access error 2:" + flushed + " 3:" + flushed
		}
		w.want("completions", wcs(w.a.scq), want)
		if w.b.valid(win) {
			t.Error("the window is still bound")
		}
		if n := w.count(func(s *seen) bool { return s.from == w.a }); n > 10 {
			t.Errorf("%d packets of the requester", n)
		}
		if !fence {
			w.want("events", w.b.events[len(w.b.events)-1], ib.EventQPAccessErr)
		}
		w.idle()
	}
}

// An invalidation on the responder's own side ends a READ in the same way, a
// WRITE between two of its packets too.
func TestCase06_LocalInvalidateUnderTraffic(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRRDMAWrite} {
		w := newWorld(t, bindable())
		win := w.b.window(ib.MWType2)
		w.b.pushBind(9, win, win.RKey(), 0, 256<<10, allRemote, 0)
		w.b.kick()
		n := 0
		w.hook = func(s *seen, _ *roce.Packet) fate {
			if s.from == w.a && s.op != roce.OpRCAcknowledge {
				if n++; op == ib.WRRDMAWrite && n > 3 || op == ib.WRRDMARead && n > 1 {
					return hold
				}
			}
			return pass
		}
		wr := through(w.a.write(1, 0, 0, 200<<10), win.RKey())
		wr.Opcode = op
		w.a.post(wr)
		w.run(w.now + 1000)
		w.b.post(inv(10, win.RKey(), 0))
		w.hook = nil
		w.release()
		w.run(0)
		w.want(op.String(), wcs(w.a.scq), "1:remote access error")
		w.want("bind and invalidate", wcs(w.b.scq), "9:success 10:success")
	}
}

// Mapping, REG_MR and LOCAL_INV take nothing from the heap.
func TestLocalOperationsAllocateNothing(t *testing.T) {
	w := newWorld(t, bindable())
	w.mute = true
	r, err := w.a.tab.RegisterFast(w.a.pd, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.a.tab.Release(r) })
	b := &driver.BindInfo{Access: allRemote | ib.AccessLocalWrite}
	reg := driver.SendWR{Opcode: ib.WRRegMR, RKey: r.RKey(), Bind: b}
	var wc [4]driver.WC
	list := [][]byte{w.a.buf[:4096]}
	n := testing.AllocsPerRun(100, func() {
		if _, _, err := w.a.tab.Map(r, list, 0, 4096); err != nil {
			t.Fatal(err)
		}
		w.a.push(reg)
		w.a.q.SQ.SetBind(nil, r, b)
		w.a.push(inv(2, r.RKey(), 0))
		w.a.kick()
		if w.a.scq.Poll(wc[:]) != 2 || wc[1].Status != ib.WCSuccess {
			t.Fatal(wc)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
