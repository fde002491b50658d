package ud

import (
	"slices"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// sendTo is a send request that reaches b on either service.
func (r *rig) sendTo(id uint64, sge ...driver.SGE) driver.SendWR {
	return driver.SendWR{
		WRID: id, Opcode: ib.WRSend, SGList: sge, Flags: ib.SendSignaled,
		AH: &handle{r.a.flow}, RemoteQPN: numB, RemoteQKey: testQKey,
	}
}

func bothServices(t *testing.T, f func(t *testing.T, r *rig)) {
	for _, typ := range []ib.QPType{ib.UC, ib.UD} {
		t.Run(typ.String(), func(t *testing.T) { f(t, newRig(t, typ, 1024)) })
	}
}

// A send that fails moves the queue pair to SQE: it gets its error, what is
// behind it and what is posted then is flushed, receives go on, and after a
// modify to RTS sends work again (IBA 10.3.1.6).
func TestSQE(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		bad := r.a.sge(0, 100)
		bad.LKey ^= 0x100
		unsignaled := r.sendTo(3, r.a.sge(0, 10))
		unsignaled.Flags = 0
		r.recv(r.b, 2048, 2048)
		r.recv(r.a, 2048)
		r.post(r.a, r.sendTo(1, r.a.sge(0, 500)), r.sendTo(2, bad), unsignaled, r.sendTo(4, r.a.sge(0, 10)))
		if r.a.q.State != ib.QPStateSQE {
			t.Fatalf("state %v", r.a.q.State)
		}
		r.post(r.a, r.sendTo(5, r.a.sge(0, 10)))
		r.wantWCs("sends", polled(r.a.scq), ended{1, 0}, ended{2, ib.WCLocProtErr}, ended{3, ib.WCWRFlushErr},
			ended{4, ib.WCWRFlushErr}, ended{5, ib.WCWRFlushErr})
		r.pump()
		r.wantWCs("peer", polled(r.b.rcq), ended{1, 0})

		back := r.sendTo(1, r.b.sge(0, 10))
		back.AH, back.RemoteQPN = &handle{r.b.flow}, numA
		r.post(r.b, back)
		r.pump()
		r.wantWCs("receive in SQE", polled(r.a.rcq), ended{1, 0})

		r.a.modify(r, ib.QPStateRTS, 0)
		r.post(r.a, r.sendTo(6, r.a.sge(0, 10)))
		r.wantWCs("after SQE", polled(r.a.scq), ended{6, 0})
		r.pump()
		r.wantWCs("peer after SQE", polled(r.b.rcq), ended{2, 0})
		if r.env.Stats.OutOfSeq != 0 {
			t.Error("PSNs of packets that were never sent are missing")
		}
	})
}

// A message that fails half way ends there; the rest never comes.
func TestUCFailsHalfWay(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	bad := r.a.sge(0, 100)
	bad.LKey ^= 0x100
	r.recv(r.b, 2048)
	r.post(r.a, r.sendTo(1, r.a.sge(0, 600), bad))
	r.wantWCs("send", polled(r.a.scq), ended{1, ib.WCLocProtErr})
	if got, want := r.ops(), []roce.Opcode{roce.OpUCSendFirst, roce.OpUCSendMiddle}; !slices.Equal(got, want) {
		t.Errorf("sent %v", got)
	}
	r.pump()
	r.a.modify(r, ib.QPStateRTS, 0)
	r.post(r.a, r.sendTo(2, r.a.sge(0, 600)))
	r.pump()
	wcs := polled(r.b.rcq)
	r.wantWCs("peer", wcs, ended{1, 0})
	if wcs[0].ByteLen != 600 {
		t.Errorf("%d bytes", wcs[0].ByteLen)
	}
}

// A completion gives the memory back, so it must not be there before the batch
// that refers to the memory has left.
func TestCompletionAfterSend(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		r.onSend = func() {
			if r.a.scq.Len() != 0 {
				t.Error("a completion is there before its packet was sent")
			}
		}
		r.post(r.a, r.sendTo(1, r.a.sge(0, 700)), r.sendTo(2, r.a.sge(0, 700)), r.sendTo(3, r.a.sge(0, 700)))
		if r.sends != 1 || r.a.scq.Len() != 3 {
			t.Errorf("%d batches, %d completions", r.sends, r.a.scq.Len())
		}
		// An error behind them waits for them too.
		bad := r.a.sge(0, 100)
		bad.LKey ^= 0x100
		polled(r.a.scq)
		r.post(r.a, r.sendTo(4, r.a.sge(0, 700)), r.sendTo(5, bad))
		r.wantWCs("sends", polled(r.a.scq), ended{4, 0}, ended{5, ib.WCLocProtErr})
	})
}

