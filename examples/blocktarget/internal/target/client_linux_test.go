package target

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/client"
	"github.com/verbena-rdma/verbena/provider/soft"
)

// A client that was interrupted has requests under way, whose answers and memory are not
// those of what comes later: it takes no more.
func TestInterruptedClient(t *testing.T) {
	r := newRig(t, memoryStore(t, 4<<20, 512, true), Config{Protection: 1, MaxLength: 64 << 10}, soft.Limits{})
	cl := r.dial(client.Config{Depth: 4})
	data := random(1<<20, 3)
	ctx, cancel := context.WithCancel(t.Context())
	err := cl.Write(ctx, bytes.NewReader(data), 1<<20, 0, func(int) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	back := make(memWriter, 1<<20)
	if err := cl.Read(t.Context(), back, 1<<20, 2<<20, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("read afterwards: %v", err)
	}
	if err := cl.Flush(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("flush afterwards: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}
