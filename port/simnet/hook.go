package simnet

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Event is a datagram that enters the network, as hooks see it. It is valid
// during the call only.
type Event struct {
	roce.Packet // decoded; Err tells what is wrong with it

	Err       error
	Src       netip.AddrPort
	Dst       netip.Addr
	To        netip.Addr // Dst, or of whom in the group Dst this copy is for
	Now       int64
	ID        uint16 // IP identification
	TOS       uint8
	TTL       uint8
	FlowLabel uint32 // IPv6
	Count     uint64 // datagrams that entered the network before
	LinkCount uint64 // datagrams that entered this link before
	Injected  bool   // by Inject, not by a port

	// Fate is what becomes of it, so far as the network knows when it enters;
	// for filters the fate is not decided yet.
	Fate Fate
	// Arrives is the time of arrival, for sniffers; 0 if it does not arrive.
	Arrives int64
}

// Fate is a set of things that happen to a datagram.
type Fate uint8

// What happens to a datagram.
const (
	Lost        Fate = 1 << iota // dropped by a filter, by loss or by a full link
	Partitioned                  // the link is cut
	NoHost                       // nobody has the destination address
	Duplicated
	Reordered
	Corrupted
)

// String names the set.
func (f Fate) String() string {
	s := ""
	for i, name := range [...]string{"lost", "partitioned", "no-host", "dup", "late", "corrupt"} {
		if f&(1<<i) != 0 {
			if s != "" {
				s += ","
			}
			s += name
		}
	}
	return s
}

// Verdict is what a filter does with a datagram. The zero value lets it pass
// (to the next filter, then to the link's own condition).
type Verdict struct {
	Drop    bool
	Dup     int   // so many more copies
	Delay   int64 // ns more on the way; what follows may overtake
	Corrupt int   // so many bits are flipped, at random
}

// Verdicts without numbers.
var (
	Pass = Verdict{}
	Drop = Verdict{Drop: true}
)

// Dup delivers n more copies.
func Dup(n int) Verdict { return Verdict{Dup: n} }

// Delay delivers d ns later, without holding up what follows.
func Delay(d int64) Verdict { return Verdict{Delay: d} }

// Corrupt flips n bits.
func Corrupt(n int) Verdict { return Verdict{Corrupt: n} }

// Nth gives the verdict for the n-th datagram (from 1) that matches, and lets
// all others pass.
func Nth(n int, match func(*Event) bool, v Verdict) func(*Event) Verdict {
	seen := 0
	return func(e *Event) Verdict {
		if match(e) {
			if seen++; seen == n {
				return v
			}
		}
		return Pass
	}
}

// Every gives the verdict for every datagram that matches.
func Every(match func(*Event) bool, v Verdict) func(*Event) Verdict {
	return func(e *Event) Verdict {
		if match(e) {
			return v
		}
		return Pass
	}
}

// Filter adds f, which is asked for every datagram that enters the network. It
// may change the bytes of e.B: they are the network's copy. It must not call
// the network. remove takes it away again.
func (n *Net) Filter(f func(e *Event) Verdict) (remove func()) {
	p := &f
	n.filters = append(n.filters, p)
	return func() { n.filters = without(n.filters, p) }
}

// Sniff adds f, which sees every datagram that enters the network, as it was
// sent, with its fate. remove takes it away again.
func (n *Net) Sniff(f func(e *Event)) (remove func()) {
	p := &f
	n.sniffers = append(n.sniffers, p)
	return func() { n.sniffers = without(n.sniffers, p) }
}

func without[T comparable](s []T, x T) []T {
	var out []T
	for _, v := range s {
		if v != x {
			out = append(out, v)
		}
	}
	return out
}
