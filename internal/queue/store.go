package queue

const chunkBits = 4

// store is storage of a fixed number of elements for each slot of a ring. It
// comes in chunks of 16 slots, made when one of them is used first, so that a
// deep queue that never uses its long lists does not pay for them.
type store[T any] struct {
	per    int
	slots  int
	chunks [][]T
}

func newStore[T any](slots, per int) store[T] {
	return store[T]{per: per, slots: slots}
}

// slot gives the storage of slot i, length 0 and capacity per.
func (s *store[T]) slot(i int) []T {
	if s.per == 0 {
		return nil
	}
	if s.chunks == nil {
		s.chunks = make([][]T, (s.slots+1<<chunkBits-1)>>chunkBits)
	}
	c := i >> chunkBits
	if s.chunks[c] == nil {
		s.chunks[c] = make([]T, min(1<<chunkBits, s.slots-c<<chunkBits)*s.per)
	}
	at := i & (1<<chunkBits - 1) * s.per
	return s.chunks[c][at : at : at+s.per]
}
