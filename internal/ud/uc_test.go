package ud

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func mustPSN(p uint32) psn.PSN { return psn.PSN(p & psn.Mask) }

// The bytes of UC packets, written down from the header layouts: opcode, SE
// MigReq pad version, P_Key, reserved, destination queue pair, AckReq, PSN.
func TestUCPacketBytes(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	copy(r.a.buf, "hello")
	r.post(r.a, driver.SendWR{WRID: 1, Opcode: ib.WRSend, SGList: []driver.SGE{r.a.sge(0, 5)}, Flags: ib.SendSolicited})
	r.wantOnWire("24" + "f0" + "ffff" + "00" + "000022" + "00" + "123456" + "68656c6c6f" + "000000")
	r.wire = nil

	r.post(r.a, driver.SendWR{
		WRID: 2, Opcode: ib.WRRDMAWriteWithImm, SGList: []driver.SGE{r.a.sge(0, 4)},
		RemoteAddr: 0x1122334455667788, RKey: 0x99AABBCC, ImmData: 0xDEADBEEF,
	})
	r.wantOnWire("2b" + "40" + "ffff" + "00" + "000022" + "00" + "123457" + "1122334455667788" + "99aabbcc" + "00000004" + "deadbeef" + "68656c6c")
	r.wire = nil

	pattern(r.a.buf[:600], 0)
	r.post(r.a, driver.SendWR{
		WRID: 3, Opcode: ib.WRRDMAWrite, SGList: []driver.SGE{r.a.sge(0, 513)}, Flags: ib.SendSolicited,
		RemoteAddr: 0x10, RKey: 0x20,
	})
	r.wantOnWire(
		"26"+"40"+"ffff"+"00"+"000022"+"00"+"123458"+"0000000000000010"+"00000020"+"00000201"+fmt.Sprintf("%x", r.a.buf[:256]),
		"27"+"40"+"ffff"+"00"+"000022"+"00"+"123459"+fmt.Sprintf("%x", r.a.buf[256:512]),
		"28"+"70"+"ffff"+"00"+"000022"+"00"+"12345a"+fmt.Sprintf("%x", r.a.buf[512:513])+"000000",
	)
	r.wire = nil

	r.post(r.b, driver.SendWR{WRID: 4, Opcode: ib.WRSendWithImm, SGList: []driver.SGE{r.b.sge(0, 1000)}, ImmData: 7, Flags: ib.SendSolicited})
	if got, want := r.ops(), []roce.Opcode{roce.OpUCSendFirst, roce.OpUCSendMiddle, roce.OpUCSendMiddle, roce.OpUCSendLastImm}; !slices.Equal(got, want) {
		t.Errorf("opcodes %v, want %v", got, want)
	}
	for i, want := range []uint32{0xFFFFFE, 0xFFFFFF, 0, 1} {
		h := roce.BTH(r.wire[i].b)
		if h.PSN() != mustPSN(want) || h.SE() != (i == 3) {
			t.Errorf("packet %d: PSN %#x, SE %v", i, h.PSN(), h.SE())
		}
	}
}

// Case 10: segmentation is exact for any length, for each operation and MTU.
func TestCase10_UCLengths(t *testing.T) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm} {
			for _, n := range []int{0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 2*mtu + 1, 1444, 1445, 65535, 65536, 65537} {
				t.Run(fmt.Sprintf("%v/%d/%d", op, mtu, n), func(t *testing.T) { ucTransfer(t, op, mtu, n) })
			}
		}
	}
}

