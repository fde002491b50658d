package mem

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
)

const bindable = allRights | ib.AccessMWBind

func window(t testing.TB, tab *Table, pd *PD, typ ib.MWType) *Window {
	t.Helper()
	w, err := tab.AllocWindow(pd, typ)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tab.FreeWindow(w) })
	return w
}

// reach reports whether a peer of queue pair qpn may do what needs the rights.
func reach(tab *Table, pd *PD, qpn ib.QPN, key ib.RKey, va, n uint64, need ib.Access) bool {
	out, ok := tab.Remote(pd, qpn, key, va, n, need, nil)
	return ok && uint64(len(join(out))) == n
}

func TestWindowReach(t *testing.T) {
	for _, typ := range []ib.MWType{ib.MWType1, ib.MWType2} {
		tab, pd, other := newTable(t, 10), NewPD(), NewPD()
		buf := []byte("0123456789")
		r := register(t, tab, pd, buf, 1000, ib.AccessLocalWrite|ib.AccessMWBind)
		w := window(t, tab, pd, typ)
		if reach(tab, pd, 7, w.RKey(), 1000, 1, ib.AccessRemoteRead) || reach(tab, nil, 7, w.RKey(), 0, 1, 0) {
			t.Fatal("a window that is not bound is good for something")
		}
		key := ib.IncRKey(w.RKey())
		old := w.RKey()
		if !tab.Bind(pd, 7, w, r, key, 1002, 5, ib.AccessRemoteRead) {
			t.Fatal("bind refused")
		}
		if w.RKey() != key {
			t.Fatalf("the window shows %#x, its key is %#x", w.RKey(), key)
		}
		for _, c := range []struct {
			name  string
			pd    *PD
			qpn   ib.QPN
			key   ib.RKey
			va, n uint64
			need  ib.Access
			ok    bool
		}{
			{"all", pd, 7, key, 1002, 5, ib.AccessRemoteRead, true},
			{"last byte", pd, 7, key, 1006, 1, ib.AccessRemoteRead, true},
			{"before", pd, 7, key, 1001, 1, ib.AccessRemoteRead, false},
			{"behind", pd, 7, key, 1007, 1, ib.AccessRemoteRead, false},
			{"over the end", pd, 7, key, 1006, 2, ib.AccessRemoteRead, false},
			{"from 0", pd, 7, key, 0, 1, ib.AccessRemoteRead, false},
			{"wraps", pd, 7, key, 1002, math.MaxUint64, ib.AccessRemoteRead, false},
			{"old key", pd, 7, old, 1002, 5, ib.AccessRemoteRead, false},
			{"other right", pd, 7, key, 1002, 5, ib.AccessRemoteWrite, false},
			{"other domain", other, 7, key, 1002, 5, ib.AccessRemoteRead, false},
			{"no domain", nil, 7, key, 1002, 5, ib.AccessRemoteRead, false},
			{"other queue pair", pd, 8, key, 1002, 5, ib.AccessRemoteRead, typ == ib.MWType1},
			{"no bytes", other, 8, old, 0, 0, ib.AccessRemoteRead, true},
		} {
			if ok := reach(tab, c.pd, c.qpn, c.key, c.va, c.n, c.need); ok != c.ok {
				t.Errorf("type %d, %s: %v", typ, c.name, ok)
			}
		}
		if out, _ := tab.Remote(pd, 7, key, 1003, 2, ib.AccessRemoteRead, nil); string(join(out)) != "34" {
			t.Errorf("other memory: %q", out)
		}
		if _, ok := tab.Local(pd, ib.LKey(key), 1002, 1, false, nil); ok {
			t.Error("a window's key is good locally")
		}
		// The region stays while the window is bound; then everything may go.
		if err := tab.Remove(r); !errors.Is(err, syscall.EBUSY) || !reach(tab, pd, 7, key, 1002, 5, ib.AccessRemoteRead) {
			t.Errorf("removing a region with a bound window: %v", err)
		}
		if _, ok := tab.Local(pd, r.LKey(), 1000, 10, true, nil); !ok {
			t.Error("the region does not work any more")
		}
		if err := pd.Deallocate(); !errors.Is(err, syscall.EBUSY) {
			t.Error(err)
		}
		tab.FreeWindow(w)
		tab.FreeWindow(w)
		if reach(tab, pd, 7, key, 1002, 5, ib.AccessRemoteRead) || tab.Windows() != 0 {
			t.Error("works after it was freed")
		}
		if err := tab.Remove(r); err != nil {
			t.Error(err)
		}
		tab.Release(r)
		if err := pd.Deallocate(); err != nil {
			t.Error(err)
		}
	}
}

