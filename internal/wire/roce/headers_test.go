package roce

import (
	"bytes"
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/internal/psn"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// dirty returns n bytes that are not zero, so that a Put that forgets a byte shows.
func dirty(n int) []byte { return bytes.Repeat([]byte{0xA5}, n) }

func TestHeaderBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
		put  func(b []byte)
		want string
	}{
		{"BTH", BTHLen, func(b []byte) { BTH(b).Put(OpRCSendOnly, true, 2, 0x7FFF, 0xABCDEF, true, 0x123456) }, "04e07fff00abcdef80123456"},
		{"BTH plain", BTHLen, func(b []byte) { BTH(b).Put(OpUDSendOnly, false, 0, 0xFFFF, 1, false, 0) }, "6440ffff0000000100000000"},
		{"BTH masks", BTHLen, func(b []byte) { BTH(b).Put(OpRCAcknowledge, false, 4, 1, 0xFF000002, false, 0xFF000003) }, "114000010000000200000003"},
		{"RETH", RETHLen, func(b []byte) { RETH(b).Put(0x0102030405060708, 0x11121314, 0x80000000) }, "01020304050607081112131480000000"},
		{"AETH", AETHLen, func(b []byte) { AETH(b).Put(NAKRemAccess, 0xFF0A0B0C) }, "620a0b0c"},
		{"DETH", DETHLen, func(b []byte) { DETH(b).Put(0x80010000, 0xFF000001) }, "8001000000000001"},
		{
			"AtomicETH", AtomicETHLen, func(b []byte) { AtomicETH(b).Put(0x1000, 0x11121314, 0x2122232425262728, 0x3132333435363738) },
			"00000000000010001112131421222324252627283132333435363738",
		},
		{"AtomicAckETH", AtomicAckETHLen, func(b []byte) { AtomicAckETH(b).Put(0x0102030405060708) }, "0102030405060708"},
		{"ImmDt", ImmDtLen, func(b []byte) { ImmDt(b).Put(0x01020304) }, "01020304"},
		{"IETH", IETHLen, func(b []byte) { IETH(b).Put(0x01020304) }, "01020304"},
		{"XRCETH", XRCETHLen, func(b []byte) { XRCETH(b).Put(0xFF020304) }, "00020304"},
		{"RDETH", RDETHLen, func(b []byte) { RDETH(b).Put(0xFF020304) }, "00020304"},
		{"FETH", FETHLen, func(b []byte) { FETH(b).Put(FlushGlobalVisibility|FlushPersistence, FlushMR) }, "00000013"},
	} {
		b := dirty(c.n)
		c.put(b)
		if want := unhex(t, c.want); !bytes.Equal(b, want) {
			t.Errorf("%s is written as %x, want %x", c.name, b, want)
		}
	}
}

// TestCase19_MigReqIsOne: hardware refuses acknowledgements with MigReq 0, Linux rdma_rxe sends 0.
func TestCase19_MigReqIsOne(t *testing.T) {
	b := make([]byte, BTHLen+AETHLen+ICRCLen)
	BTH(b).Put(OpRCAcknowledge, false, 0, 0xFFFF, 0x12, false, 7)
	AETH(b[BTHLen:]).Put(AckNoCredit, 1)
	if want := unhex(t, "1140ffff00000012000000071f00000100000000"); !bytes.Equal(b, want) {
		t.Errorf("ACK is written as %x, want %x", b, want)
	}
	for _, mig := range []bool{false, true} {
		BTH(b).SetMigReq(mig)
		var p Packet
		if err := Parse(b, &p); err != nil || p.BTH.MigReq() != mig {
			t.Errorf("MigReq %v: %v, read %v", mig, err, p.BTH.MigReq())
		}
	}
}

