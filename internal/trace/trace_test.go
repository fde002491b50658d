package trace

import (
	"bytes"
	"testing"
)

// Copy gives the packet's bytes and no more, whatever pieces they are in.
func TestCopy(t *testing.T) {
	p := Packet{Head: []byte("head"), Size: 10, Rest: [][]byte{[]byte("ab"), nil, []byte("cdXYZ")}}
	p.Size = 8
	for n := range 12 {
		dst := bytes.Repeat([]byte{'.'}, n)
		want := append([]byte("headabcd")[:min(n, 8):8], dst[min(n, 8):]...)
		if got := p.Copy(dst); got != min(n, 8) || !bytes.Equal(dst, want) {
			t.Errorf("%d bytes: %d %q, want %q", n, got, dst, want)
		}
	}
	p = Packet{Head: []byte("all"), Size: 3}
	if b := make([]byte, 5); p.Copy(b) != 3 || string(b[:3]) != "all" {
		t.Errorf("%q", b)
	}
}
