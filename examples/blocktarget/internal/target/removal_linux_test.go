package target

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/store"
)

// The target's interface is removed under requests of every kind, some of which are at
// the file: its clients are gone, and all that they had is given back, once the last of
// the file operations is over.
func TestRemoval(t *testing.T) {
	for _, prot := range []int{0, 1} {
		t.Run(fmt.Sprintf("type %d", prot), func(t *testing.T) {
			s, err := store.Open(filepath.Join(t.TempDir(), "disk"), 4<<20, 512, prot != 0)
			if err != nil {
				t.Fatal(err)
			}
			h, remove := newMortalHost(t)
			// The goroutines at the file tell that they are there, and are kept: with what they
			// have the clients cannot be over.
			kept, let := make(chan struct{}), make(chan struct{})
			cfg := Config{Protection: prot, MaxLength: 256 << 10, Memory: 512 << 10, Depth: 16, atFile: func() {
				select {
				case kept <- struct{}{}:
					<-let
				case <-let:
				}
			}}
			var log bytes.Buffer
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
			r := newRigOn(t, s, cfg, h)
			c := r.raw(256 << 10)
			for i := range 32 {
				c.request(proto.Request{Op: proto.Op(1 + i%3), Length: 64 << 10, Offset: uint64(i) * 64 << 10})
			}
			for range fileWorkers {
				<-kept
			}
			remove()
			c.close()
			if s := r.target.Stats(); s.Connected != 1 || s.Memory == 0 {
				t.Errorf("given back under operations at the file: %+v", s)
			}
			close(let)
			r.settled()
			r.stop()
			if err := <-r.done; err != nil {
				t.Error(err)
			}
			r.done <- nil
			if log.Len() > 0 {
				t.Error(log.String())
			}
		})
	}
}
