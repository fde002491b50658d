package rc

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// The ACK of a repeated SEND must not have the PSN of a READ or an atomic behind
// it: rdma_rxe takes an ACKNOWLEDGE with that PSN for their completion, without
// the data.
func TestAckNeverNamesReadOrAtomic(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.b.recv(1, w.b.sge(0, 8))
	w.a.push(w.a.sendWR(1, 0, 8))
	w.a.push(w.a.read(2, 0, 0, 8))
	w.a.push(w.a.atomicWR(3, ib.WRAtomicFetchAndAdd, 0, 0, 1, 0))
	w.a.kick()
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success")
	w.log = nil
	w.b.inject(roce.OpRCSendOnly, o.psn, true, make([]byte, 8), nil)
	w.run(0)
	w.want("ACK of the SEND", w.ops(w.b, o.psn), "1F@0")
	w.idle()
}

// What arrived in full is acknowledged though the queue pair fails before the
// ACK was due: the peer must not take a delivered message for a lost one.
func TestOwedAckLeavesBeforeFailure(t *testing.T) {
	o := defaults()
	o.timeout, o.retry = 8, 0
	t.Run("bad key to invalidate", func(t *testing.T) {
		w := newWorld(t, o)
		w.b.recv(1, w.b.sge(0, 8))
		w.b.recv(2, w.b.sge(0, 8))
		w.a.push(w.a.sendWR(1, 0, 8))
		inv := w.a.sendWR(2, 0, 8)
		inv.Opcode, inv.InvalidateRKey = ib.WRSendWithInv, 0xdead
		w.a.push(inv)
		w.a.kick()
		w.run(0)
		w.want("receives", wcs(w.b.rcq), "1:success 2:remote invalid request error")
		w.want("sends", wcs(w.a.scq), "1:success 2:transport retry counter exceeded")
	})
	t.Run("own request fails", func(t *testing.T) {
		w := newWorld(t, o)
		w.b.recv(1, w.b.sge(0, 8))
		w.a.post(w.a.sendWR(1, 0, 8))
		w.wire[0].deliver()
		w.wire = nil
		bad := w.b.sendWR(7, 0, 8)
		bad.SGList[0].LKey ^= 0x100
		w.b.post(bad)
		w.run(0)
		w.want("receives", wcs(w.b.rcq), "1:success")
		w.want("B", wcs(w.b.scq), "7:local protection error")
		w.want("A", wcs(w.a.scq), "1:success")
	})
}

// READs that are asked for again are answered in the order of their PSNs, also
// if the answer to a later one is under way: the requester drops what comes too
// early and would have to ask once more, after a timeout.
func TestRepeatedReadsInOrder(t *testing.T) {
	o := defaults()
	w := streaming(t, o)
	w.a.post(w.a.read(2, 400_000, 0, 25_600))
	w.wire[0].deliver()
	w.wire = nil
	w.b.env.Ready = nil
	w.b.qp.Post(&w.b.env)
	w.want("the second READ is being answered", w.b.qp.rsp.fifoLen, 1)
	w.b.env.Tx.Reset() // everything gets lost
	va, key := w.b.mr.Addr(), w.b.mr.RKey()
	w.b.inject(roce.OpRCReadRequest, o.psn, true, nil, reth(va, key, 25_600))
	w.b.inject(roce.OpRCReadRequest, o.psn+100, true, nil, reth(va, key, 25_600))
	for _, f := range w.wire {
		f.deliver()
	}
	w.wire = nil
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.want("READ", same(w.a.buf[400_000:425_600], w.b.buf[:25_600]), true)
	w.want("timeouts", w.a.env.Stats.LocalTimeouts, 0)
	w.want("requests", w.count(func(s *seen) bool { return s.op == roce.OpRCReadRequest }), 2)
	w.idle()
}

