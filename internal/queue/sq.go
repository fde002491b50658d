package queue

import (
	"fmt"
	"math/bits"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// WQE is a send work request in its ring. The strings of its list and its
// inline bytes lie in memory of the ring and are valid until it is popped.
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
	RemoteSRQN uint32
	Flags      ib.SendFlags
	Op         ib.WROpcode
	InvLocal   bool  // a READ that invalidates InvKey, of this side's, before it completes
	FlushType  uint8 // ib.FlushType and ib.FlushLevel
	FlushLevel uint8
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
	SigAll    bool // every work request makes a completion (sq_sig_all)

	wqes       []WQE // a power of two, or none
	sgl        store[driver.SGE]
	inline     store[byte]
	binds      store[binding]
	head, tail uint32
}

// MaxDepth is the most work requests that a send or receive queue can be made
// for. Devices have lower limits.
const MaxDepth = 1 << 24

// NewSQ makes a send queue for depth work requests, 0 to MaxDepth, rounded up
// to a power of two.
func NewSQ(depth, maxSGE, maxInline int) *SQ {
	q := &SQ{MaxSGE: maxSGE, MaxInline: maxInline}
	if depth > 0 {
		n := 1 << bits.Len(uint(depth-1))
		q.wqes = make([]WQE, n)
		q.sgl = newStore[driver.SGE](n, maxSGE)
		q.inline = newStore[byte](n, max(maxInline, wordLen)) // an ATOMIC WRITE may always be inline
		q.binds = newStore[binding](n, 1)
	}
	return q
}

// Cap is the number of work requests that the queue holds at most.
func (q *SQ) Cap() int { return len(q.wqes) }

// Len is the number that it holds.
func (q *SQ) Len() int { return int(q.tail - q.head) }

// Head is the absolute index of the oldest WQE, Tail one past the newest. They
// only grow (and wrap at 2^32): At(i) for Head <= i < Tail.
func (q *SQ) Head() uint32 { return q.head }

// Tail is one past the absolute index of the newest WQE.
func (q *SQ) Tail() uint32 { return q.tail }

// At gives the WQE with absolute index i.
func (q *SQ) At(i uint32) *WQE { return &q.wqes[i&uint32(len(q.wqes)-1)] }

// Push copies wr, which is not inline, into the ring. The caller has checked it
// (Check). nil: full.
func (q *SQ) Push(wr *driver.SendWR) *WQE {
	if q.Len() == len(q.wqes) {
		return nil
	}
	w := q.fill(wr)
	w.SGL = append(q.sgl.slot(q.index()), wr.SGList...)
	for i := range wr.SGList {
		w.Length += uint64(wr.SGList[i].Length)
	}
	if wr.Opcode == ib.WRFlush {
		w.Length = uint64(wr.Length)
	}
	q.tail++
	return w
}

// PushInline copies wr, which has SendInline, into the ring, with its payload:
// the bytes of all pieces (of the memory that wr.SGList names, in order), or
// wr.InlineData if the list is empty. The caller has checked wr (Check) and
// resolved the pieces. On an error the queue is as before: ENOMEM when it is
// full, EFAULT when the memory is not there, EINVAL when the payload is too long.
func (q *SQ) PushInline(wr *driver.SendWR, pieces [][]byte) (*WQE, error) {
	if q.Len() == len(q.wqes) {
		return nil, ErrFull
	}
	i := q.index()
	buf := q.inline.slot(i)
	if wr.Opcode != ib.WRAtomicWrite {
		buf = buf[:0:q.MaxInline]
	}
	var err error
	if len(wr.SGList) == 0 {
		buf, err = q.gather(buf, wr.InlineData)
	} else {
		for _, p := range pieces {
			if buf, err = q.gather(buf, p); err != nil {
				break
			}
		}
	}
	if err != nil {
		return nil, err
	}
	w := q.fill(wr)
	w.Inline = buf
	w.Length = uint64(len(buf))
	q.tail++
	return w, nil
}

// gather appends b, which is registered memory, to the inline bytes.
func (q *SQ) gather(buf, b []byte) ([]byte, error) {
	n := len(buf)
	if len(b) > cap(buf)-n {
		return buf, &WRError{"InlineData", syscall.EINVAL, fmt.Sprintf("more than the %d bytes of MaxInlineData", q.MaxInline)}
	}
	buf = buf[:n+len(b)]
	if err := mem.Copy(buf[n:], b); err != nil {
		return buf, &WRError{"SGList", syscall.EFAULT, err.Error()}
	}
	return buf, nil
}

// index is the ring index of the next WQE.
func (q *SQ) index() int { return int(q.tail & uint32(len(q.wqes)-1)) }

// fill sets the next WQE from wr, but for its payload.
func (q *SQ) fill(wr *driver.SendWR) *WQE {
	w := &q.wqes[q.index()]
	// Field by field: a composite literal is built aside and then copied.
	w.WRID, w.RemoteAddr, w.CompareAdd, w.Swap = wr.WRID, wr.RemoteAddr, wr.CompareAdd, wr.Swap
	w.Length, w.SGL, w.Inline = 0, nil, nil
	w.AH, w.Imm, w.RKey, w.InvKey = wr.AH, wr.ImmData, wr.RKey, wr.InvalidateRKey
	w.RemoteQPN, w.RemoteQKey, w.Flags, w.Op = wr.RemoteQPN, wr.RemoteQKey, wr.Flags, wr.Opcode
	w.RemoteSRQN, w.FlushType, w.FlushLevel = wr.RemoteSRQN, uint8(wr.FlushType), uint8(wr.FlushLevel)
	if w.InvLocal = wr.Opcode == ib.WRReadWithInv; w.InvLocal {
		w.Op = ib.WRRDMARead
	}
	w.Signaled = q.SigAll || wr.Flags&ib.SendSignaled != 0
	w.FirstPSN, w.LastPSN, w.Started, w.Done, w.Status = 0, 0, false, false, 0
	return w
}

// Pop removes the oldest WQE.
func (q *SQ) Pop() {
	q.At(q.head).AH = nil // lets go of the application's object
	q.head++
}
