package rc

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func putBTH(b []byte, op roce.Opcode, pad int, to *side, ask bool, p uint32) {
	roce.BTH(b).Put(op, false, pad, 0xFFFF, uint32(to.q.Num), ask, psn.PSN(p&psn.Mask))
}

func TestCase10_SegmentationExact(t *testing.T) {
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		m := mtu.Bytes()
		o := defaults()
		o.mtu, o.bufs = mtu, 176<<10
		for _, n := range []int{0, 1, 3, m - 1, m, m + 1, 2 * m, 2*m + 1, 1444, 1445, 65535, 65536, 65537} {
			for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead} {
				w := newWorld(t, o)
				fill(w.a.buf[:n+3], 1)
				fill(w.b.buf[:n+3], 9)
				const off = 100_001
				w.b.recv(77, w.b.sge(off, n))
				wr := w.a.write(5, 3, off, n)
				wr.Opcode, wr.ImmData = op, 0x01020304
				if op == ib.WRRDMARead {
					wr = w.a.read(5, off, 3, n)
				}
				w.a.post(wr)
				w.run(0)
				name := fmt.Sprintf("mtu %d, %d bytes, %v", m, n, op)
				w.want(name, wcs(w.a.scq), "5:success")
				if op == ib.WRRDMARead {
					if !same(w.a.buf[off:off+n], w.b.buf[3:3+n]) {
						t.Errorf("%s: wrong content", name)
					}
				} else if !same(w.b.buf[off:off+n], w.a.buf[3:3+n]) {
					t.Errorf("%s: wrong content", name)
				}
				got := poll(w.b.rcq)
				switch op {
				case ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWriteWithImm:
					if len(got) != 1 || got[0].ByteLen != uint32(n) || got[0].Status != ib.WCSuccess || got[0].WRID != 77 || got[0].QPNum != w.b.q.Num || got[0].SrcQP != w.a.q.Num {
						t.Errorf("%s: receive %+v", name, got)
					}
					if op != ib.WRSend && (got[0].ImmData != 0x01020304 || got[0].Flags != ib.WCWithImm) {
						t.Errorf("%s: immediate %+v", name, got)
					}
					if wantOp := ib.WCRecv; op == ib.WRRDMAWriteWithImm {
						wantOp = ib.WCRecvRDMAWithImm
						w.want(name, got[0].Opcode, wantOp)
					}
				default:
					w.want(name, len(got), 0)
				}
				w.want(name+" retransmits", w.a.env.Stats.Retransmits, 0)
				w.idle()
			}
		}
	}
}

func TestOpcodesOnTheWire(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.b.recv(1, w.b.sge(0, 8192))
	w.b.recv(2, w.b.sge(0, 8192))
	w.b.recv(3)
	w.a.push(w.a.write(1, 0, 0, 2500))
	wr := w.a.sendWR(2, 0, 2048)
	wr.Opcode, wr.Flags = ib.WRSendWithImm, ib.SendSolicited
	w.a.push(wr)
	w.a.push(w.a.read(3, 0, 0, 3000))
	w.a.push(w.a.atomicWR(4, ib.WRAtomicFetchAndAdd, 0, 0, 1, 0))
	w.a.push(w.a.atomicWR(5, ib.WRAtomicCmpAndSwp, 0, 0, 1, 0))
	wr = w.a.sendWR(6, 0, 10)
	wr.Flags = ib.SendSolicited
	w.a.push(wr)
	wr = w.a.write(7, 0, 0, 0)
	wr.Opcode = ib.WRRDMAWriteWithImm
	w.a.push(wr)
	w.a.kick()
	w.run(0)
	w.want("requests", w.ops(w.a, o.psn), "RDMA_WRITE_FIRST@0 RDMA_WRITE_MIDDLE@1 RDMA_WRITE_LAST@2 "+
		"SEND_FIRST@3 SEND_LAST_WITH_IMMEDIATE@4 RDMA_READ_REQUEST@5 FETCH_ADD@8 COMPARE_SWAP@9 SEND_ONLY@10 "+
		"RDMA_WRITE_ONLY_WITH_IMMEDIATE@11")
	w.want("responses", w.ops(w.b, o.psn), "RDMA_READ_RESPONSE_FIRST@5 RDMA_READ_RESPONSE_MIDDLE@6 RDMA_READ_RESPONSE_LAST@7 "+
		"ATOMIC_ACKNOWLEDGE@8 ATOMIC_ACKNOWLEDGE@9 1F@11")
	w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success 4:success 5:success 6:success 7:success")
	for _, s := range w.log {
		if s.from != w.a {
			continue
		}
		f := s.op.Info().Flags
		w.want(s.op.String()+" AckReq", s.ask, f.Any(roce.FlagEnd))
		w.want(s.op.String()+" SE", s.se, s.op == roce.OpRCSendLastImm || s.op == roce.OpRCSendOnly)
		w.want("MigReq", roce.BTH(s.bth).MigReq(), true)
	}
	// MSN: WRITE 1, SEND 2, READ 3, atomics 4 and 5, SEND 6, WRITE 7.
	var msns []uint32
	for _, s := range w.log {
		if s.from == w.b && s.op != roce.OpRCReadRespMiddle {
			msns = append(msns, s.msn)
		}
	}
	w.want("MSN", msns, []uint32{3, 3, 4, 5, 7})
	w.idle()
}