// A message has at most 2^31 bytes, however long the receive buffer is: the
// length in its completion could not tell more.
func TestLongestSend(t *testing.T) {
	for _, extra := range []int{0, 1} {
		o := defaults()
		w := newWorld(t, o)
		null, err := w.b.tab.RegisterNull(w.b.pd)
		if err != nil {
			t.Fatal(err)
		}
		long := driver.SGE{Length: 2 << 30, LKey: null.LKey()}
		w.b.recv(1, long, long, long)
		w.b.inject(roce.OpRCSendFirst, o.psn, false, make([]byte, 1024), nil)
		w.run(0)
		w.b.qp.rsp.got = ib.MaxMsgSize - 2048 // as if most of it had come
		w.b.inject(roce.OpRCSendMiddle, o.psn+1, false, make([]byte, 1024), nil)
		w.b.inject(roce.OpRCSendLast, o.psn+2, true, make([]byte, 1024), nil)
		if extra > 0 {
			w.wire = w.wire[:1]
			w.b.inject(roce.OpRCSendMiddle, o.psn+2, false, make([]byte, 1024), nil)
			w.b.inject(roce.OpRCSendLast, o.psn+3, true, make([]byte, extra), nil)
		}
		w.run(0)
		wc := poll(w.b.rcq)
		if len(wc) == 0 {
			t.Fatal("no completion")
		}
		if extra > 0 {
			w.want("status", wc[0].Status, ib.WCLocLenErr)
		} else {
			w.want("length", wc[0].ByteLen, uint32(ib.MaxMsgSize))
		}
		w.b.tab.Release(null)
	}
}

// Memory that changes between the ICRC and the socket spoils a packet. What is
// sent again is copied first, so that a busy counter can be read, and a buffer
// that the application does not leave alone does not end the queue pair.
func TestMemoryThatNeverRests(t *testing.T) {
	o := defaults()
	o.retry = 2
	w := newWorld(t, o)
	restless := func(s *side) func() {
		return func() {
			if s.env.Tx.Packets > 0 {
				for i := range s.buf[:8192] {
					s.buf[i]++
				}
			}
			s.send()
		}
	}
	w.b.env.Send = restless(w.b)
	w.a.post(w.a.read(1, 100_000, 0, 8192))
	w.run(0)
	w.want("READ", wcs(w.a.scq), "1:success")
	w.want("spoiled first", w.a.badICRC > 0, true)
	w.a.badICRC = 0

	w.b.env.Send = w.b.send
	w.a.env.Send = restless(w.a)
	w.a.post(w.a.write(2, 0, 0, 8192))
	w.a.post(w.a.write(3, 0, 0, 8192))
	w.run(0)
	w.want("WRITEs", wcs(w.a.scq), "2:success 3:success")
	w.want("spoiled first", w.b.badICRC > 0, true)
	w.b.badICRC = 0
	w.idle()
}

// A peer that says RNR is there: what it says once more too late, as rdma_rxe
// does for a packet behind the refused one, does not use up the transport's
// retries round by round.
func TestRNRRefillsRetries(t *testing.T) {
	o := defaults()
	o.retry, o.rnrTimer = 1, 1
	w := newWorld(t, o)
	w.a.post(w.a.sendWR(1, 0, 8))
	w.wire = nil
	for round := range 5 {
		w.a.inject(roce.OpRCAcknowledge, o.psn, false, nil, aeth(roce.RNRNAK(1)))
		w.wire[0].deliver()
		w.wire = nil
		w.now += 10_000
		w.a.settle()
		w.a.inject(roce.OpRCAcknowledge, o.psn, false, nil, aeth(roce.NAKPSNSeqErr))
		w.wire[len(w.wire)-1].deliver()
		w.wire = nil
		if w.a.q.State != ib.QPStateRTS {
			t.Fatalf("round %d: %v, %v", round, w.a.q.State, wcs(w.a.scq))
		}
	}
	w.b.recv(1, w.b.sge(0, 8))
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success")
	w.idle()
}

