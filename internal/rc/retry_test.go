package rc

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

const ms = 1_000_000

func sends(w *world, op roce.Opcode) (at []int64) {
	for _, s := range w.log {
		if s.op == op {
			at = append(at, s.at)
		}
	}
	return at
}

func TestCase01_RNRWaitBeatsAckTimeout(t *testing.T) {
	o := defaults()
	o.rnrTimer, o.timeout, o.rnrRetry = 24, 8, 6
	w := newWorld(t, o)
	start := w.now
	w.a.post(w.a.sendWR(1, 0, 8))
	w.run(start + 100*ms)
	w.b.recv(2, w.b.sge(0, 8))
	w.run(0)
	w.want("completion", wcs(w.a.scq), "1:success")
	w.want("receive", wcs(w.b.rcq), "2:success")
	at := sends(w, roce.OpRCSendOnly)
	w.want("sends", len(at), 4)
	for i := 1; i < len(at); i++ {
		w.want("gap", at[i]-at[i-1], 40_960_000)
	}
	w.want("NAKs", w.ops(w.b, o.psn), "38@0 38@0 38@0 1F@0")
	w.idle()
}

func TestCase02_RNRRetryExact(t *testing.T) {
	for _, n := range []uint8{0, 1, 6, 7} {
		o := defaults()
		o.rnrTimer, o.rnrRetry, o.retry = 13, n, 1
		w := newWorld(t, o)
		w.a.push(w.a.sendWR(1, 0, 8))
		w.a.push(w.a.sendWR(2, 0, 8))
		w.a.kick()
		w.run(w.now + 100*ms)
		tries := w.count(func(s *seen) bool { return s.op == roce.OpRCSendOnly && s.psn == o.psn })
		if n == 7 {
			if tries <= 50 {
				t.Errorf("rnr_retry 7: %d sends", tries)
			}
			w.want("completions", wcs(w.a.scq), "")
			continue
		}
		w.want("sends", tries, int(n)+1)
		w.want("completions", wcs(w.a.scq), "1:RNR retry counter exceeded 2:Work Request Flushed Error")
		w.want("counter", w.a.env.Stats.RNRRetryExceed, 1)
		w.want("state", w.a.q.State, ib.QPStateErr)
		w.idle()
	}
}

func TestCase03_RNRTimerExact(t *testing.T) {
	// The standard's table, in ms.
	table := []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	for code, v := range table {
		o := defaults()
		o.rnrTimer, o.rnrRetry, o.timeout = uint8(code), 1, 5
		w := newWorld(t, o)
		w.a.post(w.a.sendWR(1, 0, 8))
		w.run(0)
		at := sends(w, roce.OpRCSendOnly)
		if len(at) != 2 {
			t.Fatalf("code %d: %d sends", code, len(at))
		}
		w.want(fmt.Sprintf("code %d", code), at[1]-at[0], int64(v*1e6+0.5))
		w.want("rcvd_rnr", w.a.env.Stats.RcvdRNR, 2)
		w.want("sent_rnr", w.b.env.Stats.SentRNR, 2)
	}
}

func TestAckTimeoutTable(t *testing.T) {
	for code, want := range map[uint8]int64{0: 0, 1: 8192, 8: 1_048_576, 14: 67_108_864, 20: 4_294_967_296, 31: 8_796_093_022_208} {
		if got := ackTimeout(code); got != want {
			t.Errorf("code %d: %d, want %d", code, got, want)
		}
	}
}

