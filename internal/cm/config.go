package cm

import "github.com/verbena-rdma/verbena/ib"

// Values of Linux's rdma_cm.
const (
	DefaultCMResponseTimeout = 20   // 4.3 s; as Linux reckons 4096 ms
	DefaultMaxCMRetries      = 15   // 16 attempts
	DefaultMRATimeout        = 24   // 68.7 s
	DefaultPacketLifetime    = 16   // 0.27 s
	DefaultACKDelay          = 15   // 0.13 s
	DefaultBacklog           = 1024 // of a listener
	DefaultMaxPending        = 8192 // undecided requests of all listeners
	DefaultMaxConns          = 1 << 20
	DefaultMaxTimeoutCode    = 24
	DefaultMaxTimewaitCode   = 21 // 8.2 s

	millisecond = 1000000 // in the unit of time of this package
	sidrReplies = 1024    // answers to SIDR_REQs that are kept for duplicates
)

// Config is what a Manager is made of. Zero values are the defaults above.
type Config struct {
	// Rand returns random numbers: communication and transaction ids. Needed, and from a good source: who guesses a
	// communication id can end a connection.
	Rand func() uint64
	// CAGUID is the GUID that the device tells its peers, not 0. Peers tell restarted connections by it and the queue pair
	// number: two managers of one host that give out the same queue pair numbers must not share it.
	CAGUID uint64

	// IDBits and IDMask fix bits of the communication ids and SIDR request ids that are given out: id&IDMask == IDBits. Processes that
	// share an address have other bits each, by which messages find them. A mask of 0 fixes none.
	IDBits, IDMask uint32
	// Record, if set, is called when what others have to know to end a connection for a process that has died begins or changes, and
	// when there is nothing to end any more: see Conn.Recorded. The messages that the peer gets of it leave afterwards.
	Record func(c *Conn)

	ACKDelay        uint8 // code: how long this device takes to acknowledge, told in REP and reckoned into the ACK timeout
	MRATimeout      uint8 // code: what an MRA asks for
	MaxTimeoutCode  uint8 // greater codes of response and service timeouts from a peer count as this one
	MaxTimewaitCode uint8 // the same for the ACK timeout as TIMEWAIT takes it
	MaxPending      int   // undecided requests of all listeners
	MaxConns        int   // connections in all, those in TIMEWAIT included
	// Unit is how long 1 ms of the timers takes, in ns; less than 1e6 makes all of them faster, for tests.
	Unit int64
}

func (c *Config) setDefaults() {
	def8 := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	def8(&c.ACKDelay, DefaultACKDelay)
	def8(&c.MRATimeout, DefaultMRATimeout)
	def8(&c.MaxTimeoutCode, DefaultMaxTimeoutCode)
	def8(&c.MaxTimewaitCode, DefaultMaxTimewaitCode)
	if c.MaxPending == 0 {
		c.MaxPending = DefaultMaxPending
	}
	if c.MaxConns == 0 {
		c.MaxConns = DefaultMaxConns
	}
	if c.Unit == 0 {
		c.Unit = millisecond
	}
}

// duration is Linux's reckoning of a timeout code: 2^(code-8) ms, at least 1 ms (4.096 us x 2^code by IBA 12.7).
func (m *Manager) duration(code uint8) int64 {
	return m.cfg.Unit << max(int(code&31)-8, 0)
}

// ACKTimeout returns the code of the local ACK timeout for a packet lifetime and a peer that takes ackDelay to acknowledge, all three
// codes (IBA 12.7.34: 2 x lifetime + delay), as Linux reckons it. At most 31.
func ACKTimeout(ackDelay, lifetime uint8) uint8 {
	t := int(lifetime&31) + 1
	d := int(ackDelay & 31)
	switch {
	case t >= d:
		if d >= t-1 {
			t++
		}
	case t >= d-1:
		t = d + 1
	default:
		t = d
	}
	return uint8(min(t, ib.MaxTimeout))
}
