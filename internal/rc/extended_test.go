package rc

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const flushRightsAll = ib.AccessFlushGlobal | ib.AccessFlushPersistent

// extendedOptions give flush rights to queue pairs and memory.
func extendedOptions() options {
	o := defaults()
	o.access |= flushRightsAll
	o.mrAccess |= flushRightsAll
	return o
}

// persisted lets a side make memory durable, and tells what was.
func (s *side) persisted(err error) *[]string {
	var log []string
	s.tab.SetPersister(1, func(addr, n uintptr) error {
		log = append(log, fmt.Sprintf("%d+%d", uint64(addr)-s.mr.Addr(), n))
		return err
	})
	return &log
}

func (s *side) flushWR(id uint64, to, n int, typ ib.FlushType, level ib.FlushLevel) driver.SendWR {
	return driver.SendWR{
		WRID: id, Opcode: ib.WRFlush, RemoteAddr: s.peer.mr.Addr() + uint64(to), RKey: s.peer.mr.RKey(),
		Length: uint32(n), FlushType: typ, FlushLevel: level,
	}
}

func (s *side) wordWR(id uint64, to int, word []byte) driver.SendWR {
	return driver.SendWR{
		WRID: id, Opcode: ib.WRAtomicWrite, RemoteAddr: s.peer.mr.Addr() + uint64(to), RKey: s.peer.mr.RKey(),
		Flags: ib.SendInline, InlineData: word,
	}
}

func feth(va uint64, key ib.RKey, n uint32, placement, level uint8) func([]byte, *roce.OpInfo) {
	return func(h []byte, i *roce.OpInfo) {
		roce.FETH(h[i.FETH:]).Put(placement, level)
		roce.RETH(h[i.RETH:]).Put(va, uint32(key), n)
	}
}

// The bytes on the wire, by the tables of the standard: BTH, then FETH and RETH
// in this order, or RETH and 8 bytes as they lie in memory; the answer is a READ
// RESPONSE ONLY at the PSN of the request.
func TestExtendedPackets(t *testing.T) {
	o := extendedOptions()
	o.psn = 0x123456
	w := newWorld(t, o)
	w.b.persisted(nil)
	mr, err := w.b.tab.Register(w.b.pd, make([]byte, 64), 0x1122334455667700, o.mrAccess)
	if err != nil {
		t.Fatal(err)
	}
	defer w.b.tab.Release(mr)
	key := fmt.Sprintf("%08x", uint32(mr.RKey()))
	flush := w.a.flushWR(1, 0, 0x20, ib.FlushGlobal|ib.FlushPersistent, ib.FlushMR)
	word := w.a.wordWR(2, 0, []byte{0xF1, 2, 3, 4, 5, 6, 7, 0xF8})
	flush.RemoteAddr, flush.RKey = mr.Addr()+0x10, mr.RKey()
	word.RemoteAddr, word.RKey = mr.Addr()+0x18, mr.RKey()
	word.Flags |= ib.SendSolicited // there is no such thing here
	var payload string
	w.hook = func(s *seen, p *roce.Packet) fate {
		if s.op == roce.OpRCAtomicWrite {
			payload = hex.EncodeToString(p.Payload)
		}
		return pass
	}
	w.a.push(flush)
	w.a.push(word)
	w.a.kick()
	w.run(0)
	var got []string
	for _, s := range w.log {
		s.bth[1] &^= 0x40 // MigReq may be anything
		got = append(got, hex.EncodeToString(s.bth))
	}
	w.want("packets", got, []string{
		"1c00ffff" + "00000102" + "80123456" + "00000013" + "1122334455667710" + key + "00000020",
		"1d00ffff" + "00000102" + "80123457" + "1122334455667718" + key + "00000008",
		"1000ffff" + "00000101" + "00123456" + "1f000001",
		"1000ffff" + "00000101" + "00123457" + "1f000002",
	})
	w.want("payload", payload, "f1020304050607f8")
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.idle()
}

