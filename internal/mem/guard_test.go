package mem

import (
	"encoding/binary"
	"hash/crc32"
	"runtime/debug"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestCRC(t *testing.T) {
	b := []byte("123456789")
	crc, err := CRC(0, b[:4])
	if err == nil {
		crc, err = CRC(crc, b[4:])
	}
	if err != nil || crc != 0xCBF43926 || crc != crc32.ChecksumIEEE(b) {
		t.Fatalf("%#x, %v", crc, err)
	}
}

func TestAtomics(t *testing.T) {
	buf := make([]byte, 24)
	for off := range 9 { // aligned and not
		b := buf[off : off+8]
		binary.NativeEndian.PutUint64(b, 1<<63)
		if was, err := FetchAdd(b, 1<<63+5); was != 1<<63 || err != nil {
			t.Fatalf("offset %d: %#x, %v", off, was, err)
		}
		if was, err := CompareSwap(b, 4, 9); was != 5 || err != nil {
			t.Fatalf("offset %d: %#x, %v", off, was, err)
		}
		if was, err := CompareSwap(b, 5, 9); was != 5 || err != nil {
			t.Fatalf("offset %d: %#x, %v", off, was, err)
		}
		if got := binary.NativeEndian.Uint64(b); got != 9 {
			t.Fatalf("offset %d: %d", off, got)
		}
	}
	for _, n := range []int{0, 7, 9} {
		if _, err := FetchAdd(buf[:n], 1); err != ErrFault {
			t.Errorf("FetchAdd on %d bytes: %v", n, err)
		}
		if _, err := CompareSwap(buf[:n], 0, 1); err != ErrFault {
			t.Errorf("CompareSwap on %d bytes: %v", n, err)
		}
	}
}

func TestAtomicsAreAtomic(t *testing.T) {
	b := make([]byte, 8)
	var wg sync.WaitGroup
	const each = 5000
	for range 4 {
		wg.Go(func() {
			for i := range each {
				if i%2 == 0 {
					_, _ = FetchAdd(b, 1)
					continue
				}
				for was := uint64(0); ; {
					got, _ := CompareSwap(b, was, was+1)
					if got == was {
						break
					}
					was = got
				}
			}
		})
	}
	wg.Wait()
	if got := binary.NativeEndian.Uint64(b); got != 4*each {
		t.Fatalf("%d of %d", got, 4*each)
	}
}

// The guard leaves the goroutine as it was, and lets other panics through.
func TestGuardRestores(t *testing.T) {
	for _, old := range []bool{false, true} {
		before := debug.SetPanicOnFault(old)
		_ = Copy(make([]byte, 8), make([]byte, 8))
		_, _ = CRC(0, make([]byte, 8))
		_, _ = FetchAdd(make([]byte, 8), 1)
		if got := debug.SetPanicOnFault(before); got != old {
			t.Errorf("PanicOnFault was %v, is %v", old, got)
		}
	}
	other := func() (got any) {
		defer func() { got = recover() }()
		_ = func() (err error) {
			defer guard(debug.SetPanicOnFault(true), &err)
			panic("other")
		}()
		return nil
	}
	if got := other(); got != "other" {
		t.Errorf("a panic that is no fault gave %v", got)
	}
	if debug.SetPanicOnFault(false) {
		t.Error("PanicOnFault is left set")
	}
}

func TestGuardedFunctionsDoNotAllocate(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	r := register(t, tab, pd, make([]byte, 64), 0, allRights)
	out := make([][]byte, 0, 4)
	src := make([]byte, 64)
	n := testing.AllocsPerRun(100, func() {
		p, _ := tab.Local(pd, r.LKey(), 0, 64, true, out)
		p, _ = tab.Remote(pd, 1, r.RKey(), 0, 64, allRights, p)
		_ = Copy(p[0], src)
		_, _ = CRC(0, p[1])
		_, _ = FetchAdd(p[0][:8], 1)
		_, _ = CompareSwap(p[0][:8], 1, 2)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCopyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "src")
		dst := make([]byte, len(src))
		if err := Copy(dst, src); err != nil || string(dst) != string(src) {
			t.Fatalf("%v", err)
		}
	})
}
