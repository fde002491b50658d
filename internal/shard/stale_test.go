package shard

import (
	"math"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
)

// TestStaleDeadlineWakesNobody: a deadline that has gone, or moved later, is not
// what a sleeper is told.
func TestStaleDeadlineWakesNobody(t *testing.T) {
	v := newVirtual(1)
	a, b := addQP(t, v.Engine, ib.QPN(1000)), addQP(t, v.Engine, ib.QPN(1001))
	a.set(2e9)
	b.set(3e9)
	if d := v.nextDeadline(); d != 2e9 {
		t.Fatalf("next deadline %d, want %d", d, int64(2e9))
	}
	a.set(5e9) // later
	if d := v.nextDeadline(); d != 3e9 {
		t.Errorf("after the first one moved: %d, want %d", d, int64(3e9))
	}
	b.set(0) // none any more
	if d := v.nextDeadline(); d != 5e9 {
		t.Errorf("after the second one went: %d, want %d", d, int64(5e9))
	}
	a.set(0)
	if d := v.nextDeadline(); d != math.MaxInt64 {
		t.Errorf("after all went: %d", d)
	}
	b.set(4e9)
	v.turnAt(4e9)
	if len(b.timers) != 1 || len(a.timers) != 0 {
		t.Errorf("timers fired: %v and %v", a.timers, b.timers)
	}
}

// TestCloseAcknowledges: what arrived is acknowledged although nobody polled, or
// destroyed the queue pair, before the end.
func TestCloseAcknowledges(t *testing.T) {
	v := newVirtual(1)
	q := addQP(t, v.Engine, ib.QPN(1000))
	q.onPkt = func(e *transport.Env) { q.Owe(e) }
	v.port.arrive(packet(1000, 1))
	v.turnAt(2e9)
	if q.packets != 1 || q.acks != 0 {
		t.Fatalf("%d packets, %d ACKs before the end", q.packets, q.acks)
	}
	v.Close()
	if q.acks != 1 {
		t.Errorf("%d ACKs at the end, want 1", q.acks)
	}
}
