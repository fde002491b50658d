package pi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
)

// plainCRC is the definition, a bit at a time.
func plainCRC(crc uint16, b []byte) uint16 {
	for _, c := range b {
		for i := 7; i >= 0; i-- {
			top := crc>>15 ^ uint16(c>>i)&1
			crc = crc<<1 ^ top*0x8BB7
		}
	}
	return crc
}

// plainSum is RFC 1071, a word at a time.
func plainSum(seed uint16, b []byte) uint16 {
	s := uint32(seed)
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		if s += w; s > 0xFFFF {
			s -= 0xFFFF
		}
	}
	return ^uint16(s)
}

// ways are those that this machine has.
func ways() (l []way) {
	for w := byTables; w <= fastest; w++ {
		l = append(l, w)
	}
	return l
}

func counting(n int, first byte, step int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i*step)
	}
	return b
}

// The code words of T10 (G. Penokie, "Simplified End-to-End Data Protection", 22
// October 2003, 4.5.6), the check value of the catalogue of CRCs, and the vectors of
// Linux's crypto/testmgr.h.
func TestPublishedCRCs(t *testing.T) {
	first := make([]byte, 32)
	first[0], first[1] = 0xFF, 0xFF
	digits := strings.Repeat("1234567890", 8)[:79]
	for _, c := range []struct {
		name string
		b    []byte
		want uint16
	}{
		{"32 x 00", make([]byte, 32), 0x0000},
		{"32 x FF", bytes.Repeat([]byte{0xFF}, 32), 0xA293},
		{"00 to 1F", counting(32, 0, 1), 0x0224},
		{"FFFF and zeros", first, 0x21B8},
		{"FF down to E0", counting(32, 0xFF, -1), 0xA0B7},
		{"check", []byte("123456789"), 0xD0DB},
		{"abc", []byte("abc"), 0x443B},
		{"digits", []byte(digits), 0x4B70},
		{"ds", []byte("abc" + strings.Repeat("d", 53)), 0x9CE3},
	} {
		if got := plainCRC(0, c.b); got != c.want {
			t.Errorf("%s: the definition gives %#04x, want %#04x", c.name, got, c.want)
		}
		for _, w := range ways() {
			if got := update(w, 0, c.b); got != c.want {
				t.Errorf("%s, way %d: got %#04x, want %#04x", c.name, w, got, c.want)
			}
		}
		// A code word leaves nothing.
		if got := CRC(0, binary.BigEndian.AppendUint16(bytes.Clone(c.b), c.want)); got != 0 {
			t.Errorf("%s: the code word leaves %#04x", c.name, got)
		}
	}
}

// RFC 1071, section 3: the words 0001 f203 f4f5 f6f7 add up to ddf2.
func TestPublishedSum(t *testing.T) {
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}
	g := NewGuard(ib.T10DIFCSUM, 0)
	g.Add(b)
	if got := g.Value(); got != 0x220D {
		t.Errorf("got %#04x, want 0x220d", got)
	}
	// The header of a packet of IPv4, with the checksum that Wikipedia's article on it has.
	h := []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}
	g = NewGuard(ib.T10DIFCSUM, 0)
	g.Add(h)
	if got := g.Value(); got != 0xB861 {
		t.Errorf("got %#04x, want 0xb861", got)
	}
	// Zeros have the guard 0xFFFF, as everything that adds up to FFFF has 0.
	g = NewGuard(ib.T10DIFCSUM, 0)
	g.Add(make([]byte, 512))
	if got := g.Value(); got != 0xFFFF {
		t.Errorf("zeros: got %#04x", got)
	}
}

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	buf := random(r, 700+40)
	for n := range 701 {
		for off := range 34 {
			b, seed := buf[off:off+n], uint16(r.Uint32())
			want := plainCRC(seed, b)
			for _, w := range ways() {
				if got := update(w, seed, b); got != want {
					t.Fatalf("way %d, %d bytes at %d after %#x: got %#04x, want %#04x", w, n, off, seed, got, want)
				}
			}
			g := NewGuard(ib.T10DIFCSUM, seed)
			g.Add(b)
			if got, want := g.Value(), plainSum(seed, b); got != want {
				t.Fatalf("sum of %d bytes at %d after %#x: got %#04x, want %#04x", n, off, seed, got, want)
			}
		}
	}
}

func TestLong(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	buf := random(r, 2*pieceLen+100)
	for i := range buf[:pieceLen] {
		buf[i] = 0xFF // sums that carry all the time
	}
	for _, n := range []int{4096, 4104, 65528, pieceLen - 1, pieceLen, pieceLen + 1, pieceLen + 17, 2*pieceLen + 100} {
		want := plainCRC(7, buf[:n])
		for _, w := range ways() {
			if got := update(w, 7, buf[:n]); got != want {
				t.Errorf("way %d, %d bytes: got %#04x, want %#04x", w, n, got, want)
			}
		}
		if got, want := ^uint16(fold16(7+sum(buf[:n]))), plainSum(7, buf[:n]); got != want {
			t.Errorf("sum of %d bytes: got %#04x, want %#04x", n, got, want)
		}
	}
}

// In whatever pieces a block comes its guard is the same.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 1500).Draw(t, "block")
		seed := rapid.Uint16().Draw(t, "seed")
		crc, sum := NewGuard(ib.T10DIFCRC, seed), NewGuard(ib.T10DIFCSUM, seed)
		for rest := b; len(rest) > 0; {
			n := rapid.IntRange(0, len(rest)).Draw(t, "piece")
			crc.Add(rest[:n])
			sum.Add(rest[:n])
			rest = rest[n:]
		}
		if got, want := crc.Value(), plainCRC(seed, b); got != want {
			t.Fatalf("CRC: got %#04x, want %#04x", got, want)
		}
		if got, want := sum.Value(), plainSum(seed, b); got != want {
			t.Fatalf("sum: got %#04x, want %#04x", got, want)
		}
	})
}

