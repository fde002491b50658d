package rc

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// xrcWorld is an initiator A and a target B, whose XRC domain has two receive
// queues, each with a protection domain, memory and a completion queue of its own.
type xrcWorld struct {
	*world
	xrcd *transport.XRCD
	srqs [2]*xrcQueue
}

type xrcQueue struct {
	*transport.XRCSRQ
	buf    []byte
	mr     *mem.Region
	w      *world
	events []ib.EventType
}

const xrcFirst = 0xABC // number of the first receive queue

func newXRC(t testing.TB, o options) *xrcWorld {
	w := &world{t: t, now: 1_000_000}
	w.a, w.b = newSide(w, "A", 1, o), newSide(w, "B", 2, o)
	w.a.peer, w.b.peer = w.b, w.a
	x := &xrcWorld{world: w, xrcd: new(transport.XRCD)}
	a, b := w.a.q, w.b.q
	a.Type, a.RQ, a.RecvCQ = ib.XRCSend, queue.NewRQ(0, 0), a.SendCQ
	b.Type, b.SQ, b.RQ, b.PD, b.SendCQ, b.RecvCQ = ib.XRCRecv, queue.NewSQ(0, 0, 0), queue.NewRQ(0, 0), nil, nil, nil
	b.Shared, b.XRCD = true, x.xrcd
	w.a.qp, w.b.qp = New(a), New(b)
	for i := range x.srqs {
		x.srqs[i] = x.queue(xrcFirst+uint32(i), o.bufs, o.mrAccess)
	}
	w.a.connect(o, o.psn, o.psn+100)
	w.b.connect(o, o.psn+100, o.psn)
	return x
}

func (x *xrcWorld) queue(n uint32, bytes int, access ib.Access) *xrcQueue {
	x.t.Helper()
	s := &xrcQueue{w: x.world, buf: make([]byte, bytes)}
	pd := mem.NewPD()
	var err error
	if s.mr, err = x.b.tab.Register(pd, s.buf, mem.Address(s.buf), access); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { x.b.tab.Release(s.mr) })
	s.XRCSRQ = &transport.XRCSRQ{
		Num: n, PD: pd, RQ: queue.NewRQ(64, 4), CQ: queue.NewCQ(4096),
		Events: func(e ib.EventType) { s.events = append(s.events, e) },
	}
	if !x.xrcd.Add(s.XRCSRQ) {
		x.t.Fatal("the number is taken")
	}
	return s
}

func (s *xrcQueue) recv(id uint64, off, n int) {
	s.w.t.Helper()
	sg := driver.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
	if _, err := s.RQ.Post([]driver.RecvWR{{WRID: id, SGList: []driver.SGE{sg}}}); err != nil {
		s.w.t.Fatal(err)
	}
}

// to makes a work request that is for the memory and the queue of s.
func (s *xrcQueue) to(id uint64, op ib.WROpcode, from, to, n int) driver.SendWR {
	return driver.SendWR{
		WRID: id, Opcode: op, SGList: []driver.SGE{s.w.a.sge(from, n)}, RemoteSRQN: s.Num,
		RemoteAddr: s.mr.Addr() + uint64(to), RKey: s.mr.RKey(),
	}
}

func wcsFull(c *queue.CQ) string {
	out := ""
	for _, wc := range poll(c) {
		out += fmt.Sprintf("%d:%v:%v:%d:%#x:%#x ", wc.WRID, wc.Status, wc.Opcode, wc.ByteLen, wc.ImmData, uint32(wc.QPNum))
	}
	return out
}

