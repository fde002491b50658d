package simnet

import "math/bits"

// rng is SplitMix64: a few instructions a number, any seed is good.
type rng struct{ s uint64 }

func (r *rng) next() uint64 {
	r.s += 0x9E3779B97F4A7C15
	z := r.s
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// below returns a number in [0, n); 0 for n <= 0.
func (r *rng) below(n int64) int64 {
	if n <= 0 {
		return 0
	}
	hi, _ := bits.Mul64(r.next(), uint64(n))
	return int64(hi)
}

// chance is true with probability p. It draws nothing for p <= 0.
func (r *rng) chance(p float64) bool {
	return p > 0 && float64(r.next()>>11) < p*(1<<53)
}
