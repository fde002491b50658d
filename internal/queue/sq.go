package queue

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// WQE is a send work request in its ring. The strings of its list and its
// inline bytes lie in memory of the ring.
type WQE struct {
	WRID       uint64
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64
	Length     uint64 // of the whole message
	SGL        []driver.SGE
	Inline     []byte // the payload when Flags has SendInline
	AH         driver.AH
	Imm        uint32
	RKey       ib.RKey // of the peer's memory
	InvKey     ib.RKey
	RemoteQPN  ib.QPN
	RemoteQKey ib.QKey
	Flags      ib.SendFlags
	Op         ib.WROpcode
	Signaled   bool // a success makes a completion

	// The rest belongs to the protocol; Push zeroes it.
	FirstPSN psn.PSN
	LastPSN  psn.PSN
	Started  bool
	Done     bool
	Status   ib.WCStatus
}

// SQ is a send queue: a ring of WQEs from the oldest that is not complete to
// the newest. It is protected by the lock of the queue pair's shard.
type SQ struct {
	MaxSGE    int
	MaxInline int
}

// NewSQ makes a send queue for depth work requests.
func NewSQ(depth, maxSGE, maxInline int) *SQ { return &SQ{MaxSGE: maxSGE, MaxInline: maxInline} }

// Cap is the number of work requests that the queue holds at most.
func (q *SQ) Cap() int { return 0 }

// Len is the number that it holds.
func (q *SQ) Len() int { return 0 }

// Head is the absolute index of the oldest WQE, Tail one past the newest. They
// only grow (and wrap at 2^32): At(i) for Head <= i < Tail.
func (q *SQ) Head() uint32 { return 0 }

// Tail is one past the absolute index of the newest WQE.
func (q *SQ) Tail() uint32 { return 0 }

// At gives the WQE with absolute index i.
func (q *SQ) At(i uint32) *WQE { return nil }

// Push copies wr into the ring. The caller has checked it (Check). nil: full.
func (q *SQ) Push(wr *driver.SendWR) *WQE { return nil }

// Pop removes the oldest WQE.
func (q *SQ) Pop() {}
