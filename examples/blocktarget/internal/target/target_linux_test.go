package target

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/client"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/store"
	"github.com/verbena-rdma/verbena/provider/soft"
)

// random gives n bytes by a seed.
func random(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// memWriter is memory as a file.
type memWriter []byte

func (m memWriter) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }

// Several clients at once write, each a part of the device that is no multiple of
// anything, and read it back: on every kind of device, with little memory, with and
// without protection, of files and of memory.
func TestCopies(t *testing.T) {
	for _, c := range []struct {
		name   string
		file   bool
		bs     int
		cfg    Config
		cli    client.Config
		limits soft.Limits
	}{
		{name: "plain", bs: 512},
		{name: "one request at a time", bs: 512, cfg: Config{MaxLength: 64 << 10}, cli: client.Config{Depth: 1}},
		{name: "little memory", bs: 512, cfg: Config{MaxLength: 256 << 10, Memory: 256 << 10}},
		{name: "file", file: true, bs: 4096, cfg: Config{MaxLength: 128 << 10}},
		{name: "registered", bs: 512, cfg: Config{ForceMR: true}},
		{name: "few pages in a region", bs: 512, cfg: Config{MaxLength: 128 << 10}, limits: soft.Limits{MaxSGLRd: 1, MaxFastRegPages: 8, ReadWithInv: true}},
		{name: "iWARP", bs: 512, cfg: Config{MaxLength: 128 << 10}, limits: soft.Limits{IWARP: true, MaxSGERd: 1, MaxFastRegPages: 16}},
		{name: "one element", bs: 512, cfg: Config{MaxLength: 128 << 10}, limits: soft.Limits{MaxSGERd: 1}},
		{name: "short requests", bs: 1024, cli: client.Config{Length: 5000}},
		{name: "type 1", bs: 512, cfg: Config{Protection: 1}},
		{name: "type 2", bs: 2048, cfg: Config{Protection: 2, MaxLength: 64 << 10}},
		{name: "type 3, file", file: true, bs: 4096, cfg: Config{Protection: 3, MaxLength: 256 << 10}},
		{name: "type 1, by the target", bs: 512, cfg: Config{Protection: 1}, cli: client.Config{NoPI: true}},
		{name: "type 1, little of everything", bs: 512, cfg: Config{Protection: 1, MaxLength: 32 << 10, Memory: 64 << 10}, limits: soft.Limits{MaxFastRegPages: 16, MaxPIFastRegPages: 4}},
		{name: "type 1, iWARP", bs: 512, cfg: Config{Protection: 1, MaxLength: 128 << 10}, limits: soft.Limits{IWARP: true, ReadWithInv: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const clients, each = 3, 3 << 20
			var s *store.Store
			if c.file {
				var err error
				if s, err = store.Open(filepath.Join(t.TempDir(), "disk"), clients*each, c.bs, c.cfg.Protection != 0); err != nil {
					t.Fatal(err)
				}
			} else {
				s = memoryStore(t, clients*each, c.bs, c.cfg.Protection != 0)
			}
			r := newRig(t, s, c.cfg, c.limits)
			var wg sync.WaitGroup
			for i := range clients {
				wg.Go(func() {
					cl := r.dial(c.cli)
					defer func() {
						if err := cl.Close(); err != nil {
							t.Error(err)
						}
					}()
					n := each - 777*i
					data, moved := random(n, byte(i)), 0
					count := func(k int) { moved += k }
					if err := cl.Write(t.Context(), bytes.NewReader(data), int64(n), int64(i)*each, count); err != nil {
						t.Error(err)
						return
					}
					if err := cl.Flush(t.Context()); err != nil {
						t.Error(err)
					}
					back := make(memWriter, n)
					if err := cl.Read(t.Context(), back, int64(n), int64(i)*each, count); err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(back, data) || moved != 2*n {
						t.Errorf("client %d: %d bytes moved, equal: %v", i, moved, bytes.Equal(back, data))
					}
				})
			}
			wg.Wait()
			if s := r.target.Stats(); s.Clients != clients || s.Refused != 0 || s.BadProtection != 0 || s.Reads == 0 || s.Reads != s.Writes {
				t.Errorf("%+v", s)
			}
			r.settled()
		})
	}
}

