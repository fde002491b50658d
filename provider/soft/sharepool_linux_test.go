package soft

import (
	"context"
	"net"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	hosts "github.com/verbena-rdma/verbena/internal/host"
)

// The pool is empty now and then, so that a part of what members send each other takes the socket, and the
// packets of one queue pair two ways, of which none waits for the other: all arrives, and no
// completion says what is not so.
func TestShareTwoWays(t *testing.T) {
	addr := loopAddr()
	list := crowd(t, 3, addr, "unsteered")
	lo, err := net.InterfaceByName("lo")
	must(t, err)
	g, err := hosts.Join(context.Background(), hosts.Config{IfIndex: lo.Index, Private: "verbena-test-" + addr.String() + "/"})
	must(t, err)
	defer g.Close()
	stop, done := make(chan struct{}), make(chan int)
	go func() { // takes all that is free, and gives it back
		empty := 0
		defer func() { done <- empty }()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			var bufs []int
			for looks := 0; looks < 2000; {
				if buf, ok := g.PoolGet(); ok {
					bufs = append(bufs, buf)
				} else {
					looks++
				}
			}
			empty++
			for _, buf := range bufs {
				g.PoolPut(buf)
			}
			for range n % 8 * 2500 { // free for a while, of varying length
				g.Slot()
			}
		}
	}()
	// Between two who are not the steward, and with it.
	for _, pair := range [][2]*agent{{list[1], list[2]}, {list[0], list[1]}} {
		x, y := connected(pair[0], pair[1], usual, 7)
		for n := range 8 {
			write(x, y, 500, uint64(n))
			write(y, x, 500, uint64(n)+100)
		}
		u, v := pair[0].qp("ud"), pair[1].qp("ud")
		up(u, v, usual, 7)
		v.a.do("recv %d 20", v.num)
		u.a.do("datagrams %d %v %d 20", u.num, v.addr, v.num)
		if s := v.a.do("wait 20"); s != ib.WCSuccess.String() {
			t.Errorf("datagrams: %s", s)
		}
	}
	close(stop)
	if n := <-done; n < 10 {
		t.Errorf("the pool was empty %d times", n)
	}
	var relayed, outOfOrder uint64
	for _, a := range list {
		relayed += a.counter("relayed_datagrams")
		outOfOrder += a.counter("out_of_sequence")
		if n := a.counter("drop_stray"); n != 0 {
			t.Errorf("slot %d: %d strays", a.slot, n)
		}
	}
	if relayed == 0 || outOfOrder == 0 {
		t.Errorf("%d datagrams took the socket, %d packets came out of order", relayed, outOfOrder)
	}
	exchange(t, list, 16)
}

// Who is the first to use an address decides how datagrams find their process; the others do as it
// does, whatever they were told.
func TestShareWaysMixed(t *testing.T) {
	for _, first := range ways {
		t.Run(first, func(t *testing.T) {
			addr := loopAddr()
			list := crowd(t, 1, addr, first)
			for _, way := range ways {
				a := newAgent(t)
				a.start("open %v lo %s", addr, privately(addr, way))
				a.opened(addr)
				list = append(list, a)
			}
			exchange(t, list, 16)
			if first == "steered" {
				unrelayed(t, list)
			}
			list[0].kill() // its way stays
			a := newAgent(t)
			a.start("open %v lo %s", addr, privately(addr, "steered"))
			a.opened(addr)
			exchange(t, append(list[1:], a), 16)
		})
	}
}
