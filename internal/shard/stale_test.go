package shard

import (
	"math"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
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
