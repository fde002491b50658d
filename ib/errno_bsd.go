//go:build freebsd || openbsd || dragonfly

package ib

import "syscall"

// ErrNoData is the errno of an empty entry of a table: ENODATA, ENOATTR on
// systems that do not have it.
const ErrNoData = syscall.ENOATTR
