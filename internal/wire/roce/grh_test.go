package roce

import (
	"bytes"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestGRHBytes(t *testing.T) {
	b := dirty(GRHLen)
	PutGRH4(b, netip.MustParseAddr("::ffff:192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 0, 64, 0x1234, 24)
	if want := unhex(t, "0000000000000000000000000000000000000000"+"45000034123440004011a481c0000201c0000202"); !bytes.Equal(b, want) {
		t.Errorf("IPv4\n got %x\nwant %x", b, want)
	}
	b = dirty(GRHLen)
	PutGRH6(b, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), 0xB8, 0xFFF54321, 63, 24)
	if want := unhex(t, "6b8543210020113f"+"20010db8000000000000000000000001"+"20010db8000000000000000000000002"); !bytes.Equal(b, want) {
		t.Errorf("IPv6\n got %x\nwant %x", b, want)
	}
}

func TestGRHRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, dst := drawAddrs(t)
		class, hop := rapid.Byte().Draw(t, "class"), rapid.Byte().Draw(t, "hop")
		flow := rapid.Uint32Range(0, 0xFFFFF).Draw(t, "flow")
		id := rapid.Uint16().Draw(t, "id")
		n := rapid.IntRange(BTHLen+ICRCLen, MaxUDPPayload).Draw(t, "len")
		b := dirty(GRHLen)
		if src.Is4() {
			PutGRH4(b, src, dst, class, hop, id, n)
			flow = 0
		} else {
			PutGRH6(b, src, dst, class, flow, hop, n)
			if b[20] == 0x45 {
				return // one in 65536 looks like IPv4; TestParseGRHClassification has that
			}
		}
		s, d, c, h, f, ok := ParseGRH(b)
		if !ok || s != src || d != dst || c != class || h != hop || f != flow {
			t.Fatalf("ParseGRH(%x) = %v %v %#x %d %#x %v", b, s, d, c, h, f, ok)
		}
	})
}

// TestParseGRHClassification follows the classification of the Linux kernel.
func TestParseGRHClassification(t *testing.T) {
	v4 := make([]byte, GRHLen)
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	PutGRH4(v4, src, dst, 1, 2, 3, 100)
	v6 := make([]byte, GRHLen)
	PutGRH6(v6, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), 0, 0, 64, 100)
	edit := func(b []byte, f func(b []byte)) []byte {
		b = bytes.Clone(b)
		f(b)
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		ok   bool
		is4  bool
	}{
		{"IPv4", v4, true, true},
		{"IPv6", v6, true, false},
		{"IPv4 behind garbage that is not 6", edit(v4, func(b []byte) { b[0] = 0xAA }), true, true},
		{"IPv4 behind garbage that begins with 6, right checksum", edit(v4, func(b []byte) { b[0] = 0x6A }), true, true},
		{"IPv4 behind garbage that begins with 6, wrong checksum", edit(v4, func(b []byte) { b[0], b[6], b[30] = 0x6A, protoUDP, b[30]^1 }), true, false},
		{"IPv4 with options behind garbage that begins with 6", edit(v4, func(b []byte) { b[0], b[6], b[20] = 0x6A, protoUDP, 0x46 }), true, false},
		{"IPv4 with wrong checksum behind zeros", edit(v4, func(b []byte) { b[30] ^= 1 }), true, true},
		{"neither", make([]byte, GRHLen), false, false},
		{"IPv6 with TCP", edit(v6, func(b []byte) { b[6] = 6 }), false, false},
		{"native GRH", edit(v6, func(b []byte) { b[6] = 0x1B }), true, false},
		{"short", v6[:GRHLen-1], false, false},
		{"empty", nil, false, false},
	} {
		s, d, _, _, _, ok := ParseGRH(c.b)
		if ok != c.ok || ok && s.Is4() != c.is4 {
			t.Errorf("%s: %v %v %v", c.name, s, d, ok)
		}
		if c.is4 && (s != src || d != dst) {
			t.Errorf("%s: addresses %v %v", c.name, s, d)
		}
	}
}
