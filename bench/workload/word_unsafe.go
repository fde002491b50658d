package workload

import "unsafe"

// word gives the first four bytes of b as an integer that can be watched with atomics. b has at least four bytes and its start is
// aligned: slots are multiples of 64 and sizes of 4.
func word(b []byte) *uint32 {
	_ = b[3]
	return (*uint32)(unsafe.Pointer(&b[0]))
}
