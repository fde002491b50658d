package queue

import (
	"errors"
	"math"
	"slices"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestRQPost(t *testing.T) {
	q := NewRQ(3, 2)
	if q.MaxSGE() != 2 || q.Cap() != 3 {
		t.Fatal(q.MaxSGE(), q.Cap())
	}
	list := []driver.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}
	n, err := q.Post([]driver.RecvWR{{WRID: 1, SGList: list}, {WRID: 2}, {WRID: 3, SGList: make([]driver.SGE, 3)}, {WRID: 4}})
	var we *WRError
	if n != 2 || !errors.Is(err, syscall.EINVAL) || !errors.As(err, &we) || we.Field != "SGList" {
		t.Fatal(n, err)
	}
	n, err = q.Post([]driver.RecvWR{{WRID: 5}, {WRID: 6}})
	if n != 1 || !errors.Is(err, syscall.ENOMEM) {
		t.Fatal(n, err)
	}
	list[0].Addr = 77 // case 63: the queue has a copy
	var w RecvWQE
	for _, want := range []uint64{1, 2, 5} {
		if ok, _ := q.Take(&w); !ok || w.WRID != want {
			t.Fatalf("%v, request %d, want %d", ok, w.WRID, want)
		}
		if want == 1 && !slices.Equal(w.SGL, []driver.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 4, Length: 5, LKey: 6}}) {
			t.Fatal(w.SGL)
		}
		if want != 1 && len(w.SGL) != 0 {
			t.Fatal(w.SGL)
		}
	}
	if ok, _ := q.Take(&w); ok || q.Len() != 0 {
		t.Fatal("not empty")
	}
	q.SetClosed(true)
	if n, err = q.Post([]driver.RecvWR{{}}); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Fatal("posted to a closed queue")
	}
	q.SetClosed(false)
	if n, _ = q.Post([]driver.RecvWR{{}}); n != 1 {
		t.Fatal("stays closed")
	}
	q.Clear()
	if q.Len() != 0 {
		t.Fatal("not cleared")
	}
	if n, err = NewRQ(0, 0).Post([]driver.RecvWR{{}}); n != 0 || !errors.Is(err, syscall.ENOMEM) {
		t.Fatal(n, err)
	}
}

// post fills the queue with n requests.
func post(t *testing.T, q *RQ, n int) {
	t.Helper()
	if got, err := q.Post(make([]driver.RecvWR, n)); got != n {
		t.Fatal(got, err)
	}
}

func TestCase61_SRQLimit(t *testing.T) {
	q := NewRQ(8, 1)
	post(t, q, 8)
	if err := q.SetLimit(9); !errors.Is(err, syscall.EINVAL) {
		t.Fatal("a limit beyond the queue: ", err)
	}
	if err := q.SetLimit(3); err != nil || q.Limit() != 3 {
		t.Fatal(err, q.Limit())
	}
	var w RecvWQE
	take := func(n int) (events int) {
		for range n {
			ok, limit := q.Take(&w)
			if !ok {
				t.Fatal("empty")
			}
			if limit {
				events++
			}
		}
		return events
	}
	if n := take(5); n != 0 || q.Limit() != 3 {
		t.Fatalf("%d events with 3 left, limit %d", n, q.Limit())
	}
	if n := take(1); n != 1 || q.Limit() != 0 {
		t.Fatalf("%d events with 2 left, limit %d", n, q.Limit())
	}
	post(t, q, 6)
	if n := take(8); n != 0 {
		t.Fatal("a second event")
	}
	post(t, q, 3)
	if err := q.SetLimit(2); err != nil {
		t.Fatal(err)
	}
	if n := take(3); n != 1 {
		t.Fatalf("armed again: %d events", n)
	}
}

