// Package psn is the serial arithmetic of packet sequence numbers.
//
// A packet sequence number (IBA 9.2, BTH:PSN) has 24 bits and wraps. Two of them can be compared as long as they are less
// than 2^23 apart, which the protocol guarantees by never having more packets than that outstanding.
package psn

// Mask selects the 24 bits that a PSN has on the wire.
const Mask = 0xFFFFFF

// PSN is a packet sequence number. The upper 8 bits are always zero; every function of this package keeps them so.
type PSN uint32

// Add returns the PSN that lies n packets after p, or -n packets before p if n is negative.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & Mask }

// Next returns the PSN that follows p.
func (p PSN) Next() PSN { return (p + 1) & Mask }

// Diff returns how many packets a lies after b: negative if a is before b, in -2^23 .. 2^23-1.
func Diff(a, b PSN) int { return int(int32((a-b)<<8) >> 8) }

// Before reports whether p comes before q.
func (p PSN) Before(q PSN) bool { return int32((p-q)<<8) < 0 }

// After reports whether p comes after q. Two PSNs exactly 2^23 apart have no order: each is Before the other.
func (p PSN) After(q PSN) bool { return int32((p-q)<<8) > 0 }

// InRange reports whether p lies in first .. last, both included, going upwards from first. The range may wrap and may have
// any length up to 2^24.
func (p PSN) InRange(first, last PSN) bool { return (p-first)&Mask <= (last-first)&Mask }
