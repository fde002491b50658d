package mem

import (
	"slices"
	"sort"

	"github.com/verbena-rdma/verbena/ib"
)

// RegisterDMA enters the key for local access to all buffers of a protection
// domain (see AddBuffer), by their real addresses: the domain's local DMA key
// (IBA 10.6.3.4's reserved L_Key, kernel: ib_pd.local_dma_lkey). Peers cannot
// use it. It does not keep the domain from being deallocated; the caller
// releases it then. ENOMEM.
//
// In the kernel that key reaches all memory. Here it must not: an address that
// is only a number does not keep Go's garbage collector from giving the memory
// to somebody else.
func (t *Table) RegisterDMA(pd *PD) (*Region, error) {
	r := new(Region)
	r.first.kind, r.first.access = kindDMA, ib.AccessLocalWrite
	r, err := t.enter(pd, r)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	r.pd = nil
	t.mu.Unlock()
	pd.Drop()
	return r, nil
}

// AddBuffer makes b reachable by the domain's local DMA key until DropBuffer.
// It must not overlap another buffer.
func (pd *PD) AddBuffer(b []byte) {
	pd.dmaMu.Lock()
	defer pd.dmaMu.Unlock()
	old := pd.buffers()
	i := sort.Search(len(old), func(i int) bool { return address(old[i]) > address(b) })
	list := slices.Insert(slices.Clone(old), i, b)
	pd.dma.Store(&list)
}

// DropBuffer takes b out again. Memory that was looked up before may still be in
// use.
func (pd *PD) DropBuffer(b []byte) {
	pd.dmaMu.Lock()
	defer pd.dmaMu.Unlock()
	list := slices.DeleteFunc(slices.Clone(pd.buffers()), func(o []byte) bool { return address(o) == address(b) })
	pd.dma.Store(&list)
}

// buffers are the buffers of the domain, in the order of their addresses.
func (pd *PD) buffers() [][]byte {
	if l := pd.dma.Load(); l != nil {
		return *l
	}
	return nil
}

// buffer appends length bytes at the real address addr to out. False: they are
// not in one buffer of the domain.
func (pd *PD) buffer(addr, length uint64, out [][]byte) ([][]byte, bool) {
	list := pd.buffers()
	i := sort.Search(len(list), func(i int) bool { return uint64(address(list[i])) > addr }) - 1
	if i < 0 {
		return out, false
	}
	b := list[i]
	off, n := addr-uint64(address(b)), uint64(len(b))
	if length > n || off > n-length {
		return out, false
	}
	return append(out, b[off:off+length:off+length]), true
}