func ucTransfer(t *testing.T, op ib.WROpcode, mtu, n int) {
	r := newRig(t, ib.UC, mtu)
	pattern(r.a.buf[:n], byte(n))
	// Three pieces that do not end at packet borders.
	x, y := n/3, n/2
	sgl := []driver.SGE{r.a.sge(0, x), r.a.sge(x, y-x), r.a.sge(y, n-y)}
	if op != ib.WRRDMAWrite {
		if n > 65536 {
			r.b.nextRecvID = 2 // the last two slots: room for one long receive
		}
		r.recv(r.b, n)
	}
	id := r.b.nextRecvID
	r.post(r.a, driver.SendWR{
		WRID: 9, Opcode: op, SGList: sgl, Flags: ib.SendSignaled, ImmData: 0xABCD0123, RemoteAddr: r.b.mr.Addr() + 64, RKey: r.b.mr.RKey(),
	})
	if at := r.a.svc.Deadline(); at != 0 {
		r.env.Now = at
		r.a.svc.Timer(&r.env)
		r.settle()
	}
	r.wantWCs("sender", polled(r.a.scq), ended{9, ib.WCSuccess})
	if want := max(1, (n+mtu-1)/mtu); len(r.wire) != want {
		t.Fatalf("%d packets, want %d", len(r.wire), want)
	}
	r.pump()
	wcs := polled(r.b.rcq)
	data := r.b.buf[64:][:n]
	switch op {
	case ib.WRRDMAWrite:
		r.wantWCs("receiver", wcs)
	default:
		r.wantWCs("receiver", wcs, ended{id, ib.WCSuccess})
		want := driver.WC{WRID: id, Opcode: ib.WCRecv, ByteLen: uint32(n), QPNum: numB}
		if op != ib.WRSend {
			want.Flags, want.ImmData = ib.WCWithImm, 0xABCD0123
		}
		if op == ib.WRRDMAWriteWithImm {
			want.Opcode = ib.WCRecvRDMAWithImm
		} else {
			data = r.b.got(id, n)
		}
		if wcs[0] != want {
			t.Errorf("completion %+v, want %+v", wcs[0], want)
		}
	}
	if !bytes.Equal(data, r.a.buf[:n]) {
		t.Error("content differs")
	}
	if r.env.Stats.OutOfSeq != 0 || r.env.Stats.DropSequence != 0 {
		t.Errorf("counters %+v", r.env.Stats)
	}
}

// Case 22: no packet of an unacknowledged service asks for an acknowledgement.
func TestCase22_UCNoAckReq(t *testing.T) {
	r := newRig(t, ib.UC, 1024)
	for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm} {
		for _, n := range []int{0, 100, 100_000} {
			r.post(r.a, driver.SendWR{Opcode: op, SGList: []driver.SGE{r.a.sge(0, n)}})
			r.env.Now += paceTime
		}
	}
	if len(r.wire) < 4*98 {
		t.Fatalf("only %d packets", len(r.wire))
	}
	for _, f := range r.wire {
		if h := roce.BTH(f.b); h.AckReq() || !h.MigReq() {
			t.Fatalf("%v: AckReq %v, MigReq %v", h.Opcode(), h.AckReq(), h.MigReq())
		}
	}
}

// Whichever packet of a message is lost, the message is not delivered, its
// receive is used for the next one, and the sender notices nothing.
func TestUCLoss(t *testing.T) {
	const mtu, packets = 256, 4
	for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWriteWithImm} {
		for lost := range packets {
			r := newRig(t, ib.UC, mtu)
			r.recv(r.b, 2048, 2048)
			pattern(r.a.buf[:4096], 3)
			wr := driver.SendWR{Opcode: op, Flags: ib.SendSignaled, RemoteAddr: r.b.mr.Addr(), RKey: r.b.mr.RKey()}
			wr.WRID, wr.SGList = 1, []driver.SGE{r.a.sge(0, mtu*packets)}
			r.post(r.a, wr)
			wr.WRID, wr.SGList = 2, []driver.SGE{r.a.sge(2048, 700)}
			r.post(r.a, wr)
			r.wantWCs("sender", polled(r.a.scq), ended{1, 0}, ended{2, 0})
			r.wire = slices.Delete(r.wire, lost, lost+1)
			r.pump()
			wcs := polled(r.b.rcq)
			r.wantWCs(fmt.Sprint(op, " without packet ", lost), wcs, ended{1, 0})
			data := r.b.got(1, 700)
			if op != ib.WRSend {
				data = r.b.buf[:700]
			}
			if wcs[0].ByteLen != 700 || !bytes.Equal(data, r.a.buf[2048:][:700]) {
				t.Errorf("%v without packet %d: second message is wrong", op, lost)
			}
			if r.env.Stats.DropSequence == 0 || r.env.Stats.OutOfSeq != 1 {
				t.Errorf("%v without packet %d: DropSequence %d, OutOfSeq %d", op, lost, r.env.Stats.DropSequence, r.env.Stats.OutOfSeq)
			}
			if r.b.q.State != ib.QPStateRTS {
				t.Errorf("state %v", r.b.q.State)
			}
		}
	}
}

