package host

import (
	"context"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Group is a member's view of the group. Its methods may be called by any number of
// goroutines; none of them waits for another process except Join and Sockets.
type Group struct{}

// Join makes this process a member: it founds the group or is let in by any member. The
// errors are those of this package, and what the system says (EMFILE, ENOMEM). ctx bounds how
// long members that do not answer are waited for, at most 5 s.
func Join(ctx context.Context, cfg Config) (*Group, error) { return nil, ErrUnsupported }

// Slot is the member's slot, 1 to 127.
func (g *Group) Slot() int { return 0 }

// Numbers tells the member's queue pair numbers: every n with n&mask == bits.
func (g *Group) Numbers() (bits, mask ib.QPN) { return 0, 0 }

// CommIDs tells the member's communication and SIDR request IDs: every c with c&mask == bits.
func (g *Group) CommIDs() (bits, mask uint32) { return 0, 0 }

// Sockets gives the sockets of an address, new descriptors with each call; mk makes
// them if the address is not in use yet. One process at a time does. Zones are ignored. The errors are
// those of mk, ErrAddrs, ErrDescriptors, ErrClosed, and EAGAIN if a process that is about to do the same
// does not get ahead (it is stopped).
func (g *Group) Sockets(addr netip.Addr, mk Make) (Sockets, error) { return Sockets{}, ErrUnsupported }

// Drop forgets an address, as when the interface has lost it: when the last member has
// closed its sockets they are gone. Members that have it in use keep their descriptors. ENOENT: it is not in use.
func (g *Group) Drop(addr netip.Addr) error { return ErrUnsupported }

// Addrs lists the addresses that are in use by any member, without zones.
func (g *Group) Addrs() []netip.Addr { return nil }

// Steward reports whether this member is the steward, which reads slot 0's sockets. It is
// a look at shared memory: who reads asks before each batch.
func (g *Group) Steward() bool { return false }

// Members lists who is in the group, by slot.
func (g *Group) Members() []Member { return nil }

// ServeMADs says whether this member takes management datagrams, for which nobody else is found.
func (g *Group) ServeMADs(on bool) {}

// Mailbox is the descriptor of this member's mailbox, to wait for messages: it stays the group's.
func (g *Group) Mailbox() int { return -1 }

// Send puts a message, of at most MaxMail bytes, into a member's mailbox, this one's included. It does not
// block. EAGAIN: the mailbox is full, the message is dropped and counted; ESRCH: the slot is
// nobody's; EMSGSIZE: it is too long.
func (g *Group) Send(slot int, msg []byte) error { return ErrUnsupported }

// Recv takes the oldest message out of this member's mailbox; EAGAIN: there is none. What does not fit into b is
// cut off. A message may have been written by any member, or for the slot's owner before this one: it is input.
func (g *Group) Recv(b []byte) (int, error) { return 0, ErrUnsupported }

// SlotOf is the slot of a queue pair number; ok is false if nobody has it.
func (g *Group) SlotOf(n ib.QPN) (slot int, ok bool) { return 0, false }

// Route tells to which member a management datagram goes that came from remote to the address local; ok
// is false if nobody takes it. REQ and SIDR_REQ go to who listens, all others to whose
// communication ID they answer; what is nobody's goes to the lowest slot that serves queue pair 1, which
// knows how to refuse it.
func (g *Group) Route(local, remote netip.Addr, mad []byte) (slot int, ok bool) { return 0, false }

// ClaimPort implements driver.NameSharer.
func (g *Group) ClaimPort(space uint16, at netip.AddrPort, flags driver.ClaimFlags) (driver.PortClaim, error) {
	return nil, ErrUnsupported
}

// RecordConn implements driver.NameSharer.
func (g *Group) RecordConn(r *driver.ConnRecord) (driver.ConnHandle, error) {
	return nil, ErrUnsupported
}

// PoolGet takes a free buffer of the memory that all members share, for a datagram that is to be handed
// over; ok is false if none is free. What dead members have had is free.
func (g *Group) PoolGet() (buf int, ok bool) { return 0, false }

// PoolBytes is a buffer's memory, of PoolBuf bytes, nil if there is no such buffer. Other members may write to it at
// any time: what is read from it is input, and is read once.
func (g *Group) PoolBytes(buf int) []byte { return nil }

// PoolPass makes this member's buffer another member's, who is then told by a message; false: it has
// too many already, or is gone.
func (g *Group) PoolPass(buf, slot int) bool { return false }

// PoolMine reports whether a buffer is this member's: what a message says must be so.
func (g *Group) PoolMine(buf int) bool { return false }

// PoolPut gives this member's buffer back. Of others' it does nothing.
func (g *Group) PoolPut(buf int) {}

// Stats counts what happened since Join.
func (g *Group) Stats() Stats { return Stats{} }

// Close leaves the group: ports and records are void, the slot is free. The sockets that it has
// given are the caller's to close, before.
func (g *Group) Close() error { return nil }
