package roce

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// ipPacket returns an IP packet around a UDP payload, with TOS/class, TTL/hop limit, flow label and checksum fields of any value.
func ipPacket(src, dst netip.Addr, srcPort uint16, id uint16, mutable uint32, payload []byte) []byte {
	var b []byte
	if src.Is4() {
		b = make([]byte, ipv4Len, ipv4Len+udpLen+len(payload))
		b[0], b[1], b[6], b[8], b[9] = 0x45, byte(mutable), 0x40, byte(mutable>>8), protoUDP
		binary.BigEndian.PutUint16(b[2:], uint16(ipv4Len+udpLen+len(payload)))
		binary.BigEndian.PutUint16(b[4:], id)
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(b[10:], ipv4Checksum(b))
	} else {
		b = make([]byte, ipv6Len, ipv6Len+udpLen+len(payload))
		binary.BigEndian.PutUint32(b, 6<<28|mutable&0xFFFFFFF)
		binary.BigEndian.PutUint16(b[4:], uint16(udpLen+len(payload)))
		b[6], b[7] = protoUDP, byte(mutable>>8)
		copy(b[8:], src.AsSlice())
		copy(b[24:], dst.AsSlice())
	}
	u := [udpLen]byte{6: byte(mutable >> 16), 7: byte(mutable)}
	binary.BigEndian.PutUint16(u[:], srcPort)
	binary.BigEndian.PutUint16(u[2:], Port)
	binary.BigEndian.PutUint16(u[4:], uint16(udpLen+len(payload)))
	return append(append(b, u[:]...), payload...)
}

// plainICRC is the ICRC of an IP packet, computed by the words of the rule: mask a copy, prepend 8 bytes of ones, CRC-32.
func plainICRC(ip []byte) uint32 {
	m := append([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, ip...)
	h := m[8:]
	hl := ipv4Len
	if h[0]>>4 == 6 {
		hl = ipv6Len
		h[0] |= 0x0F
		h[1], h[2], h[3], h[7] = 0xFF, 0xFF, 0xFF, 0xFF
	} else {
		h[1], h[8], h[10], h[11] = 0xFF, 0xFF, 0xFF, 0xFF
	}
	h[hl+6], h[hl+7] = 0xFF, 0xFF
	h[hl+udpLen+4] = 0xFF
	return crc32.ChecksumIEEE(m[:len(m)-ICRCLen])
}

func drawAddrs(t *rapid.T) (src, dst netip.Addr) {
	if rapid.Bool().Draw(t, "ipv6") {
		g := rapid.SliceOfN(rapid.Byte(), 16, 16)
		a, b := [16]byte(g.Draw(t, "src")), [16]byte(g.Draw(t, "dst"))
		a[0], b[0] = 0x20, 0x20
		return netip.AddrFrom16(a), netip.AddrFrom16(b)
	}
	g := rapid.SliceOfN(rapid.Byte(), 4, 4)
	return netip.AddrFrom4([4]byte(g.Draw(t, "src"))), netip.AddrFrom4([4]byte(g.Draw(t, "dst")))
}

// TestPrefixSeed checks that icrcSeed is the register after 8 bytes of ones.
func TestPrefixSeed(t *testing.T) {
	ones := []byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	if got := ^crc32.ChecksumIEEE(ones); got != icrcSeed {
		t.Fatalf("register after the prefix is %#x, want %#x", got, uint32(icrcSeed))
	}
}

// TestICRCMatchesPlainCalculation compares every way through this package with the plain calculation.
func TestICRCMatchesPlainCalculation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, dst := drawAddrs(t)
		port := rapid.Uint16().Draw(t, "port")
		id := rapid.Uint16().Draw(t, "id")
		mutable := rapid.Uint32().Draw(t, "mutable")
		n := rapid.OneOf(rapid.IntRange(BTHLen+ICRCLen, 400), rapid.IntRange(BTHLen+ICRCLen, MaxUDPPayload)).Draw(t, "len")
		payload := make([]byte, n)
		seed := rapid.Uint64().Draw(t, "seed")
		r := rand.New(rand.NewPCG(seed, 1))
		for i := range payload {
			payload[i] = byte(r.Uint32())
		}
		ip := ipPacket(src, dst, port, id, mutable, payload)
		want := plainICRC(ip)
		p := NewPath(src, dst, port)
		if got := p.Compute(payload, id); got != want {
			t.Fatalf("Compute = %#x, want %#x", got, want)
		}
		// A header of any length, then the payload in two pieces.
		cut := rapid.IntRange(BTHLen, n-ICRCLen).Draw(t, "cut")
		cut2 := rapid.IntRange(cut, n-ICRCLen).Draw(t, "cut2")
		s := StartBTH(p.Start(n, id), payload[:cut])
		s = Update(Update(s, payload[cut:cut2]), payload[cut2:n-ICRCLen])
		if got := Sum(s); got != want {
			t.Fatalf("pieces [:%d] [%d:%d] [%d:]: %#x, want %#x", cut, cut, cut2, cut2, got, want)
		}
		PutICRC(payload[n-ICRCLen:], want)
		if ICRC(payload) != want {
			t.Fatalf("ICRC reads %#x, want %#x", ICRC(payload), want)
		}
		if !p.Check(payload, id) {
			t.Fatal("Check refuses a good packet")
		}
		gotID, ok := p.Solve(payload)
		if p.Is6() {
			id = 0
		}
		if !ok || gotID != id {
			t.Fatalf("Solve = %#x, %v, want %#x", gotID, ok, id)
		}
		// BTH byte 4 changes on the way without harm; any other bit does harm.
		payload[4] ^= byte(mutable >> 24)
		if !p.Check(payload, id) {
			t.Fatal("Check refuses a packet with a changed BTH byte 4")
		}
		bit := rapid.IntRange(0, n*8-1).Filter(func(i int) bool { return i/8 != 4 }).Draw(t, "bit")
		payload[bit/8] ^= 1 << (bit % 8)
		if p.Check(payload, id) {
			t.Fatalf("Check accepts a packet with bit %d flipped", bit)
		}
		if i, ok := p.Solve(payload); ok && (p.Is6() || i == id) {
			t.Fatalf("Solve accepts a packet with bit %d flipped", bit)
		}
	})
}

