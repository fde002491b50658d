// Package timer is a heap of deadlines over int64 nanoseconds. It reads no
// clock: whoever owns the heap says what time it is.
package timer

// Item is an entry of a heap: embed it in what has a deadline. Owner is what
// Expired returns.
type Item[T any] struct {
	Owner T
	at    int64
	index int // position + 1; 0 = not in the heap
}

// At is the time for which the item is scheduled, 0 = not.
func (it *Item[T]) At() int64 {
	if it.index == 0 {
		return 0
	}
	return it.at
}

// Heap is a set of items ordered by deadline. The zero value is empty.
type Heap[T any] struct {
	items []*Item[T]
}

// Set schedules it for at, which replaces what was scheduled; 0 removes it.
func (h *Heap[T]) Set(it *Item[T], at int64) {
	switch {
	case at == 0:
		h.remove(it)
	case it.index == 0:
		it.at = at
		h.items = append(h.items, it)
		it.index = len(h.items)
		h.up(it.index - 1)
	case at != it.at:
		it.at = at
		h.down(it.index - 1)
		h.up(it.index - 1)
	}
}

// Next is the earliest deadline, 0 when there is none.
func (h *Heap[T]) Next() int64 {
	if len(h.items) == 0 {
		return 0
	}
	return h.items[0].at
}

// First is the item with the earliest deadline, nil when there is none.
func (h *Heap[T]) First() *Item[T] {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

// Expired removes and returns an item whose deadline is not after now.
func (h *Heap[T]) Expired(now int64) (owner T, ok bool) {
	if len(h.items) == 0 || h.items[0].at > now {
		return owner, false
	}
	it := h.items[0]
	h.remove(it)
	return it.Owner, true
}

// Shift moves every deadline by d: after a pause of the whole process.
func (h *Heap[T]) Shift(d int64) {
	for _, it := range h.items {
		it.at += d
	}
}

// Len is the number of items.
func (h *Heap[T]) Len() int { return len(h.items) }

func (h *Heap[T]) remove(it *Item[T]) {
	if it.index == 0 {
		return
	}
	i, last := it.index-1, len(h.items)-1
	h.swap(i, last)
	h.items[last] = nil
	h.items = h.items[:last]
	it.index = 0
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *Heap[T]) swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].index, h.items[j].index = i+1, j+1
}

func (h *Heap[T]) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h.items[p].at <= h.items[i].at {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *Heap[T]) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h.items) {
			return
		}
		if c+1 < len(h.items) && h.items[c+1].at < h.items[c].at {
			c++
		}
		if h.items[i].at <= h.items[c].at {
			return
		}
		h.swap(i, c)
		i = c
	}
}
