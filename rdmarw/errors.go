package rdmarw

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// OpError is how every call of this package fails.
type OpError struct {
	Op    string // the call's name in the kernel without prefix: "ctx_init"
	Param string // the parameter that is at fault, if one is
	Err   error  // why; errors.Is finds the errno in it
}

// Error tells call, parameter and reason.
func (e *OpError) Error() string {
	if e.Param == "" || strings.Contains(e.Err.Error(), e.Param) {
		return "rdmarw: " + e.Op + ": " + e.Err.Error()
	}
	return "rdmarw: " + e.Op + ": " + e.Param + ": " + e.Err.Error()
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

// refusal is the refusal of a parameter, before it is known which call it was of.
type refusal struct {
	param, why string
	errno      syscall.Errno
}

func (e *refusal) Error() string     { return e.param + ": " + e.why + ": " + e.errno.Error() }
func (e *refusal) Parameter() string { return e.param }
func (e *refusal) Unwrap() error     { return e.errno }

// invalid is the refusal of a parameter's value.
func invalid(param, format string, args ...any) error {
	return &refusal{param, fmt.Sprintf(format, args...), syscall.EINVAL}
}

// errNoMR is the refusal of an empty pool. It is one value, because a transfer that
// does not depend on regions goes on without them.
var errNoMR error = &refusal{"pool", "has no memory region left, try again when a context was destroyed", syscall.EAGAIN}

// errBeyondEnd is the refusal of an offset that leaves nothing of a list.
var errBeyondEnd error = &refusal{"sgOffset", "is at or behind the end of the list", syscall.EIO}
