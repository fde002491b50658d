package rc

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

func TestDuplicateSendIsNotExecuted(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.b.recv(1, w.b.sge(0, 8))
	w.b.recv(2, w.b.sge(0, 8))
	w.hook = func(s *seen, _ *roce.Packet) fate {
		if s.from == w.a {
			return dup
		}
		return pass
	}
	w.a.push(w.a.sendWR(1, 0, 8))
	w.a.push(w.a.write(2, 0, 100, 8))
	w.a.kick()
	w.run(0)
	w.want("receives", wcs(w.b.rcq), "1:success")
	w.want("one ACK", w.ops(w.b, o.psn), "1F@1")
	w.want("duplicates", w.b.env.Stats.DuplicateReq, 2)
	// A batch of nothing but duplicates is acknowledged once, with the newest PSN.
	w.log = nil
	for range 3 {
		w.b.inject(roce.OpRCSendOnly, o.psn, true, make([]byte, 8), nil)
	}
	w.run(0)
	w.want("one ACK", w.ops(w.b, o.psn), "1F@1")
	w.want("receives", wcs(w.b.rcq), "")
	w.idle()
}

func TestReadReplay(t *testing.T) {
	o := defaults()
	o.rd = 2
	w := newWorld(t, o)
	fill(w.b.buf, 1)
	w.a.post(w.a.read(1, 0, 0, 4000))
	w.run(0)
	va, key := w.b.mr.Addr(), w.b.mr.RKey()
	ask := func(p uint32, va uint64, key ib.RKey, n uint32) string {
		w.log = nil
		w.b.inject(roce.OpRCReadRequest, o.psn+p, true, nil, reth(va, key, n))
		w.run(0)
		return w.ops(w.b, o.psn)
	}
	w.want("all", ask(0, va, key, 4000), "RDMA_READ_RESPONSE_FIRST@0 RDMA_READ_RESPONSE_MIDDLE@1 RDMA_READ_RESPONSE_MIDDLE@2 RDMA_READ_RESPONSE_LAST@3")
	w.want("tail", ask(2, va+2048, key, 4000-2048), "RDMA_READ_RESPONSE_FIRST@2 RDMA_READ_RESPONSE_LAST@3")
	w.want("part", ask(1, va+1024, key, 10), "RDMA_READ_RESPONSE_ONLY@1")
	w.want("whole again", ask(3, va+3072, key, 4000-3072), "RDMA_READ_RESPONSE_ONLY@3")
	w.want("VA does not fit", ask(1, va, key, 10), "")
	w.want("too long", ask(1, va+1024, key, 4000), "")
	w.want("other key", ask(0, va, key^0x100, 4000), "")
	w.want("dropped", w.b.env.Stats.DropDuplicate, 3)
	w.want("state", w.b.q.State, ib.QPStateRTS)
	// Two newer ones overwrite it.
	w.a.push(w.a.read(2, 0, 0, 8))
	w.a.push(w.a.read(3, 0, 0, 8))
	w.a.kick()
	w.run(0)
	w.want("forgotten", ask(0, va, key, 4000), "")
	w.want("still there", ask(4, va, key, 8), "RDMA_READ_RESPONSE_ONLY@4")
}

func TestAtomicReplay(t *testing.T) {
	o := defaults()
	o.rd = 2
	w := newWorld(t, o)
	for i := range 3 {
		w.a.push(w.a.atomicWR(uint64(i), ib.WRAtomicFetchAndAdd, 0, 0, 1, 0))
	}
	w.a.kick()
	w.run(0)
	ask := func(p uint32) string {
		w.log = nil
		w.b.inject(roce.OpRCFetchAdd, o.psn+p, true, nil, func(h []byte, i *roce.OpInfo) {
			roce.AtomicETH(h[i.AtomicETH:]).Put(w.b.mr.Addr(), uint32(w.b.mr.RKey()), 1, 0)
		})
		w.run(0)
		return w.ops(w.b, o.psn)
	}
	w.want("overwritten: silence", ask(0), "")
	w.want("dropped", w.b.env.Stats.DropDuplicate, 1)
	w.want("saved", ask(1), "ATOMIC_ACKNOWLEDGE@1")
	w.want("saved", ask(2), "ATOMIC_ACKNOWLEDGE@2")
	w.want("executed three times", w.b.buf[0], 3)
}

