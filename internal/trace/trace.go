// Package trace is how somebody looks at the packets of a device: a test, a
// command that shows them, a writer of captures.
package trace

import "net/netip"

// Packet is one packet as it was given to the port or came from it.
type Packet struct {
	Time     int64 // the device's clock, monotonic ns
	Sent     bool  // false: received, nothing of it checked yet
	Src, Dst netip.Addr

	// Head are the first bytes of the UDP payload: of a received packet all of
	// them, of a sent one at least BTH and extension headers. Payload that is
	// still in registered memory is not shown, only the path that sends may
	// touch it. The slice is valid during the call.
	Head []byte
	Size int // bytes of the whole UDP payload, ICRC included
}

// A Recorder is called for every packet that a device sends or receives; nil
// switches it off. It is called on the data path, with locks held and from
// several goroutines at once: it must be quick and must not call the device.
type Recorder func(*Packet)
