package mem

import (
	"bytes"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
)

const allRights = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// newTable makes a table that is closed when the test ends.
func newTable(t testing.TB, limit int) *Table {
	tab := NewTable(limit, 0x5EED)
	t.Cleanup(tab.Close)
	return tab
}

func register(t testing.TB, tab *Table, pd *PD, buf []byte, iova uint64, access ib.Access) *Region {
	t.Helper()
	r, err := tab.Register(pd, buf, iova, access)
	if err != nil {
		t.Fatalf("Register: %v", err)
	}
	return r
}

// join gives the bytes of all pieces.
func join(pieces [][]byte) []byte { return bytes.Join(pieces, nil) }

func TestLookup(t *testing.T) {
	tab, pd, other := newTable(t, 10), NewPD(), NewPD()
	buf := []byte("0123456789")
	r := register(t, tab, pd, buf, 1000, ib.AccessLocalWrite|ib.AccessRemoteRead)
	if uint32(r.LKey()) != uint32(r.RKey()) || r.LKey() == 0 || r.Addr() != 1000 || r.Length() != 10 || r.PD() != pd {
		t.Fatalf("region %+v", r)
	}
	for _, c := range []struct {
		name         string
		pd           *PD
		key          ib.LKey
		addr, length uint64
		ok           bool
	}{
		{"all", pd, r.LKey(), 1000, 10, true},
		{"middle", pd, r.LKey(), 1003, 4, true},
		{"last byte", pd, r.LKey(), 1009, 1, true},
		{"before", pd, r.LKey(), 999, 1, false},
		{"behind", pd, r.LKey(), 1010, 1, false},
		{"over the end", pd, r.LKey(), 1009, 2, false},
		{"over the start", pd, r.LKey(), 999, 2, false},
		{"too long", pd, r.LKey(), 1000, 11, false},
		{"as long as can be", pd, r.LKey(), 1000, math.MaxUint64, false},
		{"other domain", other, r.LKey(), 1000, 10, false},
		{"no key", pd, 0, 1000, 10, false},
		{"other consumer bits", pd, r.LKey() ^ 1, 1000, 10, false},
		{"other key", pd, r.LKey() ^ 0x100, 1000, 10, false},
		{"garbage key but no bytes", other, 0xdead, 0, 0, true},
	} {
		for _, write := range []bool{false, true} {
			before := [][]byte{{1}}
			out, ok := tab.Local(c.pd, c.key, c.addr, c.length, write, before)
			if ok != c.ok {
				t.Errorf("%s, write %v: Local gives %v", c.name, write, ok)
			}
			want := []byte{1}
			if c.ok && c.length > 0 {
				want = append(want, buf[c.addr-1000:][:c.length]...)
			}
			if got := join(out); !bytes.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", c.name, got, want)
			}
		}
		out, ok := tab.Remote(c.pd, 7, ib.RKey(c.key), c.addr, c.length, ib.AccessRemoteRead, nil)
		if ok != c.ok || ok && uint64(len(join(out))) != c.length {
			t.Errorf("%s: Remote gives %v, %d bytes", c.name, ok, len(join(out)))
		}
	}
	ro := register(t, tab, pd, buf, 0, 0)
	if _, ok := tab.Local(pd, ro.LKey(), 0, 1, true, nil); ok {
		t.Error("write without local write")
	}
	if _, ok := tab.Local(pd, ro.LKey(), 0, 1, false, nil); !ok {
		t.Error("local read needs no right")
	}
}

func TestPiecesCannotGrow(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	r := register(t, tab, pd, make([]byte, 100), 0, allRights)
	out, _ := tab.Local(pd, r.LKey(), 10, 20, true, nil)
	if len(out) != 1 || cap(out[0]) != 20 {
		t.Fatalf("a piece reaches beyond what was checked: cap %d", cap(out[0]))
	}
}

