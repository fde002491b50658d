package mem

import (
	"sort"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// kind is what stands behind a key.
type kind uint8

const (
	kindMemory    kind = iota // one piece of memory
	kindList                  // several pieces, one behind the other
	kindNull                  // reads as zeros, swallows writes, at any address
	kindDMA                   // the buffers of a protection domain, by their real addresses
	kindSignature             // data with protection information, as the wire sees it
)

// entry is what a key stands for. Lookups read it without a lock, so that but
// for pd it does not change once they can find it: whoever changes what a key
// stands for puts another entry in its place.
type entry struct {
	// pd is who may use the memory: nil while nobody may. Then the entry only
	// tells whose key it is (a window that is not bound, a fast-registration
	// region that is not registered).
	pd     atomic.Pointer[PD]
	key    uint32
	qpn    ib.QPN // the one queue pair that may use it remotely, 0 = any
	access ib.Access
	kind   kind
	iova   uint64 // address by which work requests name the first byte
	length uint64
	buf    []byte   // kindMemory
	list   []run    // kindList
	shared bool     // ... which another entry has too
	off    uint64   // ... and where in it iova is
	sig    *sigView // kindSignature

	region *Region // whose memory this is; nil for a window that is not bound
	window *Window // nil for the region's own key
}

// of reports whether the domain may use the memory now. No domain may use any.
func (e *entry) of(pd *PD) bool { return pd != nil && e.pd.Load() == pd }

// letGo lets go of the memory: nobody looks it up any more.
func (e *entry) letGo() {
	if v := e.sig; v != nil {
		v.data, v.meta, v.wire = nil, nil, nil
	}
	e.buf, e.list, e.sig = nil, nil, nil
}

// run is one piece of a list.
type run struct {
	end uint64 // offset of the byte behind it
	buf []byte
}

// purpose is what pieces of memory are wanted for.
type purpose uint8

const (
	toRead      purpose = iota
	toReadAgain         // what was read before
	toWrite
)

// pieces appends length > 0 bytes at addr to out. False: out of bounds.
func (e *entry) pieces(addr, length uint64, how purpose, out [][]byte) ([][]byte, bool) {
	// Modulo 2^64 an address below the memory gives an offset that is behind
	// its end, since nothing that wraps around is ever entered.
	off := addr - e.iova
	if e.kind == kindMemory {
		if length > e.length || off > e.length-length {
			return out, false
		}
		return append(out, e.buf[off:off+length:off+length]), true
	}
	return e.others(addr, off, length, how, out)
}

// others is pieces for what is not one piece.
func (e *entry) others(addr, off, length uint64, how purpose, out [][]byte) ([][]byte, bool) {
	switch e.kind {
	case kindNull:
		for ; length > nullLen; length -= nullLen {
			out = append(out, null[:])
		}
		return append(out, null[:length]), true
	case kindDMA:
		pd := e.pd.Load()
		if pd == nil {
			return out, false
		}
		return pd.buffer(addr, length, out)
	}
	if length > e.length || off > e.length-length {
		return out, false
	}
	if e.kind == kindSignature {
		var err error
		out, err = e.sig.pieces(off, length, how, out)
		return out, err == nil
	}
	off += e.off
	i := sort.Search(len(e.list), func(i int) bool { return off < e.list[i].end })
	for ; length > 0; i++ {
		b := e.list[i].buf
		at := off - (e.list[i].end - uint64(len(b)))
		n := min(uint64(len(b))-at, length)
		out = append(out, b[at:at+n:at+n])
		off += n
		length -= n
	}
	return out, true
}

// part gives a new entry for length bytes at offset off of e's memory.
func (e *entry) part(off, length uint64) *entry {
	p := &entry{kind: e.kind, length: length, region: e.region}
	if e.kind == kindMemory {
		p.buf = e.buf[off : off+length : off+length]
	} else {
		p.list, p.off = e.list, e.off+off
	}
	return p
}

// nullLen is the size of the memory behind null regions.
const nullLen = 64 << 10

// null is the memory behind every null region. Nobody writes it: Copy,
// FetchAdd and CompareSwap know it.
var null [nullLen]byte
