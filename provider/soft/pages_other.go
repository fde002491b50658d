//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package soft

import (
	"fmt"
	"math"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/mem"
)

// allocPages gives size bytes of zeroed memory from a page boundary on, out of
// Go's heap. It goes back when nobody refers to it any more.
func allocPages(size int) (b []byte, huge bool, free func() error, err error) {
	const page = 4096
	if size > math.MaxInt-page {
		return nil, false, nil, fmt.Errorf("%d bytes: %w", size, syscall.ENOMEM)
	}
	b = make([]byte, size+page-1)
	off := int(-mem.Address(b) & (page - 1))
	return b[off : off+size : off+size], false, func() error { return nil }, nil
}
