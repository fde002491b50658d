package udp

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// ended runs f and fails the test if it hangs.
func ended(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		stacks := make([]byte, 64<<10)
		t.Fatalf("%s: hangs\n%s", what, stacks[:runtime.Stack(stacks, true)])
	}
}

// whenAsleep calls f when somebody is in Wait.
func whenAsleep(p *Port, f func()) {
	go func() {
		for p.wait.state.Load() != asleep {
			time.Sleep(10 * time.Microsecond)
		}
		f()
	}()
}

// bothWays runs f for sleepers on one epoll descriptor, and in ppoll, as where the kernel has no epoll_pwait2.
func bothWays(t *testing.T, f func(t *testing.T, noEpoll bool)) {
	for _, noEpoll := range []bool{false, true} {
		t.Run(fmt.Sprintf("noEpoll=%v", noEpoll), func(t *testing.T) { f(t, noEpoll) })
	}
}

func TestWait(t *testing.T) { bothWays(t, wait) }

func wait(t *testing.T, noEpoll bool) {
	p := open(t, Config{NoEpoll: noEpoll})
	addr, local := addLoopback(t, p)
	p.Kick()
	p.Kick()
	ended(t, "a kick before", func() { p.Wait(-1) })
	ended(t, "time limit", func() { p.Wait(time.Millisecond) })
	ended(t, "no time at all", func() { p.Wait(0) })

	whenAsleep(p, p.Kick)
	ended(t, "a kick during", func() { p.Wait(-1) })

	send := func() { // from two goroutines: each its own flow
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
		put(t, tx, flow(addr, addr, local), 0, []byte("data"))
		p.Send(tx)
	}
	whenAsleep(p, send)
	ended(t, "a datagram", func() { p.Wait(-1) })
	collect(t, p, 1, func(*pkt.Datagram, int, []byte) {})
	send()
	ended(t, "a datagram that is there", func() { p.Wait(-1) })
	collect(t, p, 1, func(*pkt.Datagram, int, []byte) {})
	if noEpoll == (p.wait.set >= 0) && hasEpollWait2() {
		t.Errorf("slept on epoll: %v", p.wait.set >= 0)
	}
}

// An address that is added while somebody sleeps counts at once.
func TestWaitSeesNewAddress(t *testing.T) { bothWays(t, waitSeesNewAddress) }

func waitSeesNewAddress(t *testing.T, noEpoll bool) {
	p := open(t, Config{NoEpoll: noEpoll})
	sender := open(t, Config{})
	from, local := addLoopback(t, sender)
	var to netip.Addr
	whenAsleep(p, func() {
		to, _ = addLoopback(t, p)
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
		put(t, tx, flow(from, to, local), 0, []byte("data"))
		sender.Send(tx)
	})
	ended(t, "new address", func() {
		rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
		for p.Recv(&rx) == 0 {
			p.Wait(-1)
		}
	})
}

// No kick is lost, whenever it comes: a worker that sleeps only when it has
// seen no work hears of all of it.
func TestWaitLosesNoKick(t *testing.T) { bothWays(t, waitLosesNoKick) }

func waitLosesNoKick(t *testing.T, noEpoll bool) {
	p := open(t, Config{NoEpoll: noEpoll})
	addLoopback(t, p)
	const kickers, each = 3, 1000
	var work atomic.Int64
	var kicks sync.WaitGroup
	for range kickers {
		kicks.Go(func() {
			for i := range each {
				work.Add(1)
				p.Kick()
				// Wait until it was taken, now and then: the worker falls asleep.
				for i%8 == 0 && work.Load() > 0 {
					runtime.Gosched()
				}
			}
		})
	}
	ended(t, "worker", func() {
		for done := int64(0); done < kickers*each; {
			n := work.Swap(0)
			if done += n; n == 0 {
				p.Wait(-1)
			}
		}
	})
	kicks.Wait()
}

func TestCloseEndsWait(t *testing.T) {
	p := open(t, Config{})
	addLoopback(t, p)
	whenAsleep(p, func() { _ = p.Close() })
	ended(t, "Close", func() { p.Wait(-1) })
	ended(t, "Wait after Close", func() { p.Wait(-1) })
}

// Close while others send, receive, wait and kick: every call returns, and
// none touches a descriptor that is somebody else's by now.
func TestCloseUnderUse(t *testing.T) {
	for range 5 {
		p := open(t, Config{})
		addr, local := addLoopback(t, p)
		var stop atomic.Bool
		var users sync.WaitGroup
		started := make(chan struct{}, 5)
		use := func(f func() func()) {
			users.Go(func() {
				step := f()
				step()
				started <- struct{}{}
				for !stop.Load() {
					step()
				}
			})
		}
		for range 2 {
			use(func() func() {
				f := flow(addr, addr, local)
				tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
				for i := range 4 {
					put(t, tx, f, i, make([]byte, 600))
				}
				return func() { p.Send(tx) }
			})
		}
		use(func() func() {
			rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
			return func() { p.Recv(&rx) }
		})
		use(func() func() { return func() { p.Wait(time.Millisecond) } })
		use(func() func() { return p.Kick })
		for range 5 {
			<-started
		}
		ended(t, "Close", func() { _ = p.Close() })
		// The address is free at once.
		q := open(t, Config{})
		if _, err := q.AddLocal(addr); err != nil {
			t.Error(err)
		}
		_ = q.Close()
		stop.Store(true)
		ended(t, "users", users.Wait)
	}
}

// A caller that does not know of the flow's port prepares the flow anew when
// its destination has changed.
func TestFlowChanges(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	from, local := addLoopback(t, a)
	to, _ := addLoopback(t, b)
	to2, _ := addLoopback(t, b)
	f := flow(from, to, local)
	for i, dst := range []netip.Addr{to, to2, to2} {
		f.To = netip.AddrPortFrom(dst, roce.Port)
		f.HopLimit = uint8(10 * i)
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
		put(t, tx, f, i, nil)
		a.Send(tx)
		collect(t, b, 1, func(d *pkt.Datagram, _ int, _ []byte) {
			if d.Dst != dst || i > 0 && d.TTL != f.HopLimit {
				t.Errorf("%v, hop limit %d", d.Dst, d.TTL)
			}
		})
	}
}