// 100 response packets take two turns. What comes meanwhile waits its turn.
func streaming(t *testing.T, o options) *world {
	o.mtu = ib.MTU256
	w := newWorld(t, o)
	fill(w.b.buf[:25_600], 1)
	w.a.post(w.a.read(1, 300_000, 0, 25_600))
	w.wire[0].deliver()
	w.wire = nil
	w.want("in the first turn", w.b.env.Tx.Packets, streamBudget)
	w.want("asks for more", len(w.b.env.Ready), 1)
	return w
}

func TestAckWaitsBehindReadResponse(t *testing.T) {
	o := defaults()
	w := streaming(t, o)
	w.a.push(w.a.write(2, 0, 0, 8))
	w.a.push(w.a.atomicWR(3, ib.WRAtomicFetchAndAdd, 0, 26_000, 1, 0))
	w.a.push(w.a.write(4, 0, 0, 8))
	w.a.kick()
	for i := range w.wire {
		w.wire[i].deliver()
	}
	w.wire = nil
	w.b.qp.Ack(&w.b.env)
	w.want("deferred", w.b.env.Stats.AckDeferred, 1)
	w.run(0)
	var psns []uint32
	for _, s := range w.log {
		if s.from == w.b {
			psns = append(psns, (s.psn-o.psn)&0xFFFFFF)
		}
	}
	w.want("responses", len(psns), 102)
	for i := 1; i < len(psns); i++ {
		if psns[i] < psns[i-1] {
			t.Errorf("PSN %d after %d", psns[i], psns[i-1])
		}
	}
	w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success 4:success")
	w.want("retransmits", w.a.env.Stats.Retransmits, 0)
	// The READ was answered partly before, partly after the WRITE: the memory
	// that the WRITE changed had left before.
	w.idle()
}

func TestNAKWaitsBehindReadResponse(t *testing.T) {
	for _, fatal := range []bool{false, true} {
		o := defaults()
		w := streaming(t, o)
		wr := w.a.sendWR(2, 0, 8)
		want := "2C@100"
		if fatal {
			wr = w.a.write(2, 0, 0, 8)
			wr.RKey ^= 0x100
			want = "62@100"
		}
		w.a.post(wr)
		w.b.inject(roce.OpRCWriteOnly, o.psn+101, true, nil, reth(0, 0, 0))
		w.wire[0].deliver()
		w.wire[1].deliver() // nothing is said about what comes behind
		w.wire = nil
		w.run(w.now + 1)
		last := w.log[len(w.log)-1]
		w.log = []seen{last}
		w.want("last", w.ops(w.b, o.psn), want)
		w.want("READ", same(w.a.buf[300_000:325_600], w.b.buf[:25_600]), true)
		if fatal {
			w.want("completions", wcs(w.a.scq), "1:success 2:remote access error")
			w.want("events", w.b.events, []ib.EventType{ib.EventQPAccessErr})
			w.idle()
		} else {
			w.want("completions", wcs(w.a.scq), "1:success")
		}
	}
}

// A NAK that waits is not sent any more when the packet that it asks for comes.
func TestWaitingNAKIsWithdrawn(t *testing.T) {
	o := defaults()
	w := streaming(t, o)
	w.b.inject(roce.OpRCWriteOnly, o.psn+101, true, nil, reth(0, 0, 0))
	w.b.inject(roce.OpRCWriteOnly, o.psn+100, true, nil, reth(0, 0, 0))
	w.wire[0].deliver()
	w.want("waits", w.b.qp.rsp.pending, outOfOrder)
	w.wire[1].deliver()
	w.wire = nil
	w.run(w.now + 1)
	w.log = w.log[len(w.log)-1:]
	w.want("last", w.ops(w.b, o.psn), "1F@100")
	w.want("NAKs", w.b.env.Stats.SentSeqNAK, 0)
}

func TestCase06_MemoryGoesDuringRead(t *testing.T) {
	o := defaults()
	w := streaming(t, o)
	w.a.push(w.a.write(2, 0, 0, 8))
	w.a.kick()
	if err := w.b.tab.Remove(w.b.mr); err != nil {
		t.Fatal(err)
	}
	start := w.now
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:remote access error 2:"+flushed)
	last := w.log[len(w.log)-1]
	w.want("NAK", last.syn, roce.NAKRemAccess)
	w.want("NAK's PSN", last.psn, (o.psn+streamBudget)&0xFFFFFF)
	w.want("events", w.b.events, []ib.EventType{ib.EventQPAccessErr})
	w.want("states", [2]ib.QPState{w.a.q.State, w.b.q.State}, [2]ib.QPState{ib.QPStateErr, ib.QPStateErr})
	w.want("packets", len(w.log), 1+streamBudget+1+1)
	w.want("time", w.now, start)
	w.idle()
}

