package ib

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	for _, c := range []struct {
		code       Rate
		text       string
		mbps, mult int
	}{
		{0, "max", -1, -1},
		{1, "Rate(1)", -1, -1},
		{2, "2.5 Gbps", 2500, 1},
		{3, "10 Gbps", 10000, 4},
		{4, "30 Gbps", 30000, 12},
		{5, "5 Gbps", 5000, 2},
		{6, "20 Gbps", 20000, 8},
		{7, "40 Gbps", 40000, 16},
		{8, "60 Gbps", 60000, 24},
		{9, "80 Gbps", 80000, 32},
		{10, "120 Gbps", 120000, 48},
		{11, "14 Gbps", 14062, -1},
		{12, "56 Gbps", 56250, -1},
		{13, "112 Gbps", 112500, -1},
		{14, "168 Gbps", 168750, -1},
		{15, "25 Gbps", 25781, -1},
		{16, "100 Gbps", 103125, -1},
		{17, "200 Gbps", 206250, -1},
		{18, "300 Gbps", 309375, -1},
		{19, "28 Gbps", 28125, 11},
		{20, "50 Gbps", 53125, 20},
		{21, "400 Gbps", 425000, 160},
		{22, "600 Gbps", 637500, 240},
		{23, "800 Gbps", 850000, 320},
		{24, "1200 Gbps", 1275000, 480},
		{25, "Rate(25)", -1, -1},
		{255, "Rate(255)", -1, -1},
	} {
		if c.code.String() != c.text || c.code.Mbps() != c.mbps || c.code.Mult() != c.mult {
			t.Errorf("rate %d: %v, %d Mbps, mult %d; want %v, %d, %d",
				uint8(c.code), c.code, c.code.Mbps(), c.code.Mult(), c.text, c.mbps, c.mult)
		}
		if c.mbps > 0 && RateFromMbps(c.mbps) != c.code {
			t.Errorf("RateFromMbps(%d) = %v, want %v", c.mbps, RateFromMbps(c.mbps), c.code)
		}
		if c.mult > 0 && RateFromMult(c.mult) != c.code {
			t.Errorf("RateFromMult(%d) = %v, want %v", c.mult, RateFromMult(c.mult), c.code)
		}
	}
	for _, n := range []int{-1, 0, 3, 100000, 1 << 30} {
		if RateFromMbps(n) != RateMax || RateFromMult(n) != RateMax {
			t.Errorf("%d has a rate", n)
		}
	}
}

func TestMTU(t *testing.T) {
	for code, bytes := range map[MTU]int{MTU256: 256, MTU512: 512, MTU1024: 1024, MTU2048: 2048, MTU4096: 4096} {
		if code.Bytes() != bytes {
			t.Errorf("%v.Bytes() = %d", code, code.Bytes())
		}
		if m, err := MTUFromBytes(bytes); m != code || err != nil {
			t.Errorf("MTUFromBytes(%d) = %v, %v", bytes, m, err)
		}
	}
	for _, n := range []int{-256, 0, 255, 257, 8192} {
		if _, err := MTUFromBytes(n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("MTUFromBytes(%d): %v", n, err)
		}
	}
	if MTU(0).Bytes() != 0 || MTU(6).Bytes() != 0 {
		t.Error("unknown codes have bytes")
	}
}

func TestMTUFromLink(t *testing.T) {
	for netdev, want := range map[int]MTU{
		0: MTU256, 68: MTU256, 335: MTU256, 336: MTU256, 591: MTU256, 592: MTU512, 1103: MTU512, 1104: MTU1024,
		1280: MTU1024, 1500: MTU1024, 2127: MTU1024, 2128: MTU2048, 2200: MTU2048, 4175: MTU2048, 4176: MTU4096,
		4200: MTU4096, 9000: MTU4096, 65536: MTU4096,
	} {
		if got := MTUFromLink(netdev); got != want {
			t.Errorf("MTUFromLink(%d) = %v, want %v", netdev, got, want)
		}
	}
}