func TestCase94_RetryExhaustionInBound(t *testing.T) {
	for _, n := range []uint8{0, 1, 7} {
		o := defaults()
		o.retry, o.timeout = n, 10
		w := newWorld(t, o)
		w.hook = func(*seen, *roce.Packet) fate { return drop }
		start := w.now
		w.a.push(w.a.write(1, 0, 0, 8))
		w.a.push(w.a.write(2, 0, 0, 8))
		w.a.kick()
		w.run(0)
		w.want("completions", wcs(w.a.scq), "1:transport retry counter exceeded 2:Work Request Flushed Error")
		tries := w.count(func(s *seen) bool { return s.psn == o.psn })
		w.want("sends", tries, int(n)+1)
		w.want("time", w.now-start, (int64(n)+1)*4096<<10)
		w.want("timeouts", w.a.env.Stats.LocalTimeouts, int(n)+1)
		w.want("retransmits", w.a.env.Stats.Retransmits, 2*int(n))
		w.want("state", w.a.q.State, ib.QPStateErr)
		w.a.post(w.a.write(3, 0, 0, 8))
		w.a.recv(4)
		w.a.kick()
		w.want("posted in Err", wcs(w.a.scq), "3:Work Request Flushed Error")
		w.want("posted in Err", wcs(w.a.rcq), "4:Work Request Flushed Error")
		w.idle()
	}
}

func TestTimeoutNever(t *testing.T) {
	o := defaults()
	o.timeout = 0
	w := newWorld(t, o)
	w.hook = func(*seen, *roce.Packet) fate { return drop }
	w.a.post(w.a.write(1, 0, 0, 8))
	w.run(0)
	w.want("deadline", w.a.qp.Deadline(), 0)
	w.want("sends", len(w.log), 1)
}

// dropNth drops the n-th packet (from 0) that f selects.
func dropNth(n int, f func(s *seen) bool) func(*seen, *roce.Packet) fate {
	return func(s *seen, _ *roce.Packet) fate {
		if f(s) {
			n--
			if n == -1 {
				return drop
			}
		}
		return pass
	}
}

func TestSequenceNAK(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	fill(w.a.buf, 2)
	w.hook = dropNth(0, func(s *seen) bool { return s.psn == (o.psn+2)&0xFFFFFF })
	start := w.now
	w.a.post(w.a.write(1, 0, 0, 5000))
	w.run(0)
	w.want("requests", w.ops(w.a, o.psn), "RDMA_WRITE_FIRST@0 RDMA_WRITE_MIDDLE@1 RDMA_WRITE_MIDDLE@2 RDMA_WRITE_MIDDLE@3 RDMA_WRITE_LAST@4 "+
		"RDMA_WRITE_MIDDLE@2 RDMA_WRITE_MIDDLE@3 RDMA_WRITE_LAST@4")
	w.want("one NAK", w.ops(w.b, o.psn), "60@2 1F@4")
	w.want("time", w.now, start)
	w.want("content", same(w.b.buf[:5000], w.a.buf[:5000]), true)
	w.want("completion", wcs(w.a.scq), "1:success")
	w.want("retries", w.a.qp.req.retries, 7)
	w.want("rcvd_seq_err", w.a.env.Stats.RcvdSeqNAK, 1)
	w.want("out_of_seq", w.b.env.Stats.OutOfSeq, 2)
	w.idle()
}

func TestSequenceNAKCostsARetry(t *testing.T) {
	o := defaults()
	o.retry = 0
	w := newWorld(t, o)
	w.hook = dropNth(0, func(s *seen) bool { return s.psn == o.psn })
	w.a.post(w.a.write(1, 0, 0, 5000))
	w.run(0)
	w.want("completion", wcs(w.a.scq), "1:transport retry counter exceeded")
	w.want("timeouts", w.a.env.Stats.LocalTimeouts, 0)
}

// An RNR NAK for the last packet: the receive is needed there, and only that
// packet is sent again.
func TestRNRAtLastPacketOfWrite(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	fill(w.a.buf, 2)
	wr := w.a.write(1, 0, 0, 3000)
	wr.Opcode = ib.WRRDMAWriteWithImm
	w.a.post(wr)
	w.run(w.now + 10)
	w.want("NAK", w.ops(w.b, o.psn), "2C@2")
	w.want("not executed", same(w.b.buf[2048:3000], make([]byte, 952)), true)
	w.b.recv(2)
	w.run(0)
	w.want("requests", w.ops(w.a, o.psn), "RDMA_WRITE_FIRST@0 RDMA_WRITE_MIDDLE@1 RDMA_WRITE_LAST_WITH_IMMEDIATE@2 RDMA_WRITE_LAST_WITH_IMMEDIATE@2")
	w.want("content", same(w.b.buf[:3000], w.a.buf[:3000]), true)
	w.want("receive", wcs(w.b.rcq), "2:success")
	w.idle()
}