func TestFlush(t *testing.T) {
	o := extendedOptions()
	w := newWorld(t, o)
	log := w.b.persisted(nil)
	fill(w.a.buf, 3)
	w.a.push(w.a.write(1, 0, 100, 5000))
	w.a.push(w.a.flushWR(2, 100, 5000, ib.FlushGlobal, ib.FlushRange))
	w.a.push(w.a.flushWR(3, 100, 5000, ib.FlushPersistent, ib.FlushRange))
	w.a.push(w.a.flushWR(4, -1, 1<<31, ib.FlushGlobal|ib.FlushPersistent, ib.FlushMR)) // range is not looked at
	w.a.push(w.a.flushWR(5, 7, 0, ib.FlushPersistent, ib.FlushRange))
	w.a.push(w.a.read(6, 300_000, 100, 8))
	w.a.kick()
	w.run(0)
	got := poll(w.a.scq)
	w.want("completions", len(got), 6)
	for i, wc := range got {
		op := ib.WCFlush
		switch i {
		case 0:
			op = ib.WCRDMAWrite
		case 5:
			op = ib.WCRDMARead
		}
		w.want("completion", wc, driver.WC{WRID: uint64(i + 1), Opcode: op, QPNum: w.a.q.Num, ByteLen: wc.ByteLen})
		if op == ib.WCFlush && wc.ByteLen != 0 {
			t.Errorf("FLUSH of %d bytes", wc.ByteLen)
		}
	}
	w.want("made durable", *log, []string{"100+5000", fmt.Sprintf("0+%d", len(w.b.buf))})
	w.want("content", same(w.b.buf[100:5100], w.a.buf[:5000]), true)
	w.want("read back", same(w.a.buf[300_000:300_008], w.a.buf[:8]), true)
	w.idle()
}

func TestAtomicWrite(t *testing.T) {
	o := extendedOptions()
	w := newWorld(t, o)
	copy(w.a.buf, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	w.a.push(w.a.wordWR(1, 16, []byte{11, 12, 13, 14, 15, 16, 17, 18}))
	wr := w.a.wordWR(2, 24, nil)
	wr.Flags, wr.SGList = 0, []driver.SGE{w.a.sge(0, 3), w.a.sge(3, 5)}
	w.a.push(wr)
	w.a.kick()
	w.run(0)
	for i, wc := range poll(w.a.scq) {
		w.want("completion", wc, driver.WC{WRID: uint64(i + 1), Opcode: ib.WCAtomicWrite, QPNum: w.a.q.Num})
	}
	w.want("words", w.b.buf[8:40], []byte{
		0, 0, 0, 0, 0, 0, 0, 0, 11, 12, 13, 14, 15, 16, 17, 18, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0,
	})
	w.idle()
}

// An ATOMIC WRITE that is not 8 bytes to a multiple of 8 is an invalid request.
func TestCase47_AtomicWriteLength(t *testing.T) {
	for _, c := range []struct {
		name       string
		payload    int
		dmaLen     uint32
		off        uint64
		nak        string
		state      ib.QPState
		wordStored bool
	}{
		{"length 0", 0, 0, 0, "61@0", ib.QPStateErr, false},
		{"length 0, word", 8, 0, 0, "61@0", ib.QPStateErr, false},
		{"length 4", 4, 4, 0, "61@0", ib.QPStateErr, false},
		{"length 4, word", 8, 4, 0, "61@0", ib.QPStateErr, false},
		{"length 16", 16, 16, 0, "61@0", ib.QPStateErr, false},
		{"length 16, word", 8, 16, 0, "61@0", ib.QPStateErr, false},
		{"half a word", 4, 8, 0, "61@0", ib.QPStateErr, false},
		{"7 bytes", 7, 8, 0, "61@0", ib.QPStateErr, false},
		{"two words", 16, 8, 0, "61@0", ib.QPStateErr, false},
		{"address 4", 8, 8, 4, "61@0", ib.QPStateErr, false},
		{"address 1", 8, 8, 1, "61@0", ib.QPStateErr, false},
		{"right", 8, 8, 8, "RDMA_READ_RESPONSE_ONLY@0", ib.QPStateRTS, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := extendedOptions()
			w := newWorld(t, o)
			payload := make([]byte, c.payload)
			for i := range payload {
				payload[i] = 0xEE
			}
			w.b.inject(roce.OpRCAtomicWrite, o.psn, true, payload, reth(w.b.mr.Addr()+c.off, w.b.mr.RKey(), c.dmaLen))
			w.run(0)
			w.want("answer", w.ops(w.b, o.psn), c.nak)
			w.want("state", w.b.q.State, c.state)
			n := 0
			for _, x := range w.b.buf {
				if x != 0 {
					n++
				}
			}
			w.want("bytes stored", n, map[bool]int{true: 8}[c.wordStored])
			if c.state == ib.QPStateErr {
				w.want("events", w.b.events, []ib.EventType{ib.EventQPReqErr})
			}
		})
	}
}