// Case 3: code 0 is the longest time, and every code is exact.
func TestCase03_RNRTimer(t *testing.T) {
	want := [32]float64{ // ms
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12,
		0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72,
		40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	for code, ms := range want {
		us := time.Duration(ms*1000 + 0.5)
		if got := RNRTimer(uint8(code)); got != us*time.Microsecond {
			t.Errorf("RNRTimer(%d) = %v, want %v ms", code, got, ms)
		}
		if got := RNRTimer(uint8(code) | 0xE0); got != us*time.Microsecond {
			t.Errorf("RNRTimer(%d | 0xE0) = %v", code, got)
		}
		if got := RNRTimerCode(us * time.Microsecond); int(got) != code {
			t.Errorf("RNRTimerCode(%v ms) = %d, want %d", ms, got, code)
		}
	}
	for d, code := range map[time.Duration]uint8{
		-1: 1, 0: 1, 1: 1, 10*time.Microsecond + 1: 2, 40960*time.Microsecond - 1: 24, 491520*time.Microsecond + 1: 0, time.Hour: 0,
	} {
		if got := RNRTimerCode(d); got != code {
			t.Errorf("RNRTimerCode(%v) = %d, want %d", d, got, code)
		}
	}
}

func TestAckTimeout(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 0, 1: 8192, 2: 16384, 8: 1048576, 14: 67108864, 17: 536870912, 20: 4294967296, 31: 8796093022208, 32: 0,
	} {
		if got := AckTimeout(code); got != want {
			t.Errorf("AckTimeout(%d) = %v, want %v", code, got, want)
		}
	}
	for code := uint8(1); code <= 31; code++ {
		if got := AckTimeoutCode(AckTimeout(code)); got != code {
			t.Errorf("AckTimeoutCode(%v) = %d, want %d", AckTimeout(code), got, code)
		}
		if got := AckTimeoutCode(AckTimeout(code) + 1); got != min(code+1, 31) {
			t.Errorf("AckTimeoutCode(%v + 1ns) = %d", AckTimeout(code), got)
		}
	}
	for _, d := range []time.Duration{-1, 0} {
		if got := AckTimeoutCode(d); got != 0 {
			t.Errorf("AckTimeoutCode(%d) = %d, want no timer", d, got)
		}
	}
}

func TestGID(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1":     "0000:0000:0000:0000:0000:ffff:c000:0201",
		"2001:db8::a:1": "2001:0db8:0000:0000:0000:0000:000a:0001",
	} {
		g := GIDFromAddr(netip.MustParseAddr(addr))
		if g.String() != want || g.Addr().String() != addr || g.IsZero() || g.IsMulticast() {
			t.Errorf("%s: %v, back %v", addr, g, g.Addr())
		}
	}
	for addr, want := range map[string]bool{"224.0.0.1": true, "239.255.255.255": true, "240.0.0.1": false, "ff02::1": true, "fe80::1": false} {
		if got := GIDFromAddr(netip.MustParseAddr(addr)).IsMulticast(); got != want {
			t.Errorf("%s multicast: %v", addr, got)
		}
	}
	if !(GID{}).IsZero() {
		t.Error("empty GID is not zero")
	}
}

// Case 25: one partition, both keys valid, at least one full member.
func TestCase25_PKeyMatches(t *testing.T) {
	for _, c := range []struct {
		a, b PKey
		want bool
	}{
		{0xFFFF, 0xFFFF, true},
		{0xFFFF, 0x7FFF, true},
		{0x7FFF, 0x7FFF, false},
		{0x8001, 0x0001, true},
		{0x0001, 0x0001, false},
		{0x8001, 0x8002, false},
		{0x8000, 0x8000, false},
		{0x8000, 0x0000, false},
		{0, 0, false},
	} {
		if c.a.Matches(c.b) != c.want || c.b.Matches(c.a) != c.want {
			t.Errorf("%#x and %#x: want %v", uint16(c.a), uint16(c.b), c.want)
		}
	}
}
