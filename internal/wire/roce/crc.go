package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// The ICRC is the CRC-32 of Ethernet. All states in this package follow hash/crc32.Update: the state after some bytes is the
// CRC of those bytes, already complemented. Polynomials are bit-reflected: bit 31 is the coefficient of x^0.

// crcTab[k][v] is what the byte v adds to the register k bytes after it went in ("slicing by 8").
var crcTab = makeCRCTab()

func makeCRCTab() (t [8][256]uint32) {
	for v := range uint32(256) {
		r := v
		for range 8 {
			r = r>>1 ^ crc32.IEEE&-(r&1)
		}
		t[0][v] = r
	}
	for k := 1; k < 8; k++ {
		for v := range 256 {
			r := t[k-1][v]
			t[k][v] = r>>8 ^ t[0][r&0xFF]
		}
	}
	return t
}

// crcStep8 moves the register (not complemented) over 8 bytes, given as little-endian words.
func crcStep8(r, lo, hi uint32) uint32 {
	lo ^= r
	return crcTab[7][lo&0xFF] ^ crcTab[6][lo>>8&0xFF] ^ crcTab[5][lo>>16&0xFF] ^ crcTab[4][lo>>24] ^
		crcTab[3][hi&0xFF] ^ crcTab[2][hi>>8&0xFF] ^ crcTab[1][hi>>16&0xFF] ^ crcTab[0][hi>>24]
}

// crcStep4 moves the register over 4 bytes, given as a little-endian word.
func crcStep4(r, w uint32) uint32 {
	w ^= r
	return crcTab[3][w&0xFF] ^ crcTab[2][w>>8&0xFF] ^ crcTab[1][w>>16&0xFF] ^ crcTab[0][w>>24]
}

// crcRegister moves the register over short byte strings. From crc.Short on, crc.Update is faster, but makes its argument escape,
// which stays on the caller's stack here.
func crcRegister(r uint32, b []byte) uint32 {
	for len(b) >= 8 {
		r = crcStep8(r, binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]))
		b = b[8:]
	}
	if len(b) >= 4 {
		r = crcStep4(r, binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	for _, v := range b {
		r = r>>8 ^ crcTab[0][byte(r)^v]
	}
	return r
}

// crcMul multiplies two polynomials modulo the CRC's.
func crcMul(a, b uint32) uint32 {
	// The product of the bit strings, 4 bits of b at a time; bit k of p is the coefficient of x^(62-k).
	var m [16]uint64
	m[1] = uint64(a)
	m[2] = m[1] << 1
	m[3] = m[2] ^ m[1]
	m[4] = m[2] << 1
	m[5] = m[4] ^ m[1]
	m[6] = m[3] << 1
	m[7] = m[6] ^ m[1]
	m[8] = m[4] << 1
	m[9] = m[8] ^ m[1]
	m[10] = m[5] << 1
	m[11] = m[10] ^ m[1]
	m[12] = m[6] << 1
	m[13] = m[12] ^ m[1]
	m[14] = m[7] << 1
	m[15] = m[14] ^ m[1]
	p := m[b&15] ^ m[b>>4&15]<<4 ^ m[b>>8&15]<<8 ^ m[b>>12&15]<<12 ^
		m[b>>16&15]<<16 ^ m[b>>20&15]<<20 ^ m[b>>24&15]<<24 ^ m[b>>28]<<28
	p <<= 1
	// The high word holds x^31..x^0; the low word holds x^63..x^32, which 4 zero bytes reduce.
	return uint32(p>>32) ^ crcStep4(uint32(p), 0)
}

// unshiftLow[n] and unshiftHigh[n] are the polynomials that move a register back over n and over 256*n zero bytes: x^(-8n) and
// x^(-2048n). A register after up to 65535 bytes goes back with two multiplications.
var unshiftLow, unshiftHigh = makeUnshift()

func makeUnshift() (low, high [256]uint32) {
	low[0] = 1 << 31 // x^0
	for n := 1; n < 256; n++ {
		low[n] = crcBack(low[n-1])
	}
	step := crcBack(low[255])
	high[0] = 1 << 31
	for n := 1; n < 256; n++ {
		high[n] = crcMul(high[n-1], step)
	}
	return low, high
}

// crcBack moves a register back over one zero byte.
func crcBack(r uint32) uint32 {
	for range 8 {
		// A step forward shifts right and adds the polynomial if a one fell out; the polynomial has bit 31, so bit 31 says so.
		if r>>31 != 0 {
			r = (r^crc32.IEEE)<<1 | 1
		} else {
			r <<= 1
		}
	}
	return r
}

// crcUnshift moves a register back over n zero bytes, n <= 65535.
func crcUnshift(r uint32, n int) uint32 {
	return crcMul(crcMul(r, unshiftLow[n&0xFF]), unshiftHigh[n>>8&0xFF])
}