// A message of 2^31 bytes in the smallest packets takes 2^23 PSNs, half of all
// there are. Its end is sent here as if the rest had arrived, with losses.
func TestLongestMessageInSmallestPackets(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
		o := defaults()
		o.mtu = ib.MTU256
		w := newWorld(t, o)
		null, err := w.a.tab.RegisterNull(w.a.pd)
		if err != nil {
			t.Fatal(err)
		}
		const tail = 300 * 256
		wr := w.a.write(1, 0, 0, 8)
		wr.Opcode = op
		wr.SGList = []driver.SGE{{Length: 1 << 31, LKey: null.LKey()}}
		wr.RemoteAddr -= 1<<31 - tail
		w.a.push(wr)
		req, rsp := &w.a.qp.req, &w.b.qp.rsp
		first := req.una
		if wqe := w.a.q.SQ.At(w.a.q.SQ.Head()); !req.begin(&w.a.env, wqe) || span(wqe) != 1<<23 {
			t.Fatal("does not start, or takes another number of PSNs")
		}
		at := first.Add(1<<23 - 300)
		req.una, req.end = at, at
		req.seek()
		rsp.epsn = at
		if op == ib.WRRDMAWrite {
			rsp.msg, rsp.va, rsp.left, rsp.rkey, rsp.total = msgWrite, w.b.mr.Addr(), tail, w.b.mr.RKey(), 1<<31
		} else {
			req.sink.Seek(wr.SGList, 1<<31-tail)
		}
		n := 0
		w.hook = func(s *seen, _ *roce.Packet) fate {
			if n++; n%97 == 0 {
				return drop
			}
			return pass
		}
		w.a.push(w.a.write(2, 0, 100_000, 100))
		w.a.kick()
		w.run(0)
		wc := poll(w.a.scq)
		if len(wc) != 2 || wc[0].Status != ib.WCSuccess || wc[1].Status != ib.WCSuccess {
			t.Fatalf("%v: %v", op, wc)
		}
		if op == ib.WRRDMARead {
			w.want("length", wc[0].ByteLen, uint32(1<<31))
		}
		w.want("PSN", req.una, first.Add(1<<23+1))
		w.idle()
		w.a.tab.Release(null)
	}
}

// After a timeout a lost response is noticed at once again.
func TestLostResponseAfterTimeout(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	asks, firsts := 0, 0
	w.hook = func(s *seen, _ *roce.Packet) fate {
		switch {
		case s.op == roce.OpRCReadRequest:
			if asks++; asks == 2 {
				return drop
			}
		case s.psn == o.psn:
			if firsts++; firsts < 3 {
				return drop
			}
		}
		return pass
	}
	w.a.post(w.a.read(1, 0, 0, 5000))
	w.run(0)
	w.want("completion", wcs(w.a.scq), "1:success")
	w.want("timeouts", w.a.env.Stats.LocalTimeouts, 1)
	w.want("requests", asks, 4)
	w.idle()
}

// The solicited bit is on the last packet of what consumes a receive request,
// and on nothing else.
func TestSolicitedBit(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	for i, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRSend, ib.WRSendWithImm, ib.WRRDMARead} {
		w.b.recv(1, w.b.sge(0, 3000))
		wr := w.a.write(uint64(i), 0, 0, 3000)
		wr.Opcode, wr.Flags = op, ib.SendSolicited
		w.log = nil
		w.a.post(wr)
		w.run(0)
		se := ""
		for _, s := range w.log {
			if s.se {
				se += s.op.String() + " "
			}
		}
		w.want(fmt.Sprint(op), se, [...]string{
			"", "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE ", "RC_SEND_LAST ", "RC_SEND_LAST_WITH_IMMEDIATE ", "",
		}[i])
	}
}

// Who has something under way does not pass one that waits for the window.
func TestNobodyPassesWhoWaits(t *testing.T) {
	w := newWorld(t, defaults())
	other := &transport.QP{Num: 0x777, SQ: queue.NewSQ(1, 1, 0), RQ: queue.NewRQ(1, 1), Dest: w.a.q.Dest}
	New(other)
	w.a.post(w.a.write(1, 0, 0, 8))
	w.a.q.Dest.Wait(other)
	w.a.post(w.a.write(2, 0, 0, 8))
	w.want("requests", len(w.log), 1)
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.idle()
}
