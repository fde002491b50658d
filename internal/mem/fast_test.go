package mem

import (
	"bytes"
	"errors"
	"math"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
)

const pageLen = 4096

// pages gives n pages of memory from a page boundary on, with recognizable content.
func pages(n int) []byte {
	b := make([]byte, (n+1)*pageLen)
	off := int(-Address(b) & (pageLen - 1))
	b = b[off : off+n*pageLen]
	for i := range b {
		b[i] = byte(i>>12*31 + i*7)
	}
	return b
}

func fastRegion(t testing.TB, tab *Table, pd *PD, most int) *Region {
	t.Helper()
	r, err := tab.RegisterFast(pd, most)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMapPages(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	p := pages(16)
	at := func(from, to int) []byte { return p[from:to] } // pieces of one piece of memory, gaps and all
	const k = pageLen
	for _, c := range []struct {
		name    string
		most    int
		list    [][]byte
		offset  int
		n, rest int
		want    [][]byte // what is mapped
	}{
		{"one page", 1, [][]byte{at(0, k)}, 0, 1, 0, [][]byte{at(0, k)}},
		{"odd start and end", 2, [][]byte{at(100, k+50)}, 0, 1, 0, [][]byte{at(100, k+50)}},
		{"inside a page", 1, [][]byte{at(100, 200)}, 0, 1, 0, [][]byte{at(100, 200)}},
		{"offset", 2, [][]byte{at(0, k+50)}, 70, 1, 0, [][]byte{at(70, k+50)}},
		{"odd first and last", 4, [][]byte{at(100, k), at(4*k, 6*k), at(9*k, 9*k+10)}, 0, 3, 0, [][]byte{at(100, k), at(4*k, 6*k), at(9*k, 9*k+10)}},
		{"backwards", 3, [][]byte{at(9*k, 10*k), at(4*k, 5*k), at(2*k, 2*k+1)}, 0, 3, 0, [][]byte{at(9*k, 10*k), at(4*k, 5*k), at(2*k, 2*k+1)}},
		{"the same page twice", 2, [][]byte{at(0, k), at(0, k)}, 0, 2, 0, [][]byte{at(0, k), at(0, k)}},
		{"gap: the first ends odd", 4, [][]byte{at(0, k-1), at(2*k, 3*k)}, 0, 1, 0, [][]byte{at(0, k-1)}},
		{"gap: the second begins odd", 4, [][]byte{at(0, k), at(2*k+8, 3*k)}, 0, 1, 0, [][]byte{at(0, k)}},
		{"gap: odd in the middle", 4, [][]byte{at(0, k), at(2*k, 3*k-1), at(4*k, 5*k)}, 0, 2, 0, [][]byte{at(0, k), at(2*k, 3*k-1)}},
		{"neighbours inside a page", 1, [][]byte{at(10, 100), at(100, 300), at(300, k)}, 0, 3, 0, [][]byte{at(10, 100), at(100, 300), at(300, k)}},
		{"neighbours over pages", 3, [][]byte{at(10, 100), at(100, 2*k+5), at(2*k+5, 3*k)}, 0, 3, 0, [][]byte{at(10, 3*k)}},
		{"no page left", 2, [][]byte{at(0, k), at(2*k, 3*k), at(4*k, 5*k)}, 0, 2, 0, [][]byte{at(0, k), at(2*k, 3*k)}},
		{"half a slice", 2, [][]byte{at(0, k), at(2*k, 5*k)}, 0, 1, k, [][]byte{at(0, k), at(2*k, 3*k)}},
		{"half the first", 2, [][]byte{at(100, 5*k)}, 20, 0, 2*k - 100, [][]byte{at(120, 2*k)}},
		{"neighbour without a page left", 1, [][]byte{at(0, 100), at(100, 2*k)}, 0, 1, k - 100, [][]byte{at(0, k)}},
	} {
		r := fastRegion(t, tab, pd, c.most)
		n, rest, err := tab.Map(r, c.list, c.offset, pageLen)
		if n != c.n || rest != c.rest || err != nil {
			t.Errorf("%s: %d and %d, %v; want %d and %d", c.name, n, rest, err, c.n, c.rest)
		}
		want := join(c.want)
		if r.Length() != uint64(len(want)) || r.Addr() != Address(c.want[0]) {
			t.Errorf("%s: %d bytes at %#x, want %d at %#x", c.name, r.Length(), r.Addr(), len(want), Address(c.want[0]))
		}
		if !tab.FastRegister(pd, r, r.RKey(), allRights) {
			t.Fatalf("%s: not registered", c.name)
		}
		out, ok := tab.Remote(pd, 1, r.RKey(), r.Addr(), r.Length(), ib.AccessRemoteRead, nil)
		if !ok || !bytes.Equal(join(out), want) {
			t.Errorf("%s: other memory", c.name)
		}
		tab.Release(r)
	}
}

func TestMapRefuses(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	r, plain := fastRegion(t, tab, pd, 4), register(t, tab, pd, make([]byte, 8), 0, 0)
	dead := fastRegion(t, tab, pd, 4)
	tab.Release(dead)
	p := pages(2)
	one := [][]byte{p}
	for _, c := range []struct {
		name         string
		r            *Region
		list         [][]byte
		offset, page int
	}{
		{"plain region", plain, one, 0, pageLen},
		{"dead region", dead, one, 0, pageLen},
		{"no list", r, nil, 0, pageLen},
		{"offset is the end", r, one, len(p), pageLen},
		{"negative offset", r, one, -1, pageLen},
		{"empty slice", r, [][]byte{p, {}}, 0, pageLen},
		{"empty first", r, [][]byte{{}}, 0, pageLen},
		{"page size 0", r, one, 0, 0},
		{"small pages", r, one, 0, 2048},
		{"odd pages", r, one, 0, 3 * pageLen},
		{"negative pages", r, one, 0, math.MinInt},
	} {
		if n, rest, err := tab.Map(c.r, c.list, c.offset, c.page); !errors.Is(err, syscall.EINVAL) || n != 0 || rest != 0 {
			t.Errorf("%s: %d, %d, %v", c.name, n, rest, err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := tab.RegisterFast(pd, n); !errors.Is(err, syscall.EINVAL) {
			t.Error(n, err)
		}
	}
	if tab.FastRegister(pd, r, r.RKey(), 0) {
		t.Error("registered without memory")
	}
}

func TestFastRegistrationStates(t *testing.T) {
	tab, pd, other := newTable(t, 10), NewPD(), NewPD()
	p, q := pages(4), pages(4)
	r := fastRegion(t, tab, pd, 4)
	local := func() bool { _, ok := tab.Local(pd, r.LKey(), r.Addr(), 1, false, nil); return ok }
	peer := func(key ib.RKey) bool {
		return reach(tab, pd, 1, key, r.Addr(), r.Length(), ib.AccessRemoteRead)
	}
	if r.PD() != nil || local() || reach(tab, nil, 1, r.RKey(), 0, 1, 0) {
		t.Fatal("good for something before it is registered")
	}
	if _, _, err := tab.Map(r, [][]byte{p[:2*pageLen]}, 0, pageLen); err != nil || local() {
		t.Fatal("mapped memory is reachable before it is registered", err)
	}
	key := ib.IncRKey(r.RKey())
	for what, ok := range map[string]bool{
		"other domain": tab.FastRegister(other, r, key, allRights),
		"other index":  tab.FastRegister(pd, r, key^0x100, allRights),
		"rights":       tab.FastRegister(pd, r, key, ib.AccessRemoteWrite),
		"bad bits":     tab.FastRegister(pd, r, key, 1<<15),
	} {
		if ok {
			t.Errorf("registered in spite of: %s", what)
		}
	}
	old := r.RKey()
	if !tab.FastRegister(pd, r, key, bindable) || r.RKey() != key || r.LKey() != ib.LKey(key) || r.PD() != pd || !local() || !peer(key) || peer(old) {
		t.Fatal("not registered")
	}
	if tab.FastRegister(pd, r, key, allRights) {
		t.Fatal("registered twice")
	}
	// Memory for the next time does not touch what is registered.
	addr := r.Addr()
	if _, _, err := tab.Map(r, [][]byte{q}, 100, pageLen); err != nil {
		t.Fatal(err)
	}
	if out, ok := tab.Remote(pd, 1, key, addr, 2*pageLen, ib.AccessRemoteRead, nil); !ok || &out[0][0] != &p[0] {
		t.Fatal("the mapping changed what is registered")
	}
	// A window on it; it is not invalidated below it.
	w := window(t, tab, pd, ib.MWType2)
	if !tab.Bind(pd, 5, w, r, w.RKey(), addr+pageLen-8, 16, ib.AccessRemoteRead) {
		t.Fatal("bind")
	}
	if out, ok := tab.Remote(pd, 5, w.RKey(), addr+pageLen-8, 16, ib.AccessRemoteRead, nil); !ok || !bytes.Equal(join(out), p[pageLen-8:pageLen+8]) {
		t.Error("the window shows other memory")
	}
	if tab.Invalidate(pd, 5, key, false) || tab.Invalidate(pd, 5, key, true) {
		t.Error("invalidated below a window")
	}
	tab.FreeWindow(w)
	if tab.Invalidate(other, 5, key, false) || tab.Invalidate(pd, 5, old, false) || tab.Invalidate(pd, 5, ib.IncRKey(key), true) {
		t.Error("invalidated from another domain, or under another key")
	}
	if !tab.Invalidate(pd, 5, key, true) || local() || peer(key) || r.PD() != nil {
		t.Fatal("not invalidated")
	}
	if tab.Invalidate(pd, 5, key, true) || !tab.Invalidate(pd, 5, key, false) {
		t.Error("once more: the peer may not, this side may")
	}
	// The same key byte again, now with what was mapped meanwhile; no right for peers.
	if !tab.FastRegister(pd, r, key, ib.AccessLocalWrite) || peer(key) || !local() || r.Addr() != Address(q)+100 {
		t.Fatal("not registered again")
	}
	if tab.Invalidate(pd, 5, key, true) {
		t.Error("a peer invalidates what it may not use")
	}
	tab.Invalidate(pd, 5, key, false)
	// The same memory again, without Map; then from 0.
	if !tab.FastRegister(pd, r, ib.IncRKey(key), allRights) || !peer(ib.IncRKey(key)) {
		t.Fatal("not registered a third time")
	}
	tab.Invalidate(pd, 5, r.RKey(), false)
	if !tab.FastRegister(pd, r, key, allRights|ib.AccessZeroBased) || !reach(tab, pd, 1, key, 0, 3*pageLen, ib.AccessRemoteRead) {
		t.Fatal("zero-based")
	}
	tab.Release(r)
	if peer(key) || tab.FastRegister(pd, r, key, allRights) || tab.Invalidate(pd, 5, key, false) || pd.Refs() != 0 {
		t.Error("lives after it was released")
	}
}

// A region that is mapped and registered again and again takes nothing from the heap:
// it happens on the way of work requests. A mapping that is not registered takes its
// entry and its list.
func TestLocalOperationsAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	tab, pd := newTable(t, 10), NewPD()
	r := fastRegion(t, tab, pd, 4)
	list := [][]byte{pages(4)}
	mapped := func() {
		if _, _, err := tab.Map(r, list, 0, pageLen); err != nil {
			t.Fatal(err)
		}
	}
	n := testing.AllocsPerRun(100, mapped)
	all := testing.AllocsPerRun(100, func() {
		mapped()
		if !tab.FastRegister(pd, r, ib.IncRKey(r.RKey()), allRights) || !tab.Invalidate(pd, 1, r.RKey(), false) {
			t.Fatal("refused")
		}
	})
	if n != 2 || all != 0 {
		t.Errorf("%v allocations in Map, %v with the registration", n, all)
	}
}

// Registrations show the memory that they were given, in any order of mappings and
// registrations, with windows on them, and what was found before a registration was
// replaced stays as it was.
func TestMappingsUsedAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab, pd := NewTable(4, 1), NewPD()
		defer tab.Close()
		p := pages(8)
		r, err := tab.RegisterFast(pd, 8)
		if err != nil {
			t.Fatal(err)
		}
		var mapped, registered []byte  // nil: none
		found := map[*entry][][]byte{} // what was found since the key was taken away last
		valid := false
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				from := rapid.IntRange(0, 6).Draw(t, "page")
				b := p[from*pageLen : (from+1+rapid.IntRange(0, 1).Draw(t, "pages"))*pageLen]
				list := [][]byte{b[:len(b)/2], b[len(b)/2:]}
				if _, _, err := tab.Map(r, list, 0, pageLen); err != nil {
					t.Fatal(err)
				}
				mapped = b
			case 1:
				access := allRights
				if rapid.Bool().Draw(t, "zero-based") {
					access |= ib.AccessZeroBased
				}
				if got, want := tab.FastRegister(pd, r, ib.IncRKey(r.RKey()), access), mapped != nil && !valid; got != want {
					t.Fatalf("registered: %v, want %v", got, want)
				} else if got {
					registered, valid = mapped, true
				}
			case 2:
				if valid {
					tab.Invalidate(pd, 1, r.RKey(), false)
					valid = false
					clear(found) // whoever found it has let go, before anything else happens
				}
			}
			e := r.cur.Load()
			if valid {
				out, ok := tab.Remote(pd, 1, r.RKey(), e.iova, e.length, ib.AccessRemoteRead, nil)
				if !ok || !bytes.Equal(join(out), registered) || len(join(out)) != len(registered) || &out[0][0] != &registered[0] {
					t.Fatal("other memory")
				}
			}
			found[e] = listOf(e)
			for e, was := range found {
				if now := listOf(e); len(now) != len(was) || len(now) > 0 && &now[0][0] != &was[0][0] {
					t.Fatal("what was found has changed")
				}
			}
		}
	})
}