// Unsignaled requests make no completion; all of them give back their place.
func TestUnsignaled(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		for range 3 * r.a.q.SQ.Cap() {
			wr := r.sendTo(1, r.a.sge(0, 8))
			wr.Flags = 0
			r.post(r.a, wr)
		}
		if r.a.scq.Len() != 0 || r.a.q.SQ.Len() != 0 {
			t.Errorf("%d completions, %d requests left", r.a.scq.Len(), r.a.q.SQ.Len())
		}
	})
}

func TestInline(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		for _, n := range []int{0, 1, 256, 257, 512} {
			data := make([]byte, n)
			pattern(data, 1)
			r.recv(r.b, 1024)
			wr := r.sendTo(1)
			wr.Flags |= ib.SendInline
			wr.InlineData = data
			r.post(r.a, wr)
			r.pump()
			wcs := polled(r.b.rcq)
			off := 0
			if r.b.q.Type == ib.UD {
				off = roce.GRHLen
			}
			if len(wcs) != 1 || int(wcs[0].ByteLen) != off+n || !slices.Equal(r.b.got(wcs[0].WRID, off+n)[off:], data) {
				t.Errorf("%d bytes inline: %+v", n, wcs)
			}
		}
	})
}

// Work is bounded: a long message leaves in pieces, with rests in which the
// receiver can read, and nothing is lost or sent twice.
func TestUCLongMessage(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	wr := r.sendTo(1, r.a.sge(0, 120_000))
	wr.Opcode, wr.RemoteAddr, wr.RKey = ib.WRRDMAWrite, r.b.mr.Addr(), r.b.mr.RKey()
	pattern(r.a.buf[:120_000], 9)
	r.post(r.a, wr, r.sendTo(2, r.a.sge(0, 4)))
	r.recv(r.b, 10)
	total := 0
	for rounds := 0; r.a.scq.Len() < 2; rounds++ {
		if len(r.wire) > pacePkts || rounds > 100 {
			t.Fatalf("%d packets at once, %d rounds", len(r.wire), rounds)
		}
		total += len(r.wire)
		r.pump()
		at := r.a.svc.Deadline()
		if at <= r.env.Now {
			t.Fatalf("no deadline in the middle of a message, or one that has passed: %d at %d", at, r.env.Now)
		}
		r.env.Now = at - 1
		r.a.svc.Timer(&r.env)
		r.settle()
		if len(r.wire) != 0 {
			t.Fatal("the timer fired early")
		}
		r.env.Now = at
		r.a.svc.Timer(&r.env)
		r.settle()
	}
	total += len(r.wire)
	r.pump()
	if want := (120_000+255)/256 + 1; total != want {
		t.Errorf("%d packets, want %d", total, want)
	}
	r.wantWCs("sends", polled(r.a.scq), ended{1, 0}, ended{2, 0})
	r.wantWCs("receive", polled(r.b.rcq), ended{1, 0})
	if !slices.Equal(r.a.buf[:120_000], r.b.buf[:120_000]) {
		t.Error("content differs")
	}
	if r.a.svc.Deadline() != 0 {
		t.Error("a deadline is left")
	}
}

// Nobody acknowledges UC's packets, so it does not probe whether a path keeps the
// identifications of segmentation; it uses what others found out.
func TestUCSegmentation(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	var segs int
	r.onSend = func() {
		segs = 0
		for _, m := range r.env.Tx.Msgs {
			segs = max(segs, m.Segs)
		}
	}
	r.a.q.Dest = transport.NewDest(r.a.flow.Dst(), transport.GSOUnknown)
	for _, c := range []struct {
		state transport.GSOState
		want  int
	}{{transport.GSOUnknown, 1}, {transport.GSOOn, 8}, {transport.GSOOff, 1}} {
		r.a.q.Dest.GSO = c.state
		// FIRST of a WRITE is longer and ends with the packet behind it; seven follow,
		// and the short SEND is the eighth.
		wr := r.sendTo(1, r.a.sge(0, 9*256))
		wr.Opcode = ib.WRRDMAWrite
		r.post(r.a, wr, r.sendTo(2, r.a.sge(0, 8)))
		if segs != c.want {
			t.Errorf("state %d: %d segments in one send, want %d", c.state, segs, c.want)
		}
		r.env.Now += paceTime
	}
}

