package mem

import (
	"runtime"
	"testing"
	"weak"

	"github.com/verbena-rdma/verbena/ib"
)

// heap is memory of which a test wants to know when nobody holds it any more.
func heap() ([]byte, weak.Pointer[byte]) {
	b := make([]byte, 64<<10)
	return b, weak.Make(&b[0])
}

func gone(w weak.Pointer[byte]) bool {
	for range 3 {
		runtime.GC()
	}
	return w.Value() == nil
}

// What a region, or a window, has given up is garbage, though programs keep the
// objects: pools of windows live for ever, and regions change their memory.
func TestMemoryGivenUpIsGarbage(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	b, first := heap()
	r := register(t, tab, pd, b, 0, bindable)
	for range 2 {
		var next weak.Pointer[byte]
		b, next = heap()
		l, err := tab.Reregister(r, &Change{Flags: ib.ReregTranslation, Buf: b})
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
		if !gone(first) {
			t.Error("the memory from before a registration anew is held")
		}
		first = next
	}
	one, two := window(t, tab, pd, ib.MWType1), window(t, tab, pd, ib.MWType2)
	three, four := window(t, tab, pd, ib.MWType2), window(t, tab, pd, ib.MWType2)
	for _, w := range []*Window{one, two, three, four} {
		if !tab.Bind(pd, 7, w, r, w.RKey(), r.Addr(), 8, ib.AccessRemoteRead) {
			t.Fatal("bind refused")
		}
	}
	key := four.RKey()
	if !tab.Bind(pd, 7, one, nil, one.RKey(), 0, 0, 0) || !tab.Invalidate(pd, 7, two.RKey(), true) {
		t.Fatal("unbind refused")
	}
	tab.UnbindQP(7)
	tab.FreeWindow(four)
	tab.Release(r)
	b = nil
	if !gone(first) {
		t.Error("the memory is held by what was registered or bound to it")
	}
	if four.RKey() != key {
		t.Errorf("the key of a window that is gone is %#x, was %#x", four.RKey(), key)
	}
	runtime.KeepAlive(r)
	runtime.KeepAlive([]*Window{one, two, three, four})
}

// So is that of a signature region: what is registered, and what is mapped for the next
// time.
func TestSignatureMemoryIsGarbage(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	data, d := heap()
	meta, m := heap()
	next, n := heap()
	dif := crcDomain(512)
	r := sigRegion(t, tab, pd, [][]byte{data}, [][]byte{meta}, &ib.SigAttrs{Mem: dif, Wire: dif})
	if _, err := tab.MapSignature(r, [][]byte{next}, 0, nil, 0, 4096); err != nil {
		t.Fatal(err)
	}
	data, meta, next = nil, nil, nil
	if gone(d) || gone(m) || gone(n) {
		t.Fatal("memory is let go of too early")
	}
	tab.Release(r)
	if !gone(d) || !gone(m) || !gone(n) {
		t.Error("the memory is held by a region that is gone")
	}
	runtime.KeepAlive(r)
}
