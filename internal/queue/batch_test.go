package queue

import (
	"testing"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestSQTruncate(t *testing.T) {
	q := NewSQ(4, 1, 8)
	q.tail, q.head = 1<<32-2, 1<<32-2 // the index wraps
	q.Push(&driver.SendWR{WRID: 1})
	tail := q.Tail()
	for i := range uint64(3) {
		if q.Push(&driver.SendWR{WRID: 2 + i, AH: &fakeAH{}}) == nil {
			t.Fatal("full")
		}
	}
	if q.Push(&driver.SendWR{}) != nil {
		t.Fatal("not full")
	}
	q.Truncate(tail)
	if q.Len() != 1 || q.At(q.Head()).WRID != 1 {
		t.Errorf("%d are left", q.Len())
	}
	for i := range q.wqes {
		if q.wqes[i].AH != nil {
			t.Error("an address handle is kept alive")
		}
	}
	q.Truncate(q.Tail())
	if w := q.Push(&driver.SendWR{WRID: 9}); w == nil || q.Len() != 2 || q.At(q.Head()+1).WRID != 9 {
		t.Error("not usable any more")
	}
}