// What cannot be is refused, request by request, and the connection goes on.
func TestRefusals(t *testing.T) {
	r := newRig(t, memoryStore(t, 1<<20, 512, false), Config{MaxLength: 64 << 10, Depth: 4}, soft.Limits{})
	c := r.raw(64 << 10)
	if c.geom.Depth != 4 || c.geom.Size() != 1<<20 || c.geom.MaxLength != 64<<10 || c.geom.Protection != 0 {
		t.Errorf("%+v", c.geom)
	}
	for _, q := range []struct {
		r    proto.Request
		want proto.Status
	}{
		{proto.Request{Op: 7, Length: 512}, proto.StatusBadRequest},
		{proto.Request{Op: proto.OpRead, Length: 513}, proto.StatusBadRequest},
		{proto.Request{Op: proto.OpRead, Length: 512, Flags: proto.FlagPI}, proto.StatusBadRequest},
		{proto.Request{Op: proto.OpWrite, Length: 512, Offset: 1 << 20}, proto.StatusOutOfRange},
		{proto.Request{Op: proto.OpRead, Length: 512}, proto.StatusOK},
		{proto.Request{Op: proto.OpFlush}, proto.StatusOK},
	} {
		if resp := c.do(q.r); resp.Status != q.want {
			t.Errorf("%+v: %v, want %v", q.r, resp.Status, q.want)
		}
	}
	cl := r.dial(client.Config{})
	if err := cl.Write(t.Context(), bytes.NewReader(nil), 1<<20+1, 0, nil); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := cl.Write(t.Context(), bytes.NewReader(nil), 512, 1, nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	// A source that fails: what is under way ends, and the client can go on.
	if err := cl.Write(t.Context(), bytes.NewReader(make([]byte, 300<<10)), 400<<10, 0, nil); err == nil {
		t.Error("wrote what there is not")
	}
	if err := cl.Write(t.Context(), bytes.NewReader(make([]byte, 512)), 512, 0, nil); err != nil {
		t.Error(err)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}

// A client that has more requests under way than it was allowed to waits, and gets all
// its answers.
func TestTooManyRequests(t *testing.T) {
	r := newRig(t, memoryStore(t, 1<<20, 512, false), Config{MaxLength: 64 << 10, Memory: 64 << 10, Depth: 2}, soft.Limits{})
	c := r.raw(64 << 10)
	const n = 100
	for i := range n {
		c.request(proto.Request{Op: proto.OpRead, Length: 32 << 10, Offset: uint64(i%16) * 4096})
	}
	seen := make(map[uint32]bool)
	for range n {
		resp := c.response()
		if resp.Status != proto.StatusOK || seen[resp.Tag] {
			t.Errorf("%+v", resp)
		}
		seen[resp.Tag] = true
	}
}

// A client that makes no room for responses, and has all of the memory: others wait for
// no longer than the target is patient.
func TestClientThatTakesNoAnswers(t *testing.T) {
	cfg := Config{Protection: 1, MaxLength: 64 << 10, Memory: 64 << 10, Depth: 4, Patience: 2 * time.Second}
	r := newRig(t, memoryStore(t, 1<<20, 512, true), cfg, soft.Limits{})
	c := r.rawWith(r.cliHost, 64<<10, 0)
	for range 4 {
		c.request(proto.Request{Op: proto.OpRead, Length: 64 << 10})
	}
	cl := r.dial(client.Config{})
	if err := cl.Read(t.Context(), make(memWriter, 1<<20), 1<<20, 0, nil); err != nil {
		t.Error(err)
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
}

// Garbage is answered, or ends the connection; it harms nobody else.
func TestGarbage(t *testing.T) {
	r := newRig(t, memoryStore(t, 1<<20, 512, true), Config{Protection: 1, MaxLength: 64 << 10}, soft.Limits{})
	other := r.dial(client.Config{})
	defer func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}()
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		c := r.raw(64 << 10)
		b := random(proto.RequestLen, byte(i))
		if i%3 == 0 {
			b = b[:rnd.IntN(len(b))]
		} else if i%3 == 1 { // nearly right: other memory than there is
			q := proto.Request{Op: proto.Op(1 + i%2), Length: 4096, RKey: c.mem.RKey() + 1<<8, Addr: rnd.Uint64(), Flags: uint8(i % 2)}
			b = make([]byte, proto.RequestLen)
			q.Put(b)
		}
		c.send(b)
		if i%3 == 2 && b[0] > 3 {
			if resp := c.response(); resp.Status != proto.StatusBadRequest {
				t.Errorf("%+v", resp)
			}
		}
		c.close()
	}
	if err := other.Write(t.Context(), bytes.NewReader(random(1<<20, 1)), 1<<20, 0, nil); err != nil {
		t.Error(err)
	}
}

// Whatever a client is about when it goes: nothing of it is left. Half of them do not
// say that they go: their memory is gone before the connection.
func TestDisconnectInTheMiddle(t *testing.T) {
	for _, prot := range []int{0, 1} {
		t.Run(fmt.Sprintf("type %d", prot), func(t *testing.T) {
			dir := t.TempDir()
			s, err := store.Open(filepath.Join(dir, "disk"), 4<<20, 512, prot != 0)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, s, Config{Protection: prot, MaxLength: 256 << 10, Memory: 512 << 10, Depth: 8}, soft.Limits{MaxSGLRd: 4})
			rnd := rand.New(rand.NewPCG(7, uint64(prot)))
			for i := range 60 {
				c := r.raw(256 << 10)
				n := rnd.IntN(16)
				for range n {
					op := proto.Op(1 + rnd.IntN(3))
					c.request(proto.Request{Op: op, Length: uint32(1+rnd.IntN(512)) * 512, Offset: uint64(rnd.IntN(4096)) * 512})
				}
				for range rnd.IntN(n/2 + 1) {
					c.response()
				}
				if i%2 == 0 {
					if err := c.mem.Dereg(); err != nil {
						t.Error(err)
					}
				}
				c.close()
			}
			r.settled()
			// And it still serves.
			cl := r.dial(client.Config{})
			defer cl.Close()
			data := random(1<<20, 9)
			back := make(memWriter, len(data))
			if err := errors.Join(cl.Write(t.Context(), bytes.NewReader(data), 1<<20, 0, nil), cl.Read(t.Context(), back, 1<<20, 0, nil)); err != nil || !bytes.Equal(back, data) {
				t.Error(err, "or other bytes")
			}
		})
	}
}

