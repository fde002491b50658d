package rdma

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Addr is the address of an end of a connection.
type Addr struct{ netip.AddrPort }

// Network is "rdma".
func (Addr) Network() string { return "rdma" }

// netError makes the error of a call as package net has them. Addresses that are not valid
// are left out.
func netError(op string, local, remote Addr, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
		err = &timeoutError{err}
	}
	e := &net.OpError{Op: op, Net: "rdma", Err: err}
	if local.IsValid() {
		e.Source = local
	}
	if remote.IsValid() {
		e.Addr = remote
	}
	return e
}

// timeoutError has the Timeout method that net.OpError looks for in its Err only.
type timeoutError struct{ error }

func (e *timeoutError) Timeout() bool { return true }

func (e *timeoutError) Unwrap() error { return e.error }

// also adds to an error what went wrong when things were cleared away.
func also(err, more error) error {
	if more == nil {
		return err
	}
	return errors.Join(err, more)
}

// badAddr is a net.AddrError that matches EINVAL.
type badAddr struct{ error }

func (e *badAddr) Unwrap() []error { return []error{e.error, syscall.EINVAL} }

// wcError is a completion's error with the errno that says about the same.
type wcError struct {
	error
	errno syscall.Errno
}

func (e *wcError) Error() string { return e.error.Error() + ": " + e.errno.Error() }

func (e *wcError) Unwrap() []error { return []error{e.error, e.errno} }

func failed(wc *verbs.WC) error {
	e := &wcError{wc.Err(), syscall.ECONNRESET}
	switch wc.Status {
	case ib.WCRetryExcErr:
		e.errno = syscall.ETIMEDOUT
	case ib.WCRemInvReqErr, ib.WCLocLenErr:
		e.errno = syscall.EMSGSIZE
	case ib.WCRemAccessErr:
		e.errno = syscall.EACCES
	}
	return e
}
