package udp

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// An address that was dropped is free for others, packets from it are lost and
// counted, and it works again at its old index when it is added again.
func TestDropLocal(t *testing.T) {
	p, q, peer := open(t, Config{}), open(t, Config{}), open(t, Config{})
	other, _ := addLoopback(t, p)
	addr, i := addLoopback(t, p)
	to, _ := addLoopback(t, peer)
	f := flow(addr, to, i)
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: p.Caps().MaxSegs})
	send := func(numbers int) {
		t.Helper()
		for n := range numbers {
			put(t, tx, f, n, make([]byte, 100))
		}
		p.Send(tx)
		tx.Reset()
	}
	var rx pkt.Rx
	rx.Dgrams = make([]pkt.Datagram, 0, 64)
	arrives := func(p *Port) bool {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
			if p.Recv(&rx) > 0 {
				return true
			}
			p.Wait(time.Second)
		}
		return false
	}
	send(1)
	if !arrives(peer) {
		t.Fatal("nothing arrived")
	}
	if _, err := q.AddLocal(addr); !errors.Is(err, unix.EADDRINUSE) {
		t.Fatal(err)
	}
	// Somebody blocks in Wait, which must not keep the socket alive.
	var waiting sync.WaitGroup
	var stop atomic.Bool
	waiting.Go(func() {
		for !stop.Load() {
			p.Wait(-1)
		}
	})
	p.DropLocal(addr)
	p.DropLocal(addr)
	p.DropLocal(netip.MustParseAddr("127.255.255.1")) // never opened
	for end := time.Now().Add(20 * time.Second); ; {
		_, err := q.AddLocal(addr)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			t.Fatal(err) // it takes until the one who waits has woken up
		}
	}
	before := p.Stats()
	send(1)
	send(64)
	if s := p.Stats(); s.TxErrors == before.TxErrors || s.TxPackets != before.TxPackets || s.GSOOff != 0 {
		t.Errorf("%+v, before %+v", s, before)
	}
	if n := peer.Recv(&rx); n != 0 {
		t.Errorf("%d arrived", n)
	}
	if n := p.Recv(&rx); n != 0 {
		t.Error(n)
	}
	if _, err := p.AddLocal(addr); !errors.Is(err, unix.EADDRINUSE) {
		t.Error(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if k, err := p.AddLocal(addr); err != nil || k != i {
		t.Fatal(k, err)
	}
	stop.Store(true)
	p.Kick()
	waiting.Wait()
	send(1)
	if !arrives(peer) {
		t.Error("nothing arrived after the return")
	}
	// And back: the one who waits sees the new socket.
	back := flow(to, addr, 0)
	put(t, tx, back, 1, make([]byte, 10))
	peer.Send(tx)
	if !arrives(p) {
		t.Error("nothing came back")
	}
	if rx.Dgrams[0].Dst != addr || rx.Dgrams[0].Local != i {
		t.Errorf("%+v; the other address is %v", rx.Dgrams[0], other)
	}
}

// Dropping and adding while others send, receive and sleep.
func TestDropLocalUnderUse(t *testing.T) {
	p := open(t, Config{})
	addr, i := addLoopback(t, p)
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Go(func() {
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: p.Caps().MaxSegs})
		f := flow(addr, addr, i)
		for n := 0; !stop.Load(); n++ {
			put(t, tx, f, n, make([]byte, 100))
			p.Send(tx)
			tx.Reset()
		}
	})
	wg.Go(func() {
		var rx pkt.Rx
		rx.Dgrams = make([]pkt.Datagram, 0, 64)
		for !stop.Load() {
			if p.Recv(&rx) == 0 {
				p.Wait(time.Millisecond)
			}
		}
	})
	for range 300 {
		p.DropLocal(addr)
		p.Stats()
		for { // a sleeper may hold the old socket for a moment
			k, err := p.AddLocal(addr)
			if err == nil {
				if k != i {
					t.Error(k)
				}
				break
			}
			if !errors.Is(err, unix.EADDRINUSE) {
				t.Fatal(err)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	if s := p.Stats(); s.GSOOff != 0 {
		t.Errorf("%+v", s)
	}
}
