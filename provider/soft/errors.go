package soft

import (
	"fmt"
	"syscall"
)

// paramError is the refusal of a parameter.
type paramError struct {
	param  string // the Go name of the parameter or the field
	detail string
	errno  syscall.Errno
}

// Error names the parameter and says what is wrong with it.
func (e *paramError) Error() string { return e.param + ": " + e.detail + ": " + e.errno.Error() }

// Unwrap gives the errno.
func (e *paramError) Unwrap() error { return e.errno }

// Parameter is what is at fault.
func (e *paramError) Parameter() string { return e.param }

// invalid refuses the value of a parameter: EINVAL.
func invalid(param, format string, args ...any) error {
	return &paramError{param, fmt.Sprintf(format, args...), syscall.EINVAL}
}

// notOffered refuses what the device does not have: EOPNOTSUPP.
func notOffered(param, why string) error { return &paramError{param, why, syscall.EOPNOTSUPP} }
