package shard

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// Fail ends every queue pair of every shard, but those in Reset.
func TestFail(t *testing.T) {
	v := newVirtual(3)
	states := map[*fakeQP]ib.QPState{}
	for n := range ib.QPN(40) {
		q := addQP(t, v.Engine, 0x100+n)
		q.State = ib.QPState(n % 7)
		states[q] = q.State
	}
	gone := addQP(t, v.Engine, 0x500)
	gone.State = ib.QPStateRTS
	v.Remove(&gone.QP, gone.sh)
	v.Fail()
	for q, was := range states {
		want := ib.QPStateErr
		if was == ib.QPStateReset {
			want = was
		}
		if q.State != want {
			t.Errorf("%d was in %v and is in %v", q.Num, was, q.State)
		}
	}
	if gone.State != ib.QPStateRTS {
		t.Error("a removed queue pair was changed")
	}
}
