package soft

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// ways are how datagrams find their process: the kernel steers; members hand each other theirs;
// one hands over all, as what comes from elsewhere.
var ways = []string{"steered", "unsteered", "relayed"}

func withoutHanding(p *Provider) { p.noHanding = true }

// privately adds that only the test's own processes are in the group: else the steward may be one
// of another test. ::1 is there only once, for all.
func privately(addr netip.Addr, way string) string {
	if addr.Is4() {
		way += " private"
	}
	return way
}

// crowd starts processes that share an address.
func crowd(t *testing.T, n int, addr netip.Addr, way string, env ...string) []*agent {
	t.Helper()
	list := make([]*agent, n)
	for i := range list {
		list[i] = newAgent(t, env...)
		list[i].start("open %v lo %s", addr, privately(addr, way))
		if i == 0 {
			list[i].opened(addr) // founds: its way is everybody's
		}
	}
	for _, a := range list[1:] {
		a.opened(addr)
	}
	return list
}

// opened waits for the answer to open.
func (a *agent) opened(addr netip.Addr) {
	a.t.Helper()
	s := a.finish()
	if addr.Is6() && strings.HasPrefix(s, "error") && strings.Contains(s, syscall.EADDRNOTAVAIL.Error()) {
		a.t.Skip(s)
	}
	if _, err := fmt.Sscan(s, &a.slot); err != nil || a.slot == 0 {
		a.t.Fatalf("open: %s", s)
	}
}

// unrelayed fails if a process got what was another's.
func unrelayed(t *testing.T, list []*agent) {
	t.Helper()
	for _, a := range list {
		for _, c := range []string{"stray_pkts", "relayed_datagrams", "drop_stray", "drop_relayed", "drop_mailbox"} {
			if n := a.counter(c); n != 0 {
				t.Errorf("slot %d: %s is %d", a.slot, c, n)
			}
		}
	}
}

// exchange moves data between all pairs of processes, and of each with itself.
func exchange(t *testing.T, list []*agent, pieces int) {
	t.Helper()
	for i, a := range list {
		for _, b := range list[i:] {
			x := a.qp("rc")
			y := x
			if b != a {
				y = b.qp("rc")
			}
			up(x, y, 14, 7)
			write(x, y, pieces, uint64(x.num))
			if y != x {
				write(y, x, pieces, uint64(y.num)+1)
			}
			u, v := a.qp("ud"), b.qp("ud")
			up(u, v, 14, 7)
			b.do("recv %d 20", v.num)
			a.do("datagrams %d %v %d 20", u.num, v.addr, v.num)
			if s := b.do("wait 20"); s != ib.WCSuccess.String() {
				t.Fatalf("datagrams: %s", s)
			}
		}
	}
}

// Processes share an address, and each pair of them connects, of both families. The kernel
// steers: nobody gets what is another's. Without it one process hands over, and everything works
// as well.
func TestShareAllPairs(t *testing.T) {
	for _, way := range ways {
		for _, addr := range []netip.Addr{loopAddr(), netip.IPv6Loopback()} {
			t.Run(fmt.Sprintf("%s/%v", way, addr), func(t *testing.T) {
				list := crowd(t, 4, addr, way)
				seen := map[int]bool{}
				for _, a := range list {
					if seen[a.slot] {
						t.Fatalf("two have slot %d", a.slot)
					}
					seen[a.slot] = true
				}
				exchange(t, list, 32)
				if way == "steered" {
					if addr.Is4() {
						unrelayed(t, list)
					}
				} else {
					var n uint64
					for _, a := range list {
						n += a.counter("relayed_datagrams")
					}
					// ::1 is there once: whoever else has it may have chosen the way.
					if n == 0 && way == "relayed" && addr.Is4() {
						t.Error("nothing was relayed")
					}
				}
				for _, a := range list {
					a.leave()
				}
			})
		}
	}
}

// An ordinary user can do it.
func TestShareOrdinaryUser(t *testing.T) {
	var env []string
	if os.Getuid() == 0 {
		env = append(env, userEnv+"=65533")
	}
	for _, way := range ways {
		list := crowd(t, 3, loopAddr(), way, env...)
		exchange(t, list, 16)
		if way == "steered" {
			unrelayed(t, list)
		}
	}
}
