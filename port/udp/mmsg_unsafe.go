//go:build linux

package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's view of headers: everything that they point to is on the heap,
// which does not move, and is kept alive by the headers' own pointers.

// sendmmsg sends the messages without blocking and returns how many went. It
// does not tell Go's scheduler: the caller bounds the bytes.
func sendmmsg(fd int, hdrs []unix.Mmsghdr) (int, unix.Errno) {
	// hdrs has len(hdrs) headers, the number passed; indexing panics if it is 0.
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&hdrs[0])),
		uintptr(len(hdrs)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// sendmsg sends one message without blocking.
func sendmsg(fd int, hdr *unix.Mmsghdr) unix.Errno {
	// The kernel reads one header.
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&hdr.Hdr)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0, 0)
	return errno
}

// recvmmsg receives up to len(hdrs) messages without blocking.
func recvmmsg(fd int, hdrs []unix.Mmsghdr) (int, unix.Errno) {
	// hdrs has len(hdrs) headers, the number passed; indexing panics if it is 0.
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&hdrs[0])),
		uintptr(len(hdrs)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// recvmsg receives one message without blocking.
func recvmsg(fd int, hdr *unix.Mmsghdr) unix.Errno {
	// The kernel writes one header.
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&hdr.Hdr)),
		unix.MSG_DONTWAIT, 0, 0, 0)
	if errno == 0 {
		hdr.Len = uint32(n)
	}
	return errno
}

// pollNow looks which descriptors are ready and does not wait.
func pollNow(fds []unix.PollFd) (int, unix.Errno) {
	var zero unix.Timespec
	// fds has len(fds) entries, the number passed; indexing panics if it is 0.
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)),
		uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
	return int(n), errno
}

// pollWait blocks the thread until a descriptor is ready or the time is over;
// nil is no limit. The kernel takes the time spent off ts.
func pollWait(fds []unix.PollFd, ts *unix.Timespec) (int, unix.Errno) {
	// fds has len(fds) entries, the number passed; indexing panics if it is 0.
	// The kernel reads and writes one timespec.
	n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)),
		uintptr(unsafe.Pointer(ts)), 0, 0, 0)
	return int(n), errno
}

// epollWait2 blocks the thread until a descriptor of the set is ready or the time is
// over; nil is no limit.
func epollWait2(set int, events []unix.EpollEvent, ts *unix.Timespec) (int, unix.Errno) {
	// The kernel writes up to len(events) events; indexing panics if there is no room. It
	// reads one timespec.
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(set), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(unsafe.Pointer(ts)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// eventWrite adds 1 to an eventfd.
func eventWrite(fd int) {
	one := uint64(1)
	// The kernel reads 8 bytes.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

// eventDrain sets a non-blocking eventfd to 0.
func eventDrain(fd int) {
	var n uint64
	// The kernel writes 8 bytes.
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&n)), 8)
}