// rxe sends one sequence NAK behind an RNR NAK; it must not cut the wait short.
func TestSequenceNAKDuringRNRWait(t *testing.T) {
	o := defaults()
	o.retry, o.rnrTimer = 0, 20
	w := newWorld(t, o)
	w.a.push(w.a.sendWR(1, 0, 8))
	w.a.push(w.a.sendWR(2, 0, 8))
	w.a.kick()
	w.run(w.now + 10)
	w.a.inject(roce.OpRCAcknowledge, o.psn, false, nil, aeth(roce.NAKPSNSeqErr))
	w.a.inject(roce.OpRCAcknowledge, o.psn, false, nil, aeth(roce.RNRNAK(1)))
	w.b.recv(1, w.b.sge(0, 8))
	w.b.recv(2, w.b.sge(0, 8))
	w.run(0)
	at := sends(w, roce.OpRCSendOnly)
	w.want("sends", len(at), 4)
	w.want("gap", at[2]-at[1], 10_240_000)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	// The responder said nothing about the second packet.
	w.want("responses", w.ops(w.b, o.psn), "34@0 1F@1")
	w.idle()
}

func TestCase07_LostAtomicAck(t *testing.T) {
	w := newWorld(t, defaults())
	binary.NativeEndian.PutUint64(w.b.buf, 10)
	w.hook = dropNth(0, func(s *seen) bool { return s.op == roce.OpRCAtomicAck })
	w.a.post(w.a.atomicWR(1, ib.WRAtomicFetchAndAdd, 0, 0, 1, 0))
	w.run(0)
	w.want("completion", wcs(w.a.scq), "1:success")
	w.want("read", binary.NativeEndian.Uint64(w.a.buf), 10)
	w.want("memory", binary.NativeEndian.Uint64(w.b.buf), 11)
	w.want("duplicates", w.b.env.Stats.DuplicateReq, 1)
	w.idle()
}

func TestCase31_ZeroLengthIgnoresKey(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead} {
		o := defaults()
		w := newWorld(t, o)
		w.hook = dropNth(0, func(s *seen) bool { return s.from == w.b })
		w.b.recv(9)
		wr := w.a.write(1, 0, 0, 0)
		wr.SGList = nil
		wr.Opcode, wr.RKey, wr.RemoteAddr, wr.ImmData = op, 0xdead, 0, 7
		w.a.post(wr)
		w.run(0)
		w.want("completion", wcs(w.a.scq), "1:success")
		w.want("sent twice", w.count(func(s *seen) bool { return s.from == w.a }), 2)
		want := ""
		if op == ib.WRRDMAWriteWithImm {
			want = "9:success"
		}
		w.want("receives", wcs(w.b.rcq), want)
		w.idle()
	}
}

