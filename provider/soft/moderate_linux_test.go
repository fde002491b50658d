package soft

import (
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// A notification that is held back comes though nobody polls, waits or sends any
// more: the thread in the background wakes for it.
func TestModeratedNotificationComes(t *testing.T) {
	told := make(chan struct{}, 16)
	a := newHost(t, setup{notify: func() { told <- struct{}{} }})
	b := newHost(t, setup{})
	qa, qb := a.qp(ib.RC, 0), b.qp(ib.RC, 0)
	join(qa, qb, ib.MTU1024)
	m := a.cq.(driver.CQModerator)
	write := driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: a.sge(0, 8), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	for range 5 {
		must(t, m.Moderate(1000, 5*time.Millisecond))
		a.cq.Arm(false)
		qa.send(write)
		select {
		case <-told:
		case <-time.After(patience):
			t.Fatalf("never told: %v", a.dev.Counters())
		}
		a.ok()
	}
	// Enough of them: long before the period ends.
	must(t, m.Moderate(3, 60*time.Millisecond))
	a.cq.Arm(false)
	for range 3 {
		qa.send(write)
	}
	select {
	case <-told:
	case <-time.After(patience):
		t.Fatal("never told of three")
	}
	for range 3 {
		a.ok()
	}
	select {
	case <-told:
		t.Error("told twice")
	default:
	}
	for _, c := range []struct {
		count  int
		period time.Duration
	}{{-1, 0}, {1 << 16, 0}, {1, -1}, {1, 65536 * time.Microsecond}} {
		if m.Moderate(c.count, c.period) == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	// Held back when the queue is destroyed, by the host's end.
	must(t, m.Moderate(1000, 60*time.Millisecond))
	a.cq.Arm(false)
	qa.send(write)
}