// What a bind must not do, and that it then changes nothing (IBA 10.6.7.2.6).
func TestCase39_BindRules(t *testing.T) {
	tab, pd, other := newTable(t, 20), NewPD(), NewPD()
	buf := make([]byte, 64)
	full := register(t, tab, pd, buf, 1000, bindable)
	foreign := register(t, tab, other, buf, 1000, bindable)
	noBind := register(t, tab, pd, buf, 1000, allRights)
	noWrite := register(t, tab, pd, buf, 1000, ib.AccessMWBind|ib.AccessRemoteRead)
	zero := register(t, tab, pd, buf, 0, bindable|ib.AccessZeroBased)
	dead := register(t, tab, pd, buf, 1000, bindable)
	tab.Release(dead)
	null, _ := tab.RegisterNull(pd)
	const rd, wr, at, zb = ib.AccessRemoteRead, ib.AccessRemoteWrite, ib.AccessRemoteAtomic, ib.AccessZeroBased
	for _, typ := range []ib.MWType{ib.MWType1, ib.MWType2} {
		two := typ == ib.MWType2
		for _, c := range []struct {
			name    string
			pd      *PD
			r       *Region
			addr, n uint64
			a       ib.Access
			ok      bool
		}{
			{"all of it", pd, full, 1000, 64, rd | wr | at, true},
			{"no right", pd, full, 1000, 64, 0, true},
			{"last byte", pd, full, 1063, 1, rd, true},
			{"hint", pd, full, 1000, 64, rd | ib.AccessRelaxedOrdering, true},
			{"zero-based", pd, full, 1010, 3, rd | zb, two},
			{"before", pd, full, 999, 2, rd, false},
			{"behind", pd, full, 1064, 1, rd, false},
			{"too long", pd, full, 1000, 65, rd, false},
			{"over the end", pd, full, 1063, 2, rd, false},
			{"case 40: wraps", pd, full, 1000, math.MaxUint64, rd, false},
			{"case 40: wraps to the start", pd, full, 1032, math.MaxUint64 - 31, rd, false},
			{"case 40: from the top", pd, full, math.MaxUint64, 1002, rd, false},
			{"local write", pd, full, 1000, 64, rd | ib.AccessLocalWrite, false},
			{"bind of binds", pd, full, 1000, 64, ib.AccessMWBind, false},
			{"unknown right", pd, full, 1000, 64, 1 << 15, false},
			{"region of another domain", pd, foreign, 1000, 64, rd, false},
			{"queue pair of another domain", other, full, 1000, 64, rd, false},
			{"all of another domain", other, foreign, 1000, 64, rd, false},
			{"no bind right", pd, noBind, 1000, 64, rd, false},
			{"no local write, read", pd, noWrite, 1000, 64, rd, true},
			{"no local write, write", pd, noWrite, 1000, 64, wr, false},
			{"no local write, atomic", pd, noWrite, 1000, 64, rd | at, false},
			{"zero-based region", pd, zero, 0, 64, rd, false},
			{"dead region", pd, dead, 1000, 64, rd, false},
			{"null region", pd, null, 1000, 64, rd, false},
			{"no region", pd, nil, 0, 64, rd, false},
			{"length 0", pd, full, 1000, 0, rd, !two},
			{"nothing", pd, nil, 0, 0, 0, !two},
		} {
			w := window(t, tab, pd, typ)
			key := ib.IncRKey(w.RKey())
			was := w.RKey()
			if ok := tab.Bind(c.pd, 7, w, c.r, key, c.addr, c.n, c.a); ok != c.ok {
				t.Errorf("type %d, %s: %v", typ, c.name, ok)
			} else if !ok && w.RKey() != was {
				t.Errorf("type %d, %s: the key changed", typ, c.name)
			} else if ok && c.n > 0 {
				va := c.addr
				if c.a&zb != 0 {
					va = 0
				}
				for need := range ib.Access(16) {
					if need &^= ib.AccessLocalWrite; need == 0 {
						continue
					}
					if got := reach(tab, pd, 7, key, va, c.n, need); got != (need&^c.a == 0) {
						t.Errorf("type %d, %s, needing %v: %v", typ, c.name, need, got)
					}
				}
			}
			tab.FreeWindow(w)
		}
		w := window(t, tab, pd, typ)
		if tab.Bind(pd, 7, w, full, w.RKey()^0x100, 1000, 64, rd) {
			t.Error("a key with another index is taken")
		}
		tab.FreeWindow(w)
		if tab.Bind(pd, 7, w, full, w.RKey(), 1000, 64, rd) {
			t.Error("a window is bound that is no more")
		}
	}
	if full.windows+noWrite.windows != 0 || len(tab.bound) != 0 {
		t.Errorf("%d, %d windows are left, %d queue pairs with some", full.windows, noWrite.windows, len(tab.bound))
	}
	if _, err := tab.AllocWindow(pd, 3); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err := tab.AllocWindow(pd, 0); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestCase38_AnyKeyByte(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	r := register(t, tab, pd, make([]byte, 64), 1000, bindable)
	w := window(t, tab, pd, ib.MWType2)
	base := w.RKey()
	for i := range 300 {
		key := ib.TagRKey(base, uint8(i/2)) // each byte twice
		if !tab.Bind(pd, 7, w, r, key, 1000, 64, ib.AccessRemoteRead) {
			t.Fatalf("key byte %d refused", i/2)
		}
		if tab.Bind(pd, 7, w, r, ib.IncRKey(key), 1000, 64, ib.AccessRemoteRead) || tab.Bind(pd, 8, w, r, key, 1000, 8, 0) {
			t.Fatal("bound twice")
		}
		if !reach(tab, pd, 7, key, 1000, 64, ib.AccessRemoteRead) {
			t.Fatal("the key does not work")
		}
		if tab.Invalidate(pd, 8, key, false) || tab.Invalidate(pd, 8, key, true) || tab.Invalidate(NewPD(), 7, key, false) {
			t.Fatal("invalidated from another queue pair or domain")
		}
		if !tab.Invalidate(pd, 7, key, i%2 == 0) {
			t.Fatal("not invalidated")
		}
		if reach(tab, pd, 7, key, 1000, 1, ib.AccessRemoteRead) {
			t.Fatal("works after it was invalidated")
		}
		if !tab.Invalidate(pd, 7, key, false) || tab.Invalidate(pd, 7, key, true) {
			t.Fatal("once more: locally it may be, by the peer it may not")
		}
	}
	if r.windows != 0 || tab.Remove(r) != nil {
		t.Fatal("something is bound")
	}
}

func TestInvalidateRules(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	r := register(t, tab, pd, make([]byte, 64), 1000, bindable)
	w := window(t, tab, pd, ib.MWType1)
	if !tab.Bind(pd, 7, w, r, w.RKey(), 1000, 64, ib.AccessRemoteRead) {
		t.Fatal("bind")
	}
	for _, remote := range []bool{false, true} {
		for what, key := range map[string]ib.RKey{
			"a region": r.RKey(), "a window of type 1": w.RKey(), "nothing": 0, "garbage": 0xDEADBEEF,
		} {
			if tab.Invalidate(pd, 7, key, remote) {
				t.Errorf("%s was invalidated", what)
			}
		}
	}
	if !reach(tab, pd, 7, w.RKey(), 1000, 64, ib.AccessRemoteRead) {
		t.Error("the window does not work any more")
	}
	// Type 1 is bound anew without further ado; length 0 takes it back.
	old := w.RKey()
	if !tab.Bind(pd, 9, w, r, ib.IncRKey(old), 1032, 8, ib.AccessRemoteWrite) || r.windows != 1 {
		t.Fatal("bind anew")
	}
	if reach(tab, pd, 7, old, 1000, 1, ib.AccessRemoteRead) || !reach(tab, pd, 3, w.RKey(), 1032, 8, ib.AccessRemoteWrite) {
		t.Error("the old key works, or the new one does not")
	}
	if !tab.Bind(pd, 7, w, nil, ib.IncRKey(w.RKey()), 0, 0, 0) || r.windows != 0 || reach(tab, pd, 3, w.RKey(), 1032, 8, ib.AccessRemoteWrite) {
		t.Error("unbind")
	}
}

func TestUnbindQP(t *testing.T) {
	tab, pd := newTable(t, 20), NewPD()
	r := register(t, tab, pd, make([]byte, 64), 1000, bindable)
	var ws []*Window
	for i := range 9 {
		w := window(t, tab, pd, ib.MWType2)
		if !tab.Bind(pd, ib.QPN(i%3+1), w, r, w.RKey(), 1000, 64, ib.AccessRemoteRead) {
			t.Fatal("bind")
		}
		ws = append(ws, w)
	}
	tab.FreeWindow(ws[4]) // middle of the list of 2
	tab.Invalidate(pd, 3, ws[8].RKey(), false)
	tab.UnbindQP(2)
	tab.UnbindQP(2)
	tab.UnbindQP(77)
	for i, w := range ws {
		want := i%3+1 != 2 && i != 8
		if ok := reach(tab, pd, ib.QPN(i%3+1), w.RKey(), 1000, 64, ib.AccessRemoteRead); ok != want {
			t.Errorf("window %d: %v", i, ok)
		}
	}
	if r.windows != 5 || len(tab.bound) != 2 {
		t.Errorf("%d windows, %d queue pairs", r.windows, len(tab.bound))
	}
	// A window that was unbound is free: another queue pair may bind it.
	if !tab.Bind(pd, 1, ws[1], r, ws[1].RKey(), 1000, 1, ib.AccessRemoteRead) {
		t.Error("not free")
	}
}

func TestWindowLimit(t *testing.T) {
	tab, pd := newTable(t, 4), NewPD()
	a := window(t, tab, pd, ib.MWType1)
	window(t, tab, pd, ib.MWType2)
	if _, err := tab.AllocWindow(pd, ib.MWType1); !errors.Is(err, syscall.ENOMEM) || pd.Refs() != 2 {
		t.Fatal(err, pd.Refs())
	}
	tab.FreeWindow(a)
	window(t, tab, pd, ib.MWType1)
	dead := NewPD()
	_ = dead.Deallocate()
	if _, err := tab.AllocWindow(dead, ib.MWType1); !errors.Is(err, syscall.EINVAL) {
		t.Fatal(err)
	}
}

func TestCase33_WindowKeysAreNotReusedSoon(t *testing.T) {
	tab, pd := newTable(t, 1<<10), NewPD()
	seen := map[ib.RKey]bool{}
	for i := range 100_000 {
		w, err := tab.AllocWindow(pd, ib.MWType2)
		if err != nil {
			t.Fatal(err)
		}
		if k := w.RKey() >> 8; seen[k] || k == 0 {
			t.Fatalf("cycle %d: index %#x again", i, k)
		} else {
			seen[k] = true
		}
		tab.FreeWindow(w)
	}
}

// Windows and fast registration against a model, with random work.
func TestWindowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := NewTable(20, rapid.Uint64().Draw(t, "seed"))
		defer tab.Close()
		pds := []*PD{NewPD(), NewPD()}
		type reg struct {
			r  *Region
			pd *PD
			a  ib.Access
		}
		type win struct {
			w    *Window
			pd   *PD
			reg  int // -1: not bound
			qpn  ib.QPN
			addr uint64
			n    uint64
			a    ib.Access
		}
		var regs []reg
		var wins []*win
		for range 4 {
			g := reg{pd: rapid.SampledFrom(pds).Draw(t, "pd"), a: rapid.SampledFrom([]ib.Access{bindable, ib.AccessMWBind, allRights}).Draw(t, "access")}
			var err error
			if g.r, err = tab.Register(g.pd, make([]byte, 32), 1000, g.a); err != nil {
				t.Fatal(err)
			}
			regs = append(regs, g)
		}
		qpn := rapid.SampledFrom([]ib.QPN{1, 2})
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				if len(wins) == 6 {
					t.Skip()
				}
				pd := rapid.SampledFrom(pds).Draw(t, "pd")
				w, err := tab.AllocWindow(pd, rapid.SampledFrom([]ib.MWType{1, 2}).Draw(t, "type"))
				if err != nil {
					t.Fatal(err)
				}
				wins = append(wins, &win{w: w, pd: pd, reg: -1})
			},
			"free": func(t *rapid.T) {
				if len(wins) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(wins)-1).Draw(t, "which")
				tab.FreeWindow(wins[i].w)
				wins = append(wins[:i], wins[i+1:]...)
			},
			"bind": func(t *rapid.T) {
				if len(wins) == 0 {
					t.Skip()
				}
				v := rapid.SampledFrom(wins).Draw(t, "window")
				i := rapid.IntRange(0, len(regs)-1).Draw(t, "region")
				q, pd := qpn.Draw(t, "qpn"), rapid.SampledFrom(pds).Draw(t, "pd")
				addr, n := rapid.Uint64Range(999, 1033).Draw(t, "addr"), rapid.Uint64Range(0, 34).Draw(t, "length")
				a := rapid.SampledFrom([]ib.Access{ib.AccessRemoteRead, ib.AccessRemoteWrite}).Draw(t, "access")
				key := ib.TagRKey(v.w.RKey(), rapid.Uint8().Draw(t, "tag"))
				g := regs[i]
				fits := v.pd == pd && g.pd == pd && g.a&ib.AccessMWBind != 0 && (a == ib.AccessRemoteRead || g.a&ib.AccessLocalWrite != 0) &&
					addr >= 1000 && n > 0 && addr+n <= 1032
				want := fits && (v.w.Type() == 1 || v.reg < 0) || v.w.Type() == 1 && n == 0 && v.pd == pd
				if ok := tab.Bind(pd, q, v.w, g.r, key, addr, n, a); ok != want {
					t.Fatalf("bind %v, want %v", ok, want)
				}
				if want {
					v.reg, v.qpn, v.addr, v.n, v.a = i, q, addr, n, a
					if n == 0 {
						v.reg = -1
					}
				}
			},
			"invalidate": func(t *rapid.T) {
				if len(wins) == 0 {
					t.Skip()
				}
				v := rapid.SampledFrom(wins).Draw(t, "window")
				q, pd, remote := qpn.Draw(t, "qpn"), rapid.SampledFrom(pds).Draw(t, "pd"), rapid.Bool().Draw(t, "remote")
				want := v.w.Type() == 2 && v.pd == pd && (v.reg >= 0 && v.qpn == q || v.reg < 0 && !remote)
				if ok := tab.Invalidate(pd, q, v.w.RKey(), remote); ok != want {
					t.Fatalf("invalidate %v, want %v", ok, want)
				}
				if want {
					v.reg = -1
				}
			},
			"unbind": func(t *rapid.T) {
				q := qpn.Draw(t, "qpn")
				tab.UnbindQP(q)
				for _, v := range wins {
					if v.w.Type() == 2 && v.qpn == q {
						v.reg = -1
					}
				}
			},
			"": func(t *rapid.T) {
				count := make([]int, len(regs))
				for _, v := range wins {
					if v.reg >= 0 {
						count[v.reg]++
					}
					for _, q := range []ib.QPN{1, 2} {
						for _, pd := range pds {
							want := v.reg >= 0 && v.pd == pd && (v.w.Type() == 1 || v.qpn == q)
							if ok := reach(tab, pd, q, v.w.RKey(), v.addr, max(v.n, 1), v.a); ok != want {
								t.Fatalf("reach %v, want %v: %+v", ok, want, *v)
							}
						}
					}
				}
				for i, g := range regs {
					if g.r.windows != count[i] {
						t.Fatalf("region %d has %d windows, want %d", i, g.r.windows, count[i])
					}
				}
			},
		})
	})
}

