package simtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

// arenaSize is the registered memory of a node.
const arenaSize = 2 << 20

// arena is a node's registered memory with what the model knows of it: shadow
// equals mem everywhere but in slots in flux, which somebody may be writing.
type arena struct {
	mem, shadow []byte
	free        []span // sorted, not adjacent
	left        int    // bytes in free
	annex       *annex // nil: the node's own memory
	flux        []*slot
	log         func(format string, args ...any)
}

func (s *slot) note(what string, id uint32) {
	if s.a.log != nil {
		s.a.log("memory %p: %s %v content %d", s.a, what, s.pieces, id)
	}
}

type span struct{ off, n int }

// slot is a piece of memory with one purpose at a time.
type slot struct {
	a      *arena
	span          // all of it, gaps between the pieces included
	pieces []span // where the payload is, in order
	refs   int
	parent *slot // whose memory it is a part of, or nil
	fluxAt int   // index in arena.flux + 1
	old    uint32
}

func newArena() *arena {
	return &arena{mem: make([]byte, arenaSize), shadow: make([]byte, arenaSize)}
}

// pull gets what is in device memory, which only calls reach.
func (a *arena) pull() {
	if a.annex != nil && a.annex.dm != nil {
		a.annex.read(a.mem)
	}
}

func (a *arena) reset() {
	const first = 1024
	for i := range first {
		a.mem[i] = 0xA5
	}
	for n := first; n < len(a.mem); n *= 2 {
		copy(a.mem[n:], a.mem[:n])
	}
	copy(a.shadow, a.mem)
	a.free = append(a.free[:0], span{64, len(a.mem) - 128})
	a.left = len(a.mem) - 128
	a.flux = a.flux[:0]
}

// recvReserve is kept free for receives, so that messages always end: four times
// what the queues of a node may hold (32 KiB each), since free memory is in pieces.
const recvReserve = arenaSize / 2

// guard bytes lie behind each slot: nobody may touch them.
const guard = 24

// alloc gives a slot whose payload of n bytes is cut into pieces; nil: no room.
func (a *arena) alloc(n, pieces int) *slot {
	if a.annex == nil && a.left < n+recvReserve {
		return nil
	}
	return a.allocRecv(n, pieces)
}

// allocRecv may use the reserve.
func (a *arena) allocRecv(n, pieces int) *slot {
	const gap = 8
	need := (n+(pieces-1)*gap+7)&^7 + guard
	for i := range a.free {
		f := &a.free[i]
		if f.n < need {
			continue
		}
		s := &slot{a: a, span: span{f.off, need}, refs: 1}
		a.left -= need
		f.off += need
		f.n -= need
		if f.n == 0 {
			a.free = append(a.free[:i], a.free[i+1:]...)
		}
		off := s.off
		for p := range pieces {
			c := n / pieces
			if p == pieces-1 {
				c = n - c*(pieces-1)
			}
			s.pieces = append(s.pieces, span{off, c})
			off += c + gap
		}
		return s
	}
	return nil
}

// release gives up one reference; with the last the memory is free again.
func (s *slot) release() {
	if s == nil {
		return
	}
	if s.refs--; s.refs > 0 {
		return
	}
	if s.refs < 0 {
		panic("slot released too often")
	}
	s.settle()
	s.note("free", 0)
	if s.parent != nil {
		s.parent.release()
		return
	}
	a := s.a
	a.left += s.n
	i := 0
	for i < len(a.free) && a.free[i].off < s.off {
		i++
	}
	a.free = append(a.free, span{})
	copy(a.free[i+1:], a.free[i:])
	a.free[i] = s.span
	if i+1 < len(a.free) && a.free[i].off+a.free[i].n == a.free[i+1].off {
		a.free[i].n += a.free[i+1].n
		a.free = append(a.free[:i+1], a.free[i+2:]...)
	}
	if i > 0 && a.free[i-1].off+a.free[i-1].n == a.free[i].off {
		a.free[i-1].n += a.free[i].n
		a.free = append(a.free[:i], a.free[i+1:]...)
	}
}

// unsettle says that somebody else may write the slot from now on.
func (s *slot) unsettle() {
	if s.fluxAt == 0 {
		s.a.flux = append(s.a.flux, s)
		s.fluxAt = len(s.a.flux)
		s.note("unsettle", 0)
	}
}

// settle says that nobody may write the slot any more: what it holds now stays.
func (s *slot) settle() {
	if s.fluxAt == 0 {
		return
	}
	s.note("settle", 0)
	s.sync()
	last := len(s.a.flux) - 1
	s.a.flux[s.fluxAt-1] = s.a.flux[last]
	s.a.flux[s.fluxAt-1].fluxAt = s.fluxAt
	s.a.flux = s.a.flux[:last]
	s.fluxAt = 0
}

func (s *slot) sync() {
	s.a.pull()
	for _, p := range s.pieces {
		copy(s.a.shadow[p.off:p.off+p.n], s.a.mem[p.off:p.off+p.n])
	}
}

