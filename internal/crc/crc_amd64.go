//go:build !purego

package crc

// minFold is the least length that fold takes. It is also about the length from which fold beats hash/crc32.
const minFold = 16

// fold is Update for at least minFold bytes. The processor must have what detect looks for.
//
//go:noescape
func fold(crc uint32, b []byte) uint32

// foldKeys are the multipliers of fold. All polynomials are bit-reflected: the lowest bit is the highest power.
//
// Let P be the polynomial of the CRC, and R(n) = x^n mod P in 32 bits, bit 31 being x^0. A block of 16 bytes is lo*x^64 + hi, lo
// being the 8 bytes that come first. To move it d bits on is to multiply it by x^d, which modulo P is lo*R(d+64) + hi*R(d). The
// carry-less product of two reflected words of 64 bits comes out one bit low, that is multiplied by x, so the multipliers are
// R(d+63) and R(d-1), in the upper halves of words.
//
// At the end there is one block. The CRC is the remainder by P of the block times x^32. First lo*x^96 becomes lo times R(95), here in
// the lower half of a word so that the product begins at bit 0. With hi*x^32 that makes 96 bits. The upper 64 of them times
// floor(x^95/P), and of this the upper 64 bits again, is the quotient by P: without carries this is exact. Minus quotient times P,
// the remainder is left.
var foldKeys = [...]uint64{
	0x7cc8e1e700000000, 0x03f9f86300000000, // d = 2048
	0x7d657a1000000000, 0x7406fa9500000000, // d = 1024
	0x759fc69d00000000, 0x101a233100000000, // d = 768
	0x653d982200000000, 0xcad38e8f00000000, // d = 512
	0x9570d49500000000, 0x01b5fd1d00000000, // d = 256
	0x65673b4600000000, 0x9ba54c6f00000000, // d = 128
	0x00000000ccaa009e, // R(95)
	0xb4e5b025f7011641, // floor(x^95/P), bit 63 being x^0
	0x00000001db710641, // P, bit 32 being x^0
}

// hasFold tells whether this processor and its operating system have what fold needs.
var hasFold = detect()

// detect asks the processor for VPCLMULQDQ and AVX2, and the operating system whether it keeps the wide registers.
func detect() bool {
	const (
		pclmulqdq  = 1 << 1  // leaf 1, ecx
		osxsave    = 1 << 27 // leaf 1, ecx
		avx        = 1 << 28 // leaf 1, ecx
		avx2       = 1 << 5  // leaf 7, ebx
		vpclmulqdq = 1 << 10 // leaf 7, ecx
		ymmState   = 1<<1 | 1<<2
	)
	if leaves, _, _ := cpuid(0, 0); leaves < 7 {
		return false
	}
	const need1 = pclmulqdq | osxsave | avx
	if _, _, c := cpuid(1, 0); c&need1 != need1 {
		return false
	}
	if xgetbv()&ymmState != ymmState {
		return false
	}
	_, b, c := cpuid(7, 0)
	return b&avx2 != 0 && c&vpclmulqdq != 0
}

// cpuid runs the instruction and returns eax, ebx and ecx.
func cpuid(leaf, sub uint32) (a, b, c uint32)

// xgetbv returns the lower half of the register that tells which state the operating system saves.
func xgetbv() uint32
