package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// anyGroup is a group of the organisation's scope that no other test uses.
func anyGroup() netip.Addr {
	return netip.AddrFrom4([4]byte{239, byte(rand.IntN(256)), byte(rand.IntN(256)), byte(rand.IntN(256))})
}

// joined tells whether some socket of this network has joined an IPv4 group, as
// the kernel tells it: what it reports by IGMP where there is a querier.
func joined(t testing.TB, group netip.Addr) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/thread-self/net/igmp")
	if err != nil {
		t.Skip(err)
	}
	a := group.As4()
	return strings.Contains(string(table), fmt.Sprintf("%08X", binary.NativeEndian.Uint32(a[:])))
}

// multicast sends one packet to a group, with its number as PSN.
func multicast(t testing.TB, p *Port, from, group netip.Addr, local, number int) {
	t.Helper()
	f := flow(from, group, local)
	f.HopLimit, f.TClass = 7, 0x68
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	put(t, tx, f, number, []byte("to all"))
	p.Send(tx)
}

// drained receives until the packet to the port itself comes back that is sent
// behind everything else, and gives what came before.
func drained(t testing.TB, p *Port, addr netip.Addr, local int) (got []pkt.Datagram) {
	t.Helper()
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	put(t, tx, flow(addr, addr, local), 999, nil)
	p.Send(tx)
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	end := time.Now().Add(20 * time.Second)
	for last := false; ; {
		n := p.Recv(&rx)
		for _, d := range rx.Dgrams {
			if psnOf(d.Data) == 999 {
				last = true
				continue
			}
			d.Data = append([]byte(nil), d.Data...)
			got = append(got, d)
		}
		// What was sent before is there before: over the loopback, Send delivers.
		if last && n == 0 {
			return got
		}
		if time.Now().After(end) {
			t.Fatal("nothing comes back")
		}
	}
}

// Each port that joined gets one copy, the sender's own too; nobody else does.
func TestGroup(t *testing.T) {
	group, other := anyGroup(), anyGroup()
	type end struct {
		p     *Port
		addr  netip.Addr
		local int
	}
	var ends []end
	for i := range 4 {
		e := end{p: open(t, Config{})}
		e.addr, e.local = addLoopback(t, e.p)
		if i%2 == 1 { // more than one address
			addLoopback(t, e.p)
		}
		if i < 3 {
			if err := e.p.Join(group, e.addr); err != nil {
				t.Fatal(err)
			}
			if err := e.p.Join(group, e.addr); err != nil {
				t.Fatal("again:", err)
			}
		} else if err := e.p.Join(other, e.addr); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, e)
	}
	if !joined(t, group) || !joined(t, other) {
		t.Error("the kernel does not know of the groups")
	}
	from := ends[0]
	for n := range 3 {
		multicast(t, from.p, from.addr, group, from.local, n)
	}
	for i, e := range ends {
		got := drained(t, e.p, e.addr, e.local)
		if i == 3 {
			if len(got) != 0 {
				t.Errorf("the member of another group got %d", len(got))
			}
			continue
		}
		for n, d := range got {
			if d.Dst != group || d.Local != -1 || d.Src.Addr() != from.addr || d.TTL != 7 || d.TOS != 0x68 || psnOf(d.Data) != n {
				t.Errorf("member %d got %+v", i, d)
			}
		}
		if len(got) != 3 {
			t.Errorf("member %d got %d copies of 3", i, len(got))
		}
	}
	// Who leaves gets none, the others still do.
	ends[1].p.Leave(group)
	ends[1].p.Leave(group)
	multicast(t, from.p, from.addr, group, from.local, 5)
	for i, want := range []int{1, 0, 1, 0} {
		if got := drained(t, ends[i].p, ends[i].addr, ends[i].local); len(got) != want {
			t.Errorf("after one left, %d got %d, want %d", i, len(got), want)
		}
	}
	ends[0].p.Leave(group)
	if !joined(t, group) {
		t.Error("the last member is not there any more")
	}
	if err := ends[2].p.Close(); err != nil {
		t.Error(err)
	}
	if joined(t, group) {
		t.Error("everybody left, and the kernel has the group still")
	}
	// And back again.
	if err := ends[1].p.Join(group, ends[1].addr); err != nil {
		t.Fatal(err)
	}
	multicast(t, from.p, from.addr, group, from.local, 6)
	if got := drained(t, ends[1].p, ends[1].addr, ends[1].local); len(got) != 1 {
		t.Errorf("back again: %d", len(got))
	}
}

func TestGroupRefusals(t *testing.T) {
	p := open(t, Config{})
	addr, local := addLoopback(t, p)
	for _, c := range []struct {
		group, on string
		want      error
	}{
		{"192.0.2.1", addr.String(), unix.EINVAL},
		{"ff0e::1", addr.String(), unix.EINVAL},
		{"239.1.2.3", "2001:db8::1", unix.EINVAL},
		{"239.1.2.3", "192.0.2.77", unix.EADDRNOTAVAIL},
		{"ff0e::1", "2001:db8::77", unix.EADDRNOTAVAIL},
	} {
		err := p.Join(netip.MustParseAddr(c.group), netip.MustParseAddr(c.on))
		if !errors.Is(err, c.want) {
			t.Errorf("%s on %s: %v, want %v", c.group, c.on, err, c.want)
		}
	}
	if err := p.Reach(local, anyGroup()); err != nil {
		t.Error(err)
	}
	if err := p.Reach(7, anyGroup()); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
	_ = p.Close()
	if err := p.Join(anyGroup(), addr); !errors.Is(err, errClosed) {
		t.Error(err)
	}
	p.Leave(anyGroup())
}

