package host

import (
	"errors"
	"net/netip"
	"testing"

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
