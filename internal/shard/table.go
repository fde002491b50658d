package shard

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
)

// member is a queue pair in its shard.
type member struct {
	qp *transport.QP
	sh *Shard

	gone bool // removed; under the shard's lock
}

// table finds queue pairs by number: open addressing, read without a lock,
// changed under one. A removed entry leaves a tombstone until the next growth.
type table struct {
	mu    sync.Mutex
	slots atomic.Pointer[[]atomic.Pointer[member]]
	used  int // slots that are not empty, tombstones included
	live  int
}

var tombstone = new(member)

func (t *table) hash(n ib.QPN, size int) int {
	return int(uint32(n)*0x9E3779B1>>(32-bits.Len(uint(size-1)))) & (size - 1)
}

// find returns nil when there is no such queue pair.
func (t *table) find(n ib.QPN) *member {
	p := t.slots.Load()
	if p == nil {
		return nil
	}
	s := *p
	for i := t.hash(n, len(s)); ; i = (i + 1) & (len(s) - 1) {
		m := s[i].Load()
		if m == nil {
			return nil
		}
		if m != tombstone && m.qp.Num == n {
			return m
		}
	}
}

// add inserts m unless its number is taken.
func (t *table) add(m *member) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.find(m.qp.Num) != nil {
		return false
	}
	if p := t.slots.Load(); p == nil || 2*(t.used+1) > len(*p) {
		t.grow()
	}
	t.put(*t.slots.Load(), m)
	t.used++
	t.live++
	return true
}

func (t *table) put(s []atomic.Pointer[member], m *member) {
	for i := t.hash(m.qp.Num, len(s)); ; i = (i + 1) & (len(s) - 1) {
		if s[i].Load() == nil {
			s[i].Store(m)
			return
		}
	}
}

func (t *table) grow() {
	size := 16
	for size < 4*(t.live+1) {
		size *= 2
	}
	next := make([]atomic.Pointer[member], size)
	if p := t.slots.Load(); p != nil {
		for i := range *p {
			if m := (*p)[i].Load(); m != nil && m != tombstone {
				t.put(next, m)
			}
		}
	}
	t.used = t.live
	t.slots.Store(&next)
}

// each calls f for every queue pair.
func (t *table) each(f func(*member)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.slots.Load()
	if p == nil {
		return
	}
	for i := range *p {
		if m := (*p)[i].Load(); m != nil && m != tombstone {
			f(m)
		}
	}
}

// remove gives what it removed, nil if there is no such queue pair.
func (t *table) remove(n ib.QPN) *member {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.slots.Load()
	if p == nil {
		return nil
	}
	s := *p
	for i := t.hash(n, len(s)); s[i].Load() != nil; i = (i + 1) & (len(s) - 1) {
		if m := s[i].Load(); m != tombstone && m.qp.Num == n {
			s[i].Store(tombstone)
			t.live--
			return m
		}
	}
	return nil
}
