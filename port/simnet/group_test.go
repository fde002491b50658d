package simnet

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

var groupG, groupH = netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("239.1.1.2")

// Every member gets a copy of its own, the sender too if it is one; links have
// their say for each copy.
func TestGroup(t *testing.T) {
	addrC := netip.MustParseAddr("10.0.0.3")
	run := func() string {
		n := New(3)
		a, b, c := newEnd(t, n, Config{}, addrA), newEnd(t, n, Config{}, addrB), newEnd(t, n, Config{GRO: 1}, addrC)
		for _, j := range []struct {
			e     *end
			group netip.Addr
			on    netip.Addr
		}{{a, groupG, addrA}, {c, groupG, addrC}, {c, groupG, addrC}, {b, groupH, addrB}} {
			if err := j.e.p.Join(j.group, j.on); err != nil {
				t.Fatal(err)
			}
		}
		var copies []string
		n.Sniff(func(e *Event) { copies = append(copies, fmt.Sprint(e.Dst, " to ", e.To, " ", e.Fate)) })
		f := flow(addrA, groupG)
		send(a.p, f, 0, 5, 64)
		n.RunFor(1e6)
		for i, want := range []int{5, 0, 5} {
			e := []*end{a, b, c}[i]
			segs := e.segments()
			if len(segs) != want {
				t.Errorf("end %d got %d, want %d", i, len(segs), want)
			}
			path := roce.NewPath(addrA, groupG, 50000)
			for k, s := range segs {
				if int(roce.BTH(s).PSN()) != k || !path.Check(s, uint16(k)) {
					t.Errorf("end %d: segment %d has PSN %d or a wrong ICRC", i, k, roce.BTH(s).PSN())
				}
			}
			for _, d := range e.got {
				if d.Dst != groupG || d.Local != -1 || d.Src.Addr() != addrA {
					t.Errorf("end %d: %+v", i, d)
				}
			}
		}
		if st := a.p.Stats(); st.TxPackets != 5 {
			t.Errorf("%d packets sent", st.TxPackets)
		}
		n.SetPartition(addrA, addrC, true)
		send(a.p, f, 5, 1, 64)
		n.RunFor(1e6)
		n.SetPartition(addrA, addrC, false)
		c.p.Leave(groupG)
		send(a.p, f, 6, 1, 64)
		n.RunFor(1e6)
		if la, lc := len(a.segments()), len(c.segments()); la != 7 || lc != 5 {
			t.Errorf("after a cut and a leave: %d and %d", la, lc)
		}
		n.Inject(netip.AddrPortFrom(addrB, 5), groupG, []byte("x"), 1)
		n.Inject(netip.AddrPortFrom(addrB, 5), netip.MustParseAddr("239.9.9.9"), []byte("x"), 1)
		n.RunFor(1e6)
		if len(a.segments()) != 8 || len(c.segments()) != 5 {
			t.Error("injected to the group")
		}
		// A member that is gone gets nothing, and what is under way to it is lost.
		send(a.p, f, 9, 1, 64)
		if err := a.p.Close(); err != nil {
			t.Fatal(err)
		}
		n.RunFor(1e6)
		if len(n.groups[groupG]) != 0 || n.Buffers() != len(b.p.held)+len(c.p.held) {
			t.Errorf("members %v, buffers %d", n.groups, n.Buffers())
		}
		return fmt.Sprint(copies)
	}
	if first := run(); run() != first {
		t.Error("one seed, two runs")
	}
}

func TestGroupRefusals(t *testing.T) {
	n := New(1)
	a, b := newEnd(t, n, Config{}, addrA), newEnd(t, n, Config{}, addrB)
	if err := a.p.Join(addrB, addrA); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no group: %v", err)
	}
	if err := a.p.Join(groupG, addr6); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("two families: %v", err)
	}
	if err := a.p.Join(groupG, addrB); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("somebody else's address: %v", err)
	}
	b.p.Leave(groupG) // was never there
	send(a.p, flow(addrB, groupG), 0, 1, 16)
	if a.p.Stats().TxErrors != 1 {
		t.Error("sent from another's address")
	}
	_ = a.p.Close()
	if err := a.p.Join(groupG, addrA); !errors.Is(err, syscall.EBADF) {
		t.Errorf("closed: %v", err)
	}
}