func TestLostReadResponse(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	fill(w.b.buf, 4)
	w.hook = dropNth(0, func(s *seen) bool { return s.psn == (o.psn+3)&0xFFFFFF && s.from == w.b })
	var second roce.RETH
	hook := w.hook
	w.hook = func(s *seen, p *roce.Packet) fate {
		if s.op == roce.OpRCReadRequest && s.psn != o.psn {
			second = append(roce.RETH{}, p.RETH()...)
		}
		return hook(s, p)
	}
	start := w.now
	w.a.push(w.a.write(1, 0, 400_000, 8))
	w.a.push(w.a.read(2, 0, 0, 7000))
	w.a.kick()
	w.run(0)
	w.want("time: no timer was needed", w.now, start)
	w.want("requests", w.ops(w.a, o.psn), "RDMA_WRITE_ONLY@0 RDMA_READ_REQUEST@1 RDMA_READ_REQUEST@3")
	w.want("VA", second.VA(), w.b.mr.Addr()+2048)
	w.want("DMALen", second.DMALen(), 7000-2048)
	w.want("responses", w.ops(w.b, o.psn), "RDMA_READ_RESPONSE_FIRST@1 RDMA_READ_RESPONSE_MIDDLE@2 RDMA_READ_RESPONSE_MIDDLE@3 "+
		"RDMA_READ_RESPONSE_MIDDLE@4 RDMA_READ_RESPONSE_MIDDLE@5 RDMA_READ_RESPONSE_MIDDLE@6 RDMA_READ_RESPONSE_LAST@7 "+
		"RDMA_READ_RESPONSE_FIRST@3 RDMA_READ_RESPONSE_MIDDLE@4 RDMA_READ_RESPONSE_MIDDLE@5 RDMA_READ_RESPONSE_MIDDLE@6 RDMA_READ_RESPONSE_LAST@7")
	w.want("content", same(w.a.buf[:7000], w.b.buf[:7000]), true)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.want("retries reloaded", w.a.qp.req.retries, 7)
	w.idle()
}

func TestLostReadResponseCostsARetry(t *testing.T) {
	o := defaults()
	o.retry = 0
	w := newWorld(t, o)
	w.hook = dropNth(0, func(s *seen) bool { return s.psn == o.psn && s.from == w.b })
	w.a.post(w.a.read(2, 0, 0, 7000))
	w.run(0)
	w.want("completion", wcs(w.a.scq), "2:transport retry counter exceeded")
}

// An ACK for something behind a READ or an atomic tells that its response is
// lost.
func TestAckPastPendingResponse(t *testing.T) {
	for _, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRAtomicFetchAndAdd} {
		o := defaults()
		w := newWorld(t, o)
		w.b.buf[0] = 5
		w.hook = dropNth(0, func(s *seen) bool { return s.psn == (o.psn+1)&0xFFFFFF && s.from == w.b })
		start := w.now
		wr := w.a.atomicWR(2, ib.WRAtomicFetchAndAdd, 0, 0, 1, 0)
		if op == ib.WRRDMARead {
			wr = w.a.read(2, 0, 0, 8)
		}
		w.a.push(w.a.write(1, 0, 400_000, 8))
		w.a.push(wr)
		w.a.push(w.a.write(3, 0, 400_000, 8))
		w.a.kick()
		w.run(0)
		w.want("no timer was needed", w.now, start)
		w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success")
		w.want("value", w.a.buf[0], 5)
		w.idle()
	}
}

func TestGhostResponses(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.a.post(w.a.write(1, 0, 0, 8))
	w.run(0)
	ghost := func(p uint32, op roce.Opcode, s roce.Syndrome) {
		w.a.inject(op, p, false, nil, aeth(s))
	}
	ghost(o.psn, roce.OpRCAcknowledge, roce.AckNoCredit)
	ghost(o.psn, roce.OpRCAcknowledge, roce.NAKRemAccess)
	ghost(o.psn+1, roce.OpRCAcknowledge, roce.AckNoCredit)
	ghost(o.psn-5, roce.OpRCReadRespOnly, roce.AckNoCredit)
	w.run(0)
	w.want("stale", w.a.env.Stats.DropStale, 4)
	// A response past what was sent, and an old one while something is under way.
	w.hook = func(*seen, *roce.Packet) fate { return drop }
	w.a.post(w.a.write(2, 0, 0, 8))
	w.hook = nil
	ghost(o.psn+2, roce.OpRCAcknowledge, roce.AckNoCredit)
	ghost(o.psn, roce.OpRCAcknowledge, roce.NAKInvReq)
	ghost(o.psn+1, roce.OpRCAcknowledge, 0x40) // reserved type
	ghost(o.psn+1, roce.OpRCAcknowledge, 0x7F) // reserved NAK code
	w.run(w.now + 1)
	w.want("stale", w.a.env.Stats.DropStale, 8)
	w.want("state", w.a.q.State, ib.QPStateRTS)
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.idle()
}

