package mem

import (
	"fmt"
	"slices"
	"sort"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pi"
)

// runs are pieces of memory, one behind the other.
type runs []run

// makeRuns makes runs of a list, from byte offset of its first slice on, in the place of
// l, which is empty. The list may be empty. EINVAL: l is as before, but for what is
// behind its end.
func makeRuns(l runs, name string, list [][]byte, offset, most int) (runs, error) {
	bad := func(what, why string, v ...any) (runs, error) {
		return l[:0], &ParamError{what, fmt.Sprintf(why, v...), syscall.EINVAL}
	}
	switch {
	case len(list) > most:
		return bad(name, "%d slices, the region takes %d", len(list), most)
	case len(list) == 0 && offset != 0:
		return bad(name+"Offset", "%d, but there are no slices", offset)
	case len(list) == 0:
		return l, nil
	case offset < 0 || offset >= max(len(list[0]), 1):
		return bad(name+"Offset", "%d, the first slice has %d bytes", offset, len(list[0]))
	}
	l = slices.Grow(l, len(list))
	end := uint64(0)
	for i, b := range list {
		if len(b) == 0 {
			return bad(name, "slice %d is empty", i)
		}
		b = b[offset:]
		offset = 0
		end += uint64(len(b))
		l = append(l, run{end, b[:len(b):len(b)]})
	}
	if end > ib.MaxMsgSize {
		return bad(name, "%d bytes, a message has at most %d", end, uint64(ib.MaxMsgSize))
	}
	return l, nil
}

// empty is the list without its pieces, which it lets go of.
func (l runs) empty() runs {
	clear(l)
	return l[:0]
}

// length is the number of bytes.
func (l runs) length() uint64 {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].end
}

// find is the index of the piece that has byte off; hint is that one or one before.
func (l runs) find(off uint64, hint int) int {
	if off < l[hint].end {
		return hint
	}
	return sort.Search(len(l), func(i int) bool { return off < l[i].end })
}

// from is piece i from byte off of the list on, which is in it.
func (l runs) from(i int, off uint64) []byte {
	r := &l[i]
	return r.buf[off-(r.end-uint64(len(r.buf))):]
}

// cut appends n > 0 bytes at off to out. hint is where to look, and last where the end
// was found.
func (l runs) cut(off, n uint64, hint int, out [][]byte) (_ [][]byte, last int) {
	i := l.find(off, hint)
	for {
		b := l.from(i, off)
		k := min(uint64(len(b)), n)
		out = append(out, b[:k:k])
		if n -= k; n == 0 {
			return out, i
		}
		off += k
		i++
	}
}

// sum adds n > 0 bytes at off to a guard.
func (l runs) sum(g *pi.Guard, off, n uint64) {
	for i := l.find(off, 0); n > 0; i++ {
		b := l.from(i, off)
		k := min(uint64(len(b)), n)
		g.Add(b[:k])
		off += k
		n -= k
	}
}
