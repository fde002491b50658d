package ud

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// The bytes of UD packets: BTH, DETH (Q_Key, reserved, source queue pair),
// immediate data.
func TestUDPacketBytes(t *testing.T) {
	r := newRig(t, ib.UD, 1024)
	copy(r.a.buf, "hello")
	wr := r.sendTo(1, r.a.sge(0, 5))
	wr.Flags |= ib.SendSolicited
	wr.RemoteQKey = 0x01234567
	wr2 := r.sendTo(2)
	wr2.Opcode, wr2.ImmData, wr2.RemoteQPN = ib.WRSendWithImm, 0xDEADBEEF, ib.QPNMulticast
	r.post(r.a, wr, wr2)
	r.wantOnWire(
		"64"+"f0"+"ffff"+"00"+"000022"+"00"+"123456"+"01234567"+"00"+"000011"+"68656c6c6f"+"000000",
		"65"+"40"+"ffff"+"00"+"ffffff"+"00"+"123457"+"11111111"+"00"+"000011"+"deadbeef",
	)
	r.wantWCs("sends", polled(r.a.scq), ended{1, 0}, ended{2, 0})
}

// A Q_Key with bit 31 in the work request stands for the queue pair's own.
func TestUDPrivilegedQKey(t *testing.T) {
	r := newRig(t, ib.UD, 1024)
	r.a.q.Attr.QKey = 0x22222222
	for _, k := range []ib.QKey{0x80000000, 0xFFFFFFFF, 0x7FFFFFFF} {
		wr := r.sendTo(1)
		wr.RemoteQKey = k
		r.post(r.a, wr)
	}
	for i, want := range []uint32{0x22222222, 0x22222222, 0x7FFFFFFF} {
		if got := roce.DETH(r.wire[i].b[roce.BTHLen:]).QKey(); got != want {
			t.Errorf("packet %d has Q_Key %#x, want %#x", i, got, want)
		}
	}
}

// Case 22: datagrams never ask for an acknowledgement.
func TestCase22_UDNoAckReq(t *testing.T) {
	r := newRig(t, ib.UD, 1024)
	for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm} {
		for _, n := range []int{0, 100, 1024} {
			wr := r.sendTo(1, r.a.sge(0, n))
			wr.Opcode = op
			r.post(r.a, wr)
		}
	}
	if len(r.wire) != 6 {
		t.Fatalf("%d packets", len(r.wire))
	}
	for _, f := range r.wire {
		if h := roce.BTH(f.b); h.AckReq() || !h.MigReq() {
			t.Fatalf("%v: AckReq %v, MigReq %v", h.Opcode(), h.AckReq(), h.MigReq())
		}
	}
	// One that asks all the same, as rdma_rxe's management packets do, is
	// delivered and not answered.
	r.wire = nil
	r.recv(r.b, 200)
	r.inject(roce.OpUDSendOnly, 1, nil, func(p *roce.Packet) { p.BTH.SetAckReq(true); p.DETH().Put(uint32(testQKey), 5) })
	wcs := polled(r.b.rcq)
	r.wantWCs("receives", wcs, ended{1, 0})
	if wcs[0].SrcQP != 5 || wcs[0].ByteLen != 40 || len(r.wire) != 0 || len(r.env.Owed) != 0 {
		t.Errorf("completion %+v, %d answers", wcs[0], len(r.wire))
	}
}

// Case 74: the 40 bytes before the payload. IPv4: zeros, then the header as it
// came. IPv6: the header. byte_len counts them, the GRH flag is set.
func TestCase74_GRH(t *testing.T) {
	for _, c := range []struct {
		a, b string
		id   uint16
		want string
	}{
		{
			"192.0.2.1", "192.0.2.2", 0x1234,
			// Total length 20+8+12+8+5+3+4 = 60, DF, TTL 64, UDP, TOS 0x20. The
			// checksum makes the sum of the ten words 0xFFFF.
			"0000000000000000000000000000000000000000" + "4520003c" + "12344000" + "4011a459" + "c0000201" + "c0000202",
		},
		{
			"2001:db8::1", "2001:db8::2", 0,
			// Payload length 40, next header 17, hop limit 64, class 0x20.
			"62000000" + "00281140" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002",
		},
	} {
		r := newRigAt(t, ib.UD, 1024, netip.MustParseAddr(c.a), netip.MustParseAddr(c.b))
		copy(r.a.buf, "hello")
		for i := range r.b.buf {
			r.b.buf[i] = 0xEE
		}
		wr := r.sendTo(1, r.a.sge(0, 5))
		wr.Opcode, wr.ImmData = ib.WRSendWithImm, 3
		wr.Opcode = ib.WRSend
		r.post(r.a, wr)
		r.wire[0].id = c.id
		r.recv(r.b, 45)
		r.pump()
		wcs := polled(r.b.rcq)
		want := driver.WC{WRID: 1, Opcode: ib.WCRecv, Flags: ib.WCGRH, ByteLen: 45, QPNum: numB, SrcQP: numA}
		if len(wcs) != 1 || wcs[0] != want {
			t.Errorf("completion %+v, want %+v", wcs, want)
		}
		if got := hex.EncodeToString(r.b.got(1, 46)); got != c.want+hex.EncodeToString([]byte("hello\xEE")) {
			t.Errorf("%s: received\n%s, want\n%s", c.a, got, c.want)
		}
		src, dst, tclass, hop, _, ok := roce.ParseGRH(r.b.got(1, 40))
		if !ok || src.String() != c.a || dst.String() != c.b || tclass != 0x20 || hop != 64 {
			t.Errorf("read back: %v %v %#x %d %v", src, dst, tclass, hop, ok)
		}
	}
}

