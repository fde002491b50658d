package roce

import (
	"bytes"
	"errors"
	"testing"
)

// build returns a packet of an opcode with every header byte from a counter, payload bytes and pad.
func build(op Opcode, payload int) []byte {
	info := op.Info()
	b := make([]byte, info.HdrLen+payload+PadLen(payload)+ICRCLen)
	for i := BTHLen; i < info.HdrLen+payload; i++ {
		b[i] = byte(i)
	}
	BTH(b).Put(op, false, PadLen(payload), 0xFFFF, 0x123, true, 0x456)
	return b
}

func TestParseEveryOpcode(t *testing.T) {
	for i := range 256 {
		op := Opcode(i)
		info := op.Info()
		for payload := range 9 {
			b := build(op, payload)
			var p Packet
			err := Parse(b, &p)
			if !info.Valid {
				if !errors.Is(err, ErrOpcode) || p.Op != op || p.BTH.DestQP() != 0x123 || p.BTH.PSN() != 0x456 || p.Payload != nil {
					t.Errorf("%v: error %v, packet %+v", op, err, p)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%v with %d bytes: %v", op, payload, err)
			}
			if !bytes.Equal(p.Payload, b[info.HdrLen:info.HdrLen+payload]) || p.Info != info || p.Op != op || &p.B[0] != &b[0] || len(p.B) != len(b) {
				t.Errorf("%v with %d bytes: %+v", op, payload, p)
			}
			if cap(p.Payload) != len(p.Payload) {
				t.Errorf("%v: append to the payload would overwrite the ICRC", op)
			}
			views := 0
			for _, v := range []struct {
				b   []byte
				off uint8
				n   int
			}{
				{p.RETH(), info.RETH, RETHLen},
				{p.AETH(), info.AETH, AETHLen},
				{p.DETH(), info.DETH, DETHLen},
				{p.AtomicETH(), info.AtomicETH, AtomicETHLen},
				{p.AtomicAckETH(), info.AtomicAck, AtomicAckETHLen},
				{p.ImmDt(), info.Imm, ImmDtLen},
				{p.IETH(), info.IETH, IETHLen},
				{p.XRCETH(), info.XRCETH, XRCETHLen},
				{p.FETH(), info.FETH, FETHLen},
			} {
				if v.off == 0 {
					if v.b != nil {
						t.Errorf("%v: view of an absent header", op)
					}
					continue
				}
				views += v.n
				if len(v.b) != v.n || cap(v.b) != v.n || &v.b[0] != &b[v.off] {
					t.Errorf("%v: view at %d has %d bytes", op, v.off, len(v.b))
				}
			}
			if op != OpCNP && BTHLen+views != info.HdrLen {
				t.Errorf("%v: views cover %d of %d header bytes", op, BTHLen+views, info.HdrLen)
			}
			if op != OpCNP {
				if got := rebuild(&p); info.FETH == 0 && info.XRCETH == 0 && info.DETH == 0 && !bytes.Equal(got, b[:len(b)-ICRCLen]) {
					t.Errorf("%v: headers written anew differ\n got %x\nwant %x", op, got, b)
				}
			}
		}
	}
}

func TestParseTruncated(t *testing.T) {
	for i := range 256 {
		op := Opcode(i)
		if !op.Info().Valid {
			continue
		}
		b := build(op, 0)
		for n := range len(b) {
			var p Packet
			if err := Parse(b[:n], &p); !errors.Is(err, ErrShort) {
				t.Errorf("%v cut to %d of %d bytes: %v", op, n, len(b), err)
			}
			if p.Payload != nil || p.B != nil {
				t.Errorf("%v cut to %d bytes: a packet came out", op, n)
			}
		}
		b = build(op, 5)
		for n := op.Info().HdrLen + ICRCLen; n < len(b); n++ {
			var p Packet
			err := Parse(b[:n], &p)
			// 3 pad bytes are announced. Cut by exactly 4 the packet is a shorter one, with a wrong ICRC.
			if n == len(b)-4 {
				if err != nil || len(p.Payload) != 1 {
					t.Errorf("%v cut to %d bytes: %v, %d bytes of payload", op, n, err, len(p.Payload))
				}
			} else if !errors.Is(err, ErrPad) {
				t.Errorf("%v cut to %d of %d bytes: %v", op, n, len(b), err)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	var p Packet
	for v := uint8(1); v < 16; v++ {
		b := build(OpRCSendOnly, 4)
		BTH(b).SetTVer(v)
		if err := Parse(b, &p); !errors.Is(err, ErrVersion) || p.Op != OpRCSendOnly {
			t.Errorf("version %d: %v", v, err)
		}
	}
	for pad := 1; pad < 4; pad++ {
		b := build(OpRCAcknowledge, 0)
		BTH(b).SetPadCount(pad)
		if err := Parse(b, &p); !errors.Is(err, ErrPad) || p.Payload != nil {
			t.Errorf("%d pad bytes announced, none there: %v", pad, err)
		}
		b = build(OpRCSendOnly, 4)
		BTH(b).SetPadCount(pad)
		if err := Parse(b, &p); err != nil || len(p.Payload) != 4-pad {
			t.Errorf("%d pad bytes: %v, %d bytes of payload", pad, err, len(p.Payload))
		}
	}
	// A packet that was parsed before leaves nothing behind.
	if err := Parse(build(OpRCSendOnly, 8), &p); err != nil {
		t.Fatal(err)
	}
	if err := Parse(nil, &p); !errors.Is(err, ErrShort) || p.B != nil || p.Payload != nil || p.Info != nil {
		t.Errorf("nothing: %v, %+v", err, p)
	}
}

func TestPadLen(t *testing.T) {
	for n := range 64 {
		if got := PadLen(n); got < 0 || got > 3 || (n+got)%4 != 0 {
			t.Errorf("PadLen(%d) = %d", n, got)
		}
	}
}
