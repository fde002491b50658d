package crc

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func want(crc uint32, b []byte) uint32 { return crc32.Update(crc, crc32.IEEETable, b) }

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// ways are the two ways to the result; the first is the only one where the machine has no other.
func ways(t testing.TB, f func(t testing.TB, update func(uint32, []byte) uint32)) {
	f(t, func(crc uint32, b []byte) uint32 { return update(false, crc, b) })
	f(t, Update)
}

func TestEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	buf := random(r, 1100+64)
	ways(t, func(t testing.TB, update func(uint32, []byte) uint32) {
		for n := range 1101 {
			for off := range 64 {
				b, crc := buf[off:off+n], r.Uint32()
				if got, want := update(crc, b), want(crc, b); got != want {
					t.Fatalf("%d bytes at %d after %#x: got %#x, want %#x", n, off, crc, got, want)
				}
			}
		}
	})
}

func TestLong(t *testing.T) {
	const seed = 2
	r := rand.New(rand.NewPCG(seed, 0))
	buf := random(r, 3*pieceLen)
	lengths := []int{4096, 65507, 65536, len(buf)}
	for d := -20; d <= 20; d++ {
		lengths = append(lengths, pieceLen+d, 2*pieceLen+d)
	}
	for range 200 {
		lengths = append(lengths, r.IntN(len(buf)))
	}
	ways(t, func(t testing.TB, update func(uint32, []byte) uint32) {
		for _, n := range lengths {
			off := r.IntN(len(buf) - n + 1)
			b, crc := buf[off:off+n], r.Uint32()
			if got, want := update(crc, b), want(crc, b); got != want {
				t.Fatalf("seed %d, %d bytes at %d after %#x: got %#x, want %#x", seed, n, off, crc, got, want)
			}
		}
	})
}

// Every bit counts, wherever it is: the lanes and registers of the fold are all added, each with its own weight.
func TestSingleBits(t *testing.T) {
	for _, n := range []int{16, 31, 48, 127, 128, 300, 512, 555, 1023, 1279} {
		b := make([]byte, n)
		for i := range 8 * n {
			b[i/8] ^= 1 << (i % 8)
			if got, want := Update(0, b), want(0, b); got != want {
				t.Fatalf("bit %d of %d bytes: got %#x, want %#x", i, n, got, want)
			}
			b[i/8] = 0
		}
	}
}

// A string may be summed in any two parts, and with any mixture of this package and hash/crc32.
func TestParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "bytes")
		crc := rapid.Uint32().Draw(t, "crc")
		cut := rapid.IntRange(0, len(b)).Draw(t, "cut")
		whole := want(crc, b)
		for name, got := range map[string]uint32{
			"whole":       Update(crc, b),
			"parts":       Update(Update(crc, b[:cut]), b[cut:]),
			"other first": Update(want(crc, b[:cut]), b[cut:]),
			"other last":  want(Update(crc, b[:cut]), b[cut:]),
		} {
			if got != whole {
				t.Fatalf("%s: got %#x, want %#x", name, got, whole)
			}
		}
	})
}

// The garbage collector stops goroutines wherever they are and moves their stacks.
func TestPreempted(t *testing.T) {
	buf := random(rand.New(rand.NewPCG(3, 0)), 1<<20)
	whole := want(0, buf)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 50 {
				if got := Update(0, buf); got != whole {
					t.Errorf("got %#x, want %#x", got, whole)
				}
			}
		})
	}
	for range 20 {
		runtime.GC()
	}
	group.Wait()
}

func TestNoAllocs(t *testing.T) {
	b := make([]byte, 4096)
	var crc uint32
	if n := testing.AllocsPerRun(100, func() { crc = Update(crc, b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzUpdate(f *testing.F) {
	r := rand.New(rand.NewPCG(4, 0))
	for _, n := range []int{0, 1, 15, 16, 17, 31, 32, 100, 128, 500, 512, 800, 1400} {
		f.Add(r.Uint32(), uint(n/3), random(r, n))
	}
	f.Fuzz(func(t *testing.T, crc uint32, cut uint, b []byte) {
		n := int(cut % uint(len(b)+1))
		whole := want(crc, b)
		if got := Update(crc, b); got != whole {
			t.Errorf("got %#x, want %#x", got, whole)
		}
		if got := Update(Update(crc, b[:n]), b[n:]); got != whole {
			t.Errorf("cut at %d: got %#x, want %#x", n, got, whole)
		}
	})
}

// BenchmarkUpdate runs this package and hash/crc32 in turns, so that the ratio holds on a machine that does other things too. The
// rates are those of the fastest turns.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{64, 256, 1024, 4096, 65536} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			data := make([]byte, n)
			times := max(1, 65536/n)
			var crc uint32
			turn := func(update func(uint32, []byte) uint32, best *time.Duration) {
				start := time.Now()
				for range times {
					crc = update(crc, data)
				}
				if d := time.Since(start); *best == 0 || d < *best {
					*best = d
				}
			}
			var ours, theirs time.Duration
			for b.Loop() {
				turn(Update, &ours)
				turn(want, &theirs)
			}
			rate := func(d time.Duration) float64 { return float64(n*times) / float64(d) }
			b.ReportMetric(rate(ours), "GB/s")
			b.ReportMetric(rate(theirs), "GB/s-crc32")
			b.ReportMetric(float64(theirs)/float64(ours), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