// Header and payload may lie in any number of pieces.
func TestUDScatter(t *testing.T) {
	r := newRig(t, ib.UD, 1024)
	pattern(r.a.buf[:1000], 4)
	r.post(r.a, r.sendTo(1, r.a.sge(0, 1000)))
	sgl := []driver.SGE{r.b.sge(0, 30), r.b.sge(100, 20), r.b.sge(200, 0), r.b.sge(300, 1000)}
	if _, err := r.b.q.RQ.Post([]driver.RecvWR{{WRID: 1, SGList: sgl}}); err != nil {
		t.Fatal(err)
	}
	r.pump()
	r.wantWCs("receives", polled(r.b.rcq), ended{1, 0})
	var got []byte
	for _, s := range sgl {
		got = append(got, r.b.buf[s.Addr-r.b.mr.Addr():][:s.Length]...)
	}
	if got[20] != 0x45 || !bytes.Equal(got[40:1040], r.a.buf[:1000]) {
		t.Error("content differs")
	}
}

// Case 75: a datagram is as long as the port's MTU at most, and a longer one is
// neither cut nor swallowed: LOC_LEN_ERR, and the send queue stops.
func TestCase75_UDLength(t *testing.T) {
	r := newRig(t, ib.UD, 4096)
	pattern(r.a.buf[:4097], 6)
	r.recv(r.b, 40+4096)
	r.post(r.a, r.sendTo(1, r.a.sge(0, 4096)), r.sendTo(2, r.a.sge(0, 4000), r.a.sge(0, 97)), r.sendTo(3, r.a.sge(0, 1)))
	r.wantWCs("sends", polled(r.a.scq), ended{1, 0}, ended{2, ib.WCLocLenErr}, ended{3, ib.WCWRFlushErr})
	if r.a.q.State != ib.QPStateSQE || len(r.wire) != 1 {
		t.Errorf("state %v, %d packets", r.a.q.State, len(r.wire))
	}
	r.pump()
	wcs := polled(r.b.rcq)
	r.wantWCs("receives", wcs, ended{1, 0})
	if wcs[0].ByteLen != 4136 || !bytes.Equal(r.b.got(1, 4136)[40:], r.a.buf[:4096]) {
		t.Error("content differs")
	}
}

// Datagrams that are not delivered are counted and disturb nothing: the sender
// completes with success, receives stay where they are.
func TestUDDrops(t *testing.T) {
	good := func(p *roce.Packet) { p.DETH().Put(uint32(testQKey), uint32(numA)) }
	for _, c := range []struct {
		name  string
		recv  int
		count func(r *rig) uint64
		send  func(r *rig)
	}{
		{"no receive", -1, func(r *rig) uint64 { return r.env.Stats.DropNoRecv }, func(r *rig) {
			r.post(r.a, r.sendTo(1, r.a.sge(0, 8)))
			r.pump()
			r.wantWCs("sender", polled(r.a.scq), ended{1, 0})
		}},
		{"no room for the header", 39, func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.inject(roce.OpUDSendOnly, 1, nil, good)
		}},
		{"no room for the payload", 47, func(r *rig) uint64 { return r.env.Stats.DropLength }, func(r *rig) {
			r.inject(roce.OpUDSendOnly, 1, make([]byte, 8), good)
		}},
		{"wrong Q_Key", 100, func(r *rig) uint64 { return r.env.Stats.DropQKey }, func(r *rig) {
			r.inject(roce.OpUDSendOnly, 1, nil, func(p *roce.Packet) { p.DETH().Put(uint32(testQKey)+1, 1) })
		}},
		{"other service", 100, func(r *rig) uint64 { return r.env.Stats.DropTransport }, func(r *rig) {
			r.inject(roce.OpUCSendOnly, 1, nil, nil)
		}},
		{"below RTR", 100, func(r *rig) uint64 { return r.env.Stats.DropState }, func(r *rig) {
			r.b.q.State = ib.QPStateInit
			r.inject(roce.OpUDSendOnly, 1, nil, good)
			r.b.q.State = ib.QPStateRTS
		}},
		{"in error", 100, func(r *rig) uint64 { return r.env.Stats.DropState }, func(r *rig) {
			r.b.q.State = ib.QPStateErr
			r.inject(roce.OpUDSendOnly, 1, nil, good)
			r.b.q.State = ib.QPStateRTS
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, ib.UD, 1024)
			if c.recv >= 0 {
				r.recv(r.b, c.recv)
			}
			c.send(r)
			if c.count(r) != 1 {
				t.Errorf("counters %+v", r.env.Stats)
			}
			r.wantWCs("receiver", polled(r.b.rcq))
			if c.recv < 40 {
				return
			}
			r.inject(roce.OpUDSendOnlyImm, 1, nil, good)
			wcs := polled(r.b.rcq)
			r.wantWCs("the next one", wcs, ended{1, 0})
			if wcs[0].Flags != ib.WCGRH|ib.WCWithImm {
				t.Errorf("flags %v", wcs[0].Flags)
			}
		})
	}
}