// A client whose device dies without a word: the target notices it by the transfers that
// nobody answers, and gives back what it had.
func TestSilentDeath(t *testing.T) {
	r := newRig(t, memoryStore(t, 4<<20, 512, true), Config{Protection: 1, MaxLength: 256 << 10, Memory: 512 << 10}, soft.Limits{})
	h := newHost(t, soft.Limits{})
	c := r.rawOn(h, 256<<10)
	for i := range 12 {
		c.request(proto.Request{Op: proto.Op(1 + i%2), Length: 256 << 10, Offset: uint64(i) * 256 << 10})
	}
	c.response()
	if err := h.dev.Close(); err != nil {
		t.Error(err)
	}
	r.settled()
	cl := r.dial(client.Config{})
	if err := errors.Join(cl.Write(t.Context(), bytes.NewReader(random(1<<20, 9)), 1<<20, 0, nil), cl.Close()); err != nil {
		t.Error(err)
	}
}

// A target that ends while clients are at it ends them, and leaves nothing.
func TestStopInTheMiddle(t *testing.T) {
	r := newRig(t, memoryStore(t, 4<<20, 512, false), Config{Memory: 1 << 20}, soft.Limits{})
	var wg sync.WaitGroup
	begun := make(chan struct{}, 1000)
	for i := range 3 {
		wg.Go(func() {
			cl := r.dial(client.Config{Depth: 8, Length: 128 << 10})
			var err error
			for n := 0; err == nil && n < 100_000; n++ {
				select {
				case begun <- struct{}{}:
				default:
				}
				err = cl.Write(t.Context(), bytes.NewReader(random(1<<20, byte(i))), 1<<20, int64(i)<<20, nil)
			}
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%v, want ECONNRESET", err)
			}
			if err := cl.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	for range 10 {
		<-begun
	}
	r.stop()
	wg.Wait()
}

func TestConfig(t *testing.T) {
	h := newHost(t, soft.Limits{MaxPIFastRegPages: -1})
	plain, prot := memoryStore(t, 1<<20, 512, false), memoryStore(t, 1<<20, 512, true)
	for what, c := range map[string]Config{
		"no store": {}, "depth": {Store: plain, Depth: maxDepth + 1}, "patience": {Store: plain, Patience: -1}, "length": {Store: plain, MaxLength: 100},
		"odd length": {Store: plain, MaxLength: 1000}, "memory": {Store: plain, Memory: 512}, "type 4": {Store: prot, Protection: 4},
		"no tuples": {Store: plain, Protection: 1}, "tuples": {Store: prot},
	} {
		if _, err := New(h.m, c); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A device without protection takes no client.
	tgt, err := New(h.m, Config{Store: prot, Protection: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tgt.domainOf(h.ctx); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
}
