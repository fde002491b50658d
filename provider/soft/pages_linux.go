package soft

import "golang.org/x/sys/unix"

const hugePage = 2 << 20

// allocPages gives at least size bytes of zeroed memory from a page boundary on:
// from half a huge page on in huge pages, where the host has reserved some for
// programs; else as a mapping that the kernel may make of huge pages.
func allocPages(size int) (b []byte, huge bool, free func() error, err error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_ANON | unix.MAP_PRIVATE
	free = func() error { return unix.Munmap(b) }
	if size >= hugePage/2 && size <= 1<<62 {
		n := (size + hugePage - 1) &^ (hugePage - 1)
		// Without MAP_NORESERVE: it fails here, not at the first touch.
		if b, err = unix.Mmap(-1, 0, n, prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB); err == nil {
			return b, true, free, nil
		}
	}
	if b, err = unix.Mmap(-1, 0, size, prot, flags); err != nil {
		return nil, false, nil, err
	}
	if size >= hugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a hint
	}
	return b, false, free, nil
}