// listOf is what an entry shows.
func listOf(e *entry) [][]byte {
	var out [][]byte
	for _, r := range e.list {
		out = append(out, r.buf)
	}
	return out
}

// Any part of a list of any slices is the right bytes.
func TestListPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab, pd := NewTable(4, 1), NewPD()
		defer tab.Close()
		p := pages(8)
		r, err := tab.RegisterFast(pd, 64)
		if err != nil {
			t.Fatal(err)
		}
		var list [][]byte
		for i := range rapid.IntRange(1, 6).Draw(t, "slices") {
			from, n := rapid.IntRange(0, 6).Draw(t, "page")*pageLen, rapid.IntRange(1, 2).Draw(t, "pages")*pageLen
			if i == 0 {
				cut := rapid.IntRange(0, pageLen-1).Draw(t, "cut")
				from, n = from+cut, n-cut
			}
			list = append(list, p[from:from+n])
		}
		last := &list[len(list)-1]
		*last = (*last)[:len(*last)-rapid.IntRange(0, len(*last)-1).Draw(t, "tail")]
		n, rest, err := tab.Map(r, list, 0, pageLen)
		if err != nil || rest != 0 || n != len(list) {
			t.Fatal(n, rest, err, len(list))
		}
		if !tab.FastRegister(pd, r, r.RKey(), bindable) {
			t.Fatal("register")
		}
		all := join(list)
		off := rapid.IntRange(0, len(all)).Draw(t, "offset")
		length := rapid.IntRange(0, len(all)+2).Draw(t, "length")
		out, ok := tab.Local(pd, r.LKey(), r.Addr()+uint64(off), uint64(length), true, nil)
		if want := length == 0 || off+length <= len(all); ok != want {
			t.Fatalf("%v, want %v", ok, want)
		}
		if ok && !bytes.Equal(join(out), all[off:off+length]) {
			t.Fatal("other bytes")
		}
		if !ok || length == 0 {
			return
		}
		// The same through a window on the part.
		w, err := tab.AllocWindow(pd, ib.MWType2)
		if err != nil {
			t.Fatal(err)
		}
		if !tab.Bind(pd, 1, w, r, w.RKey(), r.Addr()+uint64(off), uint64(length), ib.AccessRemoteRead|ib.AccessZeroBased) {
			t.Fatal("bind")
		}
		at := rapid.IntRange(0, length-1).Draw(t, "at")
		out, ok = tab.Remote(pd, 1, w.RKey(), uint64(at), uint64(length-at), ib.AccessRemoteRead, nil)
		if !ok || !bytes.Equal(join(out), all[off+at:off+length]) {
			t.Fatal("other bytes through a window")
		}
	})
}