func TestExtendedRights(t *testing.T) {
	const g, p = ib.AccessFlushGlobal, ib.AccessFlushPersistent
	const ok, inv, acc = "RDMA_READ_RESPONSE_ONLY@0", "61@0", "62@0"
	for _, c := range []struct {
		name             string
		op               roce.Opcode
		qp, mr           ib.Access // rights beside the usual ones
		placement, level uint8
		badKey           bool
		off              uint64
		n                uint32
		want             string
	}{
		{"global", roce.OpRCFlush, g, g, 1, 0, false, 0, 8, ok},
		{"persistent", roce.OpRCFlush, p, p, 2, 0, false, 0, 8, ok},
		{"both", roce.OpRCFlush, g | p, g | p, 3, 0, false, 0, 8, ok},
		{"both, queue pair has one", roce.OpRCFlush, g, g | p, 3, 0, false, 0, 8, inv},
		{"both, memory has one", roce.OpRCFlush, g | p, p, 3, 0, false, 0, 8, acc},
		{"queue pair has none", roce.OpRCFlush, 0, g | p, 1, 0, false, 0, 8, inv},
		{"memory has none", roce.OpRCFlush, g | p, 0, 1, 1, false, 0, 8, acc},
		{"the other right", roce.OpRCFlush, g | p, g, 2, 0, false, 0, 8, acc},
		{"nothing to do", roce.OpRCFlush, g | p, g | p, 0, 0, false, 0, 8, inv},
		{"reserved placement", roce.OpRCFlush, g | p, g | p, 1 | 4, 0, false, 0, 8, inv},
		{"reserved selectivity", roce.OpRCFlush, g | p, g | p, 1, 2, false, 0, 8, inv},
		{"reserved selectivity", roce.OpRCFlush, g | p, g | p, 1, 3, false, 0, 8, inv},
		{"bad key", roce.OpRCFlush, g | p, g | p, 1, 0, true, 0, 8, acc},
		{"bad key, whole region", roce.OpRCFlush, g | p, g | p, 1, 1, true, 0, 8, acc},
		{"bad key, nothing", roce.OpRCFlush, g | p, g | p, 1, 0, true, 0, 0, acc},
		{"behind the region", roce.OpRCFlush, g | p, g | p, 1, 0, false, 640 << 10, 1, acc},
		{"behind, whole region", roce.OpRCFlush, g | p, g | p, 1, 1, false, 640 << 10, 1, ok},
		{"beyond 2^31", roce.OpRCFlush, g | p, g | p, 1, 0, false, 0, 1<<31 + 1, inv},
		{"word", roce.OpRCAtomicWrite, 0, 0, 0, 0, false, 0, 8, ok},
		{"word, bad key", roce.OpRCAtomicWrite, 0, 0, 0, 0, true, 0, 8, acc},
		{"word, behind the region", roce.OpRCAtomicWrite, 0, 0, 0, 0, false, 640 << 10, 8, acc},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := defaults()
			o.access |= c.qp
			o.mrAccess |= c.mr
			w := newWorld(t, o)
			w.b.persisted(nil)
			key := w.b.mr.RKey()
			if c.badKey {
				key ^= 0x100
			}
			va := w.b.mr.Addr() + c.off
			if c.op == roce.OpRCFlush {
				w.b.inject(c.op, o.psn, true, nil, feth(va, key, c.n, c.placement, c.level))
			} else {
				w.b.inject(c.op, o.psn, true, make([]byte, 8), reth(va, key, c.n))
			}
			w.run(0)
			w.want("answer", w.ops(w.b, o.psn), c.want)
		})
	}
	for _, right := range []ib.Access{ib.AccessRemoteRead, ib.AccessRemoteAtomic, ib.AccessRemoteWrite} {
		o := extendedOptions()
		o.access, o.mrAccess = allRemote&^right, right|ib.AccessLocalWrite
		w := newWorld(t, o)
		w.a.post(w.a.wordWR(1, 0, make([]byte, 8)))
		w.run(0)
		want := "1:remote invalid request error"
		if right != ib.AccessRemoteWrite {
			want = "1:remote access error"
		}
		w.want(fmt.Sprintf("right %v", right), wcs(w.a.scq), want)
	}
}

