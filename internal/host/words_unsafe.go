//go:build linux

package host

import "unsafe"

// words is the memory of b as 64-bit words. b comes from mmap: it is aligned to a page.
func words(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}
