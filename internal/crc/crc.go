// Package crc computes the CRC-32 of Ethernet, zip and the ICRC of RoCE at the speed of the machine's widest carry-less
// multiplication. hash/crc32 uses the 128-bit one, which on processors with a 256-bit one leaves half of the speed unused; every
// packet is summed once by its sender and once by its receiver.
package crc

import "hash/crc32"

// Update returns the CRC of some bytes followed by b, given the CRC of the former (0 if there are none). It is
// hash/crc32.Update with the table crc32.IEEETable, faster, and may take turns with it. It reads nothing outside b and
// allocates nothing; a fault while it reads b is a panic under debug.SetPanicOnFault, as with any access from Go.
func Update(crc uint32, b []byte) uint32 { return update(hasFold, crc, b) }

// Short returns the length from which Update beats a walk over tables that the caller may have for short strings.
func Short() int {
	if hasFold {
		return minFold
	}
	return shortForTables
}

// shortForTables is the length from which hash/crc32 beats a walk over tables of 8 bytes a step.
const shortForTables = 64

// pieceLen bounds the bytes that the assembly takes at once. The scheduler and the garbage collector cannot interrupt it; between
// two pieces they can.
const pieceLen = 1 << 18

// update is Update, with the assembly if the machine is wide enough for it.
func update(wide bool, crc uint32, b []byte) uint32 {
	if !wide || len(b) < minFold {
		return crc32.Update(crc, crc32.IEEETable, b)
	}
	for len(b) >= pieceLen+minFold {
		crc = fold(crc, b[:pieceLen])
		b = b[pieceLen:]
	}
	return fold(crc, b)
}
