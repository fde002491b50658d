// Package port defines what carries datagrams for a device: the only place
// where the software device meets a network. UDP sockets (port/udp) and the
// simulated network (port/simnet) implement it.
package port

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// Caps is what a port can do. Users ask these, never the type of the port.
type Caps struct {
	MaxSegs     int  // segments in one send (GSO); 1 = none
	RecvBuf     int  // bytes of receive buffer of one local address, as the kernel accounts (0: unlimited)
	IDKnown     bool // received datagrams tell their IP identification: ICRCs are checked in full
	NeedsProbe  bool // GSO over IPv4 to other hosts must be probed first
	Checksummed bool // the network below verifies a checksum of its own
}

// Stats are counters of a port; all grow only.
type Stats struct {
	TxMsgs, TxPackets, TxBytes uint64
	TxErrors, TxAgain, TxFault uint64 // errors; would block; payload memory gone
	RxDgrams, RxBytes, RxTrunc uint64
	RxForeign                  uint64 // for a group, over another interface than it was joined on
	RxOverflow                 uint64 // found the receive buffer full
	RxGarbage                  uint64 // messages of processes that share the address that cannot be
	Relayed, RelayLost         uint64 // datagrams for other processes that all come here: given to them; not taken
	GSOOff                     uint64 // times an offload was switched off after a failure
}

// Port sends and receives batches of datagrams to and from UDP port 4791.
// Recv may be called by one goroutine at a time, Send by several; both never
// block.
type Port interface {
	// AddLocal opens a local address and returns its index for Flow.Local. The
	// same address gives the same index. EADDRINUSE: somebody else on this host
	// has the address's port 4791; EADDRNOTAVAIL: no such address.
	AddLocal(addr netip.Addr) (int, error)
	// Send sends all of b. What cannot be sent counts as lost, as in any network.
	Send(b *pkt.Tx)
	// Recv fills b.Dgrams (its length is set) with what is there now, and
	// returns the number of datagrams.
	Recv(b *pkt.Rx) int
	Caps() Caps
	Stats() Stats
	Close() error
}

// Waiter is implemented by ports that can put a thread to sleep until
// something arrives.
type Waiter interface {
	// Wait blocks the calling thread until a datagram may be there, d has
	// passed (d < 0: no limit), or Kick was called.
	Wait(d time.Duration)
	// Kick ends a Wait that is running, or the next one.
	Kick()
}

// Sourcer is implemented by ports that can send from more UDP source ports than
// one, so that the network can spread queue pairs over its paths.
type Sourcer interface {
	// Source picks a source for a flow from the local address; equal keys give
	// equal sources. src is for Flow.Source, udpPort is the source port.
	Source(local int, key uint32) (src int, udpPort uint16, err error)
}

// Preparer is implemented by ports that keep something in Flow.Port. A flow that
// several shards use must be prepared before the first of them sends.
type Preparer interface {
	Prepare(f *pkt.Flow)
}
