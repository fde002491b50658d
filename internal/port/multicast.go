package port

import "net/netip"

// Multicaster is implemented by ports that can take part in IP multicast.
//
// What is sent to a group reaches every other port that joined it, on this host
// too, and this port itself if it has: once each. A port has no idea of who in
// its device wants which copy.
type Multicaster interface {
	// Join has datagrams to the group, sent from anywhere, arrive with it as
	// Datagram.Dst and a Local of -1. on is an address of the interface, of the
	// group's family. Joining again does nothing. EADDRNOTAVAIL: no interface has
	// the address; EADDRINUSE: somebody else keeps us from the group's port 4791;
	// ENETUNREACH: datagrams to the group cannot leave there.
	Join(group, on netip.Addr) error
	// Leave ends that. Datagrams that arrived before may still be received.
	// Leaving a group that was not joined does nothing.
	Leave(group netip.Addr)
	// Reach tells whether datagrams to the group can leave from a local address:
	// nil, or ENETUNREACH.
	Reach(local int, group netip.Addr) error
}
