package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMessages(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(4096), r.b.msgs(4096)
		fill(src.Bytes(), 1)
		r.meet()
		s := src.Bytes()
		if err := errors.Join(
			r.b.id.PostRecv(1, dst.Bytes()[:100], dst),
			r.b.id.PostRecvV(2, []verbs.SGE{dst.SGE(3000, 5), dst.SGE(1000, 1500)}),
			r.b.id.PostRecv(3, nil, nil),
			r.b.id.PostRecv(4, dst.Bytes()[200:300], dst),
			r.a.id.PostSend(1, s[:50], src, ib.SendSignaled),
			r.a.id.PostSendV(2, []verbs.SGE{src.SGE(100, 1000), src.SGE(0, 10)}, ib.SendSignaled),
			r.a.id.PostSend(3, nil, nil, ib.SendSignaled),
			r.a.id.PostSend(4, []byte("inline"), nil, ib.SendSignaled|ib.SendInline),
		); err != nil {
			t.Fatal(err)
		}
		for i, n := range []uint32{50, 1010, 0, 6} {
			c := uint64(i + 1)
			wc := r.b.received()
			r.b.good(wc, c)
			r.a.good(r.a.sent(), c)
			if wc.ByteLen != n || wc.Opcode != ib.WCRecv {
				t.Errorf("%+v", wc)
			}
		}
		d := dst.Bytes()
		got := append(append([]byte{}, d[3000:3005]...), d[1000:2005]...)
		if !bytes.Equal(d[:50], s[:50]) || !bytes.Equal(got, append(append([]byte{}, s[100:1100]...), s[:10]...)) || string(d[200:206]) != "inline" {
			t.Error("other bytes")
		}
	})
}

func TestReads(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		dst, src := r.a.msgs(8192), r.b.read(8192)
		fill(src.Bytes(), 1)
		r.meet()
		if err := errors.Join(
			r.a.id.PostRead(1, dst.Bytes()[:5000], dst, ib.SendSignaled, src.Addr()+7, src.RKey()),
			r.a.id.PostReadV(2, []verbs.SGE{dst.SGE(6000, 100), dst.SGE(5500, 9)}, ib.SendSignaled, src.Addr(), src.RKey()),
		); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(2) {
			wc := r.a.sent()
			r.a.good(wc, i+1)
			if wc.Opcode != ib.WCRDMARead {
				t.Errorf("%+v", wc)
			}
		}
		d, s := dst.Bytes(), src.Bytes()
		if !bytes.Equal(d[:5000], s[7:5007]) || !bytes.Equal(d[6000:6100], s[:100]) || !bytes.Equal(d[5500:5509], s[100:109]) {
			t.Error("other bytes")
		}
		// No more than the region has.
		if err := r.a.id.PostRead(3, dst.Bytes()[:10], dst, 0, src.Addr()+8190, src.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.bad(r.a.sent(), ib.WCRemAccessErr, 3)
	})
}

// What the receiver does wrong shows in its completion.
func TestReceiveErrors(t *testing.T) {
	for what, c := range map[string]struct {
		recv func(e *vend) error
		want ib.WCStatus
	}{
		"too short":     {func(e *vend) error { mr := e.msgs(8); return e.id.PostRecv(1, mr.Bytes()[:7], mr) }, ib.WCLocLenErr},
		"no region":     {func(e *vend) error { return e.id.PostRecv(1, make([]byte, 8), nil) }, ib.WCLocProtErr},
		"another slice": {func(e *vend) error { return e.id.PostRecv(1, make([]byte, 8), e.msgs(8)) }, ib.WCLocProtErr},
	} {
		r := newVRig(t, true, false)
		r.connect()
		if err := errors.Join(c.recv(r.b), r.a.id.PostSend(1, []byte("12345678"), nil, ib.SendInline)); err != nil {
			t.Fatal(what, err)
		}
		r.b.bad(r.b.received(), c.want, 1)
		if wc := r.a.sent(); wc.Status != ib.WCRemInvReqErr && wc.Status != ib.WCRemOpErr {
			t.Errorf("%s: sender: %+v", what, wc)
		}
	}
}

