package roce

import (
	"bytes"
	"net/netip"
	"testing"
)

func FuzzParse(f *testing.F) {
	for i := range 256 {
		f.Add(build(Opcode(i), i%7))
	}
	for _, g := range readGolden(f) {
		f.Add(g.roce())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packet
		before := bytes.Clone(b)
		err := Parse(b, &p)
		if !bytes.Equal(b, before) {
			t.Fatal("Parse wrote to its input")
		}
		if p.Info != nil {
			_, _, _, _ = p.Op.String(), p.BTH.PSN(), p.BTH.DestQP(), p.BTH.PKey()
		}
		if err != nil {
			if p.Payload != nil {
				t.Fatalf("payload in spite of %v", err)
			}
			return
		}
		if p.Info.HdrLen+len(p.Payload)+p.BTH.PadCount()+ICRCLen != len(b) {
			t.Fatalf("parts do not add up to %d bytes: %d, %d, %d", len(b), p.Info.HdrLen, len(p.Payload), p.BTH.PadCount())
		}
		// Written anew and parsed again it is the same packet; rebuild reads every view.
		again := append(rebuild(&p), b[len(b)-ICRCLen:]...)
		var q Packet
		if err := Parse(again, &q); err != nil {
			t.Fatalf("written anew it does not parse: %v", err)
		}
		if !bytes.Equal(q.Payload, p.Payload) || q.Op != p.Op || !bytes.Equal(rebuild(&q), rebuild(&p)) {
			t.Fatalf("not stable\n in %x\nout %x", b, again)
		}
	})
}

func FuzzSolve(f *testing.F) {
	for _, g := range readGolden(f) {
		p := g.path()
		f.Add(p.Src().AsSlice(), p.Dst().AsSlice(), p.SrcPort(), g.id(), g.roce())
	}
	f.Add([]byte{1, 2, 3, 4}, []byte{5, 6, 7, 8}, uint16(0), uint16(0xFFFF), make([]byte, BTHLen+ICRCLen))
	f.Fuzz(func(t *testing.T, src, dst []byte, port, id uint16, b []byte) {
		s, _ := netip.AddrFromSlice(src)
		d, _ := netip.AddrFromSlice(dst)
		p := NewPath(s, d, port)
		got, ok := p.Solve(b)
		if ok && !p.Check(b, got) {
			t.Fatalf("Solve says %#x, Check does not agree", got)
		}
		if p.Check(b, id) && (!ok || got != id && !p.Is6()) {
			t.Fatalf("Check accepts %#x, Solve says %#x, %v", id, got, ok)
		}
		if len(b) < BTHLen+ICRCLen || len(b) > MaxUDPPayload {
			if ok {
				t.Fatalf("Solve accepts %d bytes", len(b))
			}
			return
		}
		c := bytes.Clone(b)
		PutICRC(c[len(c)-ICRCLen:], p.Compute(c, id))
		if p.Is6() {
			id = 0
		} else if s4, d4 := p.Src(), p.Dst(); plainICRC(ipPacket(s4, d4, port, id, 0, c)) != ICRC(c) {
			t.Fatal("the ICRC differs from the plain calculation")
		}
		if got, ok := p.Solve(c); !ok || got != id {
			t.Fatalf("Solve = %#x, %v, want %#x", got, ok, id)
		}
	})
}

func FuzzParseGRH(f *testing.F) {
	for _, g := range readGolden(f) {
		f.Add(append(make([]byte, 20), g.ip[:ipv4Len]...))
		f.Add(g.ip)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		src, dst, class, hop, flow, ok := ParseGRH(b)
		if !ok {
			return
		}
		// What it read can be written and read again, unless the IPv6 header looks like an IPv4 one.
		c := make([]byte, GRHLen)
		if src.Is4() {
			PutGRH4(c, src, dst, class, hop, 0, 16)
		} else {
			PutGRH6(c, src, dst, class, flow, hop, 16)
			if c[20] == 0x45 {
				return
			}
		}
		s, d, cl, h, fl, ok := ParseGRH(c)
		if !ok || s != src || d != dst || cl != class || h != hop || fl != flow {
			t.Fatalf("read %v %v %d %d %d, then %v %v %d %d %d %v", src, dst, class, hop, flow, s, d, cl, h, fl, ok)
		}
	})
}
