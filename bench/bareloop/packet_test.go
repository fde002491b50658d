package bareloop

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// packet returns a sealed packet for an offset.
func packet(offset uint64, payload []byte) []byte {
	p := make([]byte, headerLen, headerLen+len(payload)+crcLen)
	binary.BigEndian.PutUint64(p[offsetAt:], offset)
	p[kindAt] = kindData
	p = append(p, payload...)
	p = append(p, make([]byte, crcLen)...)
	newScratch().seal(p[:headerLen], payload, p[len(p)-crcLen:])
	return p
}

func TestPlace(t *testing.T) {
	s, memory := newScratch(), make([]byte, 16)
	if !s.place(memory, packet(8, []byte("verbena!"))) || !bytes.Equal(memory[8:], []byte("verbena!")) {
		t.Fatalf("good packet refused, or memory wrong: %q", memory)
	}
	for name, p := range map[string][]byte{
		"past the end":   packet(9, []byte("verbena!")),
		"far outside":    packet(1<<63, []byte("x")),
		"short":          make([]byte, headerLen+crcLen-1),
		"nothing":        nil,
		"damaged":        func() []byte { p := packet(0, []byte("y")); p[headerLen] ^= 1; return p }(),
		"damaged header": func() []byte { p := packet(0, []byte("y")); p[headerLen-1] ^= 1; return p }(),
	} {
		if s.place(memory, p) {
			t.Errorf("%s: accepted", name)
		}
	}
	large := bytes.Repeat([]byte{7}, inlineMax+1)
	if m := make([]byte, len(large)); !s.place(m, packet(0, large)) || !bytes.Equal(m, large) {
		t.Error("a payload too large for the scratch space did not arrive")
	}
	if !bytes.Equal(memory, []byte("\x00\x00\x00\x00\x00\x00\x00\x00verbena!")) {
		t.Errorf("a refused packet changed memory: %q", memory)
	}
}
