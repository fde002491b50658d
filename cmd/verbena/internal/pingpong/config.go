// Package pingpong plays ping-pong with another program of its kind: with
// itself or with rdma-core's ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong
// and ibv_srq_pingpong, whose exchange over TCP, queue pair attributes and output
// it has.
package pingpong

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Kind is which of the programs is played.
type Kind string

// Kinds.
const (
	RC  Kind = "rc"  // reliable connection
	UC  Kind = "uc"  // unreliable connection
	UD  Kind = "ud"  // unreliable datagram
	SRQ Kind = "srq" // reliable connections with one shared receive queue
)

// maxQP is how many queue pairs the programs with a shared receive queue tell
// each other about, used or not.
const maxQP = 256

// Config is what the command line says.
type Config struct {
	Kind     Kind
	Host     string // server to connect to; "": be the server
	TCPPort  int
	Dev      string // device, interface or address; "": the first device
	Addr     string // address for the device's GID table; "": its own
	IBPort   int
	Size     int // bytes of a message
	MTU      int // path MTU in bytes; not for UD
	RxDepth  int // receives posted
	Iters    int // exchanges
	SL       int
	Events   bool // sleep on completion events
	GIDIndex int
	Check    bool // validate the received content
	NumQP    int  // for SRQ
}

// Default is the configuration of a kind without options.
func Default(k Kind) Config {
	c := Config{Kind: k, TCPPort: 18515, IBPort: 1, Size: 4096, MTU: 1024, RxDepth: 500, Iters: 1000, NumQP: 1}
	switch k {
	case UD:
		c.Size = 1024
	case SRQ:
		c.NumQP = 16
	}
	return c
}

// Validate checks what can be checked without a device.
func (c *Config) Validate() error {
	for _, o := range []struct {
		name          string
		v, least, top int
	}{
		{"-p/--port", c.TCPPort, 1, 65535},
		{"-i/--ib-port", c.IBPort, 1, 255},
		{"-s/--size", c.Size, 1, ib.MaxMsgSize - 1},
		{"-r/--rx-depth", c.RxDepth, 1, 1 << 30},
		{"-n/--iters", c.Iters, 1, 1 << 30},
		{"-l/--sl", c.SL, 0, 15},
		{"-g/--gid-idx", c.GIDIndex, 0, 255},
		{"-q/--num-qp", c.NumQP, 1, maxQP - 1},
	} {
		if o.v < o.least || o.v > o.top {
			return cli.Usagef("%s %d: want %d to %d", o.name, o.v, o.least, o.top)
		}
	}
	if c.NumQP > c.RxDepth {
		return cli.Usagef("-r/--rx-depth %d is too small for %d queue pairs: there must be at least one receive for each", c.RxDepth, c.NumQP)
	}
	if c.Kind != UD {
		if _, err := ib.MTUFromBytes(c.MTU); err != nil {
			return cli.Usagef("-m/--mtu %d: want 256, 512, 1024, 2048 or 4096", c.MTU)
		}
	}
	return nil
}

// checkPort checks what the device's port must carry, before the peer hears of
// anything.
func (c *Config) checkPort(dev *verbs.Context, port *ib.PortAttr) error {
	active := port.ActiveMTU.Bytes()
	name := dev.Device().Name()
	switch {
	case c.Kind == UD && c.Size > active:
		return cli.Hint(fmt.Errorf("size %d is larger than the active MTU %d of %s port %d, and a datagram is one packet: %w",
			c.Size, active, name, c.IBPort, syscall.EINVAL),
			"Choose -s %d or less, or raise the MTU of %s", active, dev.Device().NetDev())
	case c.Kind != UD && c.MTU > active:
		return cli.Hint(fmt.Errorf("path MTU %d is larger than the active MTU %d of %s port %d: %w",
			c.MTU, active, name, c.IBPort, syscall.EINVAL),
			"Choose -m %d or less on both sides, or raise the MTU of %s", active, dev.Device().NetDev())
	}
	return nil
}