// Every packet of every operation: opcodes of class 0xA0, the receive queue's number
// behind the BTH of each request and nowhere in a response, the other headers behind it.
func TestXRCPacketsOfEveryOperation(t *testing.T) {
	o := extendedOptions()
	o.mtu = ib.MTU256
	for _, c := range []struct {
		op   ib.WROpcode
		n    int
		want string // what A sends, what B answers
		recv string
	}{
		{ib.WRSend, 5, "A4+0@0 | B1@0", "7:success:RECV:5:0x0:0x102 "},
		{ib.WRSendWithImm, 5, "A5+4@0 | B1@0", "7:success:RECV:5:0x11223344:0x102 "},
		{ib.WRSend, 700, "A0+0@0 A1+0@1 A2+0@2 | B1@2", "7:success:RECV:700:0x0:0x102 "},
		{ib.WRSendWithImm, 700, "A0+0@0 A1+0@1 A3+4@2 | B1@2", "7:success:RECV:700:0x11223344:0x102 "},
		{ib.WRRDMAWrite, 5, "AA+16@0 | B1@0", ""},
		{ib.WRRDMAWriteWithImm, 5, "AB+20@0 | B1@0", "7:success:RECV_RDMA_WITH_IMM:5:0x11223344:0x102 "},
		{ib.WRRDMAWrite, 700, "A6+16@0 A7+0@1 A8+0@2 | B1@2", ""},
		{ib.WRRDMAWriteWithImm, 700, "A6+16@0 A7+0@1 A9+4@2 | B1@2", "7:success:RECV_RDMA_WITH_IMM:700:0x11223344:0x102 "},
		{ib.WRRDMARead, 5, "AC+16@0 | B0@0", ""},
		{ib.WRRDMARead, 700, "AC+16@0 | AD@0 AE@1 AF@2", ""},
		{ib.WRAtomicFetchAndAdd, 8, "B4+28@0 | B2@0", ""},
		{ib.WRAtomicCmpAndSwp, 8, "B3+28@0 | B2@0", ""},
		{ib.WRFlush, 700, "BC+20@0 | B0@0", ""},
		{ib.WRAtomicWrite, 8, "BD+16@0 | B0@0", ""},
	} {
		x := newXRC(t, o)
		s := x.srqs[1]
		fill(x.a.buf[:1000], 3)
		fill(s.buf[:1000], 9)
		s.recv(7, 4096, 1000)
		before := append([]byte(nil), s.buf[:1000]...)
		wr := s.to(1, c.op, 0, 2048, c.n)
		wr.ImmData, wr.CompareAdd = 0x11223344, 1
		if c.op == ib.WRRDMARead {
			wr = s.to(1, c.op, 2048, 0, c.n)
		}
		switch c.op {
		case ib.WRFlush:
			wr.SGList, wr.Length, wr.FlushType = nil, uint32(c.n), ib.FlushGlobal
		case ib.WRAtomicWrite:
			wr.SGList, wr.Flags, wr.InlineData = nil, ib.SendInline, x.a.buf[:8]
		}
		x.a.post(wr)
		x.run(0)
		var sent, answered string
		for _, p := range x.log {
			info := p.op.Info()
			if p.from == x.a {
				sent += fmt.Sprintf("%02X+%d@%d ", uint8(p.op), info.HdrLen-roce.BTHLen-roce.XRCETHLen, (p.psn-o.psn)&0xFFFFFF)
				if at := info.XRCETH; at != roce.BTHLen || fmt.Sprintf("%x", p.bth[at:at+4]) != "00000abd" {
					t.Errorf("%v: XRCETH %x at %d", p.op, p.bth, at)
				}
			} else {
				answered += fmt.Sprintf(" %02X@%d", uint8(p.op), (p.psn-o.psn)&0xFFFFFF)
				if info.XRCETH != 0 {
					t.Errorf("%v: a response with XRCETH", p.op)
				}
			}
		}
		name := fmt.Sprint(c.op, " of ", c.n)
		x.want(name, sent+"|"+answered, c.want)
		x.want(name, wcs(x.a.scq), "1:success")
		x.want(name, wcsFull(s.CQ), c.recv)
		x.want(name+", other queue", wcsFull(x.srqs[0].CQ), "")
		switch c.op {
		case ib.WRSend, ib.WRSendWithImm:
			x.want(name, same(s.buf[4096:4096+c.n], x.a.buf[:c.n]), true)
		case ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRAtomicWrite:
			x.want(name, same(s.buf[2048:2048+c.n], x.a.buf[:c.n]), true)
		case ib.WRRDMARead:
			x.want(name, same(x.a.buf[2048:2048+c.n], before[:c.n]), true)
		}
		x.idle()
	}
}