// fill writes the content named by id.
func (s *slot) fill(id uint32) {
	s.old = id
	s.note("fill", id)
	for pos, i := 0, 0; i < len(s.pieces); i++ {
		p := s.pieces[i]
		content(s.a.mem[p.off:p.off+p.n], id, pos)
		if s.a.annex != nil {
			s.a.annex.write(p.off, s.a.mem[p.off:p.off+p.n])
		}
		pos += p.n
	}
	s.sync()
}

// bytes is the length of the payload.
func (s *slot) bytes() (n int) {
	for _, p := range s.pieces {
		n += p.n
	}
	return n
}

// gather copies the payload out.
func (s *slot) gather() []byte {
	s.a.pull()
	var b []byte
	for _, p := range s.pieces {
		b = append(b, s.a.mem[p.off:p.off+p.n]...)
	}
	return b
}

// first gives the content id that a stamped payload begins with.
func (s *slot) first(skip int) uint32 {
	var b [4]byte
	got := 0
	for _, p := range s.pieces {
		for i := 0; i < p.n && got < 4; i++ {
			if skip > 0 {
				skip--
				continue
			}
			b[got] = s.a.mem[p.off+i]
			got++
		}
	}
	return binary.LittleEndian.Uint32(b[:])
}

// holds compares n bytes at offset from of the payload with a content's bytes
// from at.
func (s *slot) holds(id uint32, from, n, at int) error {
	var buf [512]byte
	pos := 0
	s.a.pull()
	for _, p := range s.pieces {
		lo, hi := max(from-pos, 0), min(from+n-pos, p.n)
		for lo < hi {
			c := min(hi-lo, len(buf))
			content(buf[:c], id, at+pos+lo-from)
			if have := s.a.mem[p.off+lo : p.off+lo+c]; !bytes.Equal(have, buf[:c]) {
				for i := range have {
					if have[i] != buf[i] {
						return fmt.Errorf("byte %d of %d at arena+%#x is %#02x, want %#02x of content %d", pos+lo+i-from, n, p.off+lo+i, have[i], buf[i], id)
					}
				}
			}
			lo += c
		}
		pos += p.n
	}
	return nil
}

// mixes checks that each byte is the old or the new content's.
func (s *slot) mixes(id uint32) error {
	s.a.pull()
	pos := 0
	for _, p := range s.pieces {
		if p.n > 0 {
			a, b := make([]byte, p.n), make([]byte, p.n)
			content(a, s.old, pos)
			content(b, id, pos)
			for i, v := range s.a.mem[p.off : p.off+p.n] {
				if v != a[i] && v != b[i] {
					return fmt.Errorf("byte %d at arena+%#x is %#02x: neither old content %d nor new %d", pos+i, p.off+i, v, s.old, id)
				}
			}
		}
		pos += p.n
	}
	return nil
}

// check compares all memory that is not in flux with the shadow.
func (a *arena) check() error {
	a.pull()
	for _, s := range a.flux {
		s.sync()
	}
	if bytes.Equal(a.mem, a.shadow) {
		return nil
	}
	for i := range a.mem {
		if a.mem[i] != a.shadow[i] {
			n := i
			for n < len(a.mem) && a.mem[n] != a.shadow[n] {
				n++
			}
			return fmt.Errorf("memory that nobody may change did: arena+%#x, %d bytes: %x, was %x", i, n-i,
				a.mem[i:min(n, i+16)], a.shadow[i:min(n, i+16)])
		}
	}
	return nil
}

// content writes bytes from pos of the content named by id: it begins with the
// id and goes on at random.
func content(b []byte, id uint32, pos int) {
	var w [8]byte
	if skip := pos % 8; skip != 0 {
		binary.LittleEndian.PutUint64(w[:], contentWord(id, pos/8))
		n := copy(b, w[skip:])
		b, pos = b[n:], pos+n
	}
	if len(b) >= 8 && pos == 0 {
		binary.LittleEndian.PutUint64(b, contentWord(id, 0))
		b, pos = b[8:], 8
	}
	x := uint64(id)*0x9E3779B97F4A7C15 + uint64(pos/8)*0xBF58476D1CE4E5B9
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, x^x>>29)
		x += 0xBF58476D1CE4E5B9
		b, pos = b[8:], pos+8
	}
	if len(b) > 0 {
		binary.LittleEndian.PutUint64(w[:], contentWord(id, pos/8))
		copy(b, w[:])
	}
}

func contentWord(id uint32, i int) uint64 {
	x := uint64(id)*0x9E3779B97F4A7C15 + uint64(i)*0xBF58476D1CE4E5B9
	x ^= x >> 29
	if i == 0 {
		x = x<<32 | uint64(id)
	}
	return x
}

// TestContent checks that every cut of a content is the same content.
func TestContent(t *testing.T) {
	whole := make([]byte, 77)
	content(whole, 99, 0)
	for from := range whole {
		for to := from; to <= len(whole); to++ {
			part := make([]byte, to-from)
			content(part, 99, from)
			if !bytes.Equal(part, whole[from:to]) {
				t.Fatalf("bytes %d to %d: %x, want %x", from, to, part, whole[from:to])
			}
		}
	}
	if binary.LittleEndian.Uint32(whole) != 99 {
		t.Error("the id is not at the beginning")
	}
}
