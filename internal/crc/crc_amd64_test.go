//go:build !purego

package crc

import (
	"hash/crc32"
	"testing"
)

// power returns x^n mod P, bit 31 being x^0.
func power(n int) uint32 {
	r := uint32(1) << 31
	for range n {
		r = r>>1 ^ crc32.IEEE&-(r&1)
	}
	return r
}

// quotient returns floor(x^95/P), bit 63 being x^0, by long division.
func quotient() (q uint64) {
	for n := 63; n >= 0; n-- {
		// The coefficient of x^n is what x^(95-n-1), reduced, carries out when it is multiplied by x.
		q |= uint64(power(95-n-1)&1) << (63 - n)
	}
	return q
}

func TestFoldKeys(t *testing.T) {
	var keys []uint64
	for _, d := range []int{2048, 1024, 768, 512, 256, 128} {
		keys = append(keys, uint64(power(d+63))<<32, uint64(power(d-1))<<32)
	}
	keys = append(keys, uint64(power(95)), quotient(), crc32.IEEE<<1|1)
	if len(keys) != len(foldKeys) {
		t.Fatalf("%d keys, want %d", len(foldKeys), len(keys))
	}
	for i, want := range keys {
		if foldKeys[i] != want {
			t.Errorf("key %d is %#016x, want %#016x", i, foldKeys[i], want)
		}
	}
}