// Binds, invalidations and lookups at the same time: a lookup that succeeds gives
// the memory of some bind, and none succeeds after the window is gone.
func TestConcurrentWindows(t *testing.T) {
	tab, pd := newTable(t, 100), NewPD()
	one, two := make([]byte, 64), make([]byte, 64)
	ra := register(t, tab, pd, one, 1000, bindable)
	rb := register(t, tab, pd, two, 1000, bindable)
	var key atomic.Uint32
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var buf [2][]byte
			for !done.Load() {
				out, ok := tab.Remote(pd, 7, ib.RKey(key.Load()), 1008, 8, ib.AccessRemoteRead, buf[:0])
				if ok && &out[0][0] != &one[8] && &out[0][0] != &two[8] {
					t.Error("memory of nobody")
				}
			}
		})
	}
	for i := range 5_000 {
		w, err := tab.AllocWindow(pd, ib.MWType2)
		if err != nil {
			t.Fatal(err)
		}
		for j := range 4 {
			k := ib.IncRKey(w.RKey())
			key.Store(uint32(k))
			r := ra
			if j%2 == 1 {
				r = rb
			}
			if !tab.Bind(pd, 7, w, r, k, 1000, 64, ib.AccessRemoteRead) {
				t.Fatal("bind", i, j)
			}
			if j < 3 && !tab.Invalidate(pd, 7, k, j == 1) {
				t.Fatal("invalidate", i, j)
			}
		}
		tab.FreeWindow(w)
		if reach(tab, pd, 7, ib.RKey(key.Load()), 1000, 1, ib.AccessRemoteRead) {
			t.Fatal("works after it was freed")
		}
	}
	done.Store(true)
	wg.Wait()
}