// A target without a receive posted answers RNR, once for each queue, and takes up
// where it was.
func TestXRCNotReady(t *testing.T) {
	x := newXRC(t, defaults())
	x.srqs[0].recv(1, 0, 100)
	x.a.post(x.srqs[0].to(1, ib.WRSend, 0, 0, 10))
	x.a.post(x.srqs[1].to(2, ib.WRSend, 0, 0, 10))
	x.a.post(x.srqs[0].to(3, ib.WRSend, 0, 0, 10))
	x.run(x.now + ms/10)
	x.want("in order, across queues", wcs(x.a.scq), "1:success")
	x.srqs[1].recv(2, 0, 100)
	x.srqs[0].recv(3, 0, 100)
	x.run(0)
	x.want("sends", wcs(x.a.scq), "2:success 3:success")
	x.want("first", wcs(x.srqs[0].CQ), "1:success 3:success")
	x.want("second", wcs(x.srqs[1].CQ), "2:success")
	x.want("RNR NAKs", x.count(func(s *seen) bool { return s.from == x.b && s.syn.IsRNRNAK() }), 1)
	x.idle()
}

// The limit of a receive queue is told to its own owner.
func TestXRCLimit(t *testing.T) {
	x := newXRC(t, defaults())
	s := x.srqs[1]
	s.recv(1, 0, 10)
	s.recv(2, 0, 10)
	if err := s.RQ.SetLimit(2); err != nil {
		t.Fatal(err)
	}
	x.a.post(s.to(1, ib.WRSend, 0, 0, 10))
	x.run(0)
	x.want("events", s.events, []ib.EventType{ib.EventSRQLimitReached})
	x.want("other", x.srqs[0].events, []ib.EventType{})
}

// What is wrong ends the target with the NAK, statuses and events of RC.
func TestXRCStatuses(t *testing.T) {
	for name, c := range map[string]struct {
		access ib.Access
		wr     func(x *xrcWorld) driver.SendWR
		send   string
		events string
		recv   string // on the first queue's completion queue
	}{
		"number of no queue": {
			wr: func(x *xrcWorld) driver.SendWR {
				wr := x.srqs[0].to(1, ib.WRSend, 0, 0, 10)
				wr.RemoteSRQN = 5
				return wr
			},
			send: "1:remote invalid request error", events: "[invalid request local work queue error]",
		},
		"WRITE to no queue": {
			wr: func(x *xrcWorld) driver.SendWR {
				wr := x.srqs[0].to(1, ib.WRRDMAWrite, 0, 0, 10)
				wr.RemoteSRQN = 5
				return wr
			},
			send: "1:remote invalid request error", events: "[invalid request local work queue error]",
		},
		"key of the other queue's domain": {
			wr: func(x *xrcWorld) driver.SendWR {
				wr := x.srqs[1].to(1, ib.WRRDMAWrite, 0, 0, 10)
				wr.RemoteSRQN = x.srqs[0].Num
				return wr
			},
			send: "1:remote access error", events: "[local access violation work queue error]",
		},
		"READ of the other queue's domain": {
			wr: func(x *xrcWorld) driver.SendWR {
				wr := x.srqs[1].to(1, ib.WRRDMARead, 0, 0, 10)
				wr.RemoteSRQN = x.srqs[0].Num
				return wr
			},
			send: "1:remote access error", events: "[local access violation work queue error]",
		},
		"no right": {
			access: ib.AccessRemoteRead,
			wr:     func(x *xrcWorld) driver.SendWR { return x.srqs[0].to(1, ib.WRRDMAWrite, 0, 0, 10) },
			send:   "1:remote invalid request error", events: "[invalid request local work queue error]",
		},
		"too long": {
			wr:   func(x *xrcWorld) driver.SendWR { return x.srqs[0].to(1, ib.WRSend, 0, 0, 200) },
			send: "1:remote invalid request error", events: "[]", recv: "7:local length error",
		},
		"bad immediate's key": {
			wr: func(x *xrcWorld) driver.SendWR {
				wr := x.srqs[0].to(1, ib.WRRDMAWriteWithImm, 0, 0, 10)
				wr.RKey++
				return wr
			},
			send: "1:remote access error", events: "[local access violation work queue error]", recv: "7:local access error",
		},
	} {
		o := defaults()
		if c.access != 0 {
			o.access = c.access
		}
		x := newXRC(t, o)
		x.srqs[0].recv(7, 0, 100)
		x.srqs[0].recv(8, 0, 100)
		x.a.post(c.wr(x))
		x.run(0)
		x.want(name, wcs(x.a.scq), c.send)
		x.want(name, wcs(x.srqs[0].CQ), c.recv)
		x.want(name, x.b.events, c.events)
		x.want(name, x.b.q.State, ib.QPStateErr)
		x.want(name, x.a.q.State, ib.QPStateErr)
		// The receives that wait are not the target's: nobody flushes them.
		left := 2
		if c.recv != "" {
			left = 1
		}
		x.want(name, x.srqs[0].RQ.Len(), left)
		x.idle()
	}
}

