package pkt

import "net/netip"

// Datagram is what a port received in one piece: one UDP datagram, or several
// of one sender that the kernel coalesced (GRO), each of SegSize bytes but for
// the last, which may be shorter.
type Datagram struct {
	Data    []byte // UDP payload(s); valid until the next Recv
	SegSize int    // == len(Data) when not coalesced
	Src     netip.AddrPort
	Dst     netip.Addr // local address it was sent to
	Local   int        // index of the port's local address (socket)
	TOS     uint8      // traffic class
	TTL     uint8      // hop limit
	// ID is the IP identification of the first segment when IDKnown; the i-th
	// segment has ID+i. Sockets do not tell it.
	ID      uint16
	IDKnown bool
	// Relayed: another process of the host, which shares the address, has received it
	// and gave it to us.
	Relayed bool
}

// Rx is a batch of received datagrams. The port fills Dgrams up to its
// capacity and owns the buffers behind.
type Rx struct {
	Dgrams []Datagram
}
