package udp

import "encoding/binary"

// ipv6FlowInfo is IPV6_FLOWINFO, which x/sys does not name: as a control message
// it gives the flow label of one datagram.
const ipv6FlowInfo = 11

// nativeLabel is the int whose bytes in memory are the flow label in network order.
func nativeLabel(label uint32) int32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], label&0xFFFFF)
	return int32(binary.NativeEndian.Uint32(b[:]))
}
