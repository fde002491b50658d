package udp

import "time"

// Config is how a port is opened. The zero value is right for everybody but
// tests and measurements.
type Config struct {
	// RecvBuf and SendBuf are the bytes of socket buffer to ask for, for each
	// local address; 0 means 4 MiB. The system gives less without an error when
	// its limit (net.core.rmem_max, wmem_max) is lower; Caps.RecvBuf has the result.
	RecvBuf, SendBuf int

	// MaxSegs lowers the number of segments in one GSO send; 0 is what the
	// kernel takes (64 or 128).
	MaxSegs int

	// IfIndex is the index of the interface that the local addresses belong to;
	// it matters to multicast alone. 0: it is found by the address, which two
	// interfaces may share.
	IfIndex int

	// Share has the addresses shared with other processes of the host; nil: this port
	// has them alone. The caller closes it after the port.
	Share Group
	// Alone says, where Share is nil, why; for the error when somebody else has an address.
	Alone string
	// Unsteered does without the kernel's help in finding the process that a datagram is
	// for, as where it has none.
	Unsteered bool

	NoGSO   bool // one datagram for each message
	NoGRO   bool // receive datagrams one by one
	NoMMsg  bool // one system call for each message
	NoEpoll bool // sleep in ppoll
	// NoHanding: without steering, all that members send to each other goes through the
	// socket, as what comes from elsewhere.
	NoHanding bool

	bufBytes int // size of a receive buffer; tests make it small
}

const (
	defaultSockBuf = 4 << 20

	// turn is the most that one Recv takes: whoever holds the receive side must
	// come back to its timers.
	turn = 64

	// defaultTTL is the hop limit of what names none and does not pass through the kernel.
	defaultTTL = 64
	// datagramMax holds any UDP payload, coalesced or not.
	datagramMax = 64 << 10

	// sendPatience is how long Send waits for room in a full socket buffer, once,
	// before it drops: the buffer of a real interface drains in the meantime.
	sendPatience = 100 * time.Microsecond
)

func (c *Config) setDefaults() {
	if c.RecvBuf <= 0 {
		c.RecvBuf = defaultSockBuf
	}
	if c.SendBuf <= 0 {
		c.SendBuf = defaultSockBuf
	}
	if c.bufBytes <= 0 {
		c.bufBytes = datagramMax
	}
}
