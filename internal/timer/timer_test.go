package timer

import (
	"testing"

	"pgregory.net/rapid"
)

func TestZeroValue(t *testing.T) {
	var h Heap[int]
	var it Item[int]
	h.Set(&it, 0) // not in
	if h.Len() != 0 || h.Next() != 0 || it.At() != 0 {
		t.Fatal("not empty")
	}
	if _, ok := h.Expired(1 << 62); ok {
		t.Fatal("something expired")
	}
}

func TestExpired(t *testing.T) {
	var h Heap[string]
	a, b := Item[string]{Owner: "a"}, Item[string]{Owner: "b"}
	h.Set(&a, 20)
	h.Set(&b, 10)
	if _, ok := h.Expired(9); ok || h.Next() != 10 {
		t.Fatal("early")
	}
	if o, ok := h.Expired(10); !ok || o != "b" || b.At() != 0 {
		t.Fatal(o, ok)
	}
	h.Shift(5)
	if _, ok := h.Expired(24); ok || a.At() != 25 {
		t.Fatal("not shifted")
	}
	h.Set(&b, 30)
	if o, ok := h.Expired(100); !ok || o != "a" {
		t.Fatal(o, ok)
	}
	h.Set(&b, 0)
	if h.Len() != 0 {
		t.Fatal("not removed")
	}
}

// The item that takes the place of a removed one may belong above it.
func TestRemoveMovesUp(t *testing.T) {
	var h Heap[int]
	items := make([]Item[int], 7)
	for i, at := range []int64{1, 50, 2, 60, 70, 3, 4} { // 4 takes the place of 60, below 50
		h.Set(&items[i], at)
	}
	for _, i := range []int{3, 4, 1} {
		h.Set(&items[i], 0)
		for k, it := range h.items {
			if k > 0 && h.items[(k-1)/2].at > it.at {
				t.Fatalf("%d is below %d", it.at, h.items[(k-1)/2].at)
			}
		}
	}
}

// The heap against a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Heap[int]
		items := make([]Item[int], 40)
		for i := range items {
			items[i].Owner = i
		}
		model := map[int]int64{}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				i := rapid.IntRange(0, len(items)-1).Draw(t, "item")
				at := rapid.Int64Range(1, 100).Draw(t, "at")
				h.Set(&items[i], at)
				model[i] = at
			},
			"remove": func(t *rapid.T) {
				i := rapid.IntRange(0, len(items)-1).Draw(t, "item")
				h.Set(&items[i], 0)
				delete(model, i)
			},
			"expire": func(t *rapid.T) {
				now := rapid.Int64Range(0, 60).Draw(t, "now")
				for last := int64(0); ; {
					o, ok := h.Expired(now)
					if !ok {
						break
					}
					at, in := model[o]
					if !in || at > now || at < last {
						t.Fatalf("%d expired at %d, its time is %d, after one of %d", o, now, at, last)
					}
					last = at
					delete(model, o)
				}
				for i, at := range model {
					if at <= now {
						t.Fatalf("%d did not expire", i)
					}
				}
			},
			"shift": func(t *rapid.T) {
				d := rapid.Int64Range(0, 5).Draw(t, "by")
				h.Shift(d)
				for i := range model {
					model[i] += d
				}
			},
			"": func(t *rapid.T) {
				first := int64(0)
				for i := range items {
					if items[i].At() != model[i] {
						t.Fatalf("item %d is due at %d, want %d", i, items[i].At(), model[i])
					}
					if at := model[i]; at != 0 && (first == 0 || at < first) {
						first = at
					}
				}
				if h.Len() != len(model) || h.Next() != first {
					t.Fatalf("%d items from %d, want %d from %d", h.Len(), h.Next(), len(model), first)
				}
			},
		})
	})
}

func BenchmarkSet(b *testing.B) {
	b.ReportAllocs()
	var h Heap[int]
	items := make([]Item[int], 1000)
	now := int64(1)
	for b.Loop() {
		h.Set(&items[now%1000], now+1000)
		now++
	}
}
