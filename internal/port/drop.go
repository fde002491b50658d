package port

import "net/netip"

// Dropper is implemented by ports that can let go of an address for a while.
type Dropper interface {
	// DropLocal gives the address's UDP port free: the host has lost the address,
	// and may get it on another interface. Its index stays: what is sent from it is
	// lost until AddLocal opens the address again. An address that is not open is
	// none.
	DropLocal(addr netip.Addr)
}
