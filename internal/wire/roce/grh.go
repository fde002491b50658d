package roce

import (
	"encoding/binary"
	"net/netip"
)

const protoUDP = 17

// PutGRH4 writes the 40 bytes that a UD receive shows for an IPv4 packet: 20 zero bytes, then the IPv4 header as it came, with
// DF and a right header checksum (readers tell it from IPv6 by that checksum). The length is the UDP
// payload's, ICRC included. Addresses may be IPv4-mapped; those that are not IPv4 are written as 0.0.0.0.
func PutGRH4(b []byte, src, dst netip.Addr, tos, ttl uint8, id uint16, udpPayloadLen int) {
	_ = b[GRHLen-1]
	clear(b[:GRHLen-ipv4Len])
	h := b[GRHLen-ipv4Len : GRHLen]
	h[0], h[1] = 0x45, tos
	binary.BigEndian.PutUint16(h[2:], uint16(ipv4Len+udpLen+udpPayloadLen))
	binary.BigEndian.PutUint16(h[4:], id)
	h[6], h[7] = 0x40, 0
	h[8], h[9] = ttl, protoUDP
	s, d := addr4(src), addr4(dst)
	copy(h[12:], s[:])
	copy(h[16:], d[:])
	binary.BigEndian.PutUint16(h[10:], ipv4Checksum(h))
}

func addr4(a netip.Addr) [4]byte {
	if a = a.Unmap(); a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}

// ipv4Checksum returns the checksum of a header without options, taking the checksum field as 0 (RFC 791).
func ipv4Checksum(h []byte) uint16 {
	_ = h[ipv4Len-1]
	var sum uint32
	for i := 0; i < ipv4Len; i += 2 {
		if i != 10 {
			sum += uint32(binary.BigEndian.Uint16(h[i:]))
		}
	}
	sum = sum&0xFFFF + sum>>16
	sum = sum&0xFFFF + sum>>16
	return ^uint16(sum)
}

// PutGRH6 writes the 40 bytes that a UD receive shows for an IPv6 packet: the IPv6 header, which has the layout of a GRH, with
// next header 17. It takes the low 20 bits of the flow label. The length is the UDP payload's, ICRC included.
func PutGRH6(b []byte, src, dst netip.Addr, tclass uint8, flowLabel uint32, hop uint8, udpPayloadLen int) {
	_ = b[GRHLen-1]
	binary.BigEndian.PutUint32(b, 6<<28|uint32(tclass)<<20|flowLabel&0xFFFFF)
	binary.BigEndian.PutUint16(b[4:], uint16(udpLen+udpPayloadLen))
	b[6], b[7] = protoUDP, hop
	s, d := src.As16(), dst.As16()
	copy(b[8:], s[:])
	copy(b[24:], d[:])
}

// ParseGRH reads the first 40 bytes of a UD receive buffer, as Linux does: IPv4 if byte 0 does not begin with 6 and byte 20
// begins with 4; if byte 0 begins with 6, IPv4 only if byte 20 is 0x45 and the IPv4 header checksum there is right, otherwise
// IPv6. IPv4 addresses are returned as 4-byte addresses; the class is the TOS, the hop limit the TTL, the flow label 0.
// The next header of IPv6 may be UDP or the one of a native GRH (0x1B). ok is false if b is too short or shows neither.
func ParseGRH(b []byte) (src, dst netip.Addr, tclass, hop uint8, flow uint32, ok bool) {
	if len(b) < GRHLen {
		return src, dst, 0, 0, 0, false
	}
	h4 := b[GRHLen-ipv4Len : GRHLen]
	var is4 bool
	if b[0]>>4 != 6 {
		if h4[0]>>4 != 4 {
			return src, dst, 0, 0, 0, false
		}
		is4 = true
	} else {
		is4 = h4[0] == 0x45 && binary.BigEndian.Uint16(h4[10:]) == ipv4Checksum(h4)
	}
	if is4 {
		return netip.AddrFrom4([4]byte(h4[12:16])), netip.AddrFrom4([4]byte(h4[16:20])), h4[1], h4[8], 0, true
	}
	const nextHeaderGRH = 0x1B
	if b[6] != protoUDP && b[6] != nextHeaderGRH {
		return src, dst, 0, 0, 0, false
	}
	w := binary.BigEndian.Uint32(b)
	src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	return src, dst, uint8(w >> 20), b[7], w & 0xFFFFF, true
}
