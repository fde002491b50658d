package host

import (
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Sizes that all members have in common.
const (
	Slots    = 128      // of an address, slot 0 included
	MaxAddrs = 32       // addresses of a group that are in use
	QPNBits  = 17       // of a queue pair number that a member chooses
	CommBits = 25       // of a communication ID that a member chooses
	PoolBufs = 512      // buffers of the pool
	MaxMail  = 64 << 10 // bytes of a message to a mailbox
	PoolBuf  = 64 << 10 // bytes of a buffer of the pool
)

// Config says which group to join.
type Config struct {
	// IfIndex is the index of the network interface whose addresses are shared.
	IfIndex int

	// OnDeath is called for the steward to say goodbye for a member that has died: its
	// ports are free already. The slot is given away only after the call has returned; if this process dies
	// in it another one is called. It runs in a goroutine of its own, and may be called before Join
	// has returned. Nil: nobody says goodbye.
	OnDeath func(Death)

	// OnSteward is called when this member becomes the steward, again when the set of
	// addresses in use (Group.Addrs, Group.Control) has changed, and when it is not the steward any
	// more. It runs in a goroutine of its own, one call at a time; what was outdated before it could be
	// called is left out. It may be called before Join has returned. Nil: [Group.Steward] tells.
	OnSteward func(on bool)

	// Private is the prefix of all abstract names, "" for everybody's. Tests have one each.
	Private string

	// Now is a monotonic clock in ns; nil: the system's.
	Now func() int64

	// Heartbeat is how often the steward shows that it runs, Stale the age of its last
	// sign at which another member takes its place; 0: 50 ms and 250 ms, so that with what it takes to
	// notice another one has begun before connections with ibv_rc_pingpong's timers (537 ms) give up.
	Heartbeat, Stale time.Duration

	// Answer is how long a member that was asked may take before another one is asked; 0: 200 ms.
	// Who is about to bring an address into use may take ten times as long.
	Answer time.Duration

	// Step, if set, is called before each step that others can see, with its name. Tests
	// end the process there.
	Step func(name string)
}

// Death tells of a member that has died.
type Death struct {
	Slot  int
	Conns []driver.ConnRecord // what it had not ended

	// Fail tells that the goodbyes could not be said, as when the device is about to be
	// closed: the slot stays dead, and OnDeath is called again by whoever is the steward then.
	Fail func()
}

// Sockets are the descriptors of an address, the caller's own: it closes them.
type Sockets struct {
	// Own is the socket of the member's slot, with nothing in it from before; -1 if the kernel does not
	// steer here: then all datagrams come to Control.
	Own int
	// Control is that of slot 0: the steward reads it.
	Control int
}

// Make makes the sockets of an address, in the order of their slots: [Slots] that the
// kernel steers to, or one if it does not. They become the group's. It is called when no member has
// the address in use. It must fail if anybody else has, also one who would share it (SO_REUSEPORT). An
// error that matches EAGAIN is tried again for half a second: the sockets of a group whose last member has died
// stay for some moments.
type Make func(addr netip.Addr) ([]int, error)

// Member is who has a slot.
type Member struct {
	Slot       int
	Generation uint32
	PID        int  // as it is called in this PID namespace, 0: it has no name here; to be shown, not to be relied on
	ServesMADs bool // it takes management datagrams
}

// Stats counts what the group did.
type Stats struct {
	MailSent, MailDropped uint64 // messages to mailboxes; dropped: they were full
	Deaths                uint64 // members found dead
	Takeovers             uint64 // times that this member became the steward
	Answered              uint64 // processes that this member let in
	Refused               uint64 // processes that it did not
	Garbage               uint64 // things in the directory that cannot be
}
