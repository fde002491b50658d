package pi

import (
	"math/bits"

	"github.com/verbena-rdma/verbena/ib"
)

// Guard computes the guard of one block from its bytes in order, in any pieces.
type Guard struct {
	kind ib.T10DIFGuard
	odd  bool // the sum has an odd number of bytes
	crc  uint16
	sum  uint64
}

// NewGuard begins a guard. The seed is where the CRC, or the sum before it is
// inverted, begins.
func NewGuard(kind ib.T10DIFGuard, seed uint16) Guard {
	return Guard{kind: kind, crc: seed, sum: uint64(seed)}
}

// Add goes on with b.
func (g *Guard) Add(b []byte) {
	if g.kind == ib.T10DIFCRC {
		g.crc = CRC(g.crc, b)
		return
	}
	s := sum(b)
	if g.odd {
		s = uint64(bits.ReverseBytes16(uint16(s)))
	}
	g.sum += s
	g.odd = g.odd != (len(b)&1 != 0)
}

// Value is the guard of what was added.
func (g *Guard) Value() uint16 {
	if g.kind == ib.T10DIFCRC {
		return g.crc
	}
	return ^uint16(fold16(g.sum))
}
