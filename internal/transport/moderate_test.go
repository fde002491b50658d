package transport

import (
	"testing"

	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestModeratedNotification(t *testing.T) {
	e := &Env{Now: 100, Skew: 7}
	a, b := queue.NewCQ(10), queue.NewCQ(10)
	told := map[*queue.CQ]int{}
	for cq, period := range map[*queue.CQ]int64{a: 50, b: 20} {
		cq.SetNotify(func(bool) { told[cq]++ })
		cq.Moderate(0, period)
		cq.Arm(false)
		e.Complete(cq, &driver.WC{}, false)
		e.Complete(cq, &driver.WC{}, false)
	}
	deliver := func() {
		var d Deliveries
		e.Take(&d)
		d.Deliver()
	}
	if at := e.ModeratedAt(); at != 120 || e.Pending() {
		t.Errorf("due at %d, pending %v", at, e.Pending())
	}
	e.Now = 119
	e.FireModerated()
	deliver()
	if len(told) != 0 {
		t.Error("told too early")
	}
	e.Now = 130
	e.FireModerated()
	deliver()
	if told[b] != 1 || told[a] != 0 || e.ModeratedAt() != 150 {
		t.Errorf("told %v, next at %d", told, e.ModeratedAt())
	}
	// What was told for another reason meanwhile is not told again.
	if a.Moderate(0, 10) {
		a.Notify()
	}
	e.Now = 200
	e.FireModerated()
	deliver()
	if told[a] != 1 || e.ModeratedAt() != 0 || len(e.moderated) != 0 {
		t.Errorf("told %v, next at %d", told, e.ModeratedAt())
	}
}

func TestCompletionTimestamp(t *testing.T) {
	e := &Env{Now: 100, Skew: 7}
	cq := queue.NewCQEx(4, true, false, true)
	e.Complete(cq, &driver.WC{}, false)
	if _, ts := cq.Look(); len(ts) != 1 || ts[0] != 107 {
		t.Errorf("timestamps %v", ts)
	}
}

// Two shards feed one queue: whoever begins the waiting knows when it ends, also
// if the other one did so before.
func TestModeratedByTwoShards(t *testing.T) {
	a, b := &Env{Now: 100}, &Env{Now: 100}
	cq := queue.NewCQ(10)
	told := 0
	cq.SetNotify(func(bool) { told++ })
	cq.Moderate(2, 50)
	complete := func(e *Env) {
		e.Complete(cq, &driver.WC{}, false)
		var d Deliveries
		e.Take(&d)
		d.Deliver()
	}
	cq.Arm(false)
	complete(a)
	complete(b) // enough
	if told != 1 {
		t.Fatalf("told %d times", told)
	}
	cq.Arm(false)
	b.Now = 120
	complete(b)
	if b.ModeratedAt() != 170 {
		t.Errorf("due at %d", b.ModeratedAt())
	}
	for _, e := range []*Env{a, b} {
		e.Now = 170
		e.FireModerated()
		var d Deliveries
		e.Take(&d)
		d.Deliver()
	}
	if told != 2 || len(a.moderated)+len(b.moderated) != 0 {
		t.Errorf("told %d times, %d and %d left", told, len(a.moderated), len(b.moderated))
	}
}

// Steps do not pay for each queue that holds something back: none is looked at
// before the first is due.
func TestModeratedQueuesCostNothing(t *testing.T) {
	e := &Env{Now: 100}
	told := 0
	for i := range int64(200) {
		cq := queue.NewCQ(4)
		cq.SetNotify(func(bool) { told++ })
		cq.Moderate(0, 1000-i)
		cq.Arm(false)
		e.Complete(cq, &driver.WC{}, false)
		cq.Arm(false)
		if i == 199 { // this one leaves for another reason
			cq.Moderate(0, 0)
		}
	}
	all := e.moderated
	e.moderated = nil // whoever looks at them fails
	if at := e.ModeratedAt(); at != 901 {
		t.Errorf("due at %d", at)
	}
	e.Now = 900
	e.FireModerated()
	e.moderated = all
	e.Now = 901
	e.FireModerated()
	if at := e.ModeratedAt(); at != 902 || len(e.moderated) != 199 {
		t.Errorf("next at %d, %d are left", at, len(e.moderated))
	}
	e.Now = 1100
	e.FireModerated()
	if d := new(Deliveries); e.ModeratedAt() != 0 || len(e.moderated) != 0 {
		t.Errorf("next at %d, %d are left", e.ModeratedAt(), len(e.moderated))
	} else {
		e.Take(d)
		d.Deliver()
	}
	if told != 199 {
		t.Errorf("%d were told", told)
	}
}
