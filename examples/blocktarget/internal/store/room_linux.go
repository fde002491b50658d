package store

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// room tells whether the system has size bytes of address space and memory to give: make
// would end the program. ENOMEM: it has not.
func room(size int64) error {
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("%d bytes of memory: %w", size, err)
	}
	return unix.Munmap(b)
}
