package target

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/client"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
)

// A connection with a single memory region left: its requests take turns.
func TestOneRegionForAll(t *testing.T) {
	r := newRig(t, memoryStore(t, 4<<20, 512, false), Config{ForceMR: true, MaxLength: 16 << 10}, soft.Limits{})
	cl := r.dial(client.Config{})
	r.target.mu.Lock()
	var q *rdmarw.QP
	for c := range r.target.conns {
		q = c.qp
	}
	r.target.mu.Unlock()
	var taken []*rdmarw.Ctx
	list := [][]byte{make([]byte, 64)}
	for {
		x := new(rdmarw.Ctx)
		if _, err := x.Init(q, 1, list, 0, 0, 0, rdmarw.DMAToDevice); errors.Is(err, syscall.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, x)
	}
	give := func(ctxs []*rdmarw.Ctx) {
		for _, x := range ctxs {
			if err := x.Destroy(q, 1, list, rdmarw.DMAToDevice); err != nil {
				t.Error(err)
			}
		}
	}
	give(taken[:1])
	data := random(4<<20, 5)
	back := make(memWriter, len(data))
	if err := errors.Join(cl.Write(t.Context(), bytes.NewReader(data), 4<<20, 0, nil), cl.Read(t.Context(), back, 4<<20, 0, nil)); err != nil || !bytes.Equal(back, data) {
		t.Error(err, "or other bytes")
	}
	give(taken[1:])
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}