// Without storage there are no durable flushes; storage that fails is the
// responder's fault, memory that is gone the requester's.
func TestFlushStorage(t *testing.T) {
	for name, c := range map[string]struct {
		set  bool
		err  error
		want string
	}{
		"none":   {false, nil, "1:remote invalid request error"},
		"fails":  {true, errors.New("disk is full"), "1:remote operation error"},
		"gone":   {true, mem.ErrFault, "1:remote access error"},
		"exists": {true, nil, "1:success"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, extendedOptions())
			if c.set {
				w.b.persisted(c.err)
			}
			w.a.post(w.a.flushWR(1, 0, 8, ib.FlushPersistent, ib.FlushRange))
			w.run(0)
			w.want("completion", wcs(w.a.scq), c.want)
		})
	}
}

// What has no resource on either side.
func TestExtendedDepth(t *testing.T) {
	o := extendedOptions()
	o.rd = 2
	w := newWorld(t, o)
	most, now := 0, 0
	w.hook = func(s *seen, _ *roce.Packet) fate {
		switch s.op {
		case roce.OpRCFlush, roce.OpRCAtomicWrite, roce.OpRCReadRequest:
			now++
		case roce.OpRCReadRespOnly:
			now--
		}
		most = max(most, now)
		return pass
	}
	for i := range uint64(10) {
		switch i % 3 {
		case 0:
			w.a.push(w.a.flushWR(i, 0, 8, ib.FlushGlobal, ib.FlushMR))
		case 1:
			w.a.push(w.a.wordWR(i, 8*int(i), make([]byte, 8)))
		case 2:
			w.a.push(w.a.read(i, 0, 0, 8))
		}
	}
	w.a.kick()
	w.run(0)
	w.want("under way at most", most, 2)
	w.want("completions", len(poll(w.a.scq)), 10)
	w.idle()

	for _, wr := range []driver.SendWR{w.a.flushWR(1, 0, 8, ib.FlushGlobal, ib.FlushMR), w.a.wordWR(1, 0, make([]byte, 8))} {
		o.rd, o.destRD = 0, 1
		w := newWorld(t, o)
		wr.RKey, wr.RemoteAddr = w.b.mr.RKey(), w.b.mr.Addr()
		w.a.post(wr)
		w.run(0)
		w.want("no depth as requester", wcs(w.a.scq), "1:local QP operation error")
		o.rd, o.destRD = 1, -1
		w = newWorld(t, o)
		wr.RKey, wr.RemoteAddr = w.b.mr.RKey(), w.b.mr.Addr()
		w.a.post(wr)
		w.run(0)
		w.want("no depth as responder", wcs(w.a.scq), "1:remote invalid request error")
	}
}

// A fence waits for FLUSH and ATOMIC WRITE as for READs.
func TestFenceWaitsForExtended(t *testing.T) {
	w := newWorld(t, extendedOptions())
	fenced := w.a.write(3, 0, 100, 8)
	fenced.Flags |= ib.SendFence
	w.a.push(w.a.flushWR(1, 0, 8, ib.FlushGlobal, ib.FlushMR))
	w.a.push(w.a.wordWR(2, 0, make([]byte, 8)))
	w.a.push(fenced)
	w.a.kick()
	w.want("before the answers", len(w.log), 2)
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success")
	w.idle()
}

