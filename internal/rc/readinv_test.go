package rc

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// fastSink registers the first n bytes of the side's memory anew, for READs to fill.
func (s *side) fastSink(n int, access ib.Access) *mem.Region {
	s.w.t.Helper()
	r, err := s.tab.RegisterFast(s.pd, 256)
	if err != nil {
		s.w.t.Fatal(err)
	}
	s.w.t.Cleanup(func() { s.tab.Release(r) })
	if _, _, err := s.tab.Map(r, [][]byte{s.buf[:n]}, 0, 4096); err != nil {
		s.w.t.Fatal(err)
	}
	if !s.tab.FastRegister(s.pd, r, ib.IncRKey(r.RKey()), access) {
		s.w.t.Fatal("not registered")
	}
	return r
}

func (s *side) readInv(id uint64, r *mem.Region, from, n int) driver.SendWR {
	wr := s.read(id, 0, from, n)
	wr.Opcode, wr.InvalidateRKey = ib.WRReadWithInv, r.RKey()
	wr.SGList = []driver.SGE{{Addr: r.Addr(), Length: uint32(n), LKey: r.LKey()}}
	return wr
}

// usable reports whether work requests of the side may use the region now.
func (s *side) usable(r *mem.Region) bool {
	_, ok := s.tab.Local(s.pd, r.LKey(), r.Addr(), 1, true, nil)
	return ok
}

// A READ with invalidate: the bytes are there, on the wire it is a READ, and with
// its completion the key is good for nothing, not before, also when packets are
// lost, doubled, or late.
func TestReadWithInvalidate(t *testing.T) {
	const n = 150 << 10
	for what, hook := range map[string]func(n *int) fate{
		"clean": func(*int) fate { return pass },
		"lost":  func(n *int) fate { *n++; return map[bool]fate{true: drop, false: pass}[*n%29 == 7] },
		"twice": func(*int) fate { return dup },
	} {
		w := newWorld(t, defaults())
		fill(w.b.buf[:n], 3)
		r := w.a.fastSink(n, ib.AccessLocalWrite)
		k := 0
		w.hook = func(s *seen, _ *roce.Packet) fate {
			if s.op == roce.OpRCReadRespLast && s.from == w.b && !w.a.usable(r) && len(w.a.events) == 0 && w.a.scq.Len() == 0 {
				t.Errorf("%s: invalidated before the last response", what)
			}
			return hook(&k)
		}
		w.a.post(w.a.readInv(1, r, 0, n))
		w.run(0)
		got := poll(w.a.scq)
		if len(got) != 1 || got[0].Status != ib.WCSuccess || got[0].Opcode != ib.WCRDMARead || got[0].ByteLen != n || got[0].WRID != 1 {
			t.Errorf("%s: %+v", what, got)
		}
		if !same(w.a.buf[:n], w.b.buf[:n]) {
			t.Errorf("%s: other bytes", what)
		}
		if w.a.usable(r) {
			t.Errorf("%s: the key is still good", what)
		}
		if c := w.count(func(s *seen) bool { return s.from == w.a && s.op != roce.OpRCReadRequest }); c != 0 {
			t.Errorf("%s: %d packets are no READ requests", what, c)
		}
		// The region can be registered again, and the queue pair goes on.
		if !w.a.tab.FastRegister(w.a.pd, r, ib.IncRKey(r.RKey()), ib.AccessLocalWrite) {
			t.Errorf("%s: not free", what)
		}
		w.a.post(w.a.readInv(2, r, 10, 100))
		w.run(0)
		w.want(what+", again", wcs(w.a.scq), "2:success")
		w.idle()
	}
}

// A key that cannot be invalidated ends the queue pair, and the completion says why.
// A READ that fails invalidates nothing.
func TestReadWithInvalidateFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *world, wr *driver.SendWR, r *mem.Region)
		status ib.WCStatus
		code   ib.VendorErr
		keeps  bool
	}{
		{"no such key", func(_ *world, wr *driver.SendWR, _ *mem.Region) { wr.InvalidateRKey ^= 1 }, ib.WCMWBindErr, ib.VendorErrInvKey, true},
		{"plain region", func(w *world, wr *driver.SendWR, _ *mem.Region) { wr.InvalidateRKey = w.a.mr.RKey() }, ib.WCMWBindErr, ib.VendorErrInvKind, true},
		{"refused by the peer", func(_ *world, wr *driver.SendWR, _ *mem.Region) { wr.RKey ^= 1 }, ib.WCRemAccessErr, 0, true},
		{"other key", func(w *world, wr *driver.SendWR, r *mem.Region) {
			wr.SGList = []driver.SGE{w.a.sge(0, 100)}
		}, ib.WCSuccess, 0, false},
	} {
		w := newWorld(t, defaults())
		r := w.a.fastSink(4096, ib.AccessLocalWrite)
		wr := w.a.readInv(1, r, 0, 100)
		c.change(w, &wr, r)
		w.a.push(wr)
		w.a.post(w.a.write(2, 0, 0, 8))
		w.run(0)
		got := poll(w.a.scq)
		if len(got) != 2 || got[0].Status != c.status || ib.VendorErr(got[0].VendorErr) != c.code {
			t.Errorf("%s: %+v", c.name, got)
		}
		if (got[1].Status == ib.WCWRFlushErr) != (c.status != ib.WCSuccess) {
			t.Errorf("%s: then %v", c.name, got[1].Status)
		}
		if w.a.usable(r) != c.keeps {
			t.Errorf("%s: usable %v", c.name, !c.keeps)
		}
	}
}

// Where READs need remote write of what they fill, a key without it is refused
// before anything is sent.
func TestReadSinkNeedsRemoteWrite(t *testing.T) {
	w := newWorld(t, defaults())
	w.a.q.SinkRemoteWrite = true
	plain := w.a.register(make([]byte, 64), ib.AccessLocalWrite)
	w.a.post(w.a.read(1, 0, 0, 64)) // has all rights
	w.run(0)
	w.want("with the right", wcs(w.a.scq), "1:success")
	sent := len(w.log)
	wr := w.a.read(2, 0, 0, 8)
	wr.SGList = append(wr.SGList, driver.SGE{Addr: plain.Addr(), Length: 8, LKey: plain.LKey()})
	w.a.post(wr)
	w.run(0)
	got := poll(w.a.scq)
	if len(got) != 1 || got[0].Status != ib.WCLocProtErr || ib.VendorErr(got[0].VendorErr) != ib.VendorErrReadSink {
		t.Errorf("%+v", got)
	}
	if len(w.log) != sent {
		t.Error("something was sent")
	}
	if queue.Local(ib.WRReadWithInv) {
		t.Error("a READ is no local operation")
	}
}
