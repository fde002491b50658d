// Package roce is the RoCEv2 wire format: header views, the opcode table, the invariant CRC and the 40-byte network header
// that a UD receive shows.
//
// Everything here is a pure function on byte slices. Headers are views: a type such as BTH is the slice that holds the header,
// its getters and setters read and write those bytes, nothing is copied. A view must have at least the length of its header
// (BTHLen and so on); Parse checks that once for a whole packet, after which no getter can go out of bounds.
//
// All fields are in network byte order on the wire, except the ICRC, which is least significant byte first (IBA 7.8.1 and A17).
// Functions take and return host integers.
//
// A UDP payload, as this package means it, begins with the BTH and ends with the ICRC.
package roce

// Port is the UDP destination port of every RoCEv2 packet, responses included (IBA A17).
const Port = 4791

// Lengths of the headers in bytes (IBA 5.2, 9.3).
const (
	BTHLen          = 12 // Base Transport Header
	RDETHLen        = 4  // Reliable Datagram Extended Transport Header
	DETHLen         = 8  // Datagram Extended Transport Header
	XRCETHLen       = 4  // XRC Extended Transport Header
	RETHLen         = 16 // RDMA Extended Transport Header
	AtomicETHLen    = 28 // Atomic Extended Transport Header
	AETHLen         = 4  // ACK Extended Transport Header
	AtomicAckETHLen = 8  // Atomic Acknowledge Extended Transport Header
	ImmDtLen        = 4  // Immediate Data
	IETHLen         = 4  // Invalidate Extended Transport Header
	FETHLen         = 4  // Flush Extended Transport Header
	ICRCLen         = 4  // Invariant CRC
	GRHLen          = 40 // Global Route Header, or what stands for it in a UD receive buffer

	// MaxHeaderLen is the largest header stack that any valid opcode has: an XRC atomic request.
	MaxHeaderLen = BTHLen + XRCETHLen + AtomicETHLen
)

// PadLen returns how many zero bytes follow n bytes of payload: the packet is padded to a multiple of 4 (IBA 9.2, PadCnt).
func PadLen(n int) int { return -n & 3 }