// TestSolveEveryID checks all 65536 identifications, and that Solve agrees with a search on corrupt packets.
func TestSolveEveryID(t *testing.T) {
	p := NewPath(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.77"), 0xC001)
	b := make([]byte, 1024+BTHLen+ICRCLen)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for id := range 0x10000 {
		PutICRC(b[len(b)-ICRCLen:], p.Compute(b, uint16(id)))
		got, ok := p.Solve(b)
		if !ok || int(got) != id {
			t.Fatalf("Solve = %#x, %v, want %#x", got, ok, id)
		}
	}
	sums := map[uint32]uint16{}
	for id := range 0x10000 {
		sums[p.Compute(b, uint16(id))] = uint16(id)
	}
	if len(sums) != 0x10000 {
		t.Fatalf("only %d different ICRCs: identifications are not distinguishable", len(sums))
	}
	r := rand.New(rand.NewPCG(1, 2))
	passed := 0
	for range 1 << 20 {
		sum := r.Uint32()
		PutICRC(b[len(b)-ICRCLen:], sum)
		wantID, wantOK := sums[sum]
		id, ok := p.Solve(b)
		if ok != wantOK || id != wantID {
			t.Fatalf("Solve of ICRC %#x = %#x, %v; search says %#x, %v", sum, id, ok, wantID, wantOK)
		}
		if ok {
			passed++
		}
	}
	// 2^20 random ICRCs, 1 in 2^16 passes: 16 expected. The seed is fixed, so this is no flake.
	if passed == 0 || passed > 48 {
		t.Errorf("%d of %d random ICRCs pass, expected about 16", passed, 1<<20)
	}
}

func TestUnshift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Uint32().Draw(t, "register")
		n := rapid.IntRange(0, 0xFFFF).Draw(t, "n")
		if got := crcRegister(crcUnshift(r, n), make([]byte, n)); got != r {
			t.Fatalf("back and forth over %d bytes: %#x, want %#x", n, got, r)
		}
	})
}

func TestCheckRefusesBadLengths(t *testing.T) {
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		p := NewPath(netip.MustParseAddr(a), netip.MustParseAddr(a), 1)
		for _, n := range []int{0, 1, ICRCLen, BTHLen, BTHLen + ICRCLen - 1, MaxUDPPayload + 1} {
			b := make([]byte, n)
			if p.Check(b, 0) {
				t.Errorf("Check accepts %d bytes", n)
			}
			if _, ok := p.Solve(b); ok {
				t.Errorf("Solve accepts %d bytes", n)
			}
		}
	}
}

func TestPathAddresses(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fe80::1%eth0")
	mapped := netip.MustParseAddr("::ffff:192.0.2.1")
	for _, c := range []struct {
		src, dst, wantSrc, wantDst netip.Addr
		is6                        bool
	}{
		{v4, v4, v4, v4, false},
		{mapped, v4, v4, v4, false},
		{mapped, mapped, v4, v4, false},
		{v6, v6, v6, v6, true},
		{v6, mapped, v6, mapped, true},
		{netip.Addr{}, netip.Addr{}, netip.Addr{}, netip.Addr{}, true},
	} {
		p := NewPath(c.src, c.dst, 0xC123)
		if p.Src() != c.wantSrc || p.Dst() != c.wantDst || p.SrcPort() != 0xC123 || p.Is6() != c.is6 {
			t.Errorf("NewPath(%v, %v) = %v %v %#x ipv6=%v", c.src, c.dst, p.Src(), p.Dst(), p.SrcPort(), p.Is6())
		}
	}
	if a, b := NewPath(mapped, v4, 1), NewPath(v4, mapped, 1); a != b {
		t.Error("the same IPv4 path made of mapped and plain addresses differs")
	}
	zone, noZone := NewPath(v6, v6, 1), NewPath(v6.WithZone(""), v6.WithZone(""), 1)
	if zone.Start(100, 0) != noZone.Start(100, 0) {
		t.Error("the zone enters the ICRC")
	}
}

// TestCase20_ICRCByteOrder: least significant byte first, on any machine.
func TestCase20_ICRCByteOrder(t *testing.T) {
	var b [4]byte
	PutICRC(b[:], 0x11223344)
	if b != [4]byte{0x44, 0x33, 0x22, 0x11} {
		t.Errorf("ICRC 0x11223344 is written as % x", b)
	}
}
