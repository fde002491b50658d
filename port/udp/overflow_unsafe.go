//go:build linux

package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketDrops is the number of datagrams that the kernel dropped for a socket
// (SO_MEMINFO, since Linux 4.12), 0 where it does not tell.
func socketDrops(fd int) uint32 {
	const drops = 8 // SK_MEMINFO_DROPS
	var info [drops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	// The kernel writes at most size bytes, the size of info, and the new size.
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return info[drops]
}
