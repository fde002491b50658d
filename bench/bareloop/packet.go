package bareloop

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/internal/crc"
)

// A packet is a header as long as BTH and RETH, payload, and a CRC of four bytes.
const (
	headerLen = 28
	crcLen    = 4

	offsetAt = 0 // where the payload goes in the sink's memory
	kindAt   = 8

	kindData = 1
	kindEnd  = 2 // the sink answers with its last count and stops
)

// pseudoLen is how much more than the packet an invariant CRC covers: the masked IP and UDP headers with eight bytes of ones.
const pseudoLen = 36

// inlineMax is the payload up to which copying it beside its header is cheaper than one more piece to gather or to sum.
const inlineMax = 64

// scratch is where a header, and a small payload, stand behind the pseudo header, so that one pass covers all.
type scratch [pseudoLen + headerLen + inlineMax]byte

func newScratch() *scratch {
	s := new(scratch)
	for i := range s[:pseudoLen] {
		s[i] = 0xff
	}
	return s
}

// crc returns the CRC of a packet, whose header, and payload when it is small, are copied to the scratch space.
func (s *scratch) crc(header, payload []byte) uint32 {
	copy(s[pseudoLen:], header[:headerLen])
	if len(payload) <= inlineMax {
		n := copy(s[pseudoLen+headerLen:], payload)
		return crc.Update(0, s[:pseudoLen+headerLen+n])
	}
	return crc.Update(crc.Update(0, s[:pseudoLen+headerLen]), payload)
}

// seal writes the CRC of header and payload to trailer.
func (s *scratch) seal(header, payload, trailer []byte) {
	binary.LittleEndian.PutUint32(trailer, s.crc(header, payload))
}

// place checks one packet and copies its payload to where its header says. It reports false for a packet that is damaged or points
// outside.
func (s *scratch) place(memory, packet []byte) bool {
	if len(packet) < headerLen+crcLen {
		return false
	}
	header, payload := packet[:headerLen], packet[headerLen:len(packet)-crcLen]
	if s.crc(header, payload) != binary.LittleEndian.Uint32(packet[len(packet)-crcLen:]) {
		return false
	}
	offset := binary.BigEndian.Uint64(header[offsetAt:])
	if offset > uint64(len(memory)) || uint64(len(payload)) > uint64(len(memory))-offset {
		return false
	}
	copy(memory[offset:], payload)
	return true
}