// One Post is bounded for UD too; the rest waits in Ready.
func TestUDBoundedPost(t *testing.T) {
	r := newRig(t, ib.UD, 1024)
	q := r.a.q
	for i := 0; i < q.SQ.Cap(); i++ {
		wr := r.sendTo(uint64(i))
		if q.SQ.Push(&wr) == nil {
			t.Fatal("full")
		}
	}
	r.a.svc.Post(&r.env)
	if q.SQ.Cap() > postPackets {
		t.Fatal("the queue is longer than a Post")
	}
	r.settle()
	if len(r.wire) != q.SQ.Cap() || q.SQ.Len() != 0 {
		t.Errorf("%d packets, %d requests left", len(r.wire), q.SQ.Len())
	}
}

// In SQD what has begun is finished and nothing starts; SQ_DRAINED comes once,
// when asked for.
func TestSQD(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		r.a.q.Attr.EnSQDAsyncNotify = true
		r.a.modify(r, ib.QPStateSQD, ib.QPAttrEnSQDAsyncNotify)
		if !slices.Equal(r.a.events, []ib.EventType{ib.EventSQDrained}) {
			t.Errorf("events %v", r.a.events)
		}
		r.post(r.a, r.sendTo(1, r.a.sge(0, 8)))
		if len(r.wire) != 0 || r.a.scq.Len() != 0 {
			t.Error("something was sent in SQD")
		}
		r.a.modify(r, ib.QPStateRTS, 0)
		r.wantWCs("in RTS again", polled(r.a.scq), ended{1, 0})
		r.a.modify(r, ib.QPStateSQD, 0)
		if len(r.a.events) != 1 {
			t.Errorf("events %v without notification", r.a.events)
		}
	})
}

func TestUCDrainHalfSent(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	r.post(r.a, r.sendTo(1, r.a.sge(0, 300*256)), r.sendTo(2, r.a.sge(0, 8)))
	r.a.q.Attr.EnSQDAsyncNotify = true
	r.a.modify(r, ib.QPStateSQD, ib.QPAttrEnSQDAsyncNotify)
	if len(r.a.events) != 0 || !r.a.q.Attr.SQDraining {
		t.Fatalf("events %v, draining %v with a message half sent", r.a.events, r.a.q.Attr.SQDraining)
	}
	r.env.Now = r.a.svc.Deadline()
	r.a.svc.Timer(&r.env)
	r.settle()
	r.wantWCs("in SQD", polled(r.a.scq), ended{1, 0})
	if !slices.Equal(r.a.events, []ib.EventType{ib.EventSQDrained}) || r.a.q.Attr.SQDraining || len(r.wire) != 300 {
		t.Errorf("events %v, %d packets", r.a.events, len(r.wire))
	}
	r.env.Now += paceTime
	r.a.modify(r, ib.QPStateRTS, 0)
	r.wantWCs("in RTS", polled(r.a.scq), ended{2, 0})
}

// A rest that ends while nothing may start leaves no deadline behind.
func TestUCDrainDuringRest(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	r.post(r.a, r.sendTo(1, r.a.sge(0, pacePkts*256)), r.sendTo(2, r.a.sge(0, 8)))
	r.wantWCs("before the rest", polled(r.a.scq), ended{1, 0})
	r.a.modify(r, ib.QPStateSQD, 0)
	r.env.Now = r.a.svc.Deadline()
	r.a.svc.Timer(&r.env)
	r.settle()
	if d := r.a.svc.Deadline(); d != 0 {
		t.Errorf("deadline %d at %d", d, r.env.Now)
	}
	r.a.modify(r, ib.QPStateRTS, 0)
	r.wantWCs("in RTS", polled(r.a.scq), ended{2, 0})
}

