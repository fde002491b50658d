package mem

import (
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/crc"
)

// guard ends a function that touches registered memory: it restores how the
// goroutine takes faults, and turns a fault into ErrFault. It is called by
// defer directly, as recover demands.
func guard(old bool, err *error) {
	debug.SetPanicOnFault(old)
	if r := recover(); r != nil {
		*err = fault(r)
	}
}

// fault gives ErrFault for a panic that came from touching memory; any other
// goes on.
func fault(r any) error {
	// Faults at an address, and only those, tell which (debug.SetPanicOnFault).
	if _, ok := r.(interface {
		runtime.Error
		Addr() uintptr
	}); ok {
		return ErrFault
	}
	panic(r)
}

// Copy copies src to dst (of the same length) under the guard. With ErrFault a
// part may have been copied. Nothing is written to a null region.
func Copy(dst, src []byte) (err error) {
	if isNull(dst) {
		return nil
	}
	defer guard(debug.SetPanicOnFault(true), &err)
	copy(dst, src)
	return nil
}

// CRC continues the CRC-32 (IEEE) over b under the guard. The state is that of
// hash/crc32.
func CRC(state uint32, b []byte) (sum uint32, err error) {
	defer guard(debug.SetPanicOnFault(true), &err)
	return crc.Update(state, b), nil
}

// FetchAdd adds to the integer in host order in the 8 bytes of b, and returns
// what was there before. With memory that is aligned to 8 bytes it is atomic
// for everybody, the application's own atomic instructions included; else (the
// region's first byte is not aligned as its address in work requests is) only
// against the device's other atomics under the same lock. A null region stays
// 0. ErrFault: the memory is not there any more, or not 8 bytes.
func FetchAdd(b []byte, add uint64) (was uint64, err error) {
	if len(b) != 8 {
		return 0, ErrFault
	}
	if isNull(b) {
		return 0, nil
	}
	defer guard(debug.SetPanicOnFault(true), &err)
	if p := word(b); p != nil {
		return atomic.AddUint64(p, add) - add, nil
	}
	was = binary.NativeEndian.Uint64(b)
	binary.NativeEndian.PutUint64(b, was+add)
	return was, nil
}

// CompareSwap stores swap in the 8 bytes of b if they hold compare, and
// returns what was there before. The rest is as with [FetchAdd].
func CompareSwap(b []byte, compare, swap uint64) (was uint64, err error) {
	if len(b) != 8 {
		return 0, ErrFault
	}
	if isNull(b) {
		return 0, nil
	}
	defer guard(debug.SetPanicOnFault(true), &err)
	if p := word(b); p != nil {
		for {
			was = atomic.LoadUint64(p)
			if was != compare || atomic.CompareAndSwapUint64(p, compare, swap) {
				return was, nil
			}
		}
	}
	was = binary.NativeEndian.Uint64(b)
	if was == compare {
		binary.NativeEndian.PutUint64(b, swap)
	}
	return was, nil
}
