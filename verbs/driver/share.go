package driver

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
)

// NameSharer is implemented by a MADAgent whose addresses several processes share. What
// all of them name at an address, ports and communication IDs, is kept apart by it. An
// agent that has the methods but shares nothing at present (it was switched off, or is
// not to be had on this system) fixes no bits, and grants every claim.
type NameSharer interface {
	// CommIDs tells which communication IDs and SIDR request IDs the process may give:
	// every c with c&mask == bits. By them messages find it. A mask of 0 fixes none.
	CommIDs() (bits, mask uint32)

	// ClaimPort claims a port of a port space (RDMA_PS_*) on an address of the device,
	// or on all of them (0.0.0.0, ::), against all processes that share the device's
	// addresses, this one included. The port is not 0: see ClaimUnused. The error names
	// the process that holds it if it can be told.
	//
	// EADDRINUSE: somebody holds it; if a wildcard is the reason it matches
	// EADDRNOTAVAIL too, which is what Linux says then. EINVAL: no address, or port 0.
	// ENOMEM: there are too many claims.
	ClaimPort(space uint16, at netip.AddrPort, flags ClaimFlags) (PortClaim, error)

	// RecordConn tells the others what they need to know to end the connection for this
	// process when it dies. It returns after they can see it. ENOMEM: there are too many.
	RecordConn(r *ConnRecord) (ConnHandle, error)
}

// ClaimFlags says how a port is claimed.
type ClaimFlags uint8

const (
	// ClaimReuse bears others on the port that have it too (rdma_set_option,
	// RDMA_OPTION_ID_REUSEADDR), until one of them listens.
	ClaimReuse ClaimFlags = 1 << iota

	// ClaimAFOnly keeps an IPv6 claim to IPv6 (RDMA_OPTION_ID_AFONLY); IPv4 ones always
	// keep to IPv4.
	ClaimAFOnly

	// ClaimUnused fails if anybody holds the port on whatever address and with whatever
	// flags. Who looks for a free port, as for port 0, tries one after the other so.
	ClaimUnused
)

// PortClaim is a claim of a port. It ends with Release, and with the process.
type PortClaim interface {
	// Listen begins or ends that requests to the port are for this process. One that
	// listens shares its port with nobody: EADDRINUSE if others have claimed it too,
	// which both have allowed. With it the claim is no longer one that bears others.
	Listen(on bool) error
	// Release gives the port back. Again does nothing.
	Release()
}

// ConnHandle is a connection that the others know of.
type ConnHandle interface {
	// Update changes the record; the others see the old one or the new one, whole.
	Update(r *ConnRecord)
	// Release takes it back: there is nothing to end any more. Again does nothing.
	Release()
}

// ConnRecord is what it takes to end a connection for a process that died: to send its
// DREQ (IBA 12.6.13).
type ConnRecord struct {
	Local, Remote       netip.Addr // of the management datagrams; without zones
	LocalID, RemoteID   uint32     // communication IDs
	LocalQPN, RemoteQPN ib.QPN
	LocalPSN, RemotePSN uint32 // the first ones, 24 bits
	TrafficClass        uint8  // of the management datagrams
	HopLimit            uint8  // 0: the system's default
	State               uint8  // of the owner's own meaning
}

// AddrSharer is implemented by devices that share their addresses with other processes.
type AddrSharer interface {
	// Sharers lists the other processes that do at the moment, each once, by the IDs
	// that they have in their own PID namespaces: to be shown.
	Sharers() []int
}
