package queue

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func ids(wcs []driver.WC) string {
	s := ""
	for i := range wcs {
		s += fmt.Sprint(wcs[i].WRID, " ")
	}
	return s
}

func pushID(c *CQ, id uint64) (fire, overrun bool) {
	fire, overrun, _ = c.PushAt(0, int64(1000+id), &driver.WC{WRID: id}, false)
	return fire, overrun
}

func TestCQExShowsAndTakes(t *testing.T) {
	c := NewCQEx(40, true, false, false)
	if wcs, _ := c.Look(); len(wcs) != 0 {
		t.Fatalf("empty queue shows %d", len(wcs))
	}
	for i := range uint64(20) {
		pushID(c, i)
	}
	wcs, ts := c.Look()
	if len(wcs) != batchLen || len(ts) != batchLen || ts[3] != 1003 || wcs[15].WRID != 15 {
		t.Fatalf("%v %v", ids(wcs), ts)
	}
	pushID(c, 20) // while they are looked at
	if wcs, ts = c.Next(); ids(wcs) != "16 17 18 19 20 " || ts[4] != 1020 {
		t.Fatalf("%v %v", ids(wcs), ts)
	}
	c.Done(2)
	if c.Len() != 3 || c.Empty() {
		t.Errorf("%d are left", c.Len())
	}
	dst := make([]driver.WC, 8)
	if n := c.Poll(dst); ids(dst[:n]) != "18 19 20 " {
		t.Errorf("polled %s", ids(dst[:n]))
	}
	pushID(c, 21)
	_, _ = c.Look()
	if wcs, _ := c.Next(); len(wcs) != 0 {
		t.Errorf("after the last: %s", ids(wcs))
	}
	c.Done(0)
	if wcs, _ := c.Look(); len(wcs) != 0 {
		t.Errorf("taken: %s", ids(wcs))
	}
	// Without timestamps.
	c = NewCQEx(4, false, false, true)
	pushID(c, 1)
	if wcs, ts := c.Look(); len(wcs) != 1 || ts != nil {
		t.Errorf("%d, %v", len(wcs), ts)
	}
	c.Done(1)
}

// A queue that ignores overruns keeps the newest completions.
func TestCQExLossy(t *testing.T) {
	c := NewCQEx(4, true, true, false)
	for i := range uint64(7) {
		if _, overrun := pushID(c, i); overrun || c.Overrun() {
			t.Fatalf("overrun at %d", i)
		}
	}
	wcs, ts := c.Look()
	if ids(wcs) != "3 4 5 6 " || ts[0] != 1003 {
		t.Fatalf("%v %v", ids(wcs), ts)
	}
	// Two more push out two that are shown: they count as taken.
	pushID(c, 7)
	pushID(c, 8)
	c.Done(3)
	if wcs, _ = c.Look(); ids(wcs) != "6 7 8 " {
		t.Errorf("%s", ids(wcs))
	}
	for i := range uint64(9) {
		pushID(c, 10+i)
	}
	c.Done(3)
	if wcs, ts = c.Look(); ids(wcs) != "15 16 17 18 " || ts[3] != 1018 {
		t.Errorf("%s %v", ids(wcs), ts)
	}
	c.Done(0)
}

func TestCQExResizeKeepsStamps(t *testing.T) {
	c := NewCQEx(4, true, false, false)
	pushID(c, 0)
	pushID(c, 1)
	c.Poll(make([]driver.WC, 2))
	for i := range uint64(4) { // around the end of the ring
		pushID(c, i)
	}
	wcs, _ := c.Look()
	if err := c.Resize(6, 100); err != nil {
		t.Fatal(err)
	}
	pushID(c, 4)
	if wcs[3].WRID != 3 {
		t.Error("what is shown has changed")
	}
	wcs, ts := c.Next()
	if ids(wcs) != "4 " || ts[0] != 1004 {
		t.Errorf("%s %v", ids(wcs), ts)
	}
	c.Done(1)
	for i := range uint64(6) {
		pushID(c, i)
	}
	if c.Resize(5, 100) == nil {
		t.Error("smaller than it holds")
	}
	if wcs, ts = c.Look(); ids(wcs) != "0 1 2 3 4 5 " || ts[5] != 1005 {
		t.Errorf("%s %v", ids(wcs), ts)
	}
	c.Done(6)
}

