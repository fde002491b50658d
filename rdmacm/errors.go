package rdmacm

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// OpError is how every call of this package fails.
type OpError struct {
	Op    string // the call's name in C without prefix: "resolve_addr"
	Param string // the parameter that is at fault, if one is
	Err   error  // why; errors.Is finds the errno in it that librdmacm gives
}

// Error tells call, parameter and reason.
func (e *OpError) Error() string {
	if e.Param == "" || strings.Contains(e.Err.Error(), e.Param) {
		return "rdmacm: " + e.Op + ": " + e.Err.Error()
	}
	return "rdmacm: " + e.Op + ": " + e.Param + ": " + e.Err.Error()
}

// Unwrap gives the reason.
func (e *OpError) Unwrap() error { return e.Err }

// opErr wraps an error; nil stays nil.
func opErr(op string, err error) error {
	if err == nil {
		return nil
	}
	var p interface{ Parameter() string }
	if errors.As(err, &p) {
		return &OpError{Op: op, Param: p.Parameter(), Err: err}
	}
	return &OpError{Op: op, Err: err}
}

// paramErr is the refusal of a parameter.
func paramErr(op, param, why string, errno syscall.Errno) error {
	return &OpError{Op: op, Param: param, Err: fmt.Errorf("%s: %s: %w", param, why, errno)}
}

// RejectReason says why a connection was refused (IBA 12.6.7.2).
type RejectReason uint16

// Reasons that programs meet. String knows all others too.
const (
	RejectNoQP            RejectReason = 1
	RejectNoResources     RejectReason = 3
	RejectTimeout         RejectReason = 4
	RejectBadServiceID    RejectReason = 8  // nobody listens on the port
	RejectStaleConnection RejectReason = 10 // left over from an earlier process; trying again helps
	RejectConsumer        RejectReason = 28 // the peer's program has called Reject, or could not accept
	RejectVendorOption    RejectReason = 35 // RejectECE
)

// String says the reason in words.
func (r RejectReason) String() string { return mad.RejectReason(r).String() }

// RejectError tells that the peer refused. It matches ECONNREFUSED.
type RejectError struct {
	Reason      RejectReason
	PrivateData []byte // of the peer's Reject, filled up with zeros
}

// Error tells the reason.
func (e *RejectError) Error() string {
	return fmt.Sprintf("rejected: %v (%d): %v", e.Reason, uint16(e.Reason), syscall.ECONNREFUSED)
}

// Unwrap gives ECONNREFUSED.
func (e *RejectError) Unwrap() error { return syscall.ECONNREFUSED }

// SIDRError tells that the peer refused a datagram lookup. It matches
// ECONNREFUSED.
type SIDRError struct {
	Status      uint8 // 1: nobody listens on the port, 2: rejected, 3: no queue pair
	PrivateData []byte
}

// Error tells the status.
func (e *SIDRError) Error() string {
	return fmt.Sprintf("datagram service refused: %v (%d): %v", mad.SIDRStatus(e.Status), e.Status, syscall.ECONNREFUSED)
}

// Unwrap gives ECONNREFUSED.
func (e *SIDRError) Unwrap() error { return syscall.ECONNREFUSED }

// closedError tells that an object was destroyed.
type closedError struct{ what string }

func (e *closedError) Error() string { return e.what + " is closed" }

func (e *closedError) Unwrap() []error { return []error{net.ErrClosed, syscall.EINVAL} }

var (
	errManagerClosed error = &closedError{"manager"}
	errChannelClosed error = &closedError{"event channel"}
	errIDDestroyed   error = &closedError{"ID"}
)

var errRemoved = fmt.Errorf("the device was removed: %w", syscall.ENODEV)
