package mem

import "unsafe"

// foreign makes a slice of memory that Go does not manage. The caller has
// checked that addr is not 0, that length fits an int and that the range does
// not wrap around the address space.
func foreign(addr uintptr, length int) []byte {
	// The bits of addr are read as a pointer: they never were one of Go's.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), length)
}

// address is where the memory of b, which may be empty, begins.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// isNull reports whether b lies in the memory behind null regions.
func isNull(b []byte) bool {
	return address(b)-uintptr(unsafe.Pointer(unsafe.SliceData(null[:]))) < nullLen
}

// word gives the 8 bytes of b as an integer, nil if they are not aligned for
// atomic instructions. The caller has checked that there are 8.
func word(b []byte) *uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)&7 != 0 {
		return nil
	}
	return (*uint64)(p)
}
