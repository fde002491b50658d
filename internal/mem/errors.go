package mem

import (
	"errors"
	"syscall"
)

// ErrFault tells that registered memory could not be touched: it was unmapped
// or protected under the registration.
var ErrFault = errors.New("registered memory is not accessible")

// ParamError is the refusal of a registration.
type ParamError struct {
	Param  string        // name of the parameter that is at fault
	Detail string        // what is wrong with it
	Err    syscall.Errno // what errors.Is matches
}

// Error says which parameter is at fault and why.
func (e *ParamError) Error() string { return e.Param + ": " + e.Detail + ": " + e.Err.Error() }

// Parameter is what is at fault; empty where the call came at a wrong time.
func (e *ParamError) Parameter() string {
	if e.Err == syscall.ENOMEM || e.Err == syscall.EBUSY {
		return ""
	}
	return e.Param
}

// Unwrap gives the errno.
func (e *ParamError) Unwrap() error { return e.Err }