func TestCase33_KeysAreNotReusedSoon(t *testing.T) {
	tab, pd := newTable(t, 1<<10), NewPD()
	buf := make([]byte, 64)
	keep := register(t, tab, pd, buf, 0, allRights)
	seen := map[uint32]bool{}
	var old []*Region
	for i := range 200_000 {
		r := register(t, tab, pd, buf, 0, allRights)
		k := uint32(r.RKey())
		if k == 0 || seen[k] {
			t.Fatalf("cycle %d: key %#x again", i, k)
		}
		seen[k] = true
		tab.Release(r)
		if i%1000 == 0 {
			old = append(old, r)
		}
	}
	if _, ok := tab.Remote(pd, 1, keep.RKey(), 0, 64, ib.AccessRemoteRead, nil); !ok {
		t.Error("the region that stayed is refused")
	}
	last := register(t, tab, pd, buf, 0, allRights)
	if _, ok := tab.Remote(pd, 1, last.RKey(), 0, 64, ib.AccessRemoteRead, nil); !ok {
		t.Error("the last region is refused")
	}
	for _, r := range old {
		if _, ok := tab.Remote(pd, 1, r.RKey(), 0, 64, ib.AccessRemoteRead, nil); ok {
			t.Fatalf("key %#x works after dereg", r.RKey())
		}
	}
	n := 0
	for i := range tab.leaves {
		if tab.leaves[i].Load() != nil {
			n++
		}
	}
	if slots := n * leafLen; slots > 2*quarantine {
		t.Errorf("%d slots made for 3 regions at a time", slots)
	}
}

// A table at its limit, whose slots are reused, gives no key twice either.
func TestCase33_FullTable(t *testing.T) {
	tab, pd := newTable(t, 1<<10), NewPD()
	tab.fresh = 1 << tab.slotBits // all slots but ten are in use
	for s := range uint32(1 << tab.slotBits) {
		if p := &tab.leaves[s>>leafBits]; p.Load() == nil {
			p.Store(new(leaf))
		}
		if s < 10 {
			tab.giveSlot(s)
		}
	}
	seen := map[uint32]bool{}
	for i := range 20_000 { // 2,000 generations, of which 7 bits are permuted and 8 the low byte
		r := register(t, tab, pd, []byte{1}, 0, 0)
		if seen[uint32(r.LKey())] {
			t.Fatalf("cycle %d: key %#x again", i, r.LKey())
		}
		seen[uint32(r.LKey())] = true
		tab.Release(r)
	}
}

func TestCase34_OverflowSafeRanges(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	buf := make([]byte, 2048)
	top := uint64(math.MaxUint64 - 2048 + 1)
	r := register(t, tab, pd, buf, top, allRights) // ends at 2^64
	last := uint64(math.MaxUint64 - 1024 + 1)
	for _, c := range []struct {
		va, length uint64
		ok         bool
	}{
		{last, 1024, true},
		{last, 1025, false},
		{last, math.MaxUint64, false},
		{top, 2048, true},
		{top, 2049, false},
		{top - 1, 1, false},
		{math.MaxUint64, 1, true},
		{math.MaxUint64, 2, false},
		{0, 1, false},
	} {
		if _, ok := tab.Remote(pd, 1, r.RKey(), c.va, c.length, ib.AccessRemoteWrite, nil); ok != c.ok {
			t.Errorf("Remote %#x + %d: %v", c.va, c.length, ok)
		}
		if _, ok := tab.Local(pd, r.LKey(), c.va, c.length, true, nil); ok != c.ok {
			t.Errorf("Local %#x + %d: %v", c.va, c.length, ok)
		}
	}
	if _, err := tab.Register(pd, buf, top+1, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a region that wraps around: %v", err)
	}
}

func TestCase35_RightsMustBeASubset(t *testing.T) {
	tab, pd := newTable(t, 100), NewPD()
	buf := make([]byte, 8)
	remote := []ib.Access{ib.AccessRemoteWrite, ib.AccessRemoteRead, ib.AccessRemoteAtomic}
	for mask := range ib.Access(16) { // bits 0 to 3: local write and the three remote rights
		r, err := tab.Register(pd, buf, 0, mask)
		legal := mask&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) == 0 || mask&ib.AccessLocalWrite != 0
		if legal != (err == nil) || !legal && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("rights %#x: %v", mask, err)
		}
		if err != nil {
			continue
		}
		for need := range ib.Access(16) {
			_, ok := tab.Remote(pd, 1, r.RKey(), 0, 8, need, nil)
			if want := need&^mask == 0; ok != want {
				t.Errorf("rights %#x, needed %#x: %v", mask, need, ok)
			}
		}
		for _, need := range remote {
			if _, ok := tab.Remote(pd, 1, r.RKey(), 0, 8, need, nil); ok != (mask&need != 0) {
				t.Errorf("rights %#x, needed %#x: %v", mask, need, ok)
			}
		}
	}
}

