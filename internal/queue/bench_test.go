package queue

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func BenchmarkSQ(b *testing.B) {
	b.ReportAllocs()
	q := NewSQ(128, 4, 220)
	l := Limits{MaxSGE: 4, MaxInline: 220, Ops: OpsBase}
	wr := driver.SendWR{Opcode: ib.WRSend, SGList: sges(8, 8)}
	for b.Loop() {
		if Check(&wr, ib.RC, &l) != nil || q.Push(&wr) == nil {
			b.Fatal("refused")
		}
		q.Pop()
	}
}

func BenchmarkSQInline(b *testing.B) {
	b.ReportAllocs()
	q := NewSQ(128, 4, 220)
	l := Limits{MaxSGE: 4, MaxInline: 220, Ops: OpsBase}
	wr := driver.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: make([]byte, 64)}
	for b.Loop() {
		if Check(&wr, ib.RC, &l) != nil {
			b.Fatal("refused")
		}
		if _, err := q.PushInline(&wr, nil); err != nil {
			b.Fatal(err)
		}
		q.Pop()
	}
}

func BenchmarkRQ(b *testing.B) {
	b.ReportAllocs()
	q := NewRQ(128, 4)
	wrs := []driver.RecvWR{{SGList: sges(8, 8)}}
	var w RecvWQE
	for b.Loop() {
		if n, _ := q.Post(wrs); n != 1 {
			b.Fatal("refused")
		}
		if ok, _ := q.Take(&w); !ok {
			b.Fatal("empty")
		}
	}
}

func BenchmarkCQ(b *testing.B) {
	b.ReportAllocs()
	c := NewCQ(128)
	var wc driver.WC
	dst := make([]driver.WC, 16)
	for b.Loop() {
		c.Push(&wc, false)
		if c.Poll(dst) != 1 {
			b.Fatal("empty")
		}
	}
}

func BenchmarkCQEmptyPoll(b *testing.B) {
	b.ReportAllocs()
	c := NewCQ(128)
	dst := make([]driver.WC, 16)
	for b.Loop() {
		c.Poll(dst)
	}
}

func TestQueuesDoNotAllocate(t *testing.T) {
	sq, rq, cq := NewSQ(16, 2, 64), NewRQ(16, 2), NewCQ(16)
	l := Limits{MaxSGE: 4, MaxInline: 64, Ops: OpsBase}
	wr := driver.SendWR{Opcode: ib.WRSend, SGList: sges(8, 8)}
	inline := driver.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: make([]byte, 64)}
	recv := []driver.RecvWR{{SGList: sges(8, 8)}}
	var w RecvWQE
	dst := make([]driver.WC, 4)
	if n := testing.AllocsPerRun(100, func() {
		_ = Check(&wr, ib.RC, &l)
		sq.Push(&wr)
		sq.Pop()
		_, _ = sq.PushInline(&inline, nil)
		sq.Pop()
		_, _ = rq.Post(recv)
		rq.Take(&w)
		cq.Arm(false)
		cq.Push(&driver.WC{}, false)
		cq.Notify()
		cq.Poll(dst)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
