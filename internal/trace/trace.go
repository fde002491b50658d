// Package trace is how somebody looks at the packets of a device: a test, a
// command that shows them, a writer of captures.
package trace

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/mem"
)

// Packet is one packet as it was given to the port or came from it.
type Packet struct {
	Time     int64 // the device's clock, monotonic ns
	Sent     bool  // false: received, nothing of it checked yet
	Src, Dst netip.Addr
	SrcPort  uint16 // of UDP; the destination's is 4791

	// What the IP header says besides. TTL 0: of a sent packet the system's
	// default, of a received one not known.
	TOS, TTL uint8
	// ID is the IP identification if IDKnown; sockets do not tell that of
	// received packets.
	ID      uint16
	IDKnown bool

	// Head are the first bytes of the UDP payload: of a received packet all of
	// them, of a sent one at least BTH and extension headers. The slice is valid
	// during the call. More of a sent packet may be in registered memory, which
	// only Copy may touch.
	Head []byte
	Size int // bytes of the whole UDP payload, ICRC included

	// Rest is what follows Head, in pieces, the last of which may be longer than
	// the packet.
	Rest [][]byte
}

// Copy copies the UDP payload to dst, as much as there is room for, and returns
// the number of bytes. Payload that is not there any more (an application
// unmapped it) is zero. It may be called during the call of the Recorder only.
func (p *Packet) Copy(dst []byte) int {
	dst = dst[:min(len(dst), p.Size)]
	n := copy(dst, p.Head)
	for _, r := range p.Rest {
		k := min(len(r), len(dst)-n)
		if mem.Copy(dst[n:n+k], r[:k]) != nil {
			clear(dst[n : n+k])
		}
		n += k
	}
	return n
}

// A Recorder is called for every packet that a device sends or receives; nil
// switches it off. It is called on the data path, with locks held and from
// several goroutines at once: it must be quick and must not call the device.
type Recorder func(*Packet)
