package pkt

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Flow is where the packets of one queue pair (or of one address handle) go:
// the addresses and everything about them that does not change from packet to
// packet. The UDP source port of a flow is constant, so that the network keeps
// its packets in order.
type Flow struct {
	roce.Path // source, destination and source port, with the ICRC's start

	Local    int            // index of the port's local address (socket) that sends
	Source   int            // which of that address's UDP source ports (port.Sourcer); 0 = 4791
	To       netip.AddrPort // destination with zone, port 4791
	TClass   uint8
	HopLimit uint8 // 0: the system's default
	// FlowLabel of IPv6, 20 bits; 0: the system's choice. The ICRC leaves it out.
	FlowLabel uint32

	// Port is scratch space of the port that sends the flow (a prepared socket
	// address); the port sets it on first use. A flow belongs to one port.
	Port any

	// MaxSegs limits the segments of one GSO send to this destination; 0 means
	// the port's own limit, 1 none. It is 2 while nobody knows whether the path
	// keeps the identifications that segmentation gives.
	MaxSegs int
}