// Over IPv6 nothing goes to a group over the loopback interface unless somebody
// made a route: that is said, with what to do about it.
func TestGroupNoWay(t *testing.T) {
	p := open(t, Config{})
	local, err := p.AddLocal(netip.IPv6Loopback())
	if err != nil {
		t.Skip(err)
	}
	group := netip.MustParseAddr("ff0e::4791")
	err = p.Join(group, netip.IPv6Loopback())
	if err == nil {
		t.Skip("there is a route")
	}
	if !errors.Is(err, unix.ENETUNREACH) || !strings.Contains(err.Error(), "dev lo") {
		t.Errorf("Join: %v", err)
	}
	if err := p.Reach(local, group); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("Reach: %v", err)
	}
}

// A group that is joined while somebody sleeps counts at once, the first one and
// any other.
func TestWaitSeesNewGroup(t *testing.T) {
	p, sender := open(t, Config{}), open(t, Config{})
	addr, _ := addLoopback(t, p)
	from, local := addLoopback(t, sender)
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	for n := range 3 {
		group := anyGroup()
		whenAsleep(p, func() {
			if err := p.Join(group, addr); err != nil {
				t.Error(err)
			}
			multicast(t, sender, from, group, local, n)
		})
		ended(t, "new group", func() {
			for p.Recv(&rx) == 0 {
				p.Wait(-1)
			}
		})
		if d := rx.Dgrams[0]; d.Dst != group || psnOf(d.Data) != n {
			t.Errorf("%+v", d)
		}
	}
}

// Many groups, each with its own packets; a Recv takes no more than it may.
func TestManyGroups(t *testing.T) {
	const many = 100
	p := open(t, Config{})
	addr, local := addLoopback(t, p)
	first := anyGroup().As4()
	groups := make([]netip.Addr, many)
	for i := range groups {
		first[3] = byte(i)
		groups[i] = netip.AddrFrom4(first)
		if err := p.Join(groups[i], addr); err != nil {
			t.Fatal(err)
		}
	}
	for i, g := range groups {
		multicast(t, p, addr, g, local, i)
	}
	seen := map[netip.Addr]int{}
	for _, d := range drained(t, p, addr, local) {
		if groups[psnOf(d.Data)] != d.Dst {
			t.Errorf("packet %d came to %v", psnOf(d.Data), d.Dst)
		}
		seen[d.Dst]++
	}
	for _, g := range groups {
		if seen[g] != 1 {
			t.Errorf("%v: %d", g, seen[g])
		}
		p.Leave(g)
	}
	multicast(t, p, addr, groups[3], local, 3)
	if got := drained(t, p, addr, local); len(got) != 0 {
		t.Errorf("after leaving all: %+v", got)
	}
}

// Receiving from groups allocates nothing either.
func TestGroupNoAllocations(t *testing.T) {
	p := open(t, Config{})
	addr, local := addLoopback(t, p)
	group := anyGroup()
	if err := p.Join(group, addr); err != nil {
		t.Fatal(err)
	}
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	tx := batch(t, p, flow(addr, group, local), 1, 100)
	if n := testing.AllocsPerRun(50, func() {
		p.Send(tx)
		for p.Recv(&rx) == 0 {
		}
		p.Recv(&rx)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Groups come and go while others send, receive and sleep, and the port closes
// under all of them.
func TestGroupsUnderUse(t *testing.T) {
	for range 3 {
		p := open(t, Config{})
		addr, local := addLoopback(t, p)
		group := anyGroup()
		var stop atomic.Bool
		var users sync.WaitGroup
		use := func(f func()) {
			users.Go(func() {
				for !stop.Load() {
					f()
				}
			})
		}
		for range 2 {
			g := anyGroup()
			use(func() {
				_ = p.Join(g, addr)
				_ = p.Join(group, addr)
				p.Leave(g)
			})
		}
		use(func() { p.Leave(group) })
		tx := batch(t, p, flow(addr, group, local), 4, 64)
		use(func() { p.Send(tx) })
		use(func() { p.Wait(time.Millisecond) })
		var got atomic.Uint64
		rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
		use(func() {
			p.Recv(&rx)
			for _, d := range rx.Dgrams {
				if d.Dst == group {
					got.Add(1)
				}
			}
		})
		ended(t, "datagrams", func() {
			for got.Load() < 200 {
				time.Sleep(time.Millisecond)
			}
		})
		ended(t, "Close", func() { _ = p.Close() })
		stop.Store(true)
		ended(t, "users", users.Wait)
		if joined(t, group) {
			t.Error("closed, and the kernel has the group still")
		}
	}
}
