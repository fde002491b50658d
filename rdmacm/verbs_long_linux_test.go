package rdmacm_test

import (
	"errors"
	"math/bits"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// A length that 32 bits do not hold is refused, where C posts what is left of it. The
// slice is address space that nobody backs with memory.
func TestW9_SliceBeyond32Bits(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("no slice is that long")
	}
	const size = 1<<32 + 8
	long, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Munmap(long)
	r := newVRig(t, true, false)
	r.connect()
	mr := r.a.msgs(8)
	for what, post := range map[string]func([]byte) error{
		"post_write": func(b []byte) error { return r.a.id.PostWrite(1, b, mr, 0, 0, 0) },
		"post_read":  func(b []byte) error { return r.a.id.PostRead(1, b, mr, 0, 0, 0) },
		"post_send":  func(b []byte) error { return r.a.id.PostSend(1, b, mr, ib.SendInline) },
		"post_recv":  func(b []byte) error { return r.a.id.PostRecv(1, b, mr) },
	} {
		var oe *rdmacm.OpError
		if err := post(long); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Op != what || oe.Param != "buf" {
			t.Errorf("%s: %v", what, err)
		}
	}
	// One less than 2^32 fits an element, but no message.
	if err := r.a.id.PostWrite(1, long[:1<<32-1], mr, 0, 0, 0); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	r.a.none(r.a.id.SendCQ())
	// A receive may be longer than every message.
	if err := r.a.id.PostRecv(1, long[:1<<32-1], mr); err != nil {
		t.Error(err)
	}
}
