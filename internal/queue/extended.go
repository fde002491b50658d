package queue

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// opsExtended are the operations of IBA annex A19.
const opsExtended Ops = 1<<ib.WRFlush | 1<<ib.WRAtomicWrite

// OpsExtended is what a device offers that has RDMA FLUSH and ATOMIC WRITE.
const OpsExtended = opsExtended

// wordLen is the length of an ATOMIC WRITE, in bytes.
const wordLen = 8

// checkExtended checks what is special of RDMA FLUSH and ATOMIC WRITE. total is
// the length of the payload.
func checkExtended(wr *driver.SendWR, total uint64) error {
	if wr.Opcode == ib.WRAtomicWrite {
		if total != wordLen {
			return &WRError{payloadField(wr), syscall.EINVAL, fmt.Sprintf("%d bytes, an ATOMIC WRITE has %d", total, wordLen)}
		}
		if wr.RemoteAddr%wordLen != 0 {
			return &WRError{"RemoteAddr", syscall.EINVAL, fmt.Sprintf("%#x, an ATOMIC WRITE needs a multiple of %d", wr.RemoteAddr, wordLen)}
		}
		return nil
	}
	const known = ib.FlushGlobal | ib.FlushPersistent
	switch {
	case len(wr.SGList) > 0:
		return &WRError{"SGList", syscall.EINVAL, "a FLUSH has no payload"}
	case wr.FlushType == 0 || wr.FlushType&^known != 0:
		return &WRError{"FlushType", syscall.EINVAL, fmt.Sprintf("%#x, want ib.FlushGlobal, ib.FlushPersistent or both", uint32(wr.FlushType))}
	case wr.FlushLevel != ib.FlushRange && wr.FlushLevel != ib.FlushMR:
		return &WRError{"FlushLevel", syscall.EINVAL, fmt.Sprintf("%d, want ib.FlushRange or ib.FlushMR", wr.FlushLevel)}
	case uint64(wr.Length) > ib.MaxMsgSize:
		return &WRError{"Length", syscall.EINVAL, fmt.Sprintf("%d bytes, a message has at most %d", wr.Length, uint64(ib.MaxMsgSize))}
	}
	return nil
}

// payloadField names where the payload of a request is.
func payloadField(wr *driver.SendWR) string {
	if wr.Flags&ib.SendInline != 0 && len(wr.SGList) == 0 {
		return "InlineData"
	}
	return "SGList"
}
