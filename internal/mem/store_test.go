package mem

import (
	"errors"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

func TestStoreWord(t *testing.T) {
	v := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	for off := range 2 { // aligned and not
		b := make([]byte, 24)
		if err := StoreWord(b[8+off:16+off], v); err != nil {
			t.Fatal(err)
		}
		for i, x := range b {
			want := byte(0)
			if i >= 8+off && i < 16+off {
				want = v[i-8-off]
			}
			if x != want {
				t.Errorf("offset %d: byte %d is %d, want %d", off, i, x, want)
			}
		}
	}
	for _, c := range [][2][]byte{{make([]byte, 7), v}, {make([]byte, 8), v[:7]}, {nil, v}, {make([]byte, 16), v}} {
		if err := StoreWord(c[0], c[1]); !errors.Is(err, ErrFault) {
			t.Errorf("%d bytes into %d: %v", len(c[1]), len(c[0]), err)
		}
	}
	if err := StoreWord(null[:8], v); err != nil || null[0] != 0 {
		t.Errorf("null region: %v, %d", err, null[0])
	}
}

func TestFlushable(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	both := ib.AccessFlushGlobal | ib.AccessFlushPersistent
	r := register(t, tab, pd, make([]byte, 100), 1000, ib.AccessLocalWrite|both)
	one := register(t, tab, pd, make([]byte, 100), 1000, ib.AccessLocalWrite|ib.AccessFlushGlobal)
	for _, c := range []struct {
		name    string
		pd      *PD
		key     ib.RKey
		va, n   uint64
		whole   bool
		need    ib.Access
		ok      bool
		flushed int
	}{
		{"range", pd, r.RKey(), 1010, 20, false, both, true, 20},
		{"all of it", pd, r.RKey(), 1000, 100, false, both, true, 100},
		{"too long", pd, r.RKey(), 1000, 101, false, both, false, 0},
		{"before", pd, r.RKey(), 999, 1, false, both, false, 0},
		{"around the end of all addresses", pd, r.RKey(), 1<<64 - 1, 2, false, both, false, 0},
		{"empty", pd, r.RKey(), 7, 0, false, both, true, 0},
		{"empty, bad key", pd, r.RKey() ^ 0x100, 1000, 0, false, both, false, 0},
		{"whole", pd, r.RKey(), 5, 1 << 31, true, both, true, 100},
		{"whole, bad key", pd, r.RKey() ^ 1, 1000, 1, true, both, false, 0},
		{"other domain", NewPD(), r.RKey(), 1000, 1, true, both, false, 0},
		{"one of two rights", pd, one.RKey(), 1000, 1, false, both, false, 0},
		{"the right one", pd, one.RKey(), 1000, 1, false, ib.AccessFlushGlobal, true, 1},
		{"the other one", pd, one.RKey(), 1000, 1, true, ib.AccessFlushPersistent, false, 0},
	} {
		got, ok := tab.Flushable(c.pd, 1, c.key, c.va, c.n, c.whole, c.need, nil)
		if ok != c.ok || len(join(got)) != c.flushed {
			t.Errorf("%s: %v, %d bytes", c.name, ok, len(join(got)))
		}
	}
}
