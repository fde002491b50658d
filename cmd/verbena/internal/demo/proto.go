package demo

import (
	"encoding/json"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// The processes talk in lines of JSON over the second one's standard input and
// output: each request has one answer.

// Operations of a request.
const (
	opSetup    = "setup"    // open the device and listen; accept, after the answer to this
	opHash     = "hash"     // add the window's first Len bytes to the checksum
	opRecv     = "recv"     // checksum of the message that came by SEND
	opDatagram = "datagram" // checksum of the datagram
	opAtomic   = "atomic"   // value of the word
	opPong     = "pong"     // answer Count pings, after the answer to this
	opBye      = "bye"      // end
)

// request is what the first process asks.
type request struct {
	Op    string
	Setup *setup `json:",omitempty"`
	Len   int    `json:",omitempty"`
	Last  bool   `json:",omitempty"`
	Count int    `json:",omitempty"`
}

// setup is what the second process needs to begin.
type setup struct {
	Addr   netip.Addr // its own
	Window int        // bytes
	Damage string     // what to spoil, for tests of the comparisons
}

// answer is what the second process says.
type answer struct {
	Err   string  `json:",omitempty"`
	Errno uintptr `json:",omitempty"` // of Err
	Port  uint16  `json:",omitempty"` // at which it waits to be connected to
	Len   int     `json:",omitempty"`
	Sum   string  `json:",omitempty"` // SHA-256, hexadecimal
	Value uint64  `json:",omitempty"`
	SrcQP ib.QPN  `json:",omitempty"`
	GID   *ib.GID `json:",omitempty"`
}

// lineOf is a value as one line.
func lineOf(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(b, '\n'), err
}

// remoteError is an error of the second process.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return "the second process: " + e.text }

func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}