func TestCase44_OptionalAccessFlags(t *testing.T) {
	tab, pd := newTable(t, 100), NewPD()
	for bit := range 32 {
		a := ib.AccessLocalWrite | 1<<bit
		_, err := tab.Register(pd, make([]byte, 8), 0, a)
		var want error
		switch {
		case a == ib.AccessLocalWrite|ib.AccessOnDemand:
			want = syscall.EOPNOTSUPP
		case bit >= 10 && bit < 20, bit >= 30:
			want = syscall.EINVAL
		}
		if !errors.Is(err, want) {
			t.Errorf("bit %d: %v, want %v", bit, err, want)
		}
	}
}

func TestCase45_NoImplicitODP(t *testing.T) {
	tab, pd := newTable(t, 100), NewPD()
	if _, err := tab.RegisterPointer(pd, 0, math.MaxUint64, 0, ib.AccessOnDemand); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	if _, err := tab.Register(pd, nil, 0, ib.AccessOnDemand|ib.AccessLocalWrite); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
}

func TestRegisterRefuses(t *testing.T) {
	tab, pd := newTable(t, 2), NewPD()
	dead := NewPD()
	if err := dead.Deallocate(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	for _, c := range []struct {
		name, param string
		want        error
		f           func() (*Region, error)
	}{
		{"empty", "b", syscall.EINVAL, func() (*Region, error) { return tab.Register(pd, nil, 0, 0) }},
		{"wraps", "iova", syscall.EINVAL, func() (*Region, error) { return tab.Register(pd, buf, math.MaxUint64, 0) }},
		{"dead domain", "pd", syscall.EINVAL, func() (*Region, error) { return tab.Register(dead, buf, 0, 0) }},
		{"nil address", "addr", syscall.EINVAL, func() (*Region, error) { return tab.RegisterPointer(pd, 0, 8, 0, 0) }},
		{"first page", "addr", syscall.EINVAL, func() (*Region, error) { return tab.RegisterPointer(pd, 4095, 8, 0, 0) }},
		{"empty pointer", "length", syscall.EINVAL, func() (*Region, error) { return tab.RegisterPointer(pd, 1<<20, 0, 0, 0) }},
		{"longer than an int", "length", syscall.EINVAL, func() (*Region, error) {
			return tab.RegisterPointer(pd, 1<<20, math.MaxInt+1, 0, 0)
		}},
		{"pointer wraps", "length", syscall.EINVAL, func() (*Region, error) {
			return tab.RegisterPointer(pd, ^uintptr(0)-10, 100, 0, 0)
		}},
	} {
		_, err := c.f()
		var pe *ParamError
		if !errors.Is(err, c.want) || !errors.As(err, &pe) || pe.Param != c.param || pe.Error() == "" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if pd.Refs() != 0 || tab.Len() != 0 {
		t.Fatalf("failed calls left %d references and %d regions", pd.Refs(), tab.Len())
	}
	a := register(t, tab, pd, buf, 0, 0)
	register(t, tab, pd, buf, 0, 0)
	if _, err := tab.Register(pd, buf, 0, 0); !errors.Is(err, syscall.ENOMEM) || pd.Refs() != 2 {
		t.Fatalf("beyond the limit: %v, %d references", err, pd.Refs())
	}
	tab.Release(a)
	register(t, tab, pd, buf, 0, 0)
	if _, err := NewTable(-1, 0).Register(pd, buf, 0, 0); !errors.Is(err, syscall.ENOMEM) {
		t.Fatal(err)
	}
}

func TestZeroBased(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	buf := make([]byte, 8)
	r := register(t, tab, pd, buf, Address(buf), ib.AccessZeroBased)
	if r.Addr() != 0 {
		t.Fatalf("first byte at %#x", r.Addr())
	}
	if r := register(t, tab, pd, buf, Address(buf), 0); r.Addr() == 0 || r.Addr()&7 != 0 {
		t.Fatalf("first byte at %#x", r.Addr())
	}
}

func TestNullRegion(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	r, err := tab.RegisterNull(pd)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{1, 100, nullLen, nullLen + 1, 3*nullLen + 7} {
		out, ok := tab.Local(pd, r.LKey(), math.MaxUint64-5, n, true, nil)
		if !ok || uint64(len(join(out))) != n {
			t.Fatalf("%d bytes: %v, got %d", n, ok, len(join(out)))
		}
		for _, p := range out {
			if err := Copy(p, bytes.Repeat([]byte{7}, len(p))); err != nil {
				t.Fatal(err)
			}
		}
		out, _ = tab.Local(pd, r.LKey(), 0, n, false, nil)
		if len(bytes.Trim(join(out), "\x00")) != 0 {
			t.Fatal("reads what was written")
		}
	}
	out, _ := tab.Local(pd, r.LKey(), 0, 8, true, nil)
	for range 2 {
		if was, err := FetchAdd(out[0], 5); was != 0 || err != nil {
			t.Fatal(was, err)
		}
		if was, err := CompareSwap(out[0], 0, 5); was != 0 || err != nil {
			t.Fatal(was, err)
		}
	}
	if _, ok := tab.Remote(pd, 1, r.RKey(), 0, 8, ib.AccessRemoteRead, nil); ok {
		t.Error("peers may read it")
	}
	if _, ok := tab.Local(NewPD(), r.LKey(), 0, 8, false, nil); ok {
		t.Error("works in another domain")
	}
}

func TestRemoveThenRelease(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	r := register(t, tab, pd, make([]byte, 8), 0, 0)
	if err := pd.Deallocate(); !errors.Is(err, syscall.EBUSY) {
		t.Fatal(err)
	}
	for range 2 {
		if err := tab.Remove(r); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := tab.Local(pd, r.LKey(), 0, 8, false, nil); ok || tab.Len() != 0 {
		t.Fatal("the key lives")
	}
	if pd.Refs() != 1 {
		t.Fatal("the domain was dropped while somebody may work with the memory")
	}
	for range 2 {
		tab.Release(r)
	}
	for range 2 {
		if err := pd.Deallocate(); err != nil {
			t.Fatal(err)
		}
	}
	if pd.Hold() || pd.Refs() != 0 {
		t.Fatal("a deallocated domain is held")
	}
	pd = NewPD()
	register(t, tab, pd, make([]byte, 8), 0, 0)
	gone := register(t, tab, pd, make([]byte, 8), 0, 0)
	_ = tab.Remove(gone)
	tab.Close()
	tab.Close()
	if pd.Refs() != 0 {
		t.Fatalf("Close left %d references", pd.Refs())
	}
}

// Dropping every reference to a region, and its slice, must not free or unpin
// the memory: the table holds both.
func TestForgottenRegionStaysPinned(t *testing.T) {
	tab, pd := newTable(t, 100), NewPD()
	var keys []ib.LKey
	for i := range 100 {
		buf := bytes.Repeat([]byte{byte(i)}, 5000)
		keys = append(keys, register(t, tab, pd, buf, 0, ib.AccessLocalWrite).LKey())
	}
	for range 3 {
		runtime.GC()
		_ = bytes.Repeat([]byte{0xFF}, 1<<20)
	}
	for i, k := range keys {
		out, ok := tab.Local(pd, k, 0, 5000, true, nil)
		if !ok || !bytes.Equal(join(out), bytes.Repeat([]byte{byte(i)}, 5000)) {
			t.Fatalf("region %d lost", i)
		}
	}
}

func TestPermutation(t *testing.T) {
	for seed := range uint64(4) {
		p := newPermutation(seed)
		step, last := map[uint32]int{}, uint32(0)
		for i := range uint32(1 << 14) {
			x := i * 1021 & mask24
			y := p.apply(x)
			if y > mask24 || p.undo(y) != x {
				t.Fatalf("seed %d: %#x gives %#x gives %#x", seed, x, y, p.undo(y))
			}
			y = p.apply(i)
			step[(y-last)&mask24]++
			last = y
		}
		for d, n := range step {
			if n > 1<<11 {
				t.Errorf("seed %d: key + %#x is the next key %d times of %d", seed, d, n, 1<<14)
			}
		}
	}
	a, b := newPermutation(1), newPermutation(2)
	same := 0
	for i := range uint32(1000) {
		if a.apply(i) == b.apply(i) {
			same++
		}
	}
	if same > 10 {
		t.Errorf("%d of 1000 keys are the same under two seeds", same)
	}
}

// The table against a map, with random work.
func TestTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 5
		tab := NewTable(limit, rapid.Uint64().Draw(t, "seed"))
		defer tab.Close()
		pds := []*PD{NewPD(), NewPD()}
		type entry struct {
			r    *Region
			pd   *PD
			buf  []byte
			iova uint64
			a    ib.Access
		}
		var live, dead []entry
		t.Repeat(map[string]func(*rapid.T){
			"register": func(t *rapid.T) {
				e := entry{
					pd: rapid.SampledFrom(pds).Draw(t, "pd"), buf: make([]byte, rapid.IntRange(1, 40).Draw(t, "length")),
					a: rapid.SampledFrom([]ib.Access{0, ib.AccessRemoteRead, ib.AccessLocalWrite, allRights}).Draw(t, "access"),
				}
				e.iova = rapid.SampledFrom([]uint64{0, 100, -uint64(len(e.buf))}).Draw(t, "iova")
				r, err := tab.Register(e.pd, e.buf, e.iova, e.a)
				if (err == nil) != (len(live) < limit) {
					t.Fatalf("%d regions, then %v", len(live), err)
				}
				if err == nil {
					e.r = r
					live = append(live, e)
				}
			},
			"remove": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				_ = tab.Remove(live[i].r)
				if rapid.Bool().Draw(t, "release") {
					tab.Release(live[i].r)
				}
				dead = append(dead, live[i])
				live = append(live[:i], live[i+1:]...)
			},
			"lookup": func(t *rapid.T) {
				all := append(append([]entry{}, live...), dead...)
				if len(all) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				e := all[i]
				pd := rapid.SampledFrom(pds).Draw(t, "pd")
				off := rapid.IntRange(-2, len(e.buf)+2).Draw(t, "offset")
				n := rapid.IntRange(1, len(e.buf)+2).Draw(t, "length")
				write := rapid.Bool().Draw(t, "write")
				inside := off >= 0 && off+n <= len(e.buf) && i < len(live) && pd == e.pd
				out, ok := tab.Local(pd, e.r.LKey(), e.iova+uint64(off), uint64(n), write, nil)
				if want := inside && (!write || e.a&ib.AccessLocalWrite != 0); ok != want {
					t.Fatalf("Local %v, want %v", ok, want)
				}
				if ok && (len(out) != 1 || len(out[0]) != n || &out[0][0] != &e.buf[off]) {
					t.Fatal("other memory")
				}
				need := rapid.SampledFrom([]ib.Access{ib.AccessRemoteRead, ib.AccessRemoteWrite, ib.AccessRemoteAtomic}).Draw(t, "need")
				if _, ok := tab.Remote(pd, 3, e.r.RKey(), e.iova+uint64(off), uint64(n), need, nil); ok != (inside && e.a&need != 0) {
					t.Fatalf("Remote %v", ok)
				}
			},
			"": func(t *rapid.T) {
				keys := map[ib.LKey]bool{0: true}
				for _, e := range live {
					if keys[e.r.LKey()] {
						t.Fatalf("key %#x twice", e.r.LKey())
					}
					keys[e.r.LKey()] = true
				}
				if tab.Len() != len(live) {
					t.Fatalf("%d regions, want %d", tab.Len(), len(live))
				}
			},
		})
	})
}

// Lookups take no lock: they run beside registration and removal.
func TestConcurrentLookups(t *testing.T) {
	tab, pd := newTable(t, 1000), NewPD()
	fixed := register(t, tab, pd, []byte("fixed"), 0, allRights)
	var current atomic.Pointer[Region]
	current.Store(fixed)
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var buf [2][]byte
			for !done.Load() {
				if out, ok := tab.Local(pd, fixed.LKey(), 0, 5, false, buf[:0]); !ok || string(out[0]) != "fixed" {
					t.Error("lost the region that stays")
					return
				}
				tab.Remote(pd, 1, current.Load().RKey(), 0, 5, ib.AccessRemoteRead, buf[:0])
			}
		})
	}
	for range 20_000 {
		r := register(t, tab, pd, []byte("other"), 0, allRights)
		current.Store(r)
		_ = tab.Remove(r)
		if _, ok := tab.Remote(pd, 1, r.RKey(), 0, 5, ib.AccessRemoteRead, nil); ok {
			t.Error("found after Remove")
		}
	}
	done.Store(true)
	wg.Wait()
}
