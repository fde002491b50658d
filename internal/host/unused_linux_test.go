package host

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An address that nobody uses makes room for another one where all are taken; one that
// somebody uses stays, and who only looks at it is no user.
func TestUnusedAddresses(t *testing.T) {
	cfg := testConfig(t)
	a, b := mustJoin(t, cfg), mustJoin(t, cfg)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 1, byte(i)}) }
	use := func(g *Group, i int) error {
		s, err := g.Sockets(addr(i), makeSockets(1))
		closeFD(s.Control)
		return err
	}
	refuse := func(netip.Addr) ([]int, error) { return nil, errors.New("the sockets are there") }
	for i := range MaxAddrs {
		g := b
		if i == 0 {
			g = a
		}
		if err := use(g, i); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := a.Sockets(addr(5), nil); err != nil {
		t.Error(err)
	} else {
		closeFD(s.Control)
	}
	if err := use(a, 100); !errors.Is(err, ErrAddrs) {
		t.Errorf("one more: %v", err)
	}
	b.Close()
	for i := range MaxAddrs - 1 {
		if err := use(a, 100+i); err != nil {
			t.Errorf("in the place of one that nobody uses: %v", err)
		}
	}
	if err := use(a, 200); !errors.Is(err, ErrAddrs) {
		t.Errorf("one more: %v", err)
	}
	c := mustJoin(t, cfg)
	for _, i := range []int{0, 100, 100 + MaxAddrs - 2} {
		s, err := c.Sockets(addr(i), refuse)
		if err != nil {
			t.Errorf("address %d: %v", i, err)
		}
		closeFD(s.Control)
	}
	if _, err := c.Sockets(addr(5), nil); !errors.Is(err, unix.ENOENT) {
		t.Errorf("address 5: %v", err)
	}
	// A dead generation's word counts no more than that of a slot which is free.
	a.Close()
	if err := use(c, 5); err != nil {
		t.Error(err)
	}
	s, err := c.Sockets(addr(100), refuse)
	if err != nil {
		t.Error(err)
	}
	closeFD(s.Control)
}

// Who comes to use an address while another one is about to empty its keeper gets it: it
// is left there, or made anew; whoever dies meanwhile, nobody who has it loses it.
func TestUsedWhileEmptied(t *testing.T) {
	for _, step := range []string{"drop:unused", "empty:begun", "empty:taken", "empty:done"} {
		t.Run(step, func(t *testing.T) {
			cfg := testConfig(t)
			c := mustJoin(t, cfg)
			begun, used := make(chan struct{}), make(chan struct{})
			cfg.Step = func(s string) {
				if s == step {
					close(begun)
					<-used
				}
			}
			a := mustJoin(t, cfg)
			s, err := a.Sockets(lo4, makeSockets(1))
			if err != nil {
				t.Fatal(err)
			}
			closeFD(s.Control)
			once := sync.OnceFunc(func() { close(used) })
			cfg.Step = func(s string) {
				if s == "addr:used" || s == "addr:locked" {
					once()
				}
			}
			cfg.Answer = time.Second
			b := mustJoin(t, cfg)
			done := make(chan error)
			go func() {
				<-begun
				// Making needs the lock, which a has until it goes on.
				time.AfterFunc(100*time.Millisecond, once)
				s, err := b.Sockets(lo4, makeSockets(1))
				closeFD(s.Control)
				done <- err
			}()
			if err := a.Drop(lo4); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if fd, err := c.Control(lo4); err != nil {
				t.Errorf("the address that is used: %v", err)
			} else {
				closeFD(fd)
			}
			if err := c.Drop(lo4); err != nil || len(c.Addrs()) != 1 {
				t.Errorf("one who does not use it drops it: %v, %v", c.Addrs(), err)
			}
		})
	}
}

// Who has made an address's sockets dies before it can tell the steward: the steward is
// told by the next one who uses them, or by the death.
func TestAddressIsTold(t *testing.T) {
	name := private(t)
	a := mustJoin(t, testConfig(t)) // the steward
	eventually(t, "it is the steward", a.Steward)
	p, q := start(t, name, nil, envStop+"=addr:used"), start(t, name, nil)
	p.do("join")
	q.do("join")
	before := a.d.load(hdrAddrs)
	if _, err := p.in.Write([]byte("sockets 127.0.0.1 128\n")); err != nil {
		t.Fatal(err)
	}
	p.stopped()
	if a.d.load(hdrAddrs) != before {
		t.Fatal("it was told before")
	}
	q.do("sockets 127.0.0.1 128")
	after := a.d.load(hdrAddrs)
	if after == before {
		t.Error("the next one who uses it does not tell")
	}
	p.signal(unix.SIGKILL)
	eventually(t, "the death is told", func() bool { return a.d.load(hdrAddrs) != after })
}

// An address that nobody uses any more is nobody's, also while the group has others: its
// last user has left, or died.
func TestUnusedAddressIsFree(t *testing.T) {
	g := mustJoin(t, testConfig(t))
	other, err := g.Sockets(netip.MustParseAddr("127.0.0.2"), makeSockets(1))
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(other.Control)
	for _, dies := range []bool{false, true} {
		p := start(t, private(t), nil)
		p.do("join")
		port := p.do("sockets 127.0.0.1 128")
		if len(g.Addrs()) != 2 {
			t.Errorf("addresses %v", g.Addrs())
		}
		if dies {
			p.signal(unix.SIGKILL)
		} else {
			p.do("close")
			p.do("close-sockets")
		}
		eventually(t, "only the address that is used is left", func() bool { return len(g.Addrs()) == 1 })
		eventually(t, "its sockets are gone", func() bool { // with the rest of a dead process
			c, err := net.ListenPacket("udp", "127.0.0.1:"+port)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
	}
}
