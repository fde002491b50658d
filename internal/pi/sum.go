package pi

import (
	"encoding/binary"
	"math/bits"
)

// sum adds the 16-bit big-endian words of b, the last byte of an odd number being the
// upper half of one, in one's complement (RFC 1071). The result, not inverted, is
// below 2^16 and 0 only where all that was added is.
func sum(b []byte) uint64 {
	// Words in the machine's order add up to the same, with the bytes of the result
	// swapped; so do longer ones.
	var s, c uint64
	for len(b) >= 64 {
		p := (*[64]byte)(b)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[0:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[8:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[24:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[32:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[40:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[48:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(p[56:]), c)
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), c)
		b = b[8:]
	}
	var last uint64
	for i, v := range b {
		last |= uint64(v) << (8 * i)
	}
	s, c = bits.Add64(s, last, c)
	s, c = bits.Add64(s, 0, c)
	s += c
	return uint64(bits.ReverseBytes16(uint16(fold16(s))))
}

// fold16 makes 16 bits of a one's complement sum.
func fold16(s uint64) uint64 {
	s = s>>32 + s&0xFFFFFFFF
	s = s>>32 + s&0xFFFFFFFF
	s = s>>16 + s&0xFFFF
	return s>>16 + s&0xFFFF
}