func FuzzGuard(f *testing.F) {
	f.Add([]byte("123456789"), uint16(0), 4)
	f.Fuzz(func(t *testing.T, b []byte, seed uint16, cut int) {
		cut = min(max(cut, 0), len(b))
		for kind, want := range map[ib.T10DIFGuard]uint16{ib.T10DIFCRC: plainCRC(seed, b), ib.T10DIFCSUM: plainSum(seed, b)} {
			g := NewGuard(kind, seed)
			g.Add(b[:cut])
			g.Add(b[cut:])
			if got := g.Value(); got != want {
				t.Errorf("%v: got %#04x, want %#04x", kind, got, want)
			}
		}
	})
}

func TestTuple(t *testing.T) {
	b := [8]byte{0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0}
	x := Get(&b)
	if x != (Tuple{0x1234, 0x5678, 0x9ABCDEF0}) {
		t.Errorf("got %+v", x)
	}
	var c [8]byte
	if x.Put(&c); c != b {
		t.Errorf("got % x", c)
	}
}

// One byte after the other is wrong, under masks that have it and that do not.
func TestCheckMask(t *testing.T) {
	d := &ib.T10DIFDomain{AppTag: 0x1111, RefTag: 0x22222222, RefRemap: true, AppTagCheckMask: 0xFFFF}
	types := [8]ib.SigErrType{ib.SigBadGuard, ib.SigBadGuard, ib.SigBadAppTag, ib.SigBadAppTag, ib.SigBadRefTag, ib.SigBadRefTag, ib.SigBadRefTag, ib.SigBadRefTag}
	for i := range 8 {
		right := Tuple{0x3333, 0x1111, 0x22222222 + 5}
		var b [8]byte
		right.Put(&b)
		b[i] ^= 0x40
		x := Get(&b)
		for mask := range 256 {
			e, ok := Check(d, uint8(mask), &x, 0x3333, 5)
			if want := mask>>(7-i)&1 == 0; ok != want {
				t.Errorf("byte %d, mask %#02x: ok %v, want %v", i, mask, ok, want)
			}
			if !ok && (e.Type != types[i] || e.Expected == e.Actual) {
				t.Errorf("byte %d, mask %#02x: %+v, want %v", i, mask, e, types[i])
			}
		}
		if e, _ := Check(d, 0xFF, &right, 0x3333, 5); e != (ib.SigErr{}) {
			t.Errorf("%+v", e)
		}
	}
}

func TestCheckEscapes(t *testing.T) {
	type esc struct{ app, ref bool }
	for _, c := range []struct {
		esc  esc
		app  uint16
		ref  uint32
		free bool // left unchecked
	}{
		{esc{false, false}, 0xFFFF, 0xFFFFFFFF, false},
		{esc{false, true}, 0xFFFF, 0xFFFFFFFF, false}, // only with AppEscape
		{esc{true, false}, 0xFFFF, 0xFFFFFFFF, true},
		{esc{true, false}, 0xFFFF, 9, true},
		{esc{true, false}, 0xFFFE, 0xFFFFFFFF, false},
		{esc{true, true}, 0xFFFF, 0xFFFFFFFF, true},
		{esc{true, true}, 0xFFFF, 0xFFFFFFFE, false},
		{esc{true, true}, 0, 0xFFFFFFFF, false},
	} {
		d := &ib.T10DIFDomain{AppEscape: c.esc.app, RefEscape: c.esc.ref}
		if _, ok := Check(d, 0xFF, &Tuple{1, c.app, c.ref}, 2, 0); ok != c.free {
			t.Errorf("%+v: left unchecked %v, want %v", c, ok, c.free)
		}
	}
	// The mask of the application tag.
	d := &ib.T10DIFDomain{AppTag: 0xAB00, AppTagCheckMask: 0xFF00}
	if _, ok := Check(d, 0xFF, &Tuple{1, 0xABCD, 0}, 1, 0); !ok {
		t.Error("a bit outside AppTagCheckMask counts")
	}
	if _, ok := Check(d, 0xFF, &Tuple{1, 0xAACD, 0}, 1, 0); ok {
		t.Error("a bit inside AppTagCheckMask does not count")
	}
	// Reference tags count up and around, or stay.
	d = &ib.T10DIFDomain{RefTag: 0xFFFFFFFF, RefRemap: true}
	if r := Ref(d, 2); r != 1 {
		t.Errorf("reference tag %#x, want 1", r)
	}
	d.RefRemap = false
	if r := Ref(d, 2); r != 0xFFFFFFFF {
		t.Errorf("reference tag %#x, want it to stay", r)
	}
}

func TestGuardAllocatesNothing(t *testing.T) {
	b := make([]byte, 4096)
	if n := testing.AllocsPerRun(10, func() {
		g := NewGuard(ib.T10DIFCRC, 0)
		g.Add(b)
		_ = g.Value()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGuard(b *testing.B) {
	buf := random(rand.New(rand.NewPCG(3, 0)), 65536)
	for _, n := range []int{512, 520, 4096, 65536} {
		for _, w := range ways() {
			b.Run(fmt.Sprintf("crc/%s/%d", [...]string{"tables", "128", "256"}[w], n), func(b *testing.B) {
				b.SetBytes(int64(n))
				var s uint16
				for b.Loop() {
					s = update(w, s, buf[:n])
				}
			})
		}
		b.Run(fmt.Sprintf("csum/%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				g := NewGuard(ib.T10DIFCSUM, 0)
				g.Add(buf[:n])
				_ = g.Value()
			}
		})
	}
}