// A lost request is executed when it comes again; a lost answer is repeated from
// what was saved, and nothing is executed twice.
func TestExtendedLoss(t *testing.T) {
	for _, lost := range []roce.Opcode{roce.OpRCFlush, roce.OpRCAtomicWrite, roce.OpRCReadRespOnly} {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprint(lost, later), func(t *testing.T) {
				o := extendedOptions()
				w := newWorld(t, o)
				log := w.b.persisted(nil)
				left := 1
				w.hook = func(s *seen, _ *roce.Packet) fate {
					if s.op == lost && left > 0 {
						left--
						// The application of the responder goes on from what it sees.
						binary.NativeEndian.PutUint64(w.b.buf[0:], 99)
						return drop
					}
					return pass
				}
				if lost != roce.OpRCFlush {
					w.a.push(w.a.wordWR(1, 0, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
				}
				if lost != roce.OpRCAtomicWrite {
					w.a.push(w.a.flushWR(2, 0, 8, ib.FlushPersistent, ib.FlushRange))
				}
				if later {
					w.a.push(w.a.read(3, 1000, 0, 8))
				}
				w.a.kick()
				w.run(0)
				n := len(poll(w.a.scq))
				want := map[bool]int{true: 1}[later] + 1 + map[bool]int{true: 1}[lost == roce.OpRCReadRespOnly]
				w.want("completions", n, want)
				w.want("made durable", len(*log), map[bool]int{true: 1}[lost != roce.OpRCAtomicWrite])
				word := binary.NativeEndian.Uint64(w.b.buf)
				switch lost {
				case roce.OpRCAtomicWrite:
					w.want("word", w.b.buf[:8], []byte{1, 2, 3, 4, 5, 6, 7, 8})
				default:
					w.want("word is stored once", word, 99)
				}
				w.want("sent again", w.a.env.Stats.Retransmits > 0, true)
				w.idle()
			})
		}
	}
}

func TestExtendedReplay(t *testing.T) {
	o := extendedOptions()
	o.rd = 2
	w := newWorld(t, o)
	va, key := w.b.mr.Addr(), w.b.mr.RKey()
	ask := func(op roce.Opcode, p uint32) string {
		w.log = nil
		if op == roce.OpRCFlush {
			w.b.inject(op, o.psn+p, true, nil, feth(va, key, 8, 1, 0))
		} else {
			w.b.inject(op, o.psn+p, true, []byte{9, 9, 9, 9, 9, 9, 9, 9}, reth(va, key, 8))
		}
		w.run(0)
		return w.ops(w.b, o.psn)
	}
	const f, aw = roce.OpRCFlush, roce.OpRCAtomicWrite
	w.want("first", ask(f, 0), "RDMA_READ_RESPONSE_ONLY@0")
	w.want("again", ask(f, 0), "RDMA_READ_RESPONSE_ONLY@0")
	w.want("second", ask(aw, 1), "RDMA_READ_RESPONSE_ONLY@1")
	clear(w.b.buf[:8])
	w.want("again", ask(aw, 1), "RDMA_READ_RESPONSE_ONLY@1")
	w.want("not executed again", w.b.buf[0], 0)
	w.want("another operation", ask(f, 1), "")
	w.want("another operation", ask(aw, 0), "")
	w.want("third", ask(f, 2), "RDMA_READ_RESPONSE_ONLY@2")
	w.want("forgotten", ask(f, 0), "")
	w.want("dropped", w.b.env.Stats.DropDuplicate, 3)
	w.want("MSN", w.b.qp.rsp.msn, 3)
	w.want("state", w.b.q.State, ib.QPStateRTS)
}

// The answers wait behind a READ that is being answered.
func TestExtendedAnswersInOrder(t *testing.T) {
	o := extendedOptions()
	w := streaming(t, o)
	w.a.push(w.a.flushWR(2, 0, 8, ib.FlushGlobal, ib.FlushMR))
	w.a.push(w.a.wordWR(3, 26_000, make([]byte, 8)))
	w.a.kick()
	for i := range w.wire {
		w.wire[i].deliver()
	}
	w.wire = nil
	w.run(0)
	last := uint32(0)
	for _, s := range w.log {
		if s.from == w.b {
			p := (s.psn - o.psn) & 0xFFFFFF
			if p < last {
				t.Errorf("PSN %d after %d", p, last)
			}
			last = p
		}
	}
	w.want("last answer", last, 101)
	w.want("completions", wcs(w.a.scq), "1:success 2:success 3:success")
	w.want("retransmits", w.a.env.Stats.Retransmits, 0)
	w.idle()
}