// After a timeout the ACK of the first transmission may still come: it counts,
// also for what was not sent again yet.
func TestAckOfEarlierTransmission(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.a.push(w.a.write(1, 0, 0, 3000))
	w.a.push(w.a.write(2, 0, 0, 8))
	w.a.kick()
	w.wire = nil
	w.a.qp.req.forget(&w.a.env)
	w.a.qp.req.seek() // as a timeout with a closed window leaves it
	w.a.inject(roce.OpRCAcknowledge, o.psn+1, false, nil, aeth(roce.AckNoCredit))
	w.wire[0].deliver()
	w.a.inject(roce.OpRCAcknowledge, o.psn+3, false, nil, aeth(roce.AckNoCredit))
	w.wire[1].deliver()
	w.wire = nil
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.want("una", uint32(w.a.qp.req.una), (o.psn+4)&0xFFFFFF)
	w.want("dest", w.a.q.Dest.Idle(), true)
}

func TestLostEverythingOnce(t *testing.T) {
	// Each packet of a mixed exchange is lost once, alone.
	o := defaults()
	o.rd = 2
	for lost := 0; ; lost++ {
		w := newWorld(t, o)
		fill(w.a.buf[:10_000], 1)
		fill(w.b.buf[:10_000], 2)
		binary.NativeEndian.PutUint64(w.b.buf[20_000:], 100)
		w.hook = dropNth(lost, func(*seen) bool { return true })
		w.b.recv(51, w.b.sge(30_000, 4000))
		w.b.recv(52, w.b.sge(40_000, 4000))
		w.a.push(w.a.write(1, 0, 50_000, 3000))
		w.a.push(w.a.sendWR(2, 0, 2500))
		w.a.push(w.a.read(3, 60_000, 0, 5000))
		w.a.push(w.a.atomicWR(4, ib.WRAtomicFetchAndAdd, 70_000, 20_000, 11, 0))
		w.a.push(w.a.sendWR(5, 0, 10))
		w.a.push(w.a.read(6, 80_000, 0, 10))
		w.a.kick()
		w.run(0)
		name := fmt.Sprintf("packet %d lost: ", lost)
		w.want(name+"sends", wcs(w.a.scq), "1:success 2:success 3:success 4:success 5:success 6:success")
		w.want(name+"receives", wcs(w.b.rcq), "51:success 52:success")
		w.want(name+"WRITE", same(w.b.buf[50_000:53_000], w.a.buf[:3000]), true)
		w.want(name+"SEND", same(w.b.buf[30_000:32_500], w.a.buf[:2500]), true)
		w.want(name+"READ", same(w.a.buf[60_000:65_000], w.b.buf[:5000]), true)
		w.want(name+"atomic", binary.NativeEndian.Uint64(w.b.buf[20_000:]), 111)
		w.want(name+"original", binary.NativeEndian.Uint64(w.a.buf[70_000:]), 100)
		w.want(name+"second READ", same(w.a.buf[80_000:80_010], w.b.buf[:10]), true)
		w.idle()
		if t.Failed() || lost > len(w.log) {
			return
		}
	}
}

func TestCase09_LossyWrites(t *testing.T) {
	const seed = 9
	rng := rand.New(rand.NewPCG(seed, seed))
	o := defaults()
	o.mtu, o.timeout = ib.MTU4096, 12
	w := newWorld(t, o)
	w.mute = true
	w.hook = func(*seen, *roce.Packet) fate {
		if rng.IntN(50) == 0 {
			return drop
		}
		return pass
	}
	fill(w.a.buf[:128<<10], 1)
	for i := range 300 {
		clear(w.b.buf[:65536])
		w.a.post(w.a.write(uint64(i), i, 0, 65536))
		w.run(0)
		w.want("completion", wcs(w.a.scq), fmt.Sprintf("%d:success", i))
		if !same(w.b.buf[:65536], w.a.buf[i:i+65536]) {
			t.Fatalf("seed %d: WRITE %d: wrong content", seed, i)
		}
	}
	if w.a.env.Stats.Retransmits == 0 {
		t.Error("nothing was lost")
	}
	w.idle()
}