func TestModerate(t *testing.T) {
	c := NewCQ(100)
	var told int
	c.SetNotify(func(bool) { told++ })
	push := func(now int64, wc driver.WC) string {
		fire, _, held := c.PushAt(now, 0, &wc, false)
		if fire {
			c.Notify()
		}
		return fmt.Sprint(fire, held)
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	if c.Moderate(3, 1000) {
		t.Error("nothing waits")
	}
	want("not armed", push(0, driver.WC{}), "false false")
	c.Arm(false)
	want("first", push(10, driver.WC{}), "false true")
	want("due", fmt.Sprint(c.Held()), "1010")
	want("second", push(500, driver.WC{}), "false false")
	want("third", push(600, driver.WC{}), "true false")
	want("not due any more", fmt.Sprint(c.Held()), "0")
	c.Arm(false)
	want("the next one", push(700, driver.WC{}), "false true")
	want("too early", fmt.Sprint(c.Release(1010)), "false true")
	want("due", fmt.Sprint(c.Release(1700)), "true false")
	c.Notify()
	c.Arm(false)
	want("again", push(2000, driver.WC{}), "false true")
	want("a failure is told at once", push(2001, driver.WC{Status: ib.WCWRFlushErr}), "true false")
	want("not due any more", fmt.Sprint(c.Release(9999)), "false false")
	c.Arm(false)
	want("waits", push(10_000, driver.WC{}), "false true")
	want("the timer was late", push(11_000, driver.WC{}), "true false")
	c.Arm(true) // only solicited ones count
	want("not solicited", push(12_000, driver.WC{}), "false false")
	want("none waits", fmt.Sprint(c.Held()), "0")
	fire, _, _ := c.PushAt(12_001, 0, &driver.WC{}, true)
	want("solicited", fmt.Sprint(fire, c.Held()), "false 13001")
	// Who was asked before for another one sees this one too.
	want("of somebody else", fmt.Sprint(c.Release(13_000)), "false true")
	want("change", fmt.Sprint(c.Moderate(0, 50)), "true")
	c.Notify()
	c.Arm(false)
	want("first", push(20_000, driver.WC{}), "false true")
	for i := range int64(20) {
		want("any number", push(20_001+i, driver.WC{}), "false false")
	}
	want("off", fmt.Sprint(c.Moderate(0, 0)), "true")
	c.Notify()
	c.Arm(false)
	want("at once", push(30_000, driver.WC{}), "true false")
	want("nothing", fmt.Sprint(c.Release(40_000)), "false false")
	c.Arm(false)
	want("at once", push(50_000, driver.WC{}), "true false")
	if told != 8 {
		t.Errorf("told %d times", told)
	}
	if c.Moderate(0, 0) || c.mod != nil {
		t.Error("moderation is left")
	}
}

// An overrun is told at once.
func TestModerateOverrun(t *testing.T) {
	c := NewCQ(1)
	c.Moderate(10, 1000)
	c.Arm(false)
	if fire, _, held := c.PushAt(1, 0, &driver.WC{}, false); fire || !held {
		t.Fatal("first")
	}
	if _, overrun, _ := c.PushAt(2, 0, &driver.WC{}, false); !overrun {
		t.Fatal("no overrun")
	}
	armed := false
	c.SetNotify(func(a bool) { armed = a })
	c.Notify()
	if !armed || c.Held() != 0 {
		t.Error("the notification waits")
	}
}

// Several goroutines poll in both ways while completions come in and the queue
// is resized, moderated and armed. Nothing is lost, doubled or out of order.
func TestCQExConcurrent(t *testing.T) {
	for _, lossy := range []bool{false, true} {
		t.Run(fmt.Sprint("lossy ", lossy), func(t *testing.T) {
			const total = 20_000
			size := 2 * total
			if lossy {
				size = 64
			}
			c := NewCQEx(size, true, lossy, false)
			var mu sync.Mutex
			seen := make([]int, total)
			stop := make(chan struct{})
			var pollers, others sync.WaitGroup
			for g := range 4 {
				pollers.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 3))
					dst := make([]driver.WC, 8)
					last := -1
					note := func(wcs []driver.WC, ts []uint64) {
						mu.Lock()
						defer mu.Unlock()
						for i := range wcs {
							id := int(wcs[i].WRID)
							if id <= last {
								t.Errorf("%d after %d", id, last)
							}
							if ts != nil && ts[i] != uint64(id)+7 {
								t.Errorf("timestamp %d of %d", ts[i], id)
							}
							last = id
							seen[id]++
						}
					}
					for {
						done := false
						select {
						case <-stop:
							done = true
						default:
						}
						if g%2 == 0 {
							n := c.Poll(dst)
							note(dst[:n], nil)
							if done && n == 0 {
								return
							}
							continue
						}
						wcs, ts := c.Look()
						if len(wcs) == 0 {
							if done {
								return
							}
							continue
						}
						for rng.IntN(2) == 0 && len(wcs) > 0 {
							note(wcs, ts)
							wcs, ts = c.Next()
						}
						n := rng.IntN(len(wcs) + 1)
						if ts != nil {
							ts = ts[:n]
						}
						note(wcs[:n], ts)
						c.Done(n)
					}
				})
			}
			others.Go(func() {
				rng := rand.New(rand.NewPCG(9, 9))
				for {
					select {
					case <-stop:
						return
					default:
					}
					switch rng.IntN(4) {
					case 0:
						_ = c.Resize(size+rng.IntN(100), 10*size)
					case 1:
						if c.Moderate(rng.IntN(4), int64(rng.IntN(3))) {
							c.Notify()
						}
					case 2:
						c.Arm(rng.IntN(2) == 0)
					case 3:
						if fire, _ := c.Release(1 << 62); fire {
							c.Notify()
						}
					}
				}
			})
			for i := range total {
				fire, overrun, _ := c.PushAt(int64(i), int64(i)+7, &driver.WC{WRID: uint64(i)}, i%2 == 0)
				if overrun {
					t.Error("overrun")
				}
				if fire {
					c.Notify()
				}
			}
			close(stop)
			pollers.Wait()
			others.Wait()
			lost := 0
			for id, n := range seen {
				if n == 0 {
					lost++
				}
				if n > 1 {
					t.Fatalf("%d came %d times", id, n)
				}
			}
			if lost > 0 && !lossy {
				t.Errorf("%d are lost", lost)
			}
			if seen[total-1] != 1 {
				t.Error("the newest is lost")
			}
		})
	}
}

func BenchmarkCQEx(b *testing.B) {
	for _, single := range []bool{false, true} {
		b.Run(fmt.Sprint("single ", single), func(b *testing.B) {
			b.ReportAllocs()
			c := NewCQEx(128, true, false, single)
			var wc driver.WC
			for b.Loop() {
				c.PushAt(1, 1, &wc, false)
				if wcs, _ := c.Look(); len(wcs) != 1 {
					b.Fatal("empty")
				}
				c.Done(1)
			}
		})
	}
}
