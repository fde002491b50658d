package roce

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/crc"
)

// Lengths of the headers below the BTH that the ICRC covers.
const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8

	// MaxUDPPayload is the longest UDP payload whose length an IPv4 header can carry.
	MaxUDPPayload = 0xFFFF - ipv4Len - udpLen
)

// Path is the addressing of a flow of packets that the ICRC covers: addresses, UDP source port and, implied, the destination
// port 4791. It is a value; make it with NewPath. Comparing two paths with == compares the flows.
type Path struct {
	src, dst netip.Addr
	base     uint32 // register after prefix, IP and UDP header with lengths and identification 0
	srcPort  uint16
	is6      bool
}

// NewPath returns the path from src to dst, as the sender of the packets sees it. If both are IPv4 or IPv4-mapped addresses the
// packets are IPv4, else IPv6. A zone of an IPv6 address is kept but does not enter the ICRC.
func NewPath(src, dst netip.Addr, srcPort uint16) Path {
	p := Path{src: src, dst: dst, srcPort: srcPort}
	s, d := src.Unmap(), dst.Unmap()
	if s.Is4() && d.Is4() {
		p.src, p.dst = s, d
		p.base = startRegister4(s.As4(), d.As4(), srcPort)
	} else {
		p.is6 = true
		p.base = startRegister6(src.As16(), dst.As16(), srcPort)
	}
	return p
}

// Src returns the source address: 4 bytes for IPv4 paths, never IPv4-mapped.
func (p *Path) Src() netip.Addr { return p.src }

// Dst returns the destination address: 4 bytes for IPv4 paths, never IPv4-mapped.
func (p *Path) Dst() netip.Addr { return p.dst }

// SrcPort returns the UDP source port.
func (p *Path) SrcPort() uint16 { return p.srcPort }

// Is6 reports whether the packets are IPv6.
func (p *Path) Is6() bool { return p.is6 }

// icrcSeed is the register after the 8 bytes of ones that stand for the masked LRH of InfiniBand (IBA 7.8.1).
const icrcSeed = 0xDEBB20E3

// startRegister4 is the register after prefix, IPv4 and UDP header. Set to ones, because routers change them: TOS, TTL, both
// checksums (IBA A17). Lengths and identification count as zero; Start adds them.
func startRegister4(src, dst [4]byte, srcPort uint16) uint32 {
	h := [ipv4Len + udpLen]byte{0: 0x45, 1: 0xFF, 6: 0x40, 8: 0xFF, 9: 17, 10: 0xFF, 11: 0xFF, 26: 0xFF, 27: 0xFF}
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	binary.BigEndian.PutUint16(h[20:], srcPort)
	binary.BigEndian.PutUint16(h[22:], Port)
	return crcRegister(icrcSeed, h[:])
}

// startRegister6 is the register after prefix, IPv6 and UDP header. Set to ones: traffic class, flow label, hop limit and the
// UDP checksum.
func startRegister6(src, dst [16]byte, srcPort uint16) uint32 {
	h := [ipv6Len + udpLen]byte{0: 0x6F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 6: 17, 7: 0xFF, 46: 0xFF, 47: 0xFF}
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	binary.BigEndian.PutUint16(h[40:], srcPort)
	binary.BigEndian.PutUint16(h[42:], Port)
	return crcRegister(icrcSeed, h[:])
}

// addTab is what a 16-bit header field adds to the register at the end of the headers: [0] for its high byte, [1] for its low
// byte. CRC is affine over GF(2), so the fields' contributions are independent and the same on every path.
type addTab [2][256]uint32

func (t *addTab) at(v uint16) uint32 { return t[0][v>>8] ^ t[1][v&0xFF] }

// makeAddTab returns the table for fields that all have the same value, at the given offsets of headers that are n bytes long.
func makeAddTab(n int, offsets ...int) (t addTab) {
	for v := range 256 {
		for _, off := range offsets {
			for half := range 2 {
				r := crcTab[0][v]
				for range n - (off + half) - 1 {
					r = r>>8 ^ crcTab[0][r&0xFF]
				}
				t[half][v] ^= r
			}
		}
	}
	return t
}

