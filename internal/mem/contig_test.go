package mem

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
)

// Any part of a range of any slices, with gaps that pages would not allow, is the
// right bytes; peers have no right to it.
func TestContiguousRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab, pd, other := NewTable(4, 1), NewPD(), NewPD()
		defer tab.Close()
		b := pages(4)
		var list [][]byte
		for range rapid.IntRange(1, 8).Draw(t, "slices") {
			from := rapid.IntRange(0, len(b)-1).Draw(t, "from")
			n := rapid.IntRange(1, min(5000, len(b)-from)).Draw(t, "length")
			list = append(list, b[from:from+n])
		}
		old, err := tab.RegisterList(pd, [][]byte{b[:7], b[9:]}, nil)
		if err != nil {
			t.Fatal(err)
		}
		key := old.LKey()
		tab.Release(old)
		r, err := tab.RegisterList(pd, list, old)
		if err != nil {
			t.Fatal(err)
		}
		if tab.Grants(pd, key, 0) || r != old {
			t.Fatal("the old key is good")
		}
		all := join(list)
		if r.Length() != uint64(len(all)) || r.Addr() != Address(list[0]) {
			t.Fatalf("%d bytes at %#x", r.Length(), r.Addr())
		}
		off := rapid.IntRange(0, len(all)-1).Draw(t, "offset")
		n := rapid.IntRange(1, len(all)-off).Draw(t, "bytes")
		out, ok := tab.Local(pd, r.LKey(), r.Addr()+uint64(off), uint64(n), true, nil)
		if !ok || !bytes.Equal(join(out), all[off:off+n]) {
			t.Fatal("other bytes")
		}
		if _, ok := tab.Local(pd, r.LKey(), r.Addr()+uint64(off), uint64(len(all)-off+1), false, nil); ok {
			t.Fatal("a byte too far")
		}
		if reach(tab, pd, 1, r.RKey(), r.Addr(), 1, ib.AccessRemoteRead) || reach(tab, pd, 1, r.RKey(), r.Addr(), 1, ib.AccessRemoteWrite) {
			t.Fatal("a peer reaches it")
		}
		if !tab.Grants(pd, r.LKey(), ib.AccessLocalWrite) || tab.Grants(pd, r.LKey(), ib.AccessRemoteWrite) ||
			tab.Grants(other, r.LKey(), 0) || tab.Grants(pd, r.LKey()^1, 0) {
			t.Fatal("rights")
		}
		tab.Release(r)
		if pd.Refs() != 0 || tab.Grants(pd, r.LKey(), 0) {
			t.Fatal("lives after it was released")
		}
	})
}

func TestContiguousRangeRefuses(t *testing.T) {
	tab, pd, gone := newTable(t, 1), NewPD(), NewPD()
	if err := gone.Deallocate(); err != nil {
		t.Fatal(err)
	}
	one := [][]byte{make([]byte, 8)}
	for what, list := range map[string][][]byte{"nothing": nil, "an empty slice": {one[0], nil}} {
		if _, err := tab.RegisterList(pd, list, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := tab.RegisterList(gone, one, nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	r, err := tab.RegisterList(pd, one, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tab.RegisterList(pd, one, nil); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	tab.Release(r)
	if pd.Refs() != 0 {
		t.Error("the domain is still in use")
	}
}

// A range that is made again and again takes nothing from the heap.
func TestContiguousRangeAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	tab, pd := newTable(t, 10), NewPD()
	b := pages(4)
	list := [][]byte{b[8192:], b[10:100]}
	r, err := tab.RegisterList(pd, list, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		tab.Release(r)
		r.ForgetList()
		if _, err := tab.RegisterList(pd, list, r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	tab.Release(r)
	r.ForgetList()
	if r.runs[0].buf != nil {
		t.Error("the slices are kept")
	}
}
