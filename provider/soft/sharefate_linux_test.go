package soft

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// connected makes a pair of queue pairs of two processes.
func connected(x, y *agent, timeout, retry int) (*agentQP, *agentQP) {
	x.t.Helper()
	a, b := x.qp("rc"), y.qp("rc")
	up(a, b, timeout, retry)
	return a, b
}

// begin has x write n pieces into y's memory, and returns while it is at it.
func begin(x, y *agentQP, n int, seed uint64) {
	x.a.t.Helper()
	x.a.start("write %d %d %d %d %d", x.num, y.mem, y.rkey, n, seed)
}

// end waits for what begin began and compares the memories.
func (x *agentQP) end(y *agentQP) {
	x.a.t.Helper()
	want := x.a.finish()
	if got := y.a.do("sum"); got != want {
		x.a.t.Fatalf("slot %d to %d: %s, want %s", x.a.slot, y.a.slot, want, got)
	}
}

// A process that is killed while all are at work harms no other. Its peer's work ends with
// RETRY_EXC, its slot can be had again, and what comes for it goes to nobody else.
func TestShareKilledMember(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			addr := loopAddr()
			list := crowd(t, 4, addr, way)
			a, b, c, d := list[1], list[2], list[3], list[0]
			ab, ba := connected(a, b, usual, 7)
			dc, cd := connected(d, c, 10, 3)
			begin(ab, ba, 2000, 1)
			begin(dc, cd, 100_000, 2)
			c.kill()
			if s := d.finish(); s != ib.WCRetryExcErr.String() {
				t.Errorf("the killed one's peer: %s", s)
			}
			ab.end(ba)
			e := newAgent(t)
			e.start("open %v lo %s", addr, privately(addr, way))
			e.opened(addr)
			list[3] = e
			exchange(t, list, 16)
			if way == "steered" {
				unrelayed(t, list)
			}
		})
	}
}

// A process that is stopped stalls its own queue pairs alone, and they go on with it. That it
// is the steward no established connection notices, nor that the steward is killed, with the
// timers of ibv_rc_pingpong.
func TestShareStoppedAndKilled(t *testing.T) {
	for _, way := range ways {
		for _, who := range []string{"member", "steward"} {
			t.Run(way+"/"+who, func(t *testing.T) {
				list := crowd(t, 4, loopAddr(), way)
				a, b, c, steward := list[1], list[2], list[3], list[0]
				victim := c
				if who == "steward" {
					victim = steward
				}
				ab, ba := connected(a, b, usual, 7)
				cs, sc := connected(c, steward, 17, 7) // 4 s in all
				begin(cs, sc, 5000, 2)
				victim.stop()
				// Longer than it takes to replace a steward.
				for end, n := time.Now().Add(1500*time.Millisecond), uint64(0); time.Now().Before(end); n++ {
					write(ab, ba, 200, n)
				}
				victim.signal(syscall.SIGCONT)
				cs.end(sc)
				write(ab, ba, 1000, 5)
				exchange(t, list, 16)
				begin(ab, ba, 5000, 6)
				victim.kill()
				ab.end(ba)
				for n := range 10 {
					write(ab, ba, 200, uint64(n))
				}
				if way == "steered" {
					unrelayed(t, []*agent{a, b})
				}
			})
		}
	}
}

// Processes come and go in any order; who founded the group may go first.
func TestShareComeAndGo(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			addr := loopAddr()
			list := crowd(t, 3, addr, way)
			for range 6 {
				list[0].leave()
				list = list[1:]
				n := newAgent(t)
				n.start("open %v lo %s", addr, privately(addr, way))
				n.opened(addr)
				list = append(list, n)
				exchange(t, list, 16)
			}
			for _, a := range list {
				a.leave()
			}
			// Nobody has it now: who does not share gets it.
			alone := newAgent(t)
			for end := time.Now().Add(patience); ; {
				s := alone.try("open %v lo alone", addr)
				if !strings.HasPrefix(s, "error") {
					break
				}
				if time.Now().After(end) {
					t.Fatal(s)
				}
			}
		})
	}
}

// Two devices of one process are two members.
func TestShareOneProcess(t *testing.T) {
	addr := loopAddr()
	var devs [2]*Device
	for i := range devs {
		d, err := NewProvider(WithAddrs("lo", addr)).Open(context.Background(), "soft_lo")
		must(t, err)
		defer d.Close()
		devs[i] = d.(*Device)
		_, err = devs[i].localIndex(addr)
		must(t, err)
	}
	if a, b := devs[0].newQPN()>>17, devs[1].newQPN()>>17; a == b || a == 0 || b == 0 {
		t.Fatalf("slots %d and %d", a, b)
	}
}

// An address that somebody has who does not share it, or another user, cannot be had; the error
// says who it is and what to do. Other addresses can.
func TestShareRefused(t *testing.T) {
	for _, c := range []struct {
		name, first, second string
		uid                 bool // the first is another user
		want                []string
	}{
		{"holder alone", "alone", "steered", false, []string{"held by process ", "does not share it with this one"}},
		{"late comer alone", "steered", "alone", false, []string{"held by process ", "it was told to keep its addresses to itself"}},
		{"both alone", "alone", "alone", false, []string{"held by process "}},
		{"other user", "steered", "steered", true, []string{"uid 65532", "only processes of one user share an address"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var env []string
			if c.uid {
				if os.Getuid() != 0 {
					t.Skip("needs root to be another user")
				}
				env = append(env, userEnv+"=65532")
			}
			addr := loopAddr()
			a := newAgent(t, env...)
			a.do("open %v lo %s", addr, c.first)
			b := newAgent(t)
			got := b.try("open %v lo %s", addr, c.second)
			for _, want := range append(c.want, "error", syscall.EADDRINUSE.Error(), addr.String(), "give this one another address") {
				if !strings.Contains(got, want) {
					t.Errorf("%q lacks %q", got, want)
				}
			}
			t.Log(got)
			b.do("open %v lo %s", loopAddr(), c.second)
		})
	}
	// The same in one process.
	addr := loopAddr()
	h := newHost(t, setup{addrs: []netip.Addr{addr}})
	if _, err := h.dev.localIndex(addr); err != nil {
		t.Fatal(err)
	}
	d, err := NewProvider(WithAddrs("lo", addr)).Open(context.Background(), "soft_lo")
	must(t, err)
	defer d.Close()
	if _, err := d.(*Device).localIndex(addr); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "this process has the address open") {
		t.Errorf("%v", err)
	}
}

// A hundred processes on one address, each connected with each.
func TestShareHundred(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	const n = 100
	list := crowd(t, n, loopAddr(), "steered small", "GOMAXPROCS=1")
	qps := make([][]*agentQP, n)
	for i := range list {
		qps[i] = make([]*agentQP, n)
		for k := range list {
			if k != i {
				qps[i][k] = list[i].qp("rc")
			}
		}
	}
	for i := range list {
		for k := range i {
			up(qps[i][k], qps[k][i], 18, 7) // a hundred processes have two processors
		}
	}
	// In each round everybody writes to somebody else.
	for r := 1; r < n; r++ {
		for i := range list {
			x, y := qps[i][(i+r)%n], qps[(i+r)%n][i]
			x.a.start("write %d %d %d %d %d", x.num, y.mem, y.rkey, 1, i*n+r)
		}
		want := make([]string, n)
		for i, a := range list {
			want[(i+r)%n] = a.finish()
		}
		for i, a := range list {
			if got := a.do("sum"); got != want[i] {
				t.Fatalf("round %d: slot %d has %s, want %s", r, a.slot, got, want[i])
			}
		}
	}
	unrelayed(t, list)
}
