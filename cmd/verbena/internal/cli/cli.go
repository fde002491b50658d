// Package cli is what the commands share: how they fail, and how they open a
// device.
package cli

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// UsageError is a mistake on the command line.
type UsageError struct{ msg string }

func (e *UsageError) Error() string { return e.msg }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// ExitCode is the exit code for the error of a command.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, new(*UsageError)):
		return ExitUsage
	}
	return ExitFailed
}

// hintError is an error with what to do next.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() + "\n  " + e.hint }

func (e *hintError) Unwrap() error { return e.err }

// Hint adds what to do next.
func Hint(err error, format string, args ...any) error {
	return &hintError{err, fmt.Sprintf(format, args...)}
}

// Describe is the text of an error, with a hint where a common cause has one.
func Describe(err error) string {
	if errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	if errors.As(err, new(*hintError)) {
		return err.Error()
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		err = Hint(err, "Somebody has UDP port 4791 of the address and does not share it. Choose another address with --addr,\n"+
			"  on the loopback interface any of 127.0.0.0/8: --addr 127.0.0.2. Programs do it with VERBENA_ADDRS or rdma.WithAddrs")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		err = Hint(err, "This host does not have the address. Addresses that it has: verbena devices -v")
	}
	return err.Error()
}