// Case 25: keys of one partition match unless both are limited members.
func TestCase25_UDPKeys(t *testing.T) {
	for _, c := range []struct {
		own, sent ib.PKey
		ok        bool
	}{
		{0xFFFF, 0xFFFF, true},
		{0xFFFF, 0x7FFF, true},
		{0x7FFF, 0xFFFF, true},
		{0x7FFF, 0x7FFF, false},
		{0x8001, 0x0001, true},
		{0x0001, 0x0001, false},
		{0x8001, 0x8002, false},
		{0x8000, 0x8000, false},
	} {
		r := newRig(t, ib.UD, 1024)
		r.b.q.PKey, r.a.q.PKey = c.own, c.sent
		r.recv(r.b, 100)
		r.post(r.a, r.sendTo(1))
		r.pump()
		if got := len(polled(r.b.rcq)) == 1; got != c.ok || r.env.Stats.DropPKey != 1 && !c.ok {
			t.Errorf("%#x to %#x: delivered %v, want %v", uint16(c.sent), uint16(c.own), got, c.ok)
		}
	}
}

// Datagrams are received in every state from RTR on.
func TestUDReceiveStates(t *testing.T) {
	for s := ib.QPStateReset; s <= ib.QPStateErr; s++ {
		r := newRig(t, ib.UD, 1024)
		r.recv(r.b, 100)
		r.b.q.State = s
		r.post(r.a, r.sendTo(1))
		r.pump()
		want := s == ib.QPStateRTR || s == ib.QPStateRTS || s == ib.QPStateSQD || s == ib.QPStateSQE
		if got := len(polled(r.b.rcq)) == 1; got != want || want == (r.env.Stats.DropState == 1) {
			t.Errorf("%v: delivered %v, DropState %d", s, got, r.env.Stats.DropState)
		}
	}
}

// An address handle that is gone, or not one of this device, ends the request
// in LOC_QP_OP_ERR.
func TestUDDeadAddressHandle(t *testing.T) {
	for i, ah := range []driver.AH{&handle{}, foreignAH{}} {
		r := newRig(t, ib.UD, 1024)
		wr := r.sendTo(1, r.a.sge(0, 8))
		wr.AH = ah
		r.post(r.a, wr)
		r.wantWCs(fmt.Sprint("handle ", i), polled(r.a.scq), ended{1, ib.WCLocQPOpErr})
	}
}

type foreignAH struct{}

func (foreignAH) Destroy() error { return nil }

// Equal datagrams to one address share a GSO send; other addresses do not.
func TestUDBatches(t *testing.T) {
	r := newRig(t, ib.UD, 1024)
	ah := &handle{r.a.flow}
	var msgs int
	r.onSend = func() { msgs = len(r.env.Tx.Msgs) }
	var wrs []driver.SendWR
	for i := range 10 {
		wr := r.sendTo(uint64(i), r.a.sge(0, 1000))
		wr.AH = ah
		wrs = append(wrs, wr)
	}
	wrs[9].AH = &handle{newFlow(r.a.flow.Src(), netip.MustParseAddr("192.0.2.9"), 0xC123)}
	r.post(r.a, wrs...)
	if msgs != 2 || len(r.wire) != 10 {
		t.Errorf("%d packets in %d messages", len(r.wire), msgs)
	}
}
