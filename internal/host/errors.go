package host

import (
	"errors"
	"net"
	"syscall"
)

// Why a process cannot be a member. Each matches an errno.
var (
	// ErrClosed: the group was left. It matches net.ErrClosed.
	ErrClosed = &reason{"host: the group was left", net.ErrClosed}
	// ErrFull: all slots are taken, EUSERS.
	ErrFull = &reason{"host: 127 open devices share the interface's addresses already, which is the most: close one, " +
		"or give this one an address that none of them uses, on its own", syscall.EUSERS}
	// ErrForeign: another user, or another user namespace, EPERM.
	ErrForeign = &reason{"host: the interface's addresses are shared by processes of another user or user namespace", syscall.EPERM}
	// ErrVersion: another version of this library, whose layout is another one, EPROTO.
	ErrVersion = &reason{"host: the interface's addresses are shared by processes with another version of this library", syscall.EPROTO}
	// ErrSilent: none of those who share answers, as when all are stopped, ETIMEDOUT.
	ErrSilent = &reason{"host: the processes that share the interface's addresses do not answer; they may be stopped", syscall.ETIMEDOUT}
	// ErrDescriptors: too few descriptors may be open (RLIMIT_NOFILE), EMFILE.
	ErrDescriptors = &reason{"host: too few file descriptors may be open, see RLIMIT_NOFILE", syscall.EMFILE}
	// ErrFileSize: files may not be as large as the directory, which takes no room for that, EFBIG.
	ErrFileSize = &reason{"host: files may not be large enough for what processes share, see RLIMIT_FSIZE (ulimit -f)", syscall.EFBIG}
	// ErrAddrs: MaxAddrs addresses are in use already, ENOSPC.
	ErrAddrs = &reason{"host: 32 addresses of the interface are in use already", syscall.ENOSPC}
	// ErrGarbage: what the others gave is no group, EPROTO.
	ErrGarbage = &reason{"host: what the processes that share the interface's addresses told makes no sense", syscall.EPROTO}
	// ErrUnsupported: not on this system, EOPNOTSUPP.
	ErrUnsupported = &reason{"host: sharing addresses is not supported on this system", errors.ErrUnsupported}
)

// reason is an error with the errno that it matches.
type reason struct {
	text string
	is   error
}

func (r *reason) Error() string { return r.text }

func (r *reason) Unwrap() error { return r.is }