func TestBadExtendedResponse(t *testing.T) {
	for name, c := range map[string]struct {
		op  roce.Opcode
		n   int
		syn roce.Syndrome
	}{
		"payload":       {roce.OpRCReadRespOnly, 8, roce.AckNoCredit},
		"READ FIRST":    {roce.OpRCReadRespFirst, 0, roce.AckNoCredit},
		"atomic answer": {roce.OpRCAtomicAck, 0, roce.AckNoCredit},
		"NAK":           {roce.OpRCReadRespOnly, 0, roce.NAKRemAccess},
	} {
		t.Run(name, func(t *testing.T) {
			o := extendedOptions()
			w := newWorld(t, o)
			w.a.post(w.a.flushWR(1, 0, 8, ib.FlushGlobal, ib.FlushMR))
			w.wire = nil
			w.a.inject(c.op, o.psn, false, make([]byte, c.n), aeth(c.syn))
			w.wire[0].deliver()
			w.want("completion", wcs(w.a.scq), "1:bad response error")
		})
	}
}

// Random words and flushes over a bad network: every word is stored once, in
// order, and every FLUSH comes behind what was written before it.
func TestExtendedWeather(t *testing.T) {
	for seed := uint64(1); seed <= 30; seed++ {
		rng := rand.New(rand.NewPCG(seed, 47))
		o := extendedOptions()
		o.rd = uint8(1 + rng.IntN(4))
		o.timeout = 10
		w := newWorld(t, o)
		w.mute = true
		durable := uint64(0)
		w.b.tab.SetPersister(1, func(uintptr, uintptr) error {
			durable = binary.NativeEndian.Uint64(w.b.buf)
			return nil
		})
		w.hook = func(*seen, *roce.Packet) fate {
			switch x := rng.Float64(); {
			case x < .1:
				return drop
			case x < .2:
				return dup
			}
			return pass
		}
		w.lag = func() int64 { return 1000 + rng.Int64N(20_000) }
		const total = 60
		word := uint64(0)
		for i := uint64(1); i <= total; i++ {
			if rng.IntN(3) > 0 {
				word = i
				w.a.push(w.a.wordWR(i, 0, binary.NativeEndian.AppendUint64(nil, i)))
			} else {
				w.a.push(w.a.flushWR(i, 0, 8, ib.FlushPersistent, ib.FlushRange))
			}
			if i%7 == 0 {
				w.a.kick()
				w.run(w.now + rng.Int64N(1e6))
			}
		}
		w.a.push(w.a.flushWR(total+1, 0, 0, ib.FlushGlobal, ib.FlushMR))
		w.a.push(w.a.flushWR(total+2, 0, 8, ib.FlushPersistent, ib.FlushRange))
		w.a.kick()
		w.run(0)
		got := poll(w.a.scq)
		if len(got) != total+2 || w.a.q.State != ib.QPStateRTS {
			t.Fatalf("seed %d: %d completions, %v", seed, len(got), w.a.q.State)
		}
		for i, wc := range got {
			if wc.WRID != uint64(i+1) || wc.Status != ib.WCSuccess {
				t.Fatalf("seed %d: completion %d: %+v", seed, i, wc)
			}
		}
		if durable != word || binary.NativeEndian.Uint64(w.b.buf) != word {
			t.Fatalf("seed %d: %d stored, %d durable, want %d", seed, binary.NativeEndian.Uint64(w.b.buf), durable, word)
		}
		w.idle()
	}
}

// An ATOMIC WRITE behind a READ of the same bytes, as a WRITE: the response that was
// not sent yet refers to memory that must not change under its ICRC.
func TestAtomicWriteBehindReadOfSameBytes(t *testing.T) {
	w := newWorld(t, defaults())
	fill(w.a.buf[:8], 9)
	fill(w.b.buf[:4096], 1)
	old := append([]byte{}, w.b.buf[:4096]...)
	w.a.push(w.a.read(1, 100_000, 0, 4096))
	wr := w.a.write(2, 0, 0, 8)
	wr.Opcode = ib.WRAtomicWrite
	w.a.push(wr)
	w.a.kick()
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:success")
	w.want("READ", same(w.a.buf[100_000:104_096], old), true)
	w.want("stored", same(w.b.buf[:8], w.a.buf[:8]), true)
	w.want("timeouts", w.a.env.Stats.LocalTimeouts, 0)
	w.idle()
}
