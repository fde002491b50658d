package mem

// permutation is a secret bijection of the 24-bit numbers: it spreads the
// slots of a table over the keys, so that one key does not tell the next. It
// hides them from a peer that guesses, not from one that collects many keys
// and does algebra; what protects memory is the address check and the queue
// pair's number besides.
type permutation struct {
	mul, inv [3]uint32 // odd factors and their inverses modulo 2^24
	add      [3]uint32
}

const mask24 = 1<<24 - 1

func newPermutation(seed uint64) (p permutation) {
	for i := range p.mul {
		m := uint32(splitMix(&seed)) | 1
		// Newton's iteration doubles the number of right bits from 3.
		inv := m
		for range 4 {
			inv *= 2 - m*inv
		}
		p.mul[i], p.inv[i] = m&mask24, inv&mask24
		p.add[i] = uint32(splitMix(&seed)) & mask24
	}
	return p
}

// apply permutes a 24-bit number.
func (p *permutation) apply(x uint32) uint32 {
	x = (x*p.mul[0] + p.add[0]) & mask24
	x ^= x >> 12
	x = (x*p.mul[1] + p.add[1]) & mask24
	x ^= x >> 12
	return (x*p.mul[2] + p.add[2]) & mask24
}

// undo is the inverse of apply.
func (p *permutation) undo(x uint32) uint32 {
	x = (x - p.add[2]) * p.inv[2] & mask24
	x ^= x >> 12
	x = (x - p.add[1]) * p.inv[1] & mask24
	x ^= x >> 12
	return (x - p.add[0]) * p.inv[0] & mask24
}

// splitMix is one step of the SplitMix64 generator.
func splitMix(s *uint64) uint64 {
	*s += 0x9E3779B97F4A7C15
	z := *s
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
