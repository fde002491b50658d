// Package ping plays rping's game: a client describes a buffer, the server READs
// it and WRITEs it back to another one. The other side may be rdma-core's rping,
// whose messages, options and output it has.
package ping

import (
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
)

// Sizes of the ping data. rping's own limits: what holds the text at its start with any
// number, and one byte less than 64 KiB.
const (
	MinSize = 23
	MaxSize = 65535
)

// Config is what the command line says.
type Config struct {
	Server, Client bool
	Addr           string // server: to bind, "": any; client: the server's
	Source         string // client: own address, "": as the routing table says
	Port           int
	Count          int // pings; 0: for ever
	Size           int // bytes of the ping data
	Verbose        bool
	Validate       bool
	Debug          bool
	Persistent     bool // server: any number of clients, at the same time
	OwnQP          bool // queue pairs are made and moved here, not by the connection manager
}

// Default is the configuration without options. 64 bytes are what rping has; its manual
// page says 100.
func Default() Config { return Config{Port: 7174, Size: 64} }

// Check checks what can be checked without a device.
func (c *Config) Check() error {
	switch {
	case c.Server == c.Client:
		return cli.Usagef("give -s to be the server, or -c to be the client")
	case c.Client && c.Addr == "":
		return cli.Usagef("a client needs the server's address: -a address")
	case c.Client && c.Persistent:
		return cli.Usagef("-P/--persistent is the server's: leave it out, or give -s for -c")
	case c.Server && c.Source != "":
		return cli.Usagef("-I/--source is the client's: the server's own address is -a")
	}
	if err := cmapp.CheckPort("-p/--port", c.Port); err != nil {
		return err
	}
	return cmapp.CheckRanges(
		cmapp.Range{Option: "-S/--size", Value: c.Size, Least: MinSize, Beyond: MaxSize + 1},
		cmapp.Range{Option: "-C/--count", Value: c.Count},
	)
}
