//go:build !linux

package host

import (
	"context"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Group is a member's view of the group. Its methods may be called by any number of goroutines.
type Group struct{}

// Join makes this process a member. It is ErrUnsupported on this system.
func Join(context.Context, Config) (*Group, error) { return nil, ErrUnsupported }

// Slot is the member's slot, 1 to 127.
func (g *Group) Slot() int { return 0 }

// Numbers tells the member's queue pair numbers: every n with n&mask == bits.
func (g *Group) Numbers() (bits, mask ib.QPN) { return 0, 0 }

// CommIDs tells the member's communication IDs: every c with c&mask == bits.
func (g *Group) CommIDs() (bits, mask uint32) { return 0, 0 }

// Sockets gives the sockets of an address.
func (g *Group) Sockets(netip.Addr, Make) (Sockets, error) { return Sockets{}, ErrUnsupported }

// Control gives the socket of slot 0 of an address.
func (g *Group) Control(netip.Addr) (int, error) { return -1, ErrUnsupported }

// Drop forgets an address.
func (g *Group) Drop(netip.Addr) error { return ErrUnsupported }

// Addrs lists the addresses in use.
func (g *Group) Addrs() []netip.Addr { return nil }

// Steward reports whether this member is the steward.
func (g *Group) Steward() bool { return false }

// Members lists who is in the group.
func (g *Group) Members() []Member { return nil }

// ServeMADs says whether this member takes management datagrams.
func (g *Group) ServeMADs(bool) {}

// Mailbox is the descriptor of this member's mailbox.
func (g *Group) Mailbox() int { return -1 }

// Send puts a message into a member's mailbox.
func (g *Group) Send(int, []byte) error { return ErrUnsupported }

// Recv takes the oldest message out of this member's mailbox.
func (g *Group) Recv([]byte) (int, error) { return 0, ErrUnsupported }

// SlotOf is the slot of a queue pair number.
func (g *Group) SlotOf(ib.QPN) (int, bool) { return 0, false }

// Route tells to which member a management datagram goes.
func (g *Group) Route(netip.Addr, netip.Addr, []byte) (int, bool) { return 0, false }

// ClaimPort implements driver.NameSharer.
func (g *Group) ClaimPort(uint16, netip.AddrPort, driver.ClaimFlags) (driver.PortClaim, error) {
	return nil, ErrUnsupported
}

// RecordConn implements driver.NameSharer.
func (g *Group) RecordConn(*driver.ConnRecord) (driver.ConnHandle, error) {
	return nil, ErrUnsupported
}

// PoolGet takes a free buffer of the pool.
func (g *Group) PoolGet() (int, bool) { return 0, false }

// PoolBytes is a buffer's memory.
func (g *Group) PoolBytes(int) []byte { return nil }

// PoolPass makes a buffer another member's.
func (g *Group) PoolPass(int, int) bool { return false }

// PoolTake takes back a buffer that was passed.
func (g *Group) PoolTake(int, int) {}

// PoolMine reports whether a buffer is this member's.
func (g *Group) PoolMine(int) bool { return false }

// PoolPut gives a buffer back.
func (g *Group) PoolPut(int) {}

// Stats counts.
func (g *Group) Stats() Stats { return Stats{} }

// Close leaves the group.
func (g *Group) Close() error { return nil }