// A packet that comes twice or late in the middle of a message ends it.
func TestUCDuplicateAndReorder(t *testing.T) {
	for name, mix := range map[string]func([]frame) []frame{
		"middle twice": func(w []frame) []frame { return []frame{w[0], w[1], w[1], w[2], w[3]} },
		"swapped":      func(w []frame) []frame { return []frame{w[0], w[2], w[1], w[3]} },
	} {
		r := newRig(t, ib.UC, 256)
		r.recv(r.b, 2048)
		r.post(r.a, driver.SendWR{Opcode: ib.WRSend, SGList: []driver.SGE{r.a.sge(0, 1024)}})
		r.wire = mix(r.wire)
		r.pump()
		r.wantWCs(name, polled(r.b.rcq))
		r.post(r.a, driver.SendWR{Opcode: ib.WRSend, SGList: []driver.SGE{r.a.sge(0, 10)}})
		r.pump()
		r.wantWCs(name+", next", polled(r.b.rcq), ended{1, 0})
	}
	// A FIRST that comes twice starts the message again.
	r := newRig(t, ib.UC, 256)
	r.recv(r.b, 2048, 2048)
	pattern(r.a.buf[:1024], 5)
	r.post(r.a, driver.SendWR{Opcode: ib.WRSend, SGList: []driver.SGE{r.a.sge(0, 1024)}})
	r.wire = slices.Insert(r.wire, 0, r.wire[0])
	r.pump()
	r.wantWCs("first twice", polled(r.b.rcq), ended{1, 0})
	if !bytes.Equal(r.b.got(1, 1024), r.a.buf[:1024]) {
		t.Error("content differs")
	}
}

