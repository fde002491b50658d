package driver

import "github.com/verbena-rdma/verbena/ib"

// BatchPoster is a queue pair that takes a list of send requests whole or not at
// all: the new post interface (ibv_wr_start and so on).
type BatchPoster interface {
	// PostSendAll posts all of wrs, or nothing. The error is about wrs[n], or about
	// none of them if n is len(wrs); the errnos are those of PostSend.
	PostSendAll(wrs []SendWR) (n int, err error)
	// CanSend says whether the queue pair may send an opcode: EINVAL if its type has
	// no such thing, EOPNOTSUPP if the device does not offer it.
	CanSend(op ib.WROpcode) error
}