// The NAK code that is left for it completes with the status of the same name.
func TestXRCInvalidRDRequest(t *testing.T) {
	x := newXRC(t, defaults())
	x.hook = func(s *seen, _ *roce.Packet) fate { return drop }
	x.a.post(x.srqs[0].to(1, ib.WRSend, 0, 0, 10))
	x.hook = nil
	x.a.inject(roce.OpXRCAcknowledge, defaults().psn, false, nil, aeth(roce.NAKInvRDReq))
	x.run(x.now + 1)
	x.want("status", wcs(x.a.scq), "1:remote invalid RD request")
}

// A message cannot go on for another receive queue.
func TestXRCQueueChangesInMessage(t *testing.T) {
	o := defaults()
	o.mtu = ib.MTU256
	for _, op := range []roce.Opcode{roce.OpXRCSendFirst, roce.OpXRCWriteFirst} {
		x := newXRC(t, o)
		for i, s := range x.srqs {
			s.recv(uint64(i), 0, 1000)
		}
		next := roce.OpXRCSendLast
		if op == roce.OpXRCWriteFirst {
			next = roce.OpXRCWriteLast
		}
		put := func(n uint32) func(h []byte, i *roce.OpInfo) {
			return func(h []byte, i *roce.OpInfo) {
				roce.XRCETH(h[i.XRCETH:]).Put(n)
				if i.RETH != 0 {
					roce.RETH(h[i.RETH:]).Put(x.srqs[0].mr.Addr(), uint32(x.srqs[0].mr.RKey()), 300)
				}
			}
		}
		x.b.inject(op, o.psn, false, make([]byte, 256), put(xrcFirst))
		x.b.inject(next, o.psn+1, true, make([]byte, 44), put(xrcFirst+1))
		x.run(x.now + 1)
		x.want(op.String(), x.b.events, []ib.EventType{ib.EventQPReqErr})
		x.want(op.String(), x.ops(x.b, o.psn), "XRC_ACKNOWLEDGE@1")
		x.want(op.String(), x.log[len(x.log)-1].syn, roce.NAKInvReq)
		flushed := ""
		if op == roce.OpXRCSendFirst {
			flushed = "0:" + ib.WCWRFlushErr.String()
		}
		x.want("the receive in progress", wcs(x.srqs[0].CQ), flushed)
		x.want("the other", wcs(x.srqs[1].CQ), "")
	}
}