// The header bytes of a WRITE_ONLY, an ACK and an atomic, as wire.md's tables
// have them.
func TestHeaderBytes(t *testing.T) {
	o := defaults()
	o.psn = 0x123456
	w := newWorld(t, o)
	wr := w.a.write(1, 0, 0, 5)
	wr.RemoteAddr, wr.RKey = w.b.mr.Addr(), w.b.mr.RKey()
	w.a.post(wr)
	w.run(0)
	want := []byte{0x0A, 0x40 | 3<<4, 0xFF, 0xFF, 0, 0, 0x01, 0x02, 0x80, 0x12, 0x34, 0x56}
	want = binary.BigEndian.AppendUint64(want, w.b.mr.Addr())
	want = binary.BigEndian.AppendUint32(want, uint32(w.b.mr.RKey()))
	want = append(want, 0, 0, 0, 5)
	w.want("WRITE_ONLY", fmt.Sprintf("%x", w.log[0].bth), fmt.Sprintf("%x", want))
	ack := []byte{0x11, 0x40, 0xFF, 0xFF, 0, 0, 0x01, 0x01, 0, 0x12, 0x34, 0x56, 0x1F, 0, 0, 1}
	w.want("ACK", fmt.Sprintf("%x", w.log[1].bth), fmt.Sprintf("%x", ack))
}

func TestAtomics(t *testing.T) {
	w := newWorld(t, defaults())
	cell := w.b.buf[64:72]
	binary.NativeEndian.PutUint64(cell, 40)
	w.a.push(w.a.atomicWR(1, ib.WRAtomicFetchAndAdd, 0, 64, 2, 0))
	w.a.push(w.a.atomicWR(2, ib.WRAtomicCmpAndSwp, 8, 64, 42, 7))
	w.a.push(w.a.atomicWR(3, ib.WRAtomicCmpAndSwp, 16, 64, 42, 9))
	w.a.kick()
	w.run(0)
	got := poll(w.a.scq)
	if len(got) != 3 || got[0].ByteLen != 8 || got[0].Opcode != ib.WCFetchAdd || got[1].Opcode != ib.WCCompSwap {
		t.Errorf("completions %+v", got)
	}
	w.want("memory", binary.NativeEndian.Uint64(cell), 7)
	for i, v := range []uint64{40, 42, 7} {
		w.want("original value", binary.NativeEndian.Uint64(w.a.buf[8*i:]), v)
	}
	w.idle()
}

func TestInlineAndGather(t *testing.T) {
	w := newWorld(t, defaults())
	fill(w.a.buf, 3)
	w.a.push(driver.SendWR{WRID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, InlineData: []byte("hello"), RemoteAddr: w.b.mr.Addr(), RKey: w.b.mr.RKey()})
	// Elements that end in the middle of packets, one of them empty.
	wr := w.a.write(2, 0, 100, 0)
	wr.SGList = []driver.SGE{w.a.sge(0, 700), w.a.sge(5000, 0), w.a.sge(10_000, 1000), w.a.sge(20_000, 801)}
	w.a.push(wr)
	w.b.recv(9, w.b.sge(50_000, 10), w.b.sge(60_000, 1500), w.b.sge(70_000, 2000))
	w.a.push(w.a.sendWR(3, 0, 2600))
	w.a.kick()
	clear(w.a.q.SQ.At(w.a.q.SQ.Head()).SGL)
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success")
	w.want("inline", string(w.b.buf[:5]), "hello")
	var want []byte
	want = append(append(append(want, w.a.buf[:700]...), w.a.buf[10_000:11_000]...), w.a.buf[20_000:20_801]...)
	w.want("gathered", same(w.b.buf[100:100+len(want)], want), true)
	got := append(append(append([]byte{}, w.b.buf[50_000:50_010]...), w.b.buf[60_000:61_500]...), w.b.buf[70_000:71_090]...)
	w.want("scattered", same(got, w.a.buf[:2600]), true)
	w.idle()
}

