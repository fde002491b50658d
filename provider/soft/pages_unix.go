//go:build darwin || freebsd || netbsd || openbsd

package soft

import "golang.org/x/sys/unix"

// allocPages gives at least size bytes of zeroed memory from a page boundary on.
func allocPages(size int) (b []byte, huge bool, free func() error, err error) {
	b, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return b, false, func() error { return unix.Munmap(b) }, err
}
