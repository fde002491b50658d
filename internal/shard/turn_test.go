package shard

import (
	"slices"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const ms = int64(time.Millisecond)

// Timers fire at their time, not before, and tell when the next turn is needed.
func TestTurnTimers(t *testing.T) {
	v := newVirtual(2)
	a, b := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	if next := v.turnAt(1e9); next != 0 {
		t.Fatalf("an idle engine wants a turn at %d", next)
	}
	a.set(1e9 + 5*ms)
	b.set(1e9 + 3*ms)
	if next := v.turnAt(1e9 + ms); next != 1e9+3*ms {
		t.Fatalf("next turn at %d", next)
	}
	if next := v.turnAt(1e9 + 3*ms); next != 1e9+5*ms || len(b.timers) != 1 || len(a.timers) != 0 {
		t.Fatalf("next turn at %d, timers fired: %v %v", next, a.timers, b.timers)
	}
	// A deadline that moved later fires later, and once.
	a.set(1e9 + 8*ms)
	v.turnAt(1e9 + 5*ms)
	if next := v.turnAt(1e9 + 8*ms - 1); next != 1e9+8*ms || len(a.timers) != 0 {
		t.Fatalf("next turn at %d, timers fired: %v", next, a.timers)
	}
	if next := v.turnAt(1e9 + 8*ms); next != 0 || len(a.timers) != 1 {
		t.Fatalf("next turn at %d, timers fired: %v", next, a.timers)
	}
}

// A service whose deadline stays in the past is wrong, but must not stop the rest.
func TestTurnEndsWithDeadlineInThePast(t *testing.T) {
	v := newVirtual(1)
	a, b := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	v.turnAt(1e9)
	a.onTimer = func(e *transport.Env) { a.at = e.Now }
	a.set(1e9 + ms)
	b.set(1e9 + ms)
	v.turnAt(1e9 + ms)
	if v.turnAt(1e9 + ms); len(a.timers) == 0 || len(b.timers) != 1 {
		t.Fatalf("timers fired: %v %v", a.timers, b.timers)
	}
}

// A process that did not run does not time out: what came meanwhile is read
// first, and the deadline is pushed by the pause.
func TestCase18_StarvedProcessDoesNotTimeOut(t *testing.T) {
	v := newVirtual(1)
	q := addQP(t, v.Engine, 2)
	v.turnAt(1e9)
	q.set(1e9 + 67*ms)
	v.turnAt(1e9 + 10*ms)
	q.onPkt = func(*transport.Env) { q.at = 0 } // the answer
	// Stopped for 2 s; the answer came meanwhile, in two turns' worth of datagrams.
	for range turnDatagrams {
		v.port.arrive(packet(99, 0))
	}
	v.port.arrive(packet(2, 0))
	v.turnAt(3e9)
	if len(q.timers) != 0 {
		t.Fatal("the timer fired in the first turn after the pause")
	}
	v.turnAt(3e9 + ms)
	if len(q.timers) != 0 || q.packets != 1 {
		t.Fatalf("timer fired %d times, %d packets", len(q.timers), q.packets)
	}
}

// The deadline is pushed by the gap, and fires then if nothing comes.
func TestCase18_PushedOnceByTheGap(t *testing.T) {
	v := newVirtual(1)
	q := addQP(t, v.Engine, 2)
	v.turnAt(1e9)
	q.set(1e9 + 67*ms)
	v.turnAt(1e9 + 10*ms)
	next := v.turnAt(3e9)
	if want := 3e9 + 57*ms; next != want || len(q.timers) != 0 {
		t.Fatalf("next turn at %d, want %d; fired %d times", next, want, len(q.timers))
	}
	if v.turnAt(next - 1); len(q.timers) != 0 {
		t.Fatal("fired early")
	}
	if v.turnAt(next); len(q.timers) != 1 {
		t.Fatal("did not fire")
	}
	// A second pause pushes the next deadline again.
	q.look(func() { q.onTimer = nil })
	q.set(v.Engine.now() + 67*ms)
	v.turnAt(v.now + ms)
	if v.turnAt(v.now + 1000*ms); len(q.timers) != 1 {
		t.Fatal("timed out after the second pause")
	}
}

// Small delays are scheduling noise.
func TestCase18_NoiseIsNoPause(t *testing.T) {
	v := newVirtual(1)
	q := addQP(t, v.Engine, 2)
	v.turnAt(1e9)
	q.set(1e9 + 67*ms)
	if v.turnAt(1e9 + 68*ms); len(q.timers) != 1 {
		t.Fatal("a timer that was 1 ms late did not fire")
	}
}

// Where every wake-up is late by more than the deadlines are long, timers fire
// all the same: the time of the engine does not stand still.
func TestCase18_AlwaysLate(t *testing.T) {
	v := newVirtual(1)
	short, long := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	v.turnAt(1e9)
	short.onTimer = func(e *transport.Env) { short.at = e.Now + 20_000 }
	short.set(1e9 + 20_000)
	long.set(1e9 + 20*ms)
	next := v.turnAt(1e9)
	for i := 0; len(long.timers) == 0; i++ {
		if i > 1000 {
			t.Fatalf("fired: %d times, %d times", len(short.timers), len(long.timers))
		}
		next = v.turnAt(max(next, v.now) + 2*ms)
	}
}

// Ready queue pairs get one Post a turn; what is left over makes the next turn
// due at once.
func TestReadyIsBounded(t *testing.T) {
	v := newVirtual(1)
	q := addQP(t, v.Engine, 2)
	left := 3
	q.onPost = func(e *transport.Env) {
		if left--; left > 0 {
			e.Ready = append(e.Ready, &q.QP)
		}
	}
	e := q.sh.Lock()
	e.Ready = append(e.Ready, &q.QP)
	q.sh.Unlock(nil)
	for want := 1; want <= 3; want++ {
		if q.posts != want {
			t.Fatalf("%d posts, want %d", q.posts, want)
		}
		if next := v.turnAt(v.now + 1); (next != 0) != (want < 2) {
			t.Fatalf("after %d posts the next turn is at %d", q.posts, next)
		}
	}
}

// An owed ACK leaves at the end of the next turn, not of the one that owes it.
func TestOwedAckLeavesNextTurn(t *testing.T) {
	v := newVirtual(2)
	a, b := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	for _, q := range []*fakeQP{a, b} {
		q.onPkt = func(e *transport.Env) { q.Owe(e) }
	}
	v.port.arrive(packet(2, 0), packet(3, 0), packet(2, 1))
	v.turnAt(1e9)
	// a's shard was left and entered again within the turn: that is its next step.
	if a.acks > 1 || b.acks != 0 || !v.oweAny() {
		t.Fatalf("acks %d %d in the turn that owes them", a.acks, b.acks)
	}
	v.turnAt(1e9 + 1)
	if a.acks < 1 || b.acks != 1 || v.oweAny() {
		t.Fatalf("acks %d %d after the next turn", a.acks, b.acks)
	}
}

// A segment that is nobody's, or damaged, is counted and disturbs nothing.
func TestTurnCountsDrops(t *testing.T) {
	v := newVirtual(2)
	a, b := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	good := packet(2, 5)
	bad := packet(2, 6)
	bad.Data[12] ^= 1
	short := pkt.Datagram{Data: good.Data[:7], SegSize: 7, Src: good.Src, Dst: here, IDKnown: true}
	v.port.arrive(short, packet(77, 0), packet(ib.QPNGSI, 0), packet(ib.QPNMulticast, 0), bad, good, packet(3, 1))
	v.turnAt(1e9)
	st := v.Stats()
	if a.packets != 1 || b.packets != 1 || st.RcvdPackets != 2 {
		t.Fatalf("packets %d %d, counted %d", a.packets, b.packets, st.RcvdPackets)
	}
	got := []uint64{st.DropShort, st.DropNoQP, st.DropGSI, st.DropMulticast, st.DropICRC}
	if !slices.Equal(got, []uint64{1, 1, 1, 1, 1}) {
		t.Fatalf("drops %v", got)
	}
}

// A coalesced datagram's segments go to whom they are for; its last one may be
// short.
func TestTurnSegments(t *testing.T) {
	v := newVirtual(2)
	a, b := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	super := packet(2, 0)
	size := len(super.Data)
	path := super
	for i, n := range []ib.QPN{3, 2, 2} {
		d := packet(n, i)
		p := pathOf(&path)
		// The k-th segment has identification 7+k.
		putID(&p, d.Data, uint16(7+i+1))
		super.Data = append(super.Data, d.Data...)
	}
	super.SegSize = size
	super.Data = append(super.Data, 1, 2, 3)
	v.port.arrive(super)
	v.turnAt(1e9)
	if st := v.Stats(); a.packets != 3 || b.packets != 1 || st.DropShort != 1 {
		t.Fatalf("packets %d %d, short %d", a.packets, b.packets, st.DropShort)
	}
}

// After Remove there is no step for the queue pair, though it was owed one.
func TestRemoveForgets(t *testing.T) {
	v := newVirtual(1)
	q, other := addQP(t, v.Engine, 2), addQP(t, v.Engine, 3)
	e := q.sh.Lock()
	q.at = 1e9 + ms
	q.Owe(e)
	other.Owe(e)
	q.sh.Unlock(&q.QP)
	v.Remove(&q.QP, q.sh)
	v.port.arrive(packet(2, 0), packet(3, 0))
	v.turnAt(1e9 + 2*ms)
	v.turnAt(1e9 + 3*ms)
	if q.packets+q.posts+q.acks+len(q.timers) != 0 {
		t.Fatalf("steps for a removed queue pair: %+v", q)
	}
	if other.acks != 1 || other.packets != 1 {
		t.Fatalf("the other got %d acks, %d packets", other.acks, other.packets)
	}
	if err := v.Busy(); err != nil {
		t.Fatal(err)
	}
	if addQP(t, v.Engine, 2); v.Add(&other.QP, other.sh) != ErrNumberInUse {
		t.Fatal("a number was given twice")
	}
}

// The application's side may post, poll and remove: no lock is held.
func TestDeliverHoldsNoLock(t *testing.T) {
	v := newVirtual(1)
	q := addQP(t, v.Engine, 2)
	c := queue.NewCQ(4)
	q.completes(c)
	told := 0
	c.SetNotify(func(bool) {
		told++
		q.set(0)
		v.Stats()
		v.Quiesce()
		v.Remove(&q.QP, q.sh)
	})
	c.Arm(false)
	v.port.arrive(packet(2, 0))
	v.turnAt(1e9)
	if told != 1 || c.Poll(make([]driver.WC, 1)) != 1 {
		t.Fatalf("told %d times", told)
	}
}