// The events of a shared receive queue.
func TestSharedReceiveQueue(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.b.q.Shared = true
	var limit []ib.EventType
	w.b.q.SRQEvents = func(e ib.EventType) { limit = append(limit, e) }
	for i := range 4 {
		w.b.recv(uint64(i), w.b.sge(0, 8))
	}
	if err := w.b.q.RQ.SetLimit(3); err != nil {
		t.Fatal(err)
	}
	w.a.push(w.a.sendWR(1, 0, 8))
	w.a.push(w.a.sendWR(2, 0, 8))
	w.a.push(w.a.sendWR(3, 0, 9))
	w.a.kick()
	w.run(0)
	w.want("limit", limit, []ib.EventType{ib.EventSRQLimitReached})
	w.want("receives", wcs(w.b.rcq), "0:success 1:success 2:local length error")
	w.want("events", w.b.events, []ib.EventType{ib.EventQPLastWQEReached})
	w.want("left for others", w.b.q.RQ.Len(), 1)
	w.want("sends", wcs(w.a.scq), "1:success 2:success 3:remote invalid request error")
}

// An ACK that comes during an RNR wait ends it when it is for that packet.
func TestAckDuringRNRWait(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.b.recv(1, w.b.sge(0, 8))
	w.hook = func(s *seen, _ *roce.Packet) fate {
		if s.from == w.b {
			return hold
		}
		return pass
	}
	w.a.post(w.a.sendWR(1, 0, 8))
	w.run(w.now + 1)
	w.a.inject(roce.OpRCAcknowledge, o.psn, false, nil, aeth(roce.RNRNAK(31)))
	w.run(w.now + 1)
	w.want("waits", w.a.qp.Deadline(), w.now-1+491_520_000)
	w.release()
	w.hook = nil
	w.run(w.now + 1)
	w.want("completion", wcs(w.a.scq), "1:success")
	w.want("deadline", w.a.qp.Deadline(), 0)
	w.a.post(w.a.write(2, 0, 0, 8))
	w.run(w.now + 1)
	w.want("goes on", wcs(w.a.scq), "2:success")
	w.idle()
}

// The address changes while something is under way.
func TestNewDestination(t *testing.T) {
	w := newWorld(t, defaults())
	w.a.post(w.a.write(1, 0, 0, 5000))
	w.a.to(ib.QPStateSQD)
	old := w.a.q.Dest
	w.a.q.Dest = transport.NewDest(old.Addr, transport.GSOOn)
	w.a.qp.Modified(&w.a.env, ib.QPStateSQD, ib.QPAttrAV)
	w.want("old one is idle", old.Idle(), true)
	w.want("new one is not", w.a.q.Dest.Idle(), false)
	w.run(0)
	w.want("completion", wcs(w.a.scq), "1:success")
	w.idle()
}

// A message of which nothing asks for an ACK gets one packet through a closed
// window, which asks: without a timer nothing else would open it.
func TestAsksThroughClosedWindow(t *testing.T) {
	o := defaults()
	o.timeout = 0
	w := newWorld(t, o)
	w.a.q.Dest.Sent(110 << 10) // somebody else's
	w.a.post(w.a.write(1, 0, 0, 40_000))
	sent := len(w.log)
	w.want("one packet asks", w.count(func(s *seen) bool { return s.ask }), 1)
	w.a.kick()
	w.want("closed", len(w.log), sent)
	w.a.qp.req.asking = false // as if the window had closed before a packet asked
	w.a.kick()
	w.want("one more", len(w.log), sent+1)
	w.want("it asks", w.log[sent].ask, true)
	w.run(0)
	w.want("completion", wcs(w.a.scq), "1:success")
	w.a.q.Dest.Forget(&w.a.env, 110<<10, 1)
	w.idle()
}
