package trace

import (
	"bytes"
	"syscall"
	"testing"
)

// Payload that its owner has unmapped is shown as zeros.
func TestCopyVanished(t *testing.T) {
	gone, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Munmap(gone); err != nil {
		t.Fatal(err)
	}
	p := Packet{Head: []byte("head"), Size: 4 + 8 + 4, Rest: [][]byte{gone[:8], []byte("icrc")}}
	b := bytes.Repeat([]byte{0xEE}, 20)
	if n := p.Copy(b); n != 16 || string(b[:16]) != "head\x00\x00\x00\x00\x00\x00\x00\x00icrc" {
		t.Errorf("%d %q", n, b)
	}
}