var (
	addLen4   = makeAddTab(ipv4Len+udpLen, 2)
	addID4    = makeAddTab(ipv4Len+udpLen, 4)
	addUDPLen = makeAddTab(ipv4Len+udpLen, ipv4Len+4)
	addLen6   = makeAddTab(ipv6Len+udpLen, 4, ipv6Len+4) // payload length and UDP length are the same number
)

// Start returns the CRC state after the masked headers below the BTH, for a packet whose UDP payload has the given length in
// bytes, ICRC included. The identification must be the one that goes out with the packet; IPv6 has none and ignores it.
func (p *Path) Start(udpPayloadLen int, id uint16) uint32 {
	udp := uint16(udpPayloadLen + udpLen)
	if p.is6 {
		return ^(p.base ^ addLen6.at(udp))
	}
	return ^(p.base ^ addLen4.at(udp+ipv4Len) ^ addUDPLen.at(udp) ^ addID4.at(id))
}

// StartBTH continues a state over the packet's bytes beginning with the BTH, whose byte 4 (FECN, BECN) counts as ones.
// It needs at least the 12 bytes of the BTH and may have more.
func StartBTH(state uint32, hdr []byte) uint32 {
	_ = hdr[BTHLen-1]
	r := crcStep8(^state, binary.LittleEndian.Uint32(hdr), binary.LittleEndian.Uint32(hdr[4:])|0xFF)
	return Update(^r, hdr[8:])
}

// Update continues a state over bytes behind the BTH.
func Update(state uint32, b []byte) uint32 {
	if len(b) < crc.Short() {
		return ^crcRegister(^state, b)
	}
	return crc.Update(state, b)
}

// Sum returns the ICRC of what the state has seen, for PutICRC.
func Sum(state uint32) uint32 { return state }

// PutICRC writes the ICRC to the first 4 bytes of b, least significant byte first (IBA 7.8.1), whatever the machine.
func PutICRC(b []byte, sum uint32) { binary.LittleEndian.PutUint32(b, sum) }

// ICRC returns the ICRC that the last 4 bytes of a UDP payload carry. The payload must have 4 bytes.
func ICRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b[len(b)-ICRCLen:]) }

// Compute returns the right ICRC for the UDP payload b, whose last 4 bytes (the place of the ICRC) are not read. The payload
// must have BTH and ICRC.
func (p *Path) Compute(b []byte, id uint16) uint32 {
	return Sum(StartBTH(p.Start(len(b), id), b[:len(b)-ICRCLen]))
}

// Check reports whether the received UDP payload b has the right ICRC, for a packet that came with the IPv4 identification id
// (ignored for IPv6) and DF set. Payloads that are too short or too long to be a packet fail.
func (p *Path) Check(b []byte, id uint16) bool {
	if len(b) < BTHLen+ICRCLen || len(b) > MaxUDPPayload {
		return false
	}
	return p.Compute(b, id) == ICRC(b)
}

// Solve checks the ICRC of a received UDP payload whose IPv4 identification is unknown, as it is to a UDP socket. It returns
// the identification that makes the ICRC right; there is at most one. With ok false there is none: the packet is corrupt.
// Of corrupt packets one in 65536 passes by chance, with a random identification, which an IDTracker notices. The packet must
// have come with DF set. Over IPv6 this is Check, and id is 0.
//
// The ICRC is affine in the identification, so the difference between the ICRC received and the right one for identification 0
// is the identification as a polynomial, multiplied by a power of x that depends on the number of bytes behind it only.
// Dividing by that power must leave a polynomial of 16 terms, the other 16 being zero. The cost does not depend on the value.
func (p *Path) Solve(b []byte) (id uint16, ok bool) {
	if len(b) < BTHLen+ICRCLen || len(b) > MaxUDPPayload {
		return 0, false
	}
	diff := p.Compute(b, 0) ^ ICRC(b)
	if p.is6 {
		return 0, diff == 0
	}
	const idOffset = 4
	r := crcUnshift(diff, ipv4Len+udpLen-idOffset+len(b)-ICRCLen)
	if r>>16 != 0 {
		return 0, false
	}
	return uint16(r<<8 | r>>8), true
}
