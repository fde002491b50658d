package mem

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

func BenchmarkLocal(b *testing.B) {
	b.ReportAllocs()
	t, pd := NewTable(1<<19, 1), NewPD()
	defer t.Close()
	r, err := t.Register(pd, make([]byte, 4096), 0x1000, ib.AccessLocalWrite)
	if err != nil {
		b.Fatal(err)
	}
	out := make([][]byte, 0, 4)
	key := r.LKey()
	for b.Loop() {
		if _, ok := t.Local(pd, key, 0x1100, 64, true, out[:0]); !ok {
			b.Fatal("refused")
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{8, 64, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			dst, src := make([]byte, n), make([]byte, n)
			for b.Loop() {
				if err := Copy(dst, src); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("unguarded/%d", n), func(b *testing.B) {
			dst, src := make([]byte, n), make([]byte, n)
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

func BenchmarkCRC(b *testing.B) {
	for _, n := range []int{8, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			src := make([]byte, n)
			for b.Loop() {
				if _, err := CRC(0, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkFetchAdd(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 8)
	for b.Loop() {
		if _, err := FetchAdd(buf, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRegister(b *testing.B) {
	b.ReportAllocs()
	t, pd := NewTable(1<<19, 1), NewPD()
	defer t.Close()
	buf := make([]byte, 4096)
	for b.Loop() {
		r, err := t.Register(pd, buf, 0, ib.AccessLocalWrite)
		if err != nil {
			b.Fatal(err)
		}
		t.Release(r)
	}
}
