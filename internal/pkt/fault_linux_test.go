package pkt

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/mem"
)

// A packet whose payload is not there any more is given up; what was in the
// batch before stays as it was.
func TestVanishedPayload(t *testing.T) {
	gone, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Munmap(gone); err != nil {
		t.Fatal(err)
	}
	f := flow4(0)
	for _, size := range []int{100, 1024} {
		tx := NewTx(TxCaps{MaxSegs: 64})
		b := bytes.Repeat([]byte{5}, size)
		want := []*packet{newPacket(f, 1, 12, b), newPacket(f, 2, 12, b)}
		bad := func() {
			copy(tx.Begin(f, 12, size), want[0].hdr)
			if err := tx.Payload(b[:size/2]); err != nil {
				t.Fatal(err)
			}
			if err := tx.Payload(gone[:size/2]); !errors.Is(err, mem.ErrFault) {
				t.Fatalf("size %d: %v", size, err)
			}
			tx.Abort()
		}
		bad()
		want[0].add(t, tx)
		bad()
		want[1].add(t, tx)
		bad()
		check(t, tx, want)
		if len(tx.Msgs) != 1 {
			t.Errorf("size %d: %d messages", size, len(tx.Msgs))
		}
	}
}
