package queue

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Each request keeps what it is about, in queues of any depth and around the
// ring; it is given once.
func TestBindsAreKept(t *testing.T) {
	for _, depth := range []int{1, 2, 16, 64} {
		q := NewSQ(depth, 1, 0)
		for lap := range 3 {
			var wins []*mem.Window
			for i := range depth {
				w := q.Push(&driver.SendWR{Opcode: ib.WRBindMW, RKey: 7})
				win := new(mem.Window)
				wins = append(wins, win)
				q.SetBind(win, nil, &driver.BindInfo{Addr: uint64(lap), Length: uint64(i), Access: ib.AccessRemoteRead})
				if w.RemoteAddr != uint64(lap) || w.CompareAdd != uint64(i) || ib.Access(w.Swap) != ib.AccessRemoteRead || w.RKey != 7 {
					t.Fatalf("%+v", w)
				}
			}
			for i := range depth {
				if win, reg := q.TakeBind(q.Head()); win != wins[i] || reg != nil {
					t.Fatalf("depth %d, lap %d, request %d", depth, lap, i)
				}
				if win, _ := q.TakeBind(q.Head()); win != nil {
					t.Fatal("given twice")
				}
				q.Pop()
			}
		}
	}
	for op := range ib.WROpcode(64) {
		want := op == ib.WRBindMW || op == ib.WRLocalInv || op == ib.WRRegMR || op == ib.WRRegMRIntegrity
		if Local(op) != want {
			t.Errorf("%v", op)
		}
	}
}