// A receive queue that is destroyed in the middle of a message takes the receive in
// progress with it: nothing is written to its completion queue any more.
func TestXRCQueueDestroyedInMessage(t *testing.T) {
	o := defaults()
	o.mtu = ib.MTU256
	for _, how := range []string{"next packet", "to Error", "to Reset"} {
		x := newXRC(t, o)
		s := x.srqs[0]
		s.recv(7, 0, 2000)
		x.hook = func(p *seen, _ *roce.Packet) fate {
			if p.from == x.a && (p.psn-o.psn)&0xFFFFFF >= 2 {
				return hold
			}
			return pass
		}
		x.a.post(s.to(1, ib.WRSend, 0, 0, 1000))
		x.run(x.now + 1)
		x.want("in progress", x.b.q.RecvBusy, true)
		x.xrcd.Remove(s.XRCSRQ)
		x.hook = nil
		switch how {
		case "to Error":
			x.b.to(ib.QPStateErr)
		case "to Reset":
			x.b.to(ib.QPStateReset)
		default:
			x.release()
			x.run(0)
			x.want(how, wcs(x.a.scq), "1:"+ib.WCRemInvReqErr.String())
		}
		x.want(how, wcs(s.CQ), "")
		x.want(how, x.b.q.RecvBusy, false)
	}
}

// The queue goes while a request is on its way, and the NAK that says so is lost.
// The target is in Error by then, where what comes in is dropped (IBA 10.3.1), so
// the request ends as one to a target that is gone.
func TestXRCQueueDestroyedAndNAKLost(t *testing.T) {
	x := newXRC(t, defaults())
	s := x.srqs[0]
	wr := s.to(1, ib.WRSend, 0, 0, 10)
	x.xrcd.Remove(s.XRCSRQ)
	naks, requests := 0, 0
	x.hook = func(p *seen, _ *roce.Packet) fate {
		if p.from == x.a {
			requests++
			return pass
		}
		if p.syn != roce.NAKInvReq {
			t.Errorf("answer %v", p.syn)
		}
		naks++
		return drop
	}
	x.a.post(wr)
	x.run(0)
	x.want("statuses", wcs(x.a.scq), "1:transport retry counter exceeded")
	x.want("NAKs", naks, 1)
	x.want("requests", requests, 8)
	x.want("events", x.b.events, "[invalid request local work queue error]")
	x.idle()
}

// A repeated READ is answered from the memory of its own queue, though another one
// is at work by then.
func TestXRCRepeatedRead(t *testing.T) {
	x := newXRC(t, defaults())
	fill(x.srqs[0].buf[:3000], 1)
	fill(x.srqs[1].buf[:3000], 2)
	lost := 0
	x.hook = func(p *seen, _ *roce.Packet) fate {
		if p.op == roce.OpXRCReadRespFirst && lost < 2 {
			lost++
			return drop
		}
		return pass
	}
	x.a.post(x.srqs[0].to(1, ib.WRRDMARead, 0, 0, 3000))
	x.a.post(x.srqs[1].to(2, ib.WRRDMARead, 10_000, 0, 3000))
	x.run(0)
	x.want("reads", wcs(x.a.scq), "1:success 2:success")
	x.want("lost", lost, 2)
	x.want("first", same(x.a.buf[:3000], x.srqs[0].buf[:3000]), true)
	x.want("second", same(x.a.buf[10_000:13_000], x.srqs[1].buf[:3000]), true)
	x.idle()
}

// Neither side has the other's half: a response to a target, a request to an
// initiator, and RC's opcodes make no difference.
func TestXRCHalves(t *testing.T) {
	x := newXRC(t, defaults())
	psn := defaults().psn
	x.b.inject(roce.OpXRCAcknowledge, psn+100, false, nil, aeth(roce.AckNoCredit))
	x.a.inject(roce.OpXRCSendOnly, psn+100, true, make([]byte, 4), func(h []byte, i *roce.OpInfo) { roce.XRCETH(h[i.XRCETH:]).Put(xrcFirst) })
	x.run(0)
	x.want("answers", len(x.log), 0)
	x.want("states", fmt.Sprint(x.a.q.State, x.b.q.State), "RTS RTS")
}

