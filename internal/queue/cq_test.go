package queue

import (
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// push adds a completion as the protocol does: with the notifications.
func push(c *CQ, wc driver.WC, solicited bool) (fire, overrun bool) {
	fire, overrun = c.Push(&wc, solicited)
	if fire || overrun {
		c.Notify()
	}
	return fire, overrun
}

func TestCQArming(t *testing.T) {
	good, bad := driver.WC{}, driver.WC{Status: ib.WCRemAccessErr}
	for _, c := range []struct {
		name      string
		arm       []bool // solicitedOnly, each call
		wc        driver.WC
		solicited bool
		fires     bool
	}{
		{"not armed", nil, bad, true, false},
		{"any", []bool{false}, good, false, true},
		{"solicited, plain comes", []bool{true}, good, false, false},
		{"solicited, solicited comes", []bool{true}, good, true, true},
		{"solicited, failed comes", []bool{true}, bad, false, true},
		{"any beats solicited", []bool{true, false}, good, false, true},
		{"solicited does not replace any", []bool{false, true}, good, false, true},
	} {
		q := NewCQ(10)
		events := 0
		q.SetNotify(func(armed bool) {
			if !armed {
				t.Errorf("%s: told without arming", c.name)
			}
			events++
		})
		for _, s := range c.arm {
			if q.Arm(s) {
				t.Errorf("%s: an empty queue has missed something", c.name)
			}
		}
		want := 0
		if c.fires {
			want = 1
		}
		if fire, _ := push(q, c.wc, c.solicited); fire != c.fires || events != want {
			t.Errorf("%s: fire %v, %d events", c.name, fire, events)
		}
		if q.Armed() != (len(c.arm) > 0 && !c.fires) {
			t.Errorf("%s: armed afterwards: %v", c.name, q.Armed())
		}
		if push(q, bad, true); c.fires && events != 1 {
			t.Errorf("%s: armed once, %d events", c.name, events)
		}
		if !q.Arm(true) {
			t.Errorf("%s: missed completions are not reported", c.name)
		}
	}
}

// Case 66: each notification that was asked for is given, even when the next
// comes before the first was delivered.
func TestCase66_EachEventCounts(t *testing.T) {
	c := NewCQ(10)
	events := 0
	c.SetNotify(func(armed bool) {
		if armed {
			events++
		}
	})
	c.Watch(1)
	fires := 0
	for range 2 {
		c.Arm(false)
		if fire, _ := c.Push(&driver.WC{}, false); fire {
			fires++
		}
	}
	for range fires {
		c.Notify()
	}
	if fires != 2 || events != 2 {
		t.Fatalf("%d fires, %d events", fires, events)
	}
}

func TestCQWatch(t *testing.T) {
	c := NewCQ(10)
	calls := 0
	c.SetNotify(func(armed bool) {
		if armed {
			t.Error("nobody armed it")
		}
		calls++
	})
	if fire, _ := c.Push(&driver.WC{}, false); fire {
		t.Error("nobody watches")
	}
	c.Watch(1)
	for i := range 3 {
		if fire, _ := c.Push(&driver.WC{}, false); fire != (i == 0) {
			t.Errorf("completion %d before Notify: %v", i, fire)
		}
	}
	c.Notify()
	if fire, _ := c.Push(&driver.WC{}, false); !fire || calls != 1 {
		t.Errorf("after Notify: fire %v, %d calls", fire, calls)
	}
	c.Notify()
	c.Watch(-1)
	if fire, _ := c.Push(&driver.WC{}, false); fire || calls != 2 {
		t.Errorf("after the watcher left: fire %v, %d calls", fire, calls)
	}
}

func TestCase69_OverrunAndResize(t *testing.T) {
	c := NewCQ(3)
	calls := 0
	c.SetNotify(func(bool) { calls++ })
	for i := range 3 {
		if _, overrun := push(c, driver.WC{WRID: uint64(i)}, false); overrun {
			t.Fatal("overrun at ", i)
		}
	}
	for _, n := range []int{2, 0, -1, 101, math.MaxInt} {
		if err := c.Resize(n, 100); !errors.Is(err, syscall.EINVAL) || c.Cap() != 3 || c.Len() != 3 {
			t.Fatalf("resize to %d: %v", n, err)
		}
	}
	if err := c.Resize(4, 100); err != nil || c.Cap() != 4 {
		t.Fatal(err)
	}
	if err := c.Resize(3, 100); err != nil {
		t.Fatal(err)
	}
	c.Arm(false)
	if _, overrun := push(c, driver.WC{WRID: 3}, false); !overrun || !c.Overrun() || calls != 1 {
		t.Fatalf("overrun %v, %d calls", overrun, calls)
	}
	if _, overrun := push(c, driver.WC{WRID: 4}, false); overrun {
		t.Fatal("reported twice")
	}
	dst := make([]driver.WC, 8)
	if n := c.Poll(dst); n != 3 || dst[0].WRID != 0 || dst[2].WRID != 2 {
		t.Fatalf("%d completions: %v", n, dst[:n])
	}
	push(c, driver.WC{WRID: 5}, false)
	if n := c.Poll(dst); n != 0 || !c.Overrun() || !c.Arm(false) {
		t.Fatal("a queue in error goes on")
	}
}

func TestCQModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCQ(rapid.IntRange(1, 9).Draw(t, "cqe"))
		size, next, armed := c.Cap(), uint64(0), armedNot
		var model []uint64
		broken := false
		events, want := 0, 0
		c.SetNotify(func(bool) { events++ })
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				next++
				wc := driver.WC{WRID: next, Status: rapid.SampledFrom([]ib.WCStatus{0, 0, ib.WCWRFlushErr}).Draw(t, "status")}
				sol := rapid.Bool().Draw(t, "solicited")
				_, overrun := push(c, wc, sol)
				if overrun != (!broken && len(model) == size) {
					t.Fatal("overrun ", overrun)
				}
				switch {
				case broken:
				case overrun:
					broken = true
					want++ // the caller notifies of the error
					armed = armedNot
				default:
					model = append(model, next)
					if armed == armedAny || armed == armedSolicited && (sol || wc.Status != 0) {
						armed = armedNot
						want++
					}
				}
			},
			"poll": func(t *rapid.T) {
				dst := make([]driver.WC, rapid.IntRange(0, 10).Draw(t, "n"))
				n := c.Poll(dst)
				if n != min(len(dst), len(model)) {
					t.Fatalf("%d completions of %d", n, len(model))
				}
				for i := range n {
					if dst[i].WRID != model[i] {
						t.Fatalf("completion %d, want %d", dst[i].WRID, model[i])
					}
				}
				model = model[n:]
			},
			"arm": func(t *rapid.T) {
				sol := rapid.Bool().Draw(t, "solicited")
				if c.Arm(sol) != (len(model) > 0 || broken) {
					t.Fatal("missed events")
				}
				if !sol {
					armed = armedAny
				} else if armed == armedNot {
					armed = armedSolicited
				}
			},
			"resize": func(t *rapid.T) {
				n := rapid.IntRange(0, 15).Draw(t, "n")
				if err := c.Resize(n, 12); (err == nil) != (n > 0 && n <= 12 && n >= len(model)) {
					t.Fatal(err)
				} else if err == nil {
					size = n
				}
			},
			"": func(t *rapid.T) {
				if c.Len() != len(model) || c.Empty() != (len(model) == 0) || c.Cap() != size || c.Overrun() != broken || events != want {
					t.Fatalf("%d of %d, %d events; want %d of %d, %d", c.Len(), c.Cap(), events, len(model), size, want)
				}
			},
		})
	})
}