// With a shared receive queue receives go there.
func TestSharedReceiveQueue(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.shared = true
		r.connect()
		dst := r.b.msgs(64)
		if err := errors.Join(
			r.b.id.PostRecv(5, dst.Bytes(), dst),
			r.b.id.PostRecvV(6, []verbs.SGE{dst.SGE(8, 8)}),
			r.a.id.PostSend(1, []byte("first"), nil, ib.SendInline),
			r.a.id.PostSend(2, []byte("second"), nil, ib.SendInline),
		); err != nil {
			t.Fatal(err)
		}
		r.b.good(r.b.received(), 5)
		r.b.good(r.b.received(), 6)
		if string(dst.Bytes()[:5]) != "first" || string(dst.Bytes()[8:14]) != "second" {
			t.Errorf("%q", dst.Bytes())
		}
	})
}

func TestGetCompWithoutQueue(t *testing.T) {
	id := newVRig(t, true, false).a.newID(rdmacm.PSTCP)
	for what, get := range map[string]func(context.Context) (verbs.WC, error){"get_send_comp": id.GetSendComp, "get_recv_comp": id.GetRecvComp} {
		var oe *rdmacm.OpError
		if _, err := get(t.Context()); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Op != what {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// socketsOnly gives connected IDs on real sockets, where calls wait.
func socketsOnly(t *testing.T) *vrig {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("no sockets of ours here")
	}
	r := newVRig(t, false, false)
	r.connect()
	return r
}

func TestGetCompEnds(t *testing.T) {
	r := socketsOnly(t)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 4)
	for range 2 {
		go func() { _, err := r.a.id.GetSendComp(ctx); errs <- err }()
		go func() { _, err := r.a.id.GetRecvComp(ctx); errs <- err }()
	}
	cancel()
	for range 4 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	// What is there is given all the same.
	mr := r.a.msgs(8)
	if err := r.a.id.PostRecv(3, mr.Bytes(), mr); err != nil {
		t.Fatal(err)
	}
	r.disconnect()
	if wc, err := r.a.id.GetRecvComp(ctx); err != nil || wc.WRID != 3 || wc.Status != ib.WCWRFlushErr {
		t.Error(wc, err)
	}
}

// Several goroutines wait at one ID: each completion goes to one of them, none is
// lost, and nobody sleeps on.
func TestGetCompByMany(t *testing.T) {
	r := socketsOnly(t)
	const workers, each = 4, 200
	src, dst := r.a.msgs(8), r.b.msgs(8)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[uint64]int{}
	for range workers {
		wg.Go(func() {
			for range each {
				wc, err := r.b.id.GetRecvComp(t.Context())
				if err != nil || wc.Status != ib.WCSuccess {
					t.Error(wc, err)
					return
				}
				mu.Lock()
				seen[wc.WRID]++
				mu.Unlock()
			}
		})
	}
	for i := range uint64(workers * each) {
		if err := errors.Join(r.b.id.PostRecv(i, dst.Bytes(), dst), r.a.id.PostSend(i, src.Bytes(), src, ib.SendSignaled)); err != nil {
			t.Fatal(err)
		}
		if wc, err := r.a.id.GetSendComp(t.Context()); err != nil || wc.WRID != i || wc.Status != ib.WCSuccess {
			t.Fatal(wc, err)
		}
	}
	wg.Wait()
	if len(seen) != workers*each {
		t.Errorf("%d different completions", len(seen))
	}
}

// Several goroutines post at one ID: each request completes once, with its own bytes.
func TestPostsByMany(t *testing.T) {
	r := socketsOnly(t)
	const workers, each = 4, 100
	src, dst := r.a.msgs(8*workers), r.b.write(8*workers*each)
	room := make(chan struct{}, 8) // fewer than the queue holds
	for w := range workers {
		binary.BigEndian.PutUint64(src.Bytes()[8*w:], uint64(w+1))
	}
	r.meet()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				room <- struct{}{}
				c := uint64(w*each + i)
				to := dst.Addr() + 8*c
				var err error
				switch b := src.Bytes()[8*w : 8*w+8]; i % 3 {
				case 0:
					err = r.a.id.PostWrite(c, b, src, ib.SendSignaled, to, dst.RKey())
				case 1:
					err = r.a.id.PostWrite(c, b, nil, ib.SendSignaled|ib.SendInline, to, dst.RKey())
				case 2:
					err = r.a.id.PostWriteV(c, []verbs.SGE{src.SGE(8*w, 3), src.SGE(8*w+3, 5)}, ib.SendSignaled, to, dst.RKey())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	seen := map[uint64]bool{}
	for range workers * each {
		wc, err := r.a.id.GetSendComp(t.Context())
		if err != nil || wc.Status != ib.WCSuccess || seen[wc.WRID] {
			t.Fatal(wc, err)
		}
		seen[wc.WRID] = true
		<-room
	}
	wg.Wait()
	r.meet()
	for c := range workers * each {
		if got := binary.BigEndian.Uint64(dst.Bytes()[8*c:]); got != uint64(c/each+1) {
			t.Fatalf("%d: %d", c, got)
		}
	}
}

// The queue pair goes while others post and wait: they are told, and nothing breaks.
func TestDestroyUnderUse(t *testing.T) {
	for range 10 {
		r := socketsOnly(t)
		src, dst := r.a.msgs(8), r.b.write(8)
		var wg sync.WaitGroup
		started := make(chan struct{}, 2)
		wg.Go(func() {
			for i := uint64(0); ; i++ {
				if i == 20 {
					started <- struct{}{}
				}
				err := r.a.id.PostWrite(i, src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey())
				if err != nil && !errors.Is(err, syscall.ENOMEM) {
					if !errors.Is(err, syscall.EINVAL) {
						t.Error(err)
					}
					return
				}
			}
		})
		wg.Go(func() {
			started <- struct{}{}
			for {
				if _, err := r.a.id.GetSendComp(t.Context()); err != nil {
					// Entries of the send queue are free once their work is done, whether or not somebody has
					// heard of it: who posts without end overruns a slow reader.
					if !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOVERFLOW) {
						t.Error(err)
					}
					return
				}
			}
		})
		<-started
		<-started
		if err := r.a.id.DestroyQP(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// Who waits when the queue is destroyed is told, and so is who comes later.
func TestGetCompOfDestroyedQueue(t *testing.T) {
	r := socketsOnly(t)
	errs := make(chan error, 2)
	go func() { _, err := r.a.id.GetSendComp(t.Context()); errs <- err }()
	go func() { _, err := r.a.id.GetRecvComp(t.Context()); errs <- err }()
	if err := r.a.id.DestroyQP(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
	}
	if _, err := r.a.id.GetSendComp(t.Context()); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// Neither posts nor completions allocate.
func TestHelpersDoNotAllocate(t *testing.T) {
	if vrace {
		t.Skip("the race detector allocates")
	}
	r := socketsOnly(t)
	src, dst := r.a.msgs(256), r.b.write(256)
	read := r.b.read(256)
	ctx := t.Context()
	round := func() {
		list := []verbs.SGE{src.SGE(0, 64), src.SGE(128, 64)}
		recv := []verbs.SGE{dst.SGE(0, 128)}
		if r.b.id.PostRecv(1, dst.Bytes(), dst) != nil || r.b.id.PostRecvV(1, recv) != nil ||
			r.a.id.PostSend(1, src.Bytes(), src, ib.SendSignaled) != nil ||
			r.a.id.PostSendV(1, list, ib.SendSignaled) != nil ||
			r.a.id.PostWrite(1, src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey()) != nil ||
			r.a.id.PostWrite(1, src.Bytes()[:64], nil, ib.SendSignaled|ib.SendInline, dst.Addr(), dst.RKey()) != nil ||
			r.a.id.PostWriteV(1, list, ib.SendSignaled, dst.Addr(), dst.RKey()) != nil ||
			r.a.id.PostRead(1, src.Bytes(), src, ib.SendSignaled, read.Addr(), read.RKey()) != nil ||
			r.a.id.PostReadV(1, list, ib.SendSignaled, read.Addr(), read.RKey()) != nil {
			t.Fatal("post failed")
		}
		for range 7 {
			if wc, err := r.a.id.GetSendComp(ctx); err != nil || wc.Status != ib.WCSuccess {
				t.Fatal(wc, err)
			}
		}
		for range 2 {
			if wc, err := r.b.id.GetRecvComp(ctx); err != nil || wc.Status != ib.WCSuccess {
				t.Fatal(wc, err)
			}
		}
	}
	for range 50 { // pools fill
		round()
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for 9 posts and completions", n)
	}
}

// A round trip with the helpers, for comparison with the verbs beneath them.
func BenchmarkHelpers(b *testing.B) {
	r := newVRig(b, false, false)
	r.connect()
	src, dst := r.a.msgs(64), r.b.write(64)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.a.id.PostWrite(1, src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
			b.Fatal(err)
		}
		if _, err := r.a.id.GetSendComp(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
