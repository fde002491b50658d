//go:build !purego

package pi

// fold is CRC for a multiple of 16 bytes, at least 16, with registers of 256 bits if
// wide. The processor must have what detect looks for.
//
//go:noescape
func fold(wide bool, crc uint16, b []byte) uint16

// foldKeys are the multipliers of fold. With the bytes of a block reversed it is
// hi*x^64 + lo, hi being the 8 bytes that come first, the highest bit of a word the
// highest power.
//
// To move a block d bits on is to multiply it by x^d, which modulo the polynomial P is
// hi*R(d+64) + lo*R(d), R(n) being x^n mod P: two products of at most 80 bits.
//
// At the end there is one block. The CRC is the remainder by P of the block times
// x^16. First hi*x^80 becomes hi*R(80), which with lo*x^16 makes 80 bits. The upper 64
// of them times floor(x^80/P), and of this the upper 64 bits, is the quotient by P:
// without carries this is exact. Minus quotient times P, the remainder is left.
// floor(x^80/P) has 65 bits; the highest is 1 and not in the table.
//
//lint:ignore U1000 the assembly reads it
var foldKeys = [...]uint64{
	0x6123, 0x2295, // d = 1024: R(d), R(d+64)
	0xd9dd, 0xbd4a, // d = 896
	0xdfcb, 0x4132, // d = 768
	0xe2c0, 0xf65c, // d = 640
	0x1069, 0xdd31, // d = 512
	0x84da, 0x4a84, // d = 384
	0x857d, 0x7acc, // d = 256
	0xa010, 0x1faa, // d = 128
	0x2d56,             // R(80)
	0xf65a57f81d33a48a, // floor(x^80/P) - x^64
	0x8bb7,             // P - x^16
}

// detect asks the processor what it has, and the operating system whether it keeps the
// wide registers.
func detect() way {
	const (
		pclmulqdq  = 1 << 1  // leaf 1, ecx
		osxsave    = 1 << 27 // leaf 1, ecx
		avx        = 1 << 28 // leaf 1, ecx
		avx2       = 1 << 5  // leaf 7, ebx
		vpclmulqdq = 1 << 10 // leaf 7, ecx
		ymmState   = 1<<1 | 1<<2
	)
	leaves, _, _ := cpuid(0, 0)
	if leaves < 1 {
		return byTables
	}
	const need1 = pclmulqdq | osxsave | avx
	if _, _, c := cpuid(1, 0); c&need1 != need1 || xgetbv()&ymmState != ymmState {
		return byTables
	}
	if leaves >= 7 {
		if _, b, c := cpuid(7, 0); b&avx2 != 0 && c&vpclmulqdq != 0 {
			return by256
		}
	}
	return by128
}

// cpuid runs the instruction and returns eax, ebx and ecx.
func cpuid(leaf, sub uint32) (a, b, c uint32)

// xgetbv returns the lower half of the register that tells which state the operating
// system saves.
func xgetbv() uint32
