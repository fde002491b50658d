package verbs

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
)

// OpError is how every call of this package fails.
type OpError struct {
	Op    string // the verb's name in C without prefix: "modify_qp"
	Param string // the parameter that is at fault, if one is
	Err   error  // why; errors.Is finds the errno in it
}

// Error tells verb, parameter and reason.
func (e *OpError) Error() string {
	reason := "failed"
	if e.Err != nil {
		reason = e.Err.Error()
	}
	if e.Param == "" || strings.Contains(reason, e.Param) {
		return "verbs: " + e.Op + ": " + reason
	}
	return "verbs: " + e.Op + ": " + e.Param + ": " + reason
}

// Unwrap gives the reason.
func (e *OpError) Unwrap() error { return e.Err }

// PostError tells which work request of a list was refused. Those before it
// were posted, those from it on were not.
type PostError struct {
	Index int    // in the list, from 0
	WRID  uint64 // of the refused work request
	Err   error  // why
}

// Error tells which work request was refused, and why.
func (e *PostError) Error() string {
	return "work request " + strconv.Itoa(e.Index) + " (WRID " + strconv.FormatUint(e.WRID, 10) + "): " + e.Err.Error()
}

// Unwrap gives the reason.
func (e *PostError) Unwrap() error { return e.Err }

// closedError tells that an object was closed or destroyed. It is net.ErrClosed
// for Go programs, and the errno that C programs know.
type closedError struct {
	what  string
	errno syscall.Errno
}

func (e *closedError) Error() string { return e.what + " is closed" }

func (e *closedError) Unwrap() []error { return []error{net.ErrClosed, e.errno} }

// Reading a closed device gives EIO, so that a reader of its events ends; any
// other destroyed object is an invalid argument.
var (
	errDeviceClosed  error = &closedError{"device", syscall.EIO}
	errPDClosed      error = &closedError{"protection domain", syscall.EINVAL}
	errCQClosed      error = &closedError{"completion queue", syscall.EINVAL}
	errChannelClosed error = &closedError{"completion channel", syscall.EINVAL}
	errSRQClosed     error = &closedError{"shared receive queue", syscall.EINVAL}
	errQPClosed      error = &closedError{"queue pair", syscall.EINVAL}
	errXRCDClosed    error = &closedError{"XRC domain", syscall.EINVAL}
)

// errDeviceGone tells that the device has gone away while it was open.
var errDeviceGone = fmt.Errorf("device was removed: %w", syscall.EIO)

// opErr wraps a provider's error; nil stays nil. Where the error names a parameter
// (method Parameter), so does the result.
func opErr(op string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Param: paramOf(err), Err: err}
}

// paramOf is the parameter that an error is about; empty if it names none.
func paramOf(err error) string {
	var p interface{ Parameter() string }
	if errors.As(err, &p) {
		return p.Parameter()
	}
	return ""
}

// paramErr is the refusal of a parameter.
func paramErr(op, param, why string, errno syscall.Errno) error {
	return &OpError{Op: op, Param: param, Err: fmt.Errorf("%s: %s: %w", param, why, errno)}
}

// postErr makes the error of a list of which n work requests were taken.
func postErr(op string, n int, wrid uint64, err error) error {
	return &OpError{Op: op, Param: paramOf(err), Err: &PostError{Index: n, WRID: wrid, Err: err}}
}
