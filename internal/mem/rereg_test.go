package mem

import (
	"errors"
	"math"
	"runtime"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

const (
	changeMem    = ib.ReregTranslation
	changePD     = ib.ReregPD
	changeAccess = ib.ReregAccess
)

// Every combination of flags: what is named changes, the rest stays, keys change
// with memory and domain.
func TestReregister(t *testing.T) {
	for flags := ib.ReregFlags(1); flags < 8; flags++ {
		tab, from, to := newTable(t, 3), NewPD(), NewPD()
		one, two := []byte("0123456789"), []byte("abcdef")
		r := register(t, tab, from, one, 1000, ib.AccessLocalWrite|ib.AccessRemoteRead)
		register(t, tab, from, one, 0, 0)
		register(t, tab, from, one, 0, 0) // the table is full: it must not need more room
		old := r.RKey()
		left, err := tab.Reregister(r, &Change{Flags: flags, PD: to, Buf: two, Access: ib.AccessLocalWrite | ib.AccessRemoteWrite})
		if err != nil {
			t.Fatalf("%v: %v", flags, err)
		}
		pd, addr, buf, need := from, uint64(1000), one, ib.AccessRemoteRead
		if flags&changePD != 0 {
			pd = to
		}
		if flags&changeMem != 0 {
			addr, buf = Address(two), two
		}
		if flags&changeAccess != 0 {
			need = ib.AccessRemoteWrite
		}
		if r.Addr() != addr || r.Length() != uint64(len(buf)) || r.PD() != pd || r.Access() != need|ib.AccessLocalWrite {
			t.Errorf("%v: %d bytes at %#x, %v", flags, r.Length(), r.Addr(), r.Access())
		}
		if moved := flags&(changeMem|changePD) != 0; moved != (r.RKey() != old) {
			t.Errorf("%v: key %#x, was %#x", flags, r.RKey(), old)
		} else if moved && (reach(tab, from, 1, old, 1000, 1, ib.AccessRemoteRead) || reach(tab, pd, 1, old, addr, 1, need)) {
			t.Errorf("%v: the old key works", flags)
		}
		for _, p := range []*PD{from, to} {
			for _, n := range []ib.Access{ib.AccessRemoteRead, ib.AccessRemoteWrite} {
				out, ok := tab.Remote(p, 1, r.RKey(), addr, uint64(len(buf)), n, nil)
				if ok != (p == pd && n == need) || ok && &out[0][0] != &buf[0] {
					t.Errorf("%v: reach %v", flags, ok)
				}
			}
		}
		wantTo := 0
		if flags&changePD != 0 {
			wantTo = 1
		}
		if from.Refs() != 3 || to.Refs() != wantTo { // the old domain until Release
			t.Errorf("%v: %d and %d references before Release", flags, from.Refs(), to.Refs())
		}
		left.Release()
		left.Release()
		if from.Refs() != 3-wantTo || tab.Len() != 3 {
			t.Errorf("%v: %d references, %d regions", flags, from.Refs(), tab.Len())
		}
		if err := tab.Remove(r); err != nil {
			t.Error(err)
		}
		tab.Release(r)
		if to.Refs() != 0 {
			t.Errorf("%v: %d references are left", flags, to.Refs())
		}
	}
	runtime.GC() // a pinner that was lost would end the process
}

func TestReregisterZeroBased(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	one, two := make([]byte, 8), make([]byte, 8)
	r := register(t, tab, pd, one, 1000, 0)
	for _, c := range []struct {
		flags ib.ReregFlags
		a     ib.Access
		want  uint64
	}{
		{changeAccess, ib.AccessLocalWrite, 1000},
		{changeAccess, ib.AccessZeroBased, 0},
		{changeMem, 0, 0},
		{changeAccess, ib.AccessRemoteRead, Address(two)},
		{changeAccess | changeMem, ib.AccessZeroBased, 0},
		{changeAccess | changeMem, 0, Address(two)},
	} {
		left, err := tab.Reregister(r, &Change{Flags: c.flags, Buf: two, Access: c.a})
		if err != nil || r.Addr() != c.want {
			t.Errorf("%v, %v: %v, at %#x, want %#x", c.flags, c.a, err, r.Addr(), c.want)
			continue
		}
		left.Release()
	}
}

// On a failure everything is as before: keys, rights, memory, references.
func TestReregisterFails(t *testing.T) {
	tab, pd, to, dead := newTable(t, 10), NewPD(), NewPD(), NewPD()
	_ = dead.Deallocate()
	buf := []byte("0123456789")
	r := register(t, tab, pd, buf, 1000, bindable)
	null, _ := tab.RegisterNull(pd)
	fast := fastRegion(t, tab, pd, 1)
	gone := register(t, tab, pd, buf, 0, 0)
	tab.Release(gone)
	refs := pd.Refs()
	key := r.RKey()
	all := changeMem | changePD | changeAccess
	for _, c := range []struct {
		name string
		r    *Region
		c    Change
		want syscall.Errno
	}{
		{"no flag", r, Change{PD: to, Buf: buf}, syscall.EINVAL},
		{"unknown flag", r, Change{Flags: 8 | changeAccess}, syscall.EINVAL},
		{"no domain", r, Change{Flags: changePD}, syscall.EINVAL},
		{"dead domain", r, Change{Flags: all, PD: dead, Buf: buf}, syscall.EINVAL},
		{"rights", r, Change{Flags: all, PD: to, Buf: buf, Access: ib.AccessRemoteWrite}, syscall.EINVAL},
		{"on demand", r, Change{Flags: changeAccess, Access: ib.AccessOnDemand}, syscall.EOPNOTSUPP},
		{"no memory", r, Change{Flags: all, PD: to}, syscall.EINVAL},
		{"empty memory", r, Change{Flags: all, PD: to, Buf: buf[:0]}, syscall.EINVAL},
		{"first page", r, Change{Flags: all, PD: to, Addr: 100, Length: 8}, syscall.EINVAL},
		{"no length", r, Change{Flags: changeMem, Addr: 1 << 20}, syscall.EINVAL},
		{"wraps", r, Change{Flags: changeMem, Addr: ^uintptr(0) - 10, Length: 100}, syscall.EINVAL},
		{"too long", r, Change{Flags: changeMem, Addr: 1 << 20, Length: math.MaxUint64}, syscall.EINVAL},
		{"null region", null, Change{Flags: changeAccess}, syscall.EINVAL},
		{"fast registration", fast, Change{Flags: changeAccess}, syscall.EINVAL},
		{"dead region", gone, Change{Flags: changePD, PD: to}, syscall.EINVAL},
	} {
		left, err := tab.Reregister(c.r, &c.c)
		if !errors.Is(err, c.want) || left != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	w := window(t, tab, pd, ib.MWType1)
	tab.Bind(pd, 1, w, r, w.RKey(), 1000, 4, ib.AccessRemoteRead)
	if _, err := tab.Reregister(r, &Change{Flags: changeAccess}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("with a bound window: %v", err)
	}
	if r.RKey() != key || !reach(tab, pd, 1, key, 1000, 10, ib.AccessRemoteRead|ib.AccessRemoteWrite) || to.Refs() != 0 || pd.Refs() != refs+1 {
		t.Error("a failure changed something")
	}
}

func TestLocalDMAKey(t *testing.T) {
	tab, pd, other := newTable(t, 10), NewPD(), NewPD()
	r, err := tab.RegisterDMA(pd)
	if err != nil || pd.Refs() != 0 {
		t.Fatal(err, pd.Refs())
	}
	stay := pages(4)
	one, two, three := stay[:100], stay[pageLen:2*pageLen], stay[3*pageLen:]
	look := func(pd *PD, addr, n uint64, write bool) []byte {
		out, ok := tab.Local(pd, r.LKey(), addr, n, write, nil)
		if ok && len(out) != 1 || !ok && len(out) != 0 {
			t.Fatal("pieces", len(out))
		}
		if !ok {
			return nil
		}
		return join(out)
	}
	if look(pd, Address(one), 1, false) != nil {
		t.Error("reaches memory before there is a buffer")
	}
	for _, b := range [][]byte{two, three, one} {
		pd.AddBuffer(b)
	}
	for i, b := range [][]byte{one, two, three} {
		for _, write := range []bool{false, true} {
			if got := look(pd, Address(b), uint64(len(b)), write); len(got) != len(b) || string(got) != string(b) {
				t.Errorf("buffer %d", i)
			}
		}
		a, n := Address(b), uint64(len(b))
		for _, c := range [][2]uint64{{a - 1, 1}, {a, n + 1}, {a + n, 1}, {a + n - 1, 2}, {a, math.MaxUint64}, {a + 1, math.MaxUint64 - 1}} {
			if look(pd, c[0], c[1], false) != nil {
				t.Errorf("buffer %d: %#x + %d", i, c[0], c[1])
			}
		}
		if look(other, a, n, false) != nil {
			t.Error("works in another domain")
		}
	}
	for _, a := range []uint64{0, 1, math.MaxUint64} {
		if look(pd, a, 1, false) != nil {
			t.Errorf("address %#x", a)
		}
	}
	if reach(tab, pd, 1, r.RKey(), Address(one), 1, ib.AccessRemoteRead) || reach(tab, pd, 1, r.RKey(), Address(one), 1, ib.AccessRemoteWrite) {
		t.Error("peers may use it")
	}
	pd.DropBuffer(two)
	if look(pd, Address(two), 1, false) != nil || look(pd, Address(one), 1, false) == nil || look(pd, Address(three), 1, false) == nil {
		t.Error("the wrong buffer was dropped")
	}
	w := window(t, tab, pd, ib.MWType1)
	if tab.Bind(pd, 1, w, r, w.RKey(), Address(one), 1, ib.AccessRemoteRead) || tab.Invalidate(pd, 1, r.RKey(), false) {
		t.Error("bound to, or invalidated")
	}
	if _, err := tab.Reregister(r, &Change{Flags: changeAccess}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	tab.Release(r)
	if look(pd, Address(one), 1, false) != nil {
		t.Error("works after it was released")
	}
}