// rounds is how often the races run.
func rounds() int {
	switch {
	case testing.Short():
		return 5_000
	case raceDetector:
		return 20_000
	}
	return 1_000_000
}

// The application's rule: poll, arm, poll, wait. A completion between the first
// poll and the arming must not be lost.
func TestCase64_ArmLosesNothing(t *testing.T) {
	n := rounds()
	c := NewCQ(64)
	event := make(chan struct{}, n)
	c.SetNotify(func(armed bool) {
		if armed {
			event <- struct{}{}
		}
	})
	done := make(chan uint64)
	go func() {
		var next uint64
		dst := make([]driver.WC, 7)
		poll := func() bool {
			k := c.Poll(dst)
			for _, wc := range dst[:k] {
				if wc.WRID != next {
					t.Errorf("completion %d, want %d", wc.WRID, next)
				}
				next++
			}
			return k > 0
		}
		for next < uint64(n) {
			if poll() {
				continue
			}
			c.Arm(false)
			if poll() {
				continue // still armed: an event comes for what is next, and is taken then
			}
			<-event
		}
		done <- next
	}()
	for i := range n {
		for c.Len() == 64 {
			runtime.Gosched()
		}
		if _, overrun := push(c, driver.WC{WRID: uint64(i)}, false); overrun {
			t.Error("overrun")
		}
	}
	if got := <-done; got != uint64(n) {
		t.Fatal(got)
	}
}

// What Wait does: watch, look, sleep. Several producers and consumers.
func TestCase64_WatchLosesNothing(t *testing.T) {
	const producers, consumers = 3, 3
	n := rounds() / producers * producers
	c := NewCQ(16)
	wake := make(chan struct{}, 1)
	ring := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	c.SetNotify(func(bool) { ring() })
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range consumers {
		wg.Go(func() {
			dst := make([]driver.WC, 4)
			for taken.Load() < int64(n) {
				if k := c.Poll(dst); k > 0 {
					taken.Add(int64(k))
					continue
				}
				c.Watch(1)
				for c.Empty() && taken.Load() < int64(n) {
					<-wake
				}
				c.Watch(-1)
				ring() // the one wake-up may have been for another
			}
			ring()
		})
	}
	var space sync.Mutex // a producer must not overrun what another counted on
	for range producers {
		wg.Go(func() {
			for range n / producers {
				space.Lock()
				for c.Len() == 16 {
					runtime.Gosched()
				}
				fire, overrun := c.Push(&driver.WC{}, false)
				space.Unlock()
				if overrun {
					t.Error("overrun")
				}
				if fire {
					c.Notify()
				}
			}
		})
	}
	wg.Wait()
	if taken.Load() != int64(n) {
		t.Fatalf("%d of %d", taken.Load(), n)
	}
}