// rdma_rxe names the PSN of the request.
func TestCase06_NAKWithPSNOfTheRequest(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.hook = dropNth(0, func(s *seen) bool { return s.from == w.b && s.psn == (o.psn+3)&0xFFFFFF })
	w.a.push(w.a.read(1, 0, 0, 4000))
	w.a.push(w.a.write(2, 0, 0, 8))
	w.a.kick()
	w.wire[0].deliver()
	w.wire = nil
	w.b.env.Send()
	for i := range w.wire {
		w.wire[i].deliver()
	}
	w.wire = nil
	w.want("three responses", uint32(w.a.qp.req.una), (o.psn+3)&0xFFFFFF)
	w.a.inject(roce.OpRCAcknowledge, o.psn-1, false, nil, aeth(roce.NAKRemAccess)) // stale
	w.a.inject(roce.OpRCAcknowledge, o.psn, false, nil, aeth(roce.AckNoCredit))    // stale
	w.a.inject(roce.OpRCAcknowledge, o.psn, false, nil, aeth(roce.NAKRemAccess))
	w.run(w.now + 1)
	w.want("stale", w.a.env.Stats.DropStale, 2)
	w.want("completions", wcs(w.a.scq), "1:remote access error 2:"+flushed)
}

func TestTooManyReadsOutstanding(t *testing.T) {
	o := defaults()
	o.rd = 1
	w := streaming(t, o)
	w.b.inject(roce.OpRCReadRequest, o.psn+100, true, nil, reth(w.b.mr.Addr(), w.b.mr.RKey(), 8))
	w.wire[0].deliver()
	w.wire = nil
	w.run(w.now + 1)
	last := w.log[len(w.log)-1]
	w.want("NAK", last.syn, roce.NAKInvReq)
	w.want("events", w.b.events, []ib.EventType{ib.EventQPReqErr})
}

// A replay that is under way gives its entry to a new request: the peer must
// have got the answer from the first time.
func TestReplayGivesWay(t *testing.T) {
	o := defaults()
	o.rd = 1
	w := streaming(t, o)
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success")
	w.b.inject(roce.OpRCReadRequest, o.psn, true, nil, reth(w.b.mr.Addr(), w.b.mr.RKey(), 25_600))
	w.wire[0].deliver()
	w.wire = nil
	w.want("replay under way", w.b.qp.rsp.fifoLen, 1)
	w.a.post(w.a.read(2, 0, 0, 100))
	w.wire[0].deliver()
	w.wire = nil
	w.want("given up", w.b.qp.rsp.fifoLen, 0)
	w.run(0)
	w.want("completions", wcs(w.a.scq), "2:success")
	w.want("state", w.b.q.State, ib.QPStateRTS)
	w.idle()
}

// A request that repeats a READ which is being answered starts it over from
// the PSN that it names.
func TestRepeatedWhileAnswered(t *testing.T) {
	o := defaults()
	w := streaming(t, o)
	w.b.env.Tx.Reset() // the first responses get lost
	w.b.inject(roce.OpRCReadRequest, o.psn+10, true, nil, reth(w.b.mr.Addr()+2560, w.b.mr.RKey(), 25_600-2560))
	w.b.inject(roce.OpRCReadRequest, o.psn, true, nil, reth(w.b.mr.Addr(), w.b.mr.RKey(), 25_600))
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success")
	w.want("READ", same(w.a.buf[300_000:325_600], w.b.buf[:25_600]), true)
	w.want("no timeout", w.a.env.Stats.LocalTimeouts, 0)
	w.idle()
}

// READ and WRITE of the same bytes in one batch: the response must leave before
// the bytes change, or its ICRC would be wrong.
func TestWriteBehindReadOfSameBytes(t *testing.T) {
	w := newWorld(t, defaults())
	fill(w.a.buf[:4096], 9)
	fill(w.b.buf[:4096], 1)
	old := append([]byte{}, w.b.buf[:4096]...)
	w.a.push(w.a.read(1, 100_000, 0, 4096))
	w.a.push(w.a.write(2, 0, 0, 4096))
	w.a.kick()
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.want("READ", same(w.a.buf[100_000:104_096], old), true)
	w.want("timeouts", w.a.env.Stats.LocalTimeouts, 0)
	w.idle()
}