// Messages that may not be delivered are dropped silently, each with its
// counter, and the next one is good.
func TestUCDrops(t *testing.T) {
	const va = uint64(numB) << 32
	payload := make([]byte, 256)
	for _, c := range []struct {
		name  string
		count func(r *rig) uint64
		send  func(r *rig)
	}{
		{"no receive", func(r *rig) uint64 { return r.env.Stats.DropNoRecv }, func(r *rig) {
			r.inject(roce.OpUCSendOnly, 1, payload, nil)
		}},
		{"no receive for a write's immediate", func(r *rig) uint64 { return r.env.Stats.DropNoRecv }, func(r *rig) {
			r.inject(roce.OpUCWriteOnlyImm, 1, nil, nil)
		}},
		{"no right", func(r *rig) uint64 { return r.env.Stats.DropAccess }, func(r *rig) {
			r.b.q.Attr.QPAccessFlags = ib.AccessRemoteRead
			r.inject(roce.OpUCWriteOnly, 1, payload, func(p *roce.Packet) { p.RETH().Put(va, uint32(r.b.mr.RKey()), 256) })
			r.b.q.Attr.QPAccessFlags = ib.AccessRemoteWrite
		}},
		{"bad key", func(r *rig) uint64 { return r.env.Stats.DropAccess }, func(r *rig) {
			r.inject(roce.OpUCWriteOnly, 1, payload, func(p *roce.Packet) { p.RETH().Put(va, uint32(r.b.mr.RKey())^1, 256) })
		}},
		{"out of bounds", func(r *rig) uint64 { return r.env.Stats.DropAccess }, func(r *rig) {
			r.inject(roce.OpUCWriteOnly, 1, payload, func(p *roce.Packet) { p.RETH().Put(va+bufLen-255, uint32(r.b.mr.RKey()), 256) })
		}},
		{"whole message out of bounds at its first packet", func(r *rig) uint64 { return r.env.Stats.DropAccess }, func(r *rig) {
			r.inject(roce.OpUCWriteFirst, 1, payload, func(p *roce.Packet) { p.RETH().Put(va, uint32(r.b.mr.RKey()), bufLen+1) })
		}},
		{"wrap around", func(r *rig) uint64 { return r.env.Stats.DropAccess }, func(r *rig) {
			r.inject(roce.OpUCWriteFirst, 1, payload, func(p *roce.Packet) { p.RETH().Put(^uint64(0)-100, uint32(r.b.mr.RKey()), 512) })
		}},
		{"longer than a message", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.inject(roce.OpUCWriteFirst, 1, payload, func(p *roce.Packet) { p.RETH().Put(va, uint32(r.b.mr.RKey()), 1<<31+1) })
		}},
		{"write shorter than it says", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.inject(roce.OpUCWriteOnly, 1, payload, func(p *roce.Packet) { p.RETH().Put(va, uint32(r.b.mr.RKey()), 257) })
		}},
		{"write longer than it says", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.inject(roce.OpUCWriteOnly, 1, payload, func(p *roce.Packet) { p.RETH().Put(va, uint32(r.b.mr.RKey()), 255) })
		}},
		{"first not of the MTU", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.inject(roce.OpUCSendFirst, 1, payload[:252], nil)
		}},
		{"only over the MTU", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.inject(roce.OpUCSendOnly, 1, make([]byte, 260), nil)
		}},
		{"last over the MTU", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.recv(r.b, 1024)
			r.inject(roce.OpUCSendFirst, 1, payload, nil)
			r.inject(roce.OpUCSendLast, 2, make([]byte, 260), nil)
		}},
		{"empty last", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.recv(r.b, 1024)
			r.inject(roce.OpUCSendFirst, 1, payload, nil)
			r.inject(roce.OpUCSendLast, 2, nil, nil)
		}},
		{"longer than the receive", func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.recv(r.b, 511)
			r.inject(roce.OpUCSendFirst, 1, payload, nil)
			r.inject(roce.OpUCSendLast, 2, payload, nil)
		}},
		{"middle without first", func(r *rig) uint64 { return r.env.Stats.DropSequence }, func(r *rig) {
			r.inject(roce.OpUCSendMiddle, 0x123456, payload, nil)
		}},
		{"last without first", func(r *rig) uint64 { return r.env.Stats.DropSequence }, func(r *rig) {
			r.inject(roce.OpUCWriteLast, 0x123456, payload, nil)
		}},
		{"write continues a send", func(r *rig) uint64 { return r.env.Stats.DropSequence }, func(r *rig) {
			r.recv(r.b, 1024)
			r.inject(roce.OpUCSendFirst, 1, payload, nil)
			r.inject(roce.OpUCWriteLast, 2, payload, nil)
		}},
		{"other partition", func(r *rig) uint64 { return r.env.Stats.DropPKey }, func(r *rig) {
			r.inject(roce.OpUCSendOnly, 1, payload, func(p *roce.Packet) { p.BTH.SetPKey(0x8001) })
		}},
		{"other service", func(r *rig) uint64 { return r.env.Stats.DropTransport }, func(r *rig) {
			r.inject(roce.OpRCSendOnly, 1, payload, nil)
		}},
		{"below RTR", func(r *rig) uint64 { return r.env.Stats.DropState }, func(r *rig) {
			r.b.q.State = ib.QPStateInit
			r.inject(roce.OpUCSendOnly, 1, payload, nil)
			r.b.q.State = ib.QPStateRTS
		}},
		{"in error", func(r *rig) uint64 { return r.env.Stats.DropState }, func(r *rig) {
			r.b.q.State = ib.QPStateErr
			r.inject(roce.OpUCSendOnly, 1, payload, nil)
			r.b.q.State = ib.QPStateRTS
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, ib.UC, 256)
			before := bytes.Clone(r.b.buf[:recvArea])
			c.send(r)
			if c.count(r) != 1 {
				t.Errorf("counters %+v", r.env.Stats)
			}
			r.wantWCs("receiver", polled(r.b.rcq))
			if !bytes.Equal(r.b.buf[:recvArea], before) {
				t.Error("memory has changed")
			}
			if len(r.wire) != 0 {
				t.Error("an answer was sent")
			}
			r.recv(r.b, 1024)
			r.inject(roce.OpUCSendFirst, 100, payload, nil)
			r.inject(roce.OpUCSendLast, 101, payload[:4], nil)
			if wcs := polled(r.b.rcq); len(wcs) != 1 || wcs[0].ByteLen != 260 && wcs[0].Status == 0 {
				t.Errorf("the next message: %+v", wcs)
			}
		})
	}
}

// A region that goes away in the middle of a WRITE ends the message.
func TestUCDeregisterDuringWrite(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	r.post(r.a, driver.SendWR{
		Opcode: ib.WRRDMAWrite, SGList: []driver.SGE{r.a.sge(0, 1024)}, RemoteAddr: r.b.mr.Addr(), RKey: r.b.mr.RKey(),
	})
	r.deliver(r.wire[0])
	r.env.Mem.Release(r.b.mr)
	r.wire = r.wire[1:]
	r.pump()
	if r.env.Stats.DropAccess != 1 || r.env.Stats.DropSequence != 2 || r.b.q.State != ib.QPStateRTS {
		t.Errorf("state %v, counters %+v", r.b.q.State, r.env.Stats)
	}
}

