//go:build !linux

package soft

import (
	"net"
	"net/netip"
)

// watchNetdev gives nothing: what changes is not followed on this system.
func watchNetdev(int) Watch { return nil }

// addresses is for package net to tell on this system.
func addresses(*net.Interface) ([]netip.Addr, bool) { return nil, false }