func TestCase14_FenceWaitsForReadsOnly(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.b.recv(1, w.b.sge(0, 64))
	w.b.recv(2, w.b.sge(0, 64))
	w.hook = func(s *seen, _ *roce.Packet) fate {
		if s.from == w.b {
			return hold
		}
		return pass
	}
	fenced := w.a.sendWR(2, 0, 8)
	fenced.Flags = ib.SendFence
	w.a.post(w.a.write(1, 0, 0, 8))
	w.a.post(fenced)
	w.want("after a WRITE", w.ops(w.a, o.psn), "RDMA_WRITE_ONLY@0 SEND_ONLY@1")
	w.run(w.now + 1000)
	w.a.post(w.a.read(3, 0, 0, 8))
	fenced.WRID = 4
	w.a.post(fenced)
	w.run(w.now + 1000)
	w.want("after a READ", w.ops(w.a, o.psn), "RDMA_WRITE_ONLY@0 SEND_ONLY@1 RDMA_READ_REQUEST@2")
	w.hook = nil
	w.release()
	w.run(0)
	w.want("READ done", w.ops(w.a, o.psn), "RDMA_WRITE_ONLY@0 SEND_ONLY@1 RDMA_READ_REQUEST@2 SEND_ONLY@3")
	w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success 4:success")
	w.idle()
}

func TestReadDepthAndChunks(t *testing.T) {
	o := defaults()
	o.rd = 2
	w := newWorld(t, o)
	fill(w.b.buf, 5)
	w.hook = func(s *seen, _ *roce.Packet) fate {
		if s.from == w.b {
			return hold
		}
		return pass
	}
	const n = 3*65536 + 1500
	w.a.post(w.a.read(1, 0, 0, n))
	w.run(w.now + 1)
	// The window of 128 KiB lets one chunk with its headers out, then waits.
	w.want("first requests", w.ops(w.a, o.psn), "RDMA_READ_REQUEST@0")
	w.hook = nil
	w.release()
	w.run(0)
	w.want("requests", w.ops(w.a, o.psn), "RDMA_READ_REQUEST@0 RDMA_READ_REQUEST@64 RDMA_READ_REQUEST@128 RDMA_READ_REQUEST@192")
	w.want("content", same(w.a.buf[:n], w.b.buf[:n]), true)
	got := poll(w.a.scq)
	if len(got) != 1 || got[0].ByteLen != n || got[0].Opcode != ib.WCRDMARead {
		t.Errorf("completion %+v", got)
	}
	w.idle()

	// Small READs: never more than two outstanding.
	w.log = nil
	out, most := 0, 0
	w.hook = func(s *seen, _ *roce.Packet) fate {
		if s.op == roce.OpRCReadRequest {
			out++
		}
		if s.op == roce.OpRCReadRespOnly {
			out--
		}
		most = max(most, out)
		return pass
	}
	for i := range 10 {
		w.a.push(w.a.read(uint64(i), i*8, 0, 8))
	}
	w.a.kick()
	w.run(0)
	w.want("most outstanding", most, 2)
	w.idle()
}

func TestDepthZero(t *testing.T) {
	o := defaults()
	o.rd, o.destRD = 0, -1
	w := newWorld(t, o)
	w.a.push(w.a.write(1, 0, 0, 8))
	w.a.push(w.a.read(2, 0, 0, 8))
	w.a.push(w.a.write(3, 0, 0, 8))
	w.a.kick()
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:local QP operation error 3:Work Request Flushed Error")
	w.want("state", w.a.q.State, ib.QPStateErr)
	w.idle()
}