func TestBTHSetters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type fields struct {
			op                        Opcode
			se, mig, fecn, becn, ackq bool
			pad                       int
			tver                      uint8
			pkey                      uint16
			qp                        uint32
			psn                       psn.PSN
		}
		read := func(h BTH) fields {
			return fields{h.Opcode(), h.SE(), h.MigReq(), h.FECN(), h.BECN(), h.AckReq(), h.PadCount(), h.TVer(), h.PKey(), h.DestQP(), h.PSN()}
		}
		h := BTH(rapid.SliceOfN(rapid.Byte(), BTHLen, BTHLen).Draw(t, "bytes"))
		want := read(h)
		bit := rapid.Bool()
		// Setters in any order change their own field only.
		t.Repeat(map[string]func(*rapid.T){
			"op":   func(t *rapid.T) { want.op = Opcode(rapid.Byte().Draw(t, "v")); h.SetOpcode(want.op) },
			"se":   func(t *rapid.T) { want.se = bit.Draw(t, "v"); h.SetSE(want.se) },
			"mig":  func(t *rapid.T) { want.mig = bit.Draw(t, "v"); h.SetMigReq(want.mig) },
			"fecn": func(t *rapid.T) { want.fecn = bit.Draw(t, "v"); h.SetFECN(want.fecn) },
			"becn": func(t *rapid.T) { want.becn = bit.Draw(t, "v"); h.SetBECN(want.becn) },
			"ackq": func(t *rapid.T) { want.ackq = bit.Draw(t, "v"); h.SetAckReq(want.ackq) },
			"pad":  func(t *rapid.T) { want.pad = rapid.IntRange(0, 3).Draw(t, "v"); h.SetPadCount(want.pad) },
			"tver": func(t *rapid.T) { want.tver = rapid.Uint8Range(0, 15).Draw(t, "v"); h.SetTVer(want.tver) },
			"pkey": func(t *rapid.T) { want.pkey = rapid.Uint16().Draw(t, "v"); h.SetPKey(want.pkey) },
			"qp":   func(t *rapid.T) { want.qp = rapid.Uint32Range(0, 0xFFFFFF).Draw(t, "v"); h.SetDestQP(want.qp) },
			"psn": func(t *rapid.T) {
				want.psn = psn.PSN(rapid.Uint32Range(0, psn.Mask).Draw(t, "v"))
				h.SetPSN(want.psn)
			},
			"": func(t *rapid.T) {
				if got := read(h); got != want {
					t.Fatalf("read %+v, want %+v from %x", got, want, []byte(h))
				}
			},
		})
	})
}

func TestHeadersRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		va, a, b := rapid.Uint64().Draw(t, "va"), rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		k, n := rapid.Uint32().Draw(t, "key"), rapid.Uint32().Draw(t, "n")
		n24 := n & 0xFFFFFF

		h := RETH(dirty(RETHLen))
		h.Put(va, k, n)
		if h.VA() != va || h.RKey() != k || h.DMALen() != n {
			t.Fatalf("RETH %x", []byte(h))
		}
		h2 := RETH(dirty(RETHLen))
		h2.SetVA(va)
		h2.SetRKey(k)
		h2.SetDMALen(n)
		if !bytes.Equal(h, h2) {
			t.Fatalf("RETH setters wrote %x, Put %x", h2, h)
		}
		at := AtomicETH(dirty(AtomicETHLen))
		at.Put(va, k, a, b)
		if at.VA() != va || at.RKey() != k || at.SwapAdd() != a || at.Compare() != b {
			t.Fatalf("AtomicETH %x", []byte(at))
		}
		at2 := AtomicETH(dirty(AtomicETHLen))
		at2.SetVA(va)
		at2.SetRKey(k)
		at2.SetSwapAdd(a)
		at2.SetCompare(b)
		if !bytes.Equal(at, at2) {
			t.Fatalf("AtomicETH setters wrote %x, Put %x", at2, at)
		}
		d := DETH(dirty(DETHLen))
		d.Put(k, n)
		if d.QKey() != k || d.SrcQP() != n24 {
			t.Fatalf("DETH %x", []byte(d))
		}
		d.SetQKey(^k)
		d.SetSrcQP(^n)
		if d.QKey() != ^k || d.SrcQP() != ^n&0xFFFFFF {
			t.Fatalf("DETH setters %x", []byte(d))
		}
		ae := AETH(dirty(AETHLen))
		s := Syndrome(rapid.Byte().Draw(t, "syndrome"))
		ae.Put(s, n)
		if ae.Syndrome() != s || ae.MSN() != n24 {
			t.Fatalf("AETH %x", []byte(ae))
		}
		ae.SetSyndrome(^s)
		ae.SetMSN(^n)
		if ae.Syndrome() != ^s || ae.MSN() != ^n&0xFFFFFF {
			t.Fatalf("AETH setters %x", []byte(ae))
		}
		aa, im, ie, xr, rd, fe := AtomicAckETH(dirty(8)), ImmDt(dirty(4)), IETH(dirty(4)), XRCETH(dirty(4)), RDETH(dirty(4)), FETH(dirty(4))
		aa.Put(a)
		im.Put(n)
		ie.Put(k)
		xr.Put(n)
		rd.Put(n)
		fe.Put(uint8(n), uint8(k))
		if aa.Orig() != a || im.Data() != n || ie.RKey() != k || xr.SRQN() != n24 || rd.EEC() != n24 ||
			fe.Placement() != uint8(n)&0xF || fe.Selectivity() != uint8(k)&3 {
			t.Fatalf("%x %x %x %x %x %x", aa, im, ie, xr, rd, fe)
		}
	})
}

func TestSyndrome(t *testing.T) {
	credits := []int{
		0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
		8192, 12288, 16384, 24576, 32768,
	}
	for i := range 256 {
		s := Syndrome(i)
		ack, rnr, nak := i < 0x20, i >= 0x20 && i < 0x40, i >= 0x60 && i < 0x80
		if s.IsAck() != ack || s.IsRNRNAK() != rnr || s.IsNAK() != nak {
			t.Errorf("%#x: ACK %v, RNR %v, NAK %v", i, s.IsAck(), s.IsRNRNAK(), s.IsNAK())
		}
		n, ok := s.Credits()
		if ok != (i < len(credits)) || ok && (n != credits[i] || int(s.CreditCode()) != i) {
			t.Errorf("%#x: credits %d, %v", i, n, ok)
		}
	}
	for timer := range uint8(32) {
		s := RNRNAK(timer)
		if byte(s) != 0x20+timer || s.RNRTimer() != timer || !s.IsRNRNAK() {
			t.Errorf("RNRNAK(%d) = %#x", timer, byte(s))
		}
	}
	for n := range 40000 {
		got, _ := AckCredits(n).Credits()
		next, more := (AckCredits(n) + 1).Credits()
		if got > n || more && next <= n {
			t.Fatalf("AckCredits(%d) announces %d, the next code %d", n, got, next)
		}
	}
	if AckCredits(-1) != 0 {
		t.Errorf("AckCredits(-1) = %#x", byte(AckCredits(-1)))
	}
	for s, want := range map[Syndrome]string{
		AckNoCredit: "ACK", RNRNAK(1): "RNR_NAK", NAKPSNSeqErr: "NAK_PSN_SEQUENCE_ERROR", NAKInvReq: "NAK_INVALID_REQUEST",
		NAKRemAccess: "NAK_REMOTE_ACCESS_ERROR", NAKRemOp: "NAK_REMOTE_OPERATIONAL_ERROR", NAKInvRDReq: "NAK_INVALID_RD_REQUEST",
		0x7F: "Syndrome(0x7F)", 0x45: "Syndrome(0x45)", 0xE0: "Syndrome(0xE0)",
	} {
		if s.String() != want {
			t.Errorf("%#x is %q, want %q", byte(s), s, want)
		}
	}
}