func TestCase59_Resize(t *testing.T) {
	q := NewRQ(8, 2)
	var w RecvWQE
	next, oldest := uint64(0), uint64(0)
	// traffic leaves n requests in the queue and checks the order.
	traffic := func(n int) {
		t.Helper()
		for q.Len() < q.Cap() {
			if _, err := q.Post([]driver.RecvWR{{WRID: next, SGList: []driver.SGE{{Addr: next}}}}); err != nil {
				t.Fatal(err)
			}
			next++
		}
		if _, err := q.Post([]driver.RecvWR{{}}); !errors.Is(err, syscall.ENOMEM) {
			t.Fatal(err)
		}
		for q.Len() > n {
			if q.Take(&w); w.WRID != oldest || w.SGL[0].Addr != oldest {
				t.Fatalf("request %d, want %d", w.WRID, oldest)
			}
			oldest++
		}
	}
	traffic(5)
	for _, c := range []struct {
		to, most, limit int
		ok              bool
	}{
		{16, 100, 0, true},
		{100, 100, 0, true},
		{101, 100, 0, false},
		{math.MaxInt, 100, 0, false},
		{0, 100, 0, false},
		{-1, 100, 0, false},
		{4, 100, 0, false}, // it holds 5
		{5, 100, 0, true},
		{5, 100, 6, false},
		{7, 100, 7, true},
	} {
		before, limit := q.Cap(), q.Limit()
		err := q.ResizeLimit(c.to, c.most, c.limit)
		want, wantLimit := c.to, c.limit
		if !c.ok {
			want, wantLimit = before, limit
		}
		if (err == nil) != c.ok || err != nil && !errors.Is(err, syscall.EINVAL) || q.Cap() != want || q.Limit() != wantLimit {
			t.Fatalf("to %d, limit %d: %v, now %d and %d", c.to, c.limit, err, q.Cap(), q.Limit())
		}
		if err := q.SetLimit(0); err != nil {
			t.Fatal(err)
		}
		traffic(5)
	}
	if err := q.SetLimit(6); err != nil {
		t.Fatal(err)
	}
	if err := q.Resize(5, 100); !errors.Is(err, syscall.EINVAL) || q.Cap() != 7 {
		t.Fatal("smaller than the limit: ", err)
	}
	if err := q.Resize(20, 100); err != nil || q.Limit() != 6 {
		t.Fatal(err)
	}
	traffic(0)
}

func TestRQModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := NewRQ(rapid.IntRange(1, 20).Draw(t, "depth"), 2)
		var model []driver.RecvWR
		size, limit, next := q.Cap(), 0, uint64(0)
		var w RecvWQE
		t.Repeat(map[string]func(*rapid.T){
			"post": func(t *rapid.T) {
				var wrs []driver.RecvWR
				want, bad := 0, false
				for range rapid.IntRange(0, 5).Draw(t, "requests") {
					next++
					wr := driver.RecvWR{WRID: next}
					for k := range rapid.SampledFrom([]int{0, 1, 2, 2, 2, 3}).Draw(t, "elements") {
						wr.SGList = append(wr.SGList, driver.SGE{Addr: next, Length: uint32(k)})
					}
					bad = bad || len(wr.SGList) > 2 || len(model) == size
					if !bad {
						want++
						model = append(model, wr)
					}
					wrs = append(wrs, wr)
				}
				if n, err := q.Post(wrs); n != want || (err != nil) != bad {
					t.Fatalf("%d taken, want %d: %v", n, want, err)
				}
			},
			"take": func(t *rapid.T) {
				ok, fell := q.Take(&w)
				if ok != (len(model) > 0) {
					t.Fatal(ok)
				}
				if !ok {
					return
				}
				if w.WRID != model[0].WRID || !slices.Equal(w.SGL, model[0].SGList) {
					t.Fatalf("%+v, want %+v", w, model[0])
				}
				model = model[1:]
				if fell != (len(model) < limit) {
					t.Fatalf("limit %d, %d left: %v", limit, len(model), fell)
				}
				if fell {
					limit = 0
				}
			},
			"limit": func(t *rapid.T) {
				n := rapid.IntRange(0, 25).Draw(t, "n")
				if err := q.SetLimit(n); (err == nil) != (n <= size) {
					t.Fatal(err)
				} else if err == nil {
					limit = n
				}
			},
			"resize": func(t *rapid.T) {
				n := rapid.IntRange(0, 40).Draw(t, "n")
				if err := q.Resize(n, 30); (err == nil) != (n > 0 && n <= 30 && n >= len(model) && n >= limit) {
					t.Fatal(err)
				} else if err == nil {
					size = n
				}
			},
			"": func(t *rapid.T) {
				if q.Len() != len(model) || q.Cap() != size || q.Limit() != limit {
					t.Fatal(q.Len(), q.Cap(), q.Limit())
				}
			},
		})
	})
}

// Posters and takers of a shared queue: nothing is lost, nothing taken twice.
func TestRQConcurrent(t *testing.T) {
	const posters, each = 3, 3000
	q := NewRQ(64, 2)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[uint64]bool{}
	for p := range posters {
		wg.Go(func() {
			for i := 0; i < each; {
				id := uint64(p*each + i)
				n, err := q.Post([]driver.RecvWR{{WRID: id, SGList: []driver.SGE{{Addr: id}}}})
				if err != nil && !errors.Is(err, syscall.ENOMEM) {
					t.Error(err)
					return
				}
				i += n
			}
		})
		wg.Go(func() {
			var w RecvWQE
			for n := 0; n < each; {
				ok, _ := q.Take(&w)
				if !ok {
					continue
				}
				n++
				mu.Lock()
				if got[w.WRID] || w.SGL[0].Addr != w.WRID {
					t.Errorf("request %d: %v", w.WRID, w.SGL)
				}
				got[w.WRID] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(got) != posters*each {
		t.Fatalf("%d of %d", len(got), posters*each)
	}
}
