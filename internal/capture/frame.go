package capture

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Lengths of the headers that sockets hide.
const (
	ipv4Len = 20
	ipv6Len = 40
	udpLen  = 8

	protoUDP   = 17
	defaultTTL = 64 // Linux's, where nobody told
)

// appendIP appends the IP and UDP headers of a packet with the UDP payload, and
// the payload; checksums are right.
func appendIP(b []byte, r *record, payload []byte, id uint16) []byte {
	src, dst := r.src.Unmap(), r.dst.Unmap()
	ttl := r.ttl
	if ttl == 0 {
		ttl = defaultTTL
	}
	start := len(b)
	if is6(src, dst) {
		var h [ipv6Len]byte
		binary.BigEndian.PutUint32(h[:], 6<<28|uint32(r.tos)<<20)
		binary.BigEndian.PutUint16(h[4:], uint16(udpLen+len(payload)))
		h[6], h[7] = protoUDP, ttl
		s, d := src.As16(), dst.As16()
		copy(h[8:], s[:])
		copy(h[24:], d[:])
		b = append(b, h[:]...)
	} else {
		var h [ipv4Len]byte
		h[0], h[1] = 0x45, r.tos
		binary.BigEndian.PutUint16(h[2:], uint16(ipv4Len+udpLen+len(payload)))
		binary.BigEndian.PutUint16(h[4:], id)
		h[6] = 0x40 // DF, as the ICRC has it
		h[8], h[9] = ttl, protoUDP
		s, d := src.As4(), dst.As4()
		copy(h[12:], s[:])
		copy(h[16:], d[:])
		binary.BigEndian.PutUint16(h[10:], ^fold(sum(0, h[:])))
		b = append(b, h[:]...)
	}
	addrs := b[start+12 : start+ipv4Len]
	if is6(src, dst) {
		addrs = b[start+8 : start+ipv6Len]
	}
	pseudo := sum(uint64(protoUDP+udpLen+len(payload)), addrs)

	at := len(b)
	b = binary.BigEndian.AppendUint16(b, r.srcPort)
	b = binary.BigEndian.AppendUint16(b, roce.Port)
	b = binary.BigEndian.AppendUint16(b, uint16(udpLen+len(payload)))
	b = append(b, 0, 0)
	b = append(b, payload...)
	check := ^fold(sum(pseudo, b[at:]))
	if check == 0 {
		check = 0xFFFF // 0 would mean that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(b[at+6:], check)
	return b
}

func is6(src, dst netip.Addr) bool { return !src.Is4() || !dst.Is4() }

// sum adds 16-bit words as the checksums of IP and UDP do (RFC 1071), several at a
// time: the order of carries does not matter.
func sum(s uint64, b []byte) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		v := binary.BigEndian.Uint64(b)
		s += v>>32 + v&0xFFFFFFFF
	}
	if len(b) >= 4 {
		s += uint64(binary.BigEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		s += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) > 0 {
		s += uint64(b[0]) << 8
	}
	return s
}

// fold ends a sum.
func fold(s uint64) uint16 {
	for s > 0xFFFF {
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}