// Errors of the queue pair flush what it has; LAST_WQE_REACHED is for queue pairs
// that were made with a shared receive queue.
func TestXRCFlush(t *testing.T) {
	x := newXRC(t, defaults())
	x.srqs[0].recv(7, 0, 100)
	x.hook = func(*seen, *roce.Packet) fate { return drop }
	x.a.post(x.srqs[0].to(1, ib.WRSend, 0, 0, 10))
	x.a.to(ib.QPStateErr)
	x.b.to(ib.QPStateErr)
	x.run(0)
	x.want("sends", wcs(x.a.scq), "1:"+ib.WCWRFlushErr.String())
	x.want("receives", x.srqs[0].RQ.Len(), 1)
	x.want("events", fmt.Sprint(x.a.events, x.b.events), "[] []")
}

// TestXRCModel does random work for two receive queues over a bad network.
func TestXRCModel(t *testing.T) {
	for seed := uint64(1); seed <= 25; seed++ {
		if xrcModel(t, seed); t.Failed() {
			t.Fatalf("failed with seed %d", seed)
		}
	}
}

func xrcModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	o := defaults()
	o.mtu = ib.MTU(1 + rng.IntN(5))
	o.rd = uint8(1 + rng.IntN(4))
	o.psn = rng.Uint32() & 0xFFFFFF
	o.timeout, o.rnrTimer, o.segs = 10, uint8(1+rng.IntN(12)), []int{1, 2, 64}[rng.IntN(3)]
	x := newXRC(t, o)
	x.mute = true
	wt := [...]weather{{}, {loss: .03}, {loss: .05, dup: .05}, {loss: .02, dup: .02, late: .05}, {late: .2}}[rng.IntN(5)]
	x.hook = func(*seen, *roce.Packet) fate {
		switch v := rng.Float64(); {
		case v < wt.loss:
			return drop
		case v < wt.loss+wt.dup:
			return dup
		}
		return pass
	}
	x.lag = func() int64 {
		if rng.Float64() < wt.late {
			return 1000 + rng.Int64N(100_000)
		}
		return 1000
	}
	const area = 50_000
	fill(x.a.buf[:area], byte(seed))
	var want [2][]byte // memory of each queue: WRITEs at 0, receives at area
	var recvs [2][]string
	var posted [2]int
	for i, s := range x.srqs {
		want[i] = make([]byte, len(s.buf))
	}
	const total = 60
	sums := [2]uint64{}
	var sends string
	got := ""
	atomics := map[uint64]uint64{}
	for id := range uint64(total) {
		k := rng.IntN(2)
		s := x.srqs[k]
		n := rng.IntN(9000)
		from, to := rng.IntN(area-n), rng.IntN(area-n)
		inbox := area + 10_000*(len(recvs[k])%20)
		var wr driver.SendWR
		switch rng.IntN(5) {
		case 0:
			wr = s.to(id, ib.WRRDMAWrite, from, to, n)
			copy(want[k][to:], x.a.buf[from:from+n])
		case 1:
			wr = s.to(id, ib.WRRDMAWriteWithImm, from, to, n)
			wr.ImmData = rng.Uint32()
			copy(want[k][to:], x.a.buf[from:from+n])
			recvs[k] = append(recvs[k], fmt.Sprint(ib.WCRecvRDMAWithImm, n, wr.ImmData))
		case 2:
			wr = s.to(id, ib.WRSend, from, 0, n)
			copy(want[k][inbox:], x.a.buf[from:from+n])
			recvs[k] = append(recvs[k], fmt.Sprint(ib.WCRecv, n, 0))
		case 3:
			// Fenced and followed by nothing that changes the memory: read at the end.
			wr = s.to(id, ib.WRRDMARead, 100_000, to, n)
		default:
			wr = s.to(id, ib.WRAtomicFetchAndAdd, 200_000+8*int(id), 600_000, 8)
			wr.CompareAdd = rng.Uint64()
			atomics[id] = sums[k]
			sums[k] += wr.CompareAdd
		}
		x.a.push(wr)
		sends += fmt.Sprintf("%d:success ", id)
		if rng.IntN(3) == 0 {
			x.a.kick()
			x.run(x.now + rng.Int64N(ms))
		}
		for j, s := range x.srqs {
			for posted[j] < len(recvs[j]) && rng.IntN(2) == 0 {
				s.recv(uint64(posted[j]), area+10_000*(posted[j]%20), 10_000)
				posted[j]++
			}
		}
		for _, wc := range poll(x.a.scq) {
			got += fmt.Sprintf("%d:%v ", wc.WRID, wc.Status)
		}
	}
	for j, s := range x.srqs {
		for ; posted[j] < len(recvs[j]); posted[j]++ {
			s.recv(uint64(posted[j]), area+10_000*(posted[j]%20), 10_000)
		}
	}
	x.a.kick()
	x.run(x.now + 2000*ms)
	x.hook, x.lag = nil, nil
	x.run(0)
	for _, wc := range poll(x.a.scq) {
		got += fmt.Sprintf("%d:%v ", wc.WRID, wc.Status)
	}
	x.want("sends", got, sends)
	for j, s := range x.srqs {
		binary.NativeEndian.PutUint64(want[j][600_000:], sums[j])
		var list []string
		for i, wc := range poll(s.CQ) {
			if wc.WRID != uint64(i) || wc.Status != ib.WCSuccess || wc.QPNum != x.b.q.Num {
				t.Errorf("receive %d: %+v", i, wc)
			}
			list = append(list, fmt.Sprint(wc.Opcode, wc.ByteLen, wc.ImmData))
		}
		x.want("receives", list, recvs[j])
		if !same(s.buf, want[j]) {
			t.Errorf("memory of queue %d differs", j)
		}
	}
	for id, v := range atomics {
		if g := binary.NativeEndian.Uint64(x.a.buf[200_000+8*int(id):]); g != v {
			t.Errorf("atomic %d returned %d, want %d", id, g, v)
		}
	}
	x.idle()
}

