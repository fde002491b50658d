package roce

import (
	"bytes"
	"testing"
)

// TestXRCPackets builds XRC packets from their fields and compares them with those
// that were made by hand.
func TestXRCPackets(t *testing.T) {
	const (
		srqn = 0xABC
		va   = 0x1122334455667788
		key  = 0xA1B2C3D4
	)
	hello := "hello"
	for _, c := range []struct {
		name    string
		op      Opcode
		payload string
		ext     func(h []byte, i *OpInfo)
	}{
		{"xrc-send-only", OpXRCSendOnly, hello, nil},
		{"xrc-send-only-ipv6", OpXRCSendOnly, hello, nil},
		{"xrc-send-last-inv", OpXRCSendLastInv, hello, func(h []byte, i *OpInfo) { IETH(h[i.IETH:]).Put(0x01020304) }},
		{"xrc-send-only-imm", OpXRCSendOnlyImm, hello, func(h []byte, i *OpInfo) { ImmDt(h[i.Imm:]).Put(0x11223344) }},
		{"xrc-write-only-imm", OpXRCWriteOnlyImm, hello, func(h []byte, i *OpInfo) {
			RETH(h[i.RETH:]).Put(va, key, 5)
			ImmDt(h[i.Imm:]).Put(0xCAFEF00D)
		}},
		{"xrc-read-request", OpXRCReadRequest, "", func(h []byte, i *OpInfo) { RETH(h[i.RETH:]).Put(va, key, 4096) }},
		{"xrc-compare-swap", OpXRCCompareSwap, "", func(h []byte, i *OpInfo) {
			AtomicETH(h[i.AtomicETH:]).Put(va, key, 0x0102030405060708, 0x1112131415161718)
		}},
		{"xrc-ack", OpXRCAcknowledge, "", nil},
		{"xrc-read-response-only", OpXRCReadRespOnly, hello, nil},
		{"xrc-atomic-ack", OpXRCAtomicAck, "", func(h []byte, i *OpInfo) { AtomicAckETH(h[i.AtomicAck:]).Put(0x1112131415161718) }},
	} {
		g := findGolden(t, c.name)
		i := c.op.Info()
		n := len(c.payload)
		b := make([]byte, i.HdrLen+n+PadLen(n)+ICRCLen)
		request := i.Flags.Any(FlagRequest)
		qpn := uint32(0x12)
		if request {
			qpn = 0x11
			XRCETH(b[i.XRCETH:]).Put(srqn)
		} else {
			AETH(b[i.AETH:]).Put(AckNoCredit, 1)
		}
		BTH(b).Put(c.op, false, PadLen(n), 0xFFFF, qpn, request, 0x123456)
		BTH(b).SetMigReq(false)
		if c.ext != nil {
			c.ext(b, i)
		}
		copy(b[i.HdrLen:], c.payload)
		path := g.path()
		PutICRC(b[len(b)-ICRCLen:], path.Compute(b, g.id()))
		if !bytes.Equal(b, g.roce()) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, b, g.roce())
		}
		var p Packet
		if err := Parse(g.roce(), &p); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if h := p.XRCETH(); p.Op != c.op || string(p.Payload) != c.payload || (h != nil) != request || request && h.SRQN() != srqn {
			t.Errorf("%s: decoded %v, payload %q, XRCETH %x", c.name, p.Op, p.Payload, []byte(h))
		}
	}
}