// Case 31: a WRITE of no bytes has no target that could be wrong.
func TestCase31_UCZeroLengthWrite(t *testing.T) {
	r := newRig(t, ib.UC, 1024)
	r.recv(r.b, 0)
	wr := driver.SendWR{WRID: 1, Opcode: ib.WRRDMAWrite, RKey: 0xdead, Flags: ib.SendSignaled}
	r.post(r.a, wr)
	wr.WRID, wr.Opcode, wr.ImmData = 2, ib.WRRDMAWriteWithImm, 5
	r.post(r.a, wr)
	r.pump()
	r.wantWCs("sender", polled(r.a.scq), ended{1, 0}, ended{2, 0})
	wcs := polled(r.b.rcq)
	r.wantWCs("receiver", wcs, ended{1, 0})
	if wcs[0].Opcode != ib.WCRecvRDMAWithImm || wcs[0].ImmData != 5 || wcs[0].ByteLen != 0 {
		t.Errorf("completion %+v", wcs[0])
	}
}

// Queue pairs on one shared receive queue each keep the request of their broken
// message for their next one.
func TestUCSharedReceiveQueue(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	srq := queue.NewRQ(8, 1)
	for _, e := range []*end{r.a, r.b} {
		e.q.RQ, e.q.Shared = srq, true
	}
	for id := range uint64(3) {
		if _, err := srq.Post([]driver.RecvWR{{WRID: id + 1, SGList: []driver.SGE{r.b.sge(int(id)<<10, 1024)}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := srq.SetLimit(2); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 256)
	r.inject(roce.OpUCSendFirst, 1, payload, nil) // takes 1, never ends
	if len(r.b.events) != 0 {
		t.Errorf("events %v with as many requests as the limit", r.b.events)
	}
	r.post(r.b, driver.SendWR{Opcode: ib.WRSend, SGList: []driver.SGE{r.b.sge(0, 3)}})
	r.pump() // to a: takes 2
	r.wantWCs("a", polled(r.a.rcq), ended{2, 0})
	if !slices.Equal(r.a.events, []ib.EventType{ib.EventSRQLimitReached}) {
		t.Errorf("events %v", r.a.events)
	}
	r.inject(roce.OpUCSendOnly, 9, payload, nil)
	r.wantWCs("b", polled(r.b.rcq), ended{1, 0})
	if srq.Len() != 1 {
		t.Errorf("%d requests are left", srq.Len())
	}
	r.b.modify(r, ib.QPStateErr, 0)
	r.b.modify(r, ib.QPStateErr, 0)
	if !slices.Equal(r.b.events, []ib.EventType{ib.EventQPLastWQEReached}) || srq.Len() != 1 {
		t.Errorf("events %v, %d requests left", r.b.events, srq.Len())
	}
}

func TestUCCommEst(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	r.b.modify(r, ib.QPStateReset, 0)
	r.b.modify(r, ib.QPStateInit, 0)
	r.b.modify(r, ib.QPStateRTR, ib.QPAttrRQPSN)
	r.recv(r.b, 10, 10)
	r.inject(roce.OpUCSendOnly, 0x123456, []byte{1, 2, 3, 4}, nil)
	r.inject(roce.OpUCSendOnly, 0x123457, []byte{1, 2, 3, 4}, nil)
	r.wantWCs("in RTR", polled(r.b.rcq), ended{1, 0}, ended{2, 0})
	if !slices.Equal(r.b.events, []ib.EventType{ib.EventCommEst}) {
		t.Errorf("events %v", r.b.events)
	}
}

func TestUCSolicited(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	r.recv(r.b, 1024, 1024, 1024)
	r.b.rcq.Arm(true)
	wr := driver.SendWR{Opcode: ib.WRSend, SGList: []driver.SGE{r.a.sge(0, 600)}}
	r.post(r.a, wr)
	r.pump()
	if r.b.notified != 0 {
		t.Error("notified of a message that is not solicited")
	}
	wr.Flags = ib.SendSolicited
	r.post(r.a, wr)
	r.pump()
	if r.b.notified != 1 {
		t.Errorf("notified %d times", r.b.notified)
	}
}
