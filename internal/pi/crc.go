package pi

// poly is the polynomial of CRC-16/T10-DIF without x^16, bit 15 being x^15. The CRC
// begins with 0, the highest bit of each byte goes first, and nothing is inverted
// (SBC-3 4.22.4).
const poly = 0x8BB7

// CRC continues a CRC-16/T10-DIF over b; it begins with the seed, 0 if there is none.
// It reads nothing outside b and allocates nothing; a fault while it reads b is a
// panic under debug.SetPanicOnFault.
func CRC(crc uint16, b []byte) uint16 { return update(fastest, crc, b) }

// way is a way to the CRC.
type way uint8

const (
	byTables way = iota
	by128        // multiplication of 128-bit registers
	by256
)

// fastest is the best way of this machine.
var fastest = detect()

// pieceLen bounds the bytes that the assembly takes at once. The scheduler and the
// garbage collector cannot interrupt it; between two pieces they can.
const pieceLen = 1 << 18

// foldLen is what fold takes a multiple of.
const foldLen = 16

// update is CRC in one way.
func update(w way, crc uint16, b []byte) uint16 {
	if w == byTables {
		return slice(crc, b)
	}
	for len(b) >= foldLen {
		n := min(len(b), pieceLen) &^ (foldLen - 1)
		crc = fold(w == by256, crc, b[:n])
		b = b[n:]
	}
	return slice(crc, b)
}

// tables are the CRCs of a byte with 0 to 15 zero bytes behind it.
var tables = makeTables()

func makeTables() (t [16][256]uint16) {
	for i := range 256 {
		crc := uint16(i) << 8
		for range 8 {
			top := crc >> 15
			crc = crc<<1 ^ top*poly
		}
		t[0][i] = crc
	}
	for k := 1; k < len(t); k++ {
		for i, crc := range t[k-1] {
			t[k][i] = crc<<8 ^ t[0][crc>>8]
		}
	}
	return t
}

// slice is CRC by tables, 16 bytes a step.
func slice(crc uint16, b []byte) uint16 {
	t := &tables
	for len(b) >= 16 {
		p := (*[16]byte)(b)
		crc = t[15][p[0]^byte(crc>>8)] ^ t[14][p[1]^byte(crc)] ^
			t[13][p[2]] ^ t[12][p[3]] ^ t[11][p[4]] ^ t[10][p[5]] ^ t[9][p[6]] ^ t[8][p[7]] ^
			t[7][p[8]] ^ t[6][p[9]] ^ t[5][p[10]] ^ t[4][p[11]] ^ t[3][p[12]] ^ t[2][p[13]] ^ t[1][p[14]] ^ t[0][p[15]]
		b = b[16:]
	}
	if len(b) >= 8 {
		p := (*[8]byte)(b)
		crc = t[7][p[0]^byte(crc>>8)] ^ t[6][p[1]^byte(crc)] ^
			t[5][p[2]] ^ t[4][p[3]] ^ t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]]
		b = b[8:]
	}
	for _, c := range b {
		crc = crc<<8 ^ t[0][c^byte(crc>>8)]
	}
	return crc
}
