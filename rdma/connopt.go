package rdma

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// Defaults of connections.
const (
	DefaultMaxMessage = 64 << 10 // bytes of a message
	DefaultQueueDepth = 16       // messages in each direction that nobody has taken
)

// Most that options may set.
const (
	maxMessage    = 1 << 30
	maxQueueDepth = 4096
)

// tries is how often a packet is sent before the peer counts as silent: once, and
// again as often as rdma_cm can tell, which is 7 times.
const tries = 8

// rnrTimer is how long a peer waits before it tries again to send to a connection whose
// receive buffers are all full. What rdma_cm sets is 655 ms, as much as there is, at
// which a reader that falls behind once brings a stream to a standstill; the shorter
// it is the more packets are sent in vain to one that stays behind.
const rnrTimer = 320 * time.Microsecond

// ConnOption changes how connections are made.
type ConnOption func(*connConfig)

type connConfig struct {
	private []byte
	local   netip.AddrPort
	max     int
	depth   int
	silence time.Duration
	admit   func(peer netip.AddrPort, private []byte) (answer []byte, ok bool)
}

// WithPrivateData sets data that the request to connect carries, at most 56 bytes, or of a
// listener each answer, at most 196. The peer gets them by Conn.PrivateData, or before it
// accepts by WithAdmit.
func WithPrivateData(b []byte) ConnOption {
	return func(c *connConfig) { c.private = slices.Clone(b) }
}

// WithLocalAddr sets the address and port to connect from. If it is not set the routing
// table tells the address, and the port is one that is free. It is nothing to listeners.
func WithLocalAddr(a netip.AddrPort) ConnOption { return func(c *connConfig) { c.local = a } }

// WithMaxMessage sets how long messages may be, of both directions, in bytes:
// DefaultMaxMessage if not set. It must be the same at both ends: a message that is
// longer than the receiver's buffers ends the connection.
func WithMaxMessage(n int) ConnOption { return func(c *connConfig) { c.max = n } }

// WithQueueDepth sets how many messages a connection holds in each direction,
// DefaultQueueDepth if not set. A connection has twice as many buffers, each as long as the
// longest message; memory that was never used is not taken from the system.
func WithQueueDepth(n int) ConnOption { return func(c *connConfig) { c.depth = n } }

// WithPeerTimeout sets about how long a peer may leave unanswered what was sent to it before the
// connection fails with ETIMEDOUT; 4 to 9 s if not set. It is rounded up to eight times an ACK
// timeout that queue pairs can have, a power of two. The one who dials tells the peer, so that
// it does the same, unless that has set its own.
func WithPeerTimeout(d time.Duration) ConnOption { return func(c *connConfig) { c.silence = d } }

// WithAdmit has a listener ask f about each request: with the address and the private
// data of the peer, 56 bytes filled up with zeros. f returns the private data of the
// answer, and whether to accept; if not the peer's Dial fails with a *rdmacm.RejectError,
// at most 148 bytes of data in it. f is called by Accept, and must not block.
func WithAdmit(f func(peer netip.AddrPort, private []byte) (answer []byte, ok bool)) ConnOption {
	return func(c *connConfig) { c.admit = f }
}

// prepare sets the options of an ID.
func (c *connConfig) prepare(id *rdmacm.ID) error {
	if c.silence == 0 {
		return nil
	}
	return id.SetAckTimeout(ib.AckTimeoutCode(max(c.silence/tries, 1)))
}

func connOptions(opts []ConnOption, maxPrivate int) (connConfig, error) {
	c := connConfig{max: DefaultMaxMessage, depth: DefaultQueueDepth}
	for _, o := range opts {
		o(&c)
	}
	switch {
	case len(c.private) > maxPrivate:
		return c, fmt.Errorf("WithPrivateData: %d bytes, want at most %d: %w", len(c.private), maxPrivate, syscall.EINVAL)
	case c.max < 1 || c.max > maxMessage:
		return c, fmt.Errorf("WithMaxMessage: %d, want 1 to %d: %w", c.max, maxMessage, syscall.EINVAL)
	case c.silence < 0:
		return c, fmt.Errorf("WithPeerTimeout: %v is negative: %w", c.silence, syscall.EINVAL)
	case c.depth < 1 || c.depth > maxQueueDepth:
		return c, fmt.Errorf("WithQueueDepth: %d, want 1 to %d: %w", c.depth, maxQueueDepth, syscall.EINVAL)
	}
	return c, nil
}