// ERR flushes everything once; RESET forgets it without completions.
func TestErrAndReset(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		r.a.modify(r, ib.QPStateSQD, 0)
		r.post(r.a, r.sendTo(1, r.a.sge(0, 8)), r.sendTo(2, r.a.sge(0, 8)))
		r.recv(r.a, 100, 100)
		r.a.modify(r, ib.QPStateErr, 0)
		r.wantWCs("sends", polled(r.a.scq), ended{1, ib.WCWRFlushErr}, ended{2, ib.WCWRFlushErr})
		r.wantWCs("receives", polled(r.a.rcq), ended{1, ib.WCWRFlushErr}, ended{2, ib.WCWRFlushErr})
		r.recv(r.a, 100)
		r.post(r.a, r.sendTo(3, r.a.sge(0, 8)))
		r.wantWCs("sends in ERR", polled(r.a.scq), ended{3, ib.WCWRFlushErr})
		r.wantWCs("receives in ERR", polled(r.a.rcq), ended{3, ib.WCWRFlushErr})

		r.a.modify(r, ib.QPStateReset, 0)
		r.a.connect(r)
		r.a.modify(r, ib.QPStateSQD, 0)
		r.recv(r.a, 100)
		r.post(r.a, r.sendTo(4, r.a.sge(0, 8)))
		r.a.modify(r, ib.QPStateReset, 0)
		if r.a.scq.Len()+r.a.rcq.Len() != 0 || r.a.q.SQ.Len()+r.a.q.RQ.Len() != 0 {
			t.Error("RESET completes something, or forgets nothing")
		}
		r.a.connect(r)
		r.post(r.a, r.sendTo(5, r.a.sge(0, 8)))
		r.wantWCs("after RESET", polled(r.a.scq), ended{5, 0})
		if h := roce.BTH(r.wire[0].b); h.PSN() != 0x123456 {
			t.Errorf("PSN %#x after RESET", h.PSN())
		}
	})
}

// A receive request with a bad key completes in error and takes the queue pair
// with it: the fault is the receiver's own.
func TestBadReceive(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		bad := r.b.sge(0, 1000)
		bad.LKey ^= 0x100
		if _, err := r.b.q.RQ.Post([]driver.RecvWR{{WRID: 77, SGList: []driver.SGE{bad}}}); err != nil {
			t.Fatal(err)
		}
		r.recv(r.b, 1000)
		r.post(r.a, r.sendTo(1, r.a.sge(0, 8)))
		r.pump()
		r.wantWCs("receives", polled(r.b.rcq), ended{77, ib.WCLocProtErr}, ended{1, ib.WCWRFlushErr})
		if r.b.q.State != ib.QPStateErr {
			t.Errorf("state %v", r.b.q.State)
		}
	})
}

// Opcodes that the service does not have end in LOC_QP_OP_ERR, should they get
// past the check of the post.
func TestWrongOpcode(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		wr := r.sendTo(1, r.a.sge(0, 8))
		wr.Opcode = ib.WRRDMARead
		r.post(r.a, wr)
		r.wantWCs("sends", polled(r.a.scq), ended{1, ib.WCLocQPOpErr})
	})
}

func TestNoAllocations(t *testing.T) {
	bothServices(t, func(t *testing.T, r *rig) {
		r.recv(r.b, 2000)
		r.post(r.a, r.sendTo(1, r.a.sge(0, 800)))
		first := r.wire[0]
		r.pump()
		polled(r.a.scq)
		polled(r.b.rcq)
		send := r.env.Tx.Reset
		r.env.Send = send
		wr := r.sendTo(1, r.a.sge(0, 800))
		rx := driver.RecvWR{WRID: 1, SGList: []driver.SGE{r.b.sge(0, 2000)}}
		rxs := []driver.RecvWR{rx}
		var p transport.Packet
		if err := roce.Parse(first.b, &p.Packet); err != nil {
			t.Fatal(err)
		}
		d := newDatagram(first)
		p.Dgram = &d
		var wcs [4]driver.WC
		n := testing.AllocsPerRun(100, func() {
			r.env.Now += paceTime
			r.a.q.SQ.Push(&wr)
			r.a.svc.Post(&r.env)
			if _, err := r.b.q.RQ.Post(rxs); err != nil {
				t.Fatal(err)
			}
			r.b.svc.Packet(&r.env, &p)
			if r.a.scq.Poll(wcs[:]) != 1 || r.b.rcq.Poll(wcs[:]) != 1 {
				t.Fatal("no completion")
			}
		})
		if n != 0 {
			t.Errorf("%v allocations for a message", n)
		}
	})
}