func TestAckCoalescing(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	for i := range 32 {
		w.a.push(w.a.write(uint64(i), i, i, 1))
	}
	w.a.kick()
	w.run(0)
	w.want("ACKs", w.ops(w.b, o.psn), "1F@31")
	w.want("completions", len(poll(w.a.scq)), 32)
	// Inside a long message an ACK comes at least every ackBytes.
	w.log = nil
	w.a.post(w.a.write(99, 0, 0, 600_000))
	w.run(0)
	acks := w.count(func(s *seen) bool { return s.from == w.b })
	if acks < 600_000/ackBytes || acks > 60 {
		t.Errorf("%d ACKs for 600000 bytes", acks)
	}
	w.want("completions", wcs(w.a.scq), "99:success")
	w.idle()
}

func TestOwedAckDeadline(t *testing.T) {
	w := newWorld(t, defaults())
	w.a.post(w.a.write(1, 0, 0, 8))
	w.wire[0].deliver()
	w.want("owed", len(w.b.env.Owed), 1)
	w.want("deadline", w.b.qp.Deadline(), w.now+20_000)
	w.now += 20_000
	w.b.env.Now = w.now
	w.b.qp.Timer(&w.b.env)
	w.b.env.Send()
	w.want("ACK", w.ops(w.b, defaults().psn), "1F@0")
	w.want("deadline", w.b.qp.Deadline(), 0)
}

func TestSelfConnected(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	s := w.a
	s.to(ib.QPStateReset)
	s.peer = s
	s.connect(o, 5, 5)
	fill(s.buf[:5000], 1)
	s.recv(9, s.sge(300_000, 5000))
	s.push(s.write(1, 0, 100_000, 5000))
	s.push(s.read(2, 200_000, 100_000, 5000))
	s.push(s.sendWR(3, 0, 5000))
	s.kick()
	w.run(0)
	w.want("sends", wcs(s.scq), "1:success 2:success 3:success")
	w.want("receives", wcs(s.rcq), "9:success")
	w.want("content", same(s.buf[:5000], s.buf[200_000:205_000]) && same(s.buf[:5000], s.buf[300_000:305_000]), true)
}

func TestCommEst(t *testing.T) {
	o := defaults()
	w := newWorld(t, o)
	w.b.to(ib.QPStateReset)
	w.b.q.State = ib.QPStateInit
	w.b.to(ib.QPStateRTR)
	w.a.push(w.a.write(1, 0, 0, 8))
	w.a.push(w.a.write(2, 0, 0, 8))
	w.a.kick()
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.want("events", w.b.events, []ib.EventType{ib.EventCommEst})
}

func TestDropsByState(t *testing.T) {
	w := newWorld(t, defaults())
	for _, st := range []ib.QPState{ib.QPStateReset, ib.QPStateInit, ib.QPStateErr} {
		w.b.q.State = st
		w.b.inject(roce.OpRCSendOnly, 0, true, nil, nil)
		w.run(0)
	}
	w.want("DropState", w.b.env.Stats.DropState, 3)
	w.b.q.State = ib.QPStateRTR
	w.b.inject(roce.OpRCAcknowledge, 0, false, nil, aeth(roce.AckNoCredit))
	w.run(0)
	w.want("DropState", w.b.env.Stats.DropState, 4)
	w.b.q.PKey = 0x1234
	w.b.inject(roce.OpRCSendOnly, 0, true, nil, nil)
	w.run(0)
	w.want("DropPKey", w.b.env.Stats.DropPKey, 1)
	w.want("answers", len(w.log), 0)
}

func TestDrain(t *testing.T) {
	w := newWorld(t, defaults())
	w.a.q.Attr.EnSQDAsyncNotify = true
	w.a.post(w.a.write(1, 0, 0, 3000))
	w.a.to(ib.QPStateSQD, ib.QPAttrEnSQDAsyncNotify)
	w.want("draining", w.a.qp.Draining(), true)
	w.a.post(w.a.write(2, 0, 0, 8))
	w.run(0)
	w.want("in SQD", wcs(w.a.scq), "1:success")
	w.want("events", w.a.events, []ib.EventType{ib.EventSQDrained})
	w.want("draining", w.a.qp.Draining(), false)
	w.a.to(ib.QPStateRTS)
	w.run(0)
	w.want("back in RTS", wcs(w.a.scq), "2:success")
	w.a.to(ib.QPStateSQD) // nobody asks to be told this time
	w.run(0)
	w.want("events", w.a.events, []ib.EventType{ib.EventSQDrained})
	w.idle()
}
