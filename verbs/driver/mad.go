package driver

import "net/netip"

// MADLen is the length of a management datagram in bytes.
const MADLen = 256

// MADDevice is implemented by devices that let the owner of the process's
// connection manager serve their queue pair 1, the general services interface (IBA
// 13.5): what arrives for it and what is sent from it are management datagrams, each
// of which stands for itself.
type MADDevice interface {
	// OpenMAD begins that. notify is called without locks held when a datagram has
	// arrived and the queue of those that wait was empty; it must not block. EBUSY:
	// somebody serves queue pair 1 already.
	OpenMAD(notify func()) (MADAgent, error)
}

// MADAgent serves a device's queue pair 1.
type MADAgent interface {
	// Index finds an address in the GID table of port 1, whatever its zone.
	Index(addr netip.Addr) (index int, ok bool)
	// Addrs lists the addresses of the table, link-local ones with their zone.
	Addrs() []netip.Addr
	// LinkMTU is the MTU of the network interface in bytes.
	LinkMTU() int
	// Listen begins to receive on an address of the GID table; link-local ones have
	// their zone. Again does nothing. EADDRNOTAVAIL: the device does not have it;
	// EADDRINUSE: another process of this host does.
	Listen(addr netip.Addr) error
	// ListenAll begins to receive on every address of the GID table, and on those
	// that come to it later. It fails if none can be had.
	ListenAll() error
	// Send sends a datagram, which may be lost. Errors are those of Device.CreateAH.
	Send(m *MAD) error
	// Recv gives the oldest datagram that has arrived; false: there is none. Too
	// many that nobody takes are dropped and counted.
	Recv(m *MAD) bool
	// Close ends it. When it returns notify is not called any more, but may still be
	// running.
	Close() error
}

// MAD is a management datagram on its way from queue pair 1 to queue pair 1.
type MAD struct {
	Local, Remote netip.Addr
	TrafficClass  uint8
	HopLimit      uint8 // 0: the system's default
	Data          [MADLen]byte
}
