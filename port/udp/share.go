package udp

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/host"
)

// Group is the processes that share addresses, as a port sees them. *host.Group
// implements it; see there.
type Group interface {
	Slot() int
	Numbers() (bits, mask ib.QPN)
	Sockets(addr netip.Addr, mk host.Make) (host.Sockets, error)
	Control(addr netip.Addr) (int, error)
	Drop(addr netip.Addr) error
	Addrs() []netip.Addr
	Steward() bool

	Mailbox() int
	Send(slot int, msg []byte) error
	Recv(b []byte) (int, error)
	SlotOf(n ib.QPN) (slot int, ok bool)
	Route(local, remote netip.Addr, mad []byte) (slot int, ok bool)

	PoolGet() (buf int, ok bool)
	PoolBytes(buf int) []byte
	PoolPass(buf, slot int) bool
	PoolTake(buf, slot int)
	PoolMine(buf int) bool
	PoolPut(buf int)
}

var _ Group = (*host.Group)(nil)
