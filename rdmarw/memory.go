package rdmarw

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Memory tells by which key this side's work requests name a piece of memory. The
// kernel has one local DMA key for all memory; Go's memory has to be registered, so
// that contexts look for the region that a slice is in. One Memory may serve any
// number of queue pairs of a protection domain.
//
// Buffers of PD.AllocBuffer need none: where the device has a local DMA key contexts
// use it for them.
type Memory struct {
	mu   sync.Mutex
	list atomic.Pointer[[]span] // in the order of addresses
}

// span is the memory of a region.
type span struct {
	at, end uint64 // real addresses; end is behind the last byte
	most    uint64 // the furthest end of this span and those before it
	off     uint64 // from a real address to that which work requests use, modulo 2^64
	key     ib.LKey
	mr      *verbs.MR
}

// Add makes contexts find the memory of a region. READs need ib.AccessLocalWrite of
// it. Regions may overlap. One that was registered by pointer is found by the address
// that work requests use, which has to be the real one. EINVAL: mr is nil or has no
// memory of its own, as null regions and those for fast registration, whatever is
// registered with them.
func (m *Memory) Add(mr *verbs.MR) error {
	const op = "memory_add"
	if mr == nil {
		return opErr(op, invalid("mr", "is nil"))
	}
	s := span{at: mr.Addr(), key: mr.LKey(), mr: mr}
	n := mr.Length()
	if b := mr.Bytes(); b != nil {
		s.at, n = mem.Address(b), uint64(len(b))
		s.off = mr.Addr() - s.at
	} else {
		switch mr.UnwrapMR().(type) {
		case driver.FastMR, driver.SigMR: // of several pieces, and only until the next registration
			n = 0
		}
	}
	if s.end = s.at + n; n == 0 || s.end < s.at {
		return opErr(op, invalid("mr", "has no memory of its own"))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.spans()
	i := sort.Search(len(old), func(i int) bool { return old[i].at > s.at })
	m.set(slices.Insert(slices.Clone(old), i, s))
	return nil
}

// Remove makes contexts find it no more: before it is deregistered.
func (m *Memory) Remove(mr *verbs.MR) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(slices.DeleteFunc(slices.Clone(m.spans()), func(s span) bool { return s.mr == mr }))
}

func (m *Memory) set(list []span) {
	most := uint64(0)
	for i := range list {
		most = max(most, list[i].end)
		list[i].most = most
	}
	m.list.Store(&list)
}

func (m *Memory) spans() []span {
	if l := m.list.Load(); l != nil {
		return *l
	}
	return nil
}

// sge describes b, which is not empty. False: it is not in one region.
func (m *Memory) sge(b []byte) (verbs.SGE, bool) {
	list, at := m.spans(), mem.Address(b)
	end := at + uint64(len(b))
	for i := sort.Search(len(list), func(i int) bool { return list[i].at > at }) - 1; i >= 0 && list[i].most >= end; i-- {
		if s := &list[i]; s.end >= end {
			return verbs.SGE{Addr: at + s.off, Length: uint32(len(b)), LKey: s.key}, true
		}
	}
	return verbs.SGE{}, false
}

// element describes b, the i-th element of a list, for this side's requests. An empty
// one names no memory.
func (q *QP) element(i int, b []byte) (verbs.SGE, error) {
	switch {
	case len(b) == 0:
		return verbs.SGE{}, nil
	case uint64(len(b)) > math.MaxUint32:
		return verbs.SGE{}, invalid("sg", "element %d has %d bytes, at most %d can be described", i, len(b), uint32(math.MaxUint32))
	}
	if q.memory != nil {
		if s, ok := q.memory.sge(b); ok {
			return s, nil
		}
	}
	if q.dmaKey != 0 && q.qp.PD().LocalDMAReaches(b) {
		return verbs.SGE{Addr: mem.Address(b), Length: uint32(len(b)), LKey: q.dmaKey}, nil
	}
	return verbs.SGE{}, q.notRegistered(i, len(b))
}

// notRegistered says why an element cannot be used.
func (q *QP) notRegistered(i, n int) error {
	where := "in no buffer of the domain (PD.AllocBuffer)"
	if q.memory != nil {
		where = "in no region of QPInitAttr.Memory and " + where
	}
	return &refusal{"sg", fmt.Sprintf("element %d, of %d bytes, is not registered: it is %s", i, n, where), syscall.EINVAL}
}
