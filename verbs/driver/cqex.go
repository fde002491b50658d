package driver

import (
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// CQInitAttr describes an extended completion queue (struct
// ibv_cq_init_attr_ex).
type CQInitAttr struct {
	CQE        int
	CompVector int
	WCFlags    ib.WCExFlags
	Flags      ib.CQFlags
}

// CQExCreator is a device with extended completion queues.
type CQExCreator interface {
	// CreateCQEx makes one. EINVAL: a bad size, vector or unknown flags;
	// EOPNOTSUPP: a field or flag that the device does not have; ENOMEM.
	CreateCQEx(attr *CQInitAttr, notify func()) (CQEx, error)
}

// CQEx is an extended completion queue: it shows batches of completions, with
// timestamps, which are taken afterwards. Who looks at a batch has the queue
// for himself (also against Poll) until Done; completions go on coming in.
type CQEx interface {
	CQ
	// Look shows the oldest completions and, if they were asked for, their
	// timestamps in ticks of the device's clock. Without any (after progress was made,
	// as in Poll) the queue is free at once; a queue in error gives EOVERFLOW then.
	// What is shown is valid until Next or Done.
	Look() ([]WC, []uint64, error)
	// Next takes all that is shown and shows what came meanwhile, perhaps nothing.
	Next() ([]WC, []uint64)
	// Done takes the first n of what is shown and ends the batch.
	Done(n int)
}

// CQModerator is a completion queue whose notifications can be held back.
type CQModerator interface {
	// Moderate lets a notification wait for count completions, 0 for any number, but
	// not longer than period; a period of 0 ends that.
	Moderate(count int, period time.Duration) error
}

// Clock is a device that has one (ibv_query_rt_values_ex), with the timestamps of
// completions.
type Clock interface {
	// Ticks reads the clock.
	Ticks() uint64
	// WallClock gives ns since 1970 at the tick: the same for the same tick as long as
	// nobody sets the time, and more for a later one.
	WallClock(ticks uint64) int64
}
