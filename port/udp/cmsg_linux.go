package udp

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Control messages as cmsg(3) lays them out: length (a machine word), level,
// type, data, padded to a machine word.
const (
	wordSize   = 4 << (^uint(0) >> 63)
	cmsgHdrLen = wordSize + 8
	cmsgSpace  = (cmsgHdrLen + 4 + wordSize - 1) &^ (wordSize - 1) // of one with up to 4 bytes of data

	// txCtlLen holds segment size, traffic class, hop limit and flow label.
	txCtlLen = 4 * cmsgSpace
	// rxCtlLen holds the same of a received datagram, with room to spare.
	rxCtlLen = 5 * cmsgSpace
)

func putWord(b []byte, v int) {
	if wordSize == 8 {
		binary.NativeEndian.PutUint64(b, uint64(v))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(v))
	}
}

func word(b []byte) uint64 {
	if wordSize == 8 {
		return binary.NativeEndian.Uint64(b)
	}
	return uint64(binary.NativeEndian.Uint32(b))
}

// putCmsgHdr writes a header for n bytes of data and returns where they go. b
// has cmsgSpace bytes.
func putCmsgHdr(b []byte, level, typ int32, n int) []byte {
	putWord(b, cmsgHdrLen+n)
	binary.NativeEndian.PutUint32(b[wordSize:], uint32(level))
	binary.NativeEndian.PutUint32(b[wordSize+4:], uint32(typ))
	return b[cmsgHdrLen : cmsgHdrLen+n]
}

// putInt writes a control message with an int and returns its space.
func putInt(b []byte, level, typ int32, v int) int {
	binary.NativeEndian.PutUint32(putCmsgHdr(b, level, typ, 4), uint32(v))
	return cmsgSpace
}

// putSegment writes the control message that has the kernel cut the message
// into segments of size bytes, and returns its space.
func putSegment(b []byte, size int) int {
	binary.NativeEndian.PutUint16(putCmsgHdr(b, unix.SOL_UDP, unix.UDP_SEGMENT, 2), uint16(size))
	return cmsgSpace
}

// ancillary is what came with a datagram.
type ancillary struct {
	segSize  int // 0: not coalesced
	tos, ttl uint8
}

// parseAncillary reads the control messages of a received datagram. What it
// does not know or what is too short it skips.
func parseAncillary(b []byte) (a ancillary) {
	for len(b) >= cmsgHdrLen {
		n := word(b)
		if n < cmsgHdrLen || n > uint64(len(b)) {
			return a
		}
		level := int32(binary.NativeEndian.Uint32(b[wordSize:]))
		typ := int32(binary.NativeEndian.Uint32(b[wordSize+4:]))
		data := b[cmsgHdrLen:n]
		// IP_TOS comes as one byte, all others as an int.
		v := -1
		switch {
		case len(data) >= 4:
			v = int(int32(binary.NativeEndian.Uint32(data)))
		case len(data) >= 1:
			v = int(data[0])
		}
		if v >= 0 {
			switch {
			case level == unix.SOL_UDP && typ == unix.UDP_GRO:
				a.segSize = v
			case level == unix.SOL_IP && typ == unix.IP_TOS, level == unix.SOL_IPV6 && typ == unix.IPV6_TCLASS:
				a.tos = uint8(v)
			case level == unix.SOL_IP && typ == unix.IP_TTL, level == unix.SOL_IPV6 && typ == unix.IPV6_HOPLIMIT:
				a.ttl = uint8(v)
			}
		}
		next := (int(n) + wordSize - 1) &^ (wordSize - 1)
		if next >= len(b) {
			return a
		}
		b = b[next:]
	}
	return a
}