func TestResetForgets(t *testing.T) {
	o := defaults()
	w := streaming(t, o)
	w.a.push(w.a.write(2, 0, 0, 8))
	w.a.kick()
	w.b.recv(1)
	w.a.to(ib.QPStateReset)
	w.b.to(ib.QPStateReset)
	w.wire = nil
	w.a.env.Tx.Reset()
	w.b.env.Tx.Reset()
	w.run(0)
	w.want("no completions", wcs(w.a.scq)+wcs(w.b.rcq), "")
	w.idle()
	o.psn = 77
	w.a.connect(o, 77, 99)
	w.b.connect(o, 99, 77)
	w.a.post(w.a.write(3, 0, 0, 5000))
	w.b.post(w.b.read(4, 0, 0, 5000))
	w.run(0)
	w.want("A", wcs(w.a.scq), "3:success")
	w.want("B", wcs(w.b.scq), "4:success")
	w.idle()
}

// Another number of resources in SQD keeps the newest entries.
func TestResizeKeepsNewest(t *testing.T) {
	for _, n := range []uint8{0, 1, 2, 3, 9} {
		o := defaults()
		o.rd = 3
		w := newWorld(t, o)
		for i := range 5 {
			w.a.post(w.a.atomicWR(uint64(i), ib.WRAtomicFetchAndAdd, 0, 0, 1, 0))
			w.run(0)
		}
		w.b.to(ib.QPStateSQD)
		w.b.q.Attr.MaxDestRDAtomic = n
		w.b.qp.Modified(&w.b.env, ib.QPStateSQD, ib.QPAttrMaxDestRDAtomic)
		w.log = nil
		for i := range uint32(5) {
			w.b.inject(roce.OpRCFetchAdd, o.psn+i, true, nil, func(h []byte, i *roce.OpInfo) {
				roce.AtomicETH(h[i.AtomicETH:]).Put(w.b.mr.Addr(), uint32(w.b.mr.RKey()), 1, 0)
			})
		}
		w.run(0)
		w.want("answered", len(w.log), min(n, 3))
		w.want("executed", w.b.buf[0], 5)
		if n > 0 {
			w.a.post(w.a.read(9, 0, 0, 8))
			w.run(0)
			w.want("resources", len(w.b.qp.rsp.res), n)
		}
	}
}

// A late copy of a READ request may come when the key is gone: the peer has its
// answer, so the application took the key away. That ends nobody. A peer whose
// answer was lost learns what has become of the key.
func TestReadReplayWithoutKey(t *testing.T) {
	for _, lost := range []bool{false, true} {
		w := newWorld(t, defaults())
		psn := defaults().psn
		fill(w.b.buf, 1)
		if lost {
			w.hook = func(s *seen, _ *roce.Packet) fate {
				if s.from == w.b && s.op != roce.OpRCAcknowledge {
					return drop
				}
				return pass
			}
		}
		va, key := w.b.mr.Addr(), w.b.mr.RKey()
		w.a.post(w.a.read(1, 0, 0, 3000))
		if lost {
			w.wire[0].deliver()
			w.wire = nil
		} else {
			w.run(0)
		}
		if err := w.b.tab.Remove(w.b.mr); err != nil {
			t.Fatal(err)
		}
		w.log = nil
		want, answer := "1:success", "62@0"
		if lost {
			want, answer = "1:remote access error", "RDMA_READ_RESPONSE_FIRST@0 RDMA_READ_RESPONSE_MIDDLE@1 RDMA_READ_RESPONSE_LAST@2 62@0"
		} else {
			w.b.inject(roce.OpRCReadRequest, psn, true, nil, reth(va, key, 3000))
		}
		w.run(0)
		w.want("answer", w.ops(w.b, psn), answer)
		w.want("completions", wcs(w.a.scq), want)
		w.want("state of the responder", w.b.q.State, ib.QPStateRTS)
		w.want("NAKs", w.b.env.Stats.RespRemoteAccess, 1)
		if !lost {
			w.want("stale", w.a.env.Stats.DropStale, 1)
			w.want("state of the requester", w.a.q.State, ib.QPStateRTS)
		}
	}
}