// The path of XRC data allocates nothing either.
func TestXRCNoAllocations(t *testing.T) {
	o := defaults()
	x := newXRC(t, o)
	l := &fastLane{w: x.world}
	for i, s := range []*side{x.a, x.b} {
		l.bufs[i] = make([]byte, 0, 1<<20)
		s.env.Send = func() { l.carry(i, s) }
	}
	n := 0
	var wrs [2][2]driver.SendWR
	var rwrs [2][]driver.RecvWR
	for i, s := range x.srqs {
		wrs[i] = [2]driver.SendWR{s.to(1, ib.WRSend, 0, 0, 20_000), s.to(2, ib.WRRDMARead, 0, 0, 20_000)}
		rwrs[i] = []driver.RecvWR{{SGList: []driver.SGE{{Addr: s.mr.Addr(), Length: 30_000, LKey: s.mr.LKey()}}}}
	}
	round := func() {
		i := n & 1
		n++
		_, _ = x.srqs[i].RQ.Post(rwrs[i])
		x.a.push(wrs[i][0])
		x.a.push(wrs[i][1])
		x.a.kick()
		l.turn()
		l.drain(2)
		x.srqs[i].CQ.Poll(l.wcs[:])
	}
	for range 10 {
		round()
	}
	if a := testing.AllocsPerRun(50, round); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

// TestXRCHostile lets a peer send anything of the XRC class to a target and to an
// initiator, while receive queues come and go: nothing panics, nothing is completed
// twice or into a queue that is gone.
func TestXRCHostile(t *testing.T) {
	for seed := range uint64(300) {
		if xrcHostile(t, seed); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func xrcHostile(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	o := extendedOptions()
	o.mtu, o.bufs, o.timeout, o.rnrTimer = ib.MTU256, 32<<10, 5, 1
	o.psn = rng.Uint32() & 0xFFFFFF
	x := newXRC(t, o)
	x.mute = true
	x.hook = func(*seen, *roce.Packet) fate {
		if rng.IntN(2) == 0 {
			return drop
		}
		return pass
	}
	posted := map[uint64]bool{}
	id := uint64(0)
	for range 8 {
		s := x.srqs[rng.IntN(2)]
		s.recv(id, rng.IntN(8<<10), rng.IntN(2000))
		posted[id] = true
		id++
		x.a.push(s.to(id, []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead}[rng.IntN(3)], 0, 0, rng.IntN(3000)))
	}
	x.a.kick()
	gone := -1
	for step := range 60 {
		op := roce.Opcode(roce.TransportXRC) | roce.Opcode(rng.IntN(32))
		to := x.b
		if rng.IntN(3) == 0 {
			to = x.a
		}
		base := uint32(to.qp.rsp.epsn)
		if op.Info().Flags.Any(roce.FlagResponse) {
			base = uint32(to.qp.req.una)
		}
		n := []int{0, 1, 8, 255, 256, 257}[rng.IntN(6)]
		s := x.srqs[rng.IntN(2)]
		va := s.mr.Addr() + []uint64{0, 0, 8, 4, 32<<10 - 8, 32 << 10, 1 << 63}[rng.IntN(7)]
		length := []uint32{0, uint32(n), 512, 5000, 1 << 31, 1<<32 - 1}[rng.IntN(6)]
		srqn := xrcFirst + uint32(rng.IntN(3))
		to.inject(op, base+uint32(rng.IntN(4))*uint32(rng.IntN(2))-uint32(rng.IntN(3))*uint32(rng.IntN(2)), rng.IntN(2) == 0, make([]byte, n), func(h []byte, i *roce.OpInfo) {
			if i.XRCETH != 0 {
				roce.XRCETH(h[i.XRCETH:]).Put(srqn)
			}
			if i.RETH != 0 {
				roce.RETH(h[i.RETH:]).Put(va, uint32(s.mr.RKey()), length)
			}
			if i.AETH != 0 {
				roce.AETH(h[i.AETH:]).Put(roce.Syndrome(rng.Uint32()), 0)
			}
			if i.AtomicETH != 0 {
				roce.AtomicETH(h[i.AtomicETH:]).Put(va, uint32(s.mr.RKey()), 1, 0)
			}
			if i.FETH != 0 {
				roce.FETH(h[i.FETH:]).Put(uint8(rng.IntN(16)), uint8(rng.IntN(4)))
			}
		})
		x.run(x.now + rng.Int64N(100_000))
		if step == 30 && rng.IntN(2) == 0 {
			gone = rng.IntN(2)
			for _, wc := range poll(x.srqs[gone].CQ) {
				delete(posted, wc.WRID)
			}
			x.xrcd.Remove(x.srqs[gone].XRCSRQ)
		}
	}
	x.run(0)
	for i, s := range x.srqs {
		for _, wc := range poll(s.CQ) {
			if i == gone {
				t.Errorf("completion in the queue that is gone: %+v", wc)
			}
			if !posted[wc.WRID] {
				t.Errorf("receive %d completed twice", wc.WRID)
			}
			delete(posted, wc.WRID)
		}
	}
}

// An opcode of the class that nobody knows is an invalid request.
func TestXRCUnknownOpcode(t *testing.T) {
	x := newXRC(t, defaults())
	x.b.inject(roce.Opcode(0xBF), defaults().psn, true, nil, nil)
	x.run(x.now + 1)
	x.want("answer", x.log[0].syn, roce.NAKInvReq)
	x.want("events", x.b.events, []ib.EventType{ib.EventQPReqErr})
}
