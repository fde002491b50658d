// Package proto is what the test process and the agent in the guest say to each other: one JSON object a line over a
// virtio-serial port. Each Request has exactly one Response with the same ID; responses come in any order. The agent opens
// the conversation with a Response of ID 0 when the guest is ready, or with its Err when the guest could not be set up.
package proto

// Boot is the configuration that the agent finds as BootFile in the initrd.
type Boot struct {
	Hostname string
	// Modules are paths inside the initrd, in load order.
	Modules []string
	// Addrs are the addresses of eth0 with their prefix length.
	Addrs []string
	// MTU of eth0, bytes.
	MTU int
}

// Names that both sides know.
const (
	BootFile = "/boot.json"
	PortName = "verbena.agent"
	RootTag  = "hostroot"
)

// Op names a request.
type Op string

// The operations.
const (
	// OpStart starts Argv in the host's root and answers with Proc.
	OpStart Op = "start"
	// OpWait waits for Proc's end, and answers with output and exit code.
	OpWait Op = "wait"
	// OpOutput answers with what Proc has written so far.
	OpOutput Op = "output"
	// OpKill sends Value as a signal to Proc's process group.
	OpKill Op = "kill"
	// OpRead answers with the file Path, a path of the guest.
	OpRead Op = "read"
	// OpWrite makes the file Path with Data; only /tmp and /run can be written.
	OpWrite Op = "write"
	// OpListen answers as soon as a TCP socket listens on port Value.
	OpListen Op = "listen"
	// OpMTU sets the MTU of eth0 to Value.
	OpMTU Op = "mtu"
	// OpCounters answers with the files of directory Path that hold a number.
	OpCounters Op = "counters"
	// OpLog answers with the kernel's log in Data.
	OpLog Op = "log"
)

// Request is one line to the guest.
type Request struct {
	ID    uint64
	Op    Op
	Argv  []string `json:",omitempty"`
	Env   []string `json:",omitempty"`
	Stdin []byte   `json:",omitempty"`
	Proc  uint64   `json:",omitempty"`
	Path  string   `json:",omitempty"`
	Data  []byte   `json:",omitempty"`
	Value int      `json:",omitempty"`
	// TimeoutMS bounds OpStart's process and OpListen; 0 is no bound.
	TimeoutMS int64 `json:",omitempty"`
}

// Response is one line from the guest.
type Response struct {
	ID     uint64
	Err    string            `json:",omitempty"`
	Proc   uint64            `json:",omitempty"`
	Stdout []byte            `json:",omitempty"`
	Stderr []byte            `json:",omitempty"`
	Code   int               `json:",omitempty"`
	Signal string            `json:",omitempty"`
	Late   bool              `json:",omitempty"`
	Data   []byte            `json:",omitempty"`
	Values map[string]uint64 `json:",omitempty"`
}
