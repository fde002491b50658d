package soft

import (
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/mem"
)

// persister makes registered memory durable: pages of a shared mapping of a file
// are written to the file, with all that is needed to read them back. Nothing is
// done for other memory, which is durable in no sense: who registers it for
// persistent flushes promises that it is what it should be.
func persister() mem.Persister {
	return func(addr, length uintptr) error {
		switch _, _, e := unix.Syscall(unix.SYS_MSYNC, addr, length, unix.MS_SYNC); e {
		case 0:
			return nil
		case unix.ENOMEM:
			return mem.ErrFault // not mapped any more
		default:
			return e
		}
	}
}
