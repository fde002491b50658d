package mem

import (
	"runtime/debug"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pi"
)

// sigView is what a signature key shows: the wire's view of data in memory. It has no
// state but the tuples of the wire and the first error, so that packets may cut
// blocks and tuples anywhere, and bytes may be asked for again: a tuple that leaves is
// made when a byte of it does, one that arrives counts when its last byte has come,
// and is compared with the data that stands in memory.
type sigView struct {
	state  *signature
	box    *sigEntry // that it is in
	attrs  ib.SigAttrs
	data   runs
	meta   runs // tuples in memory; empty: they are in data, behind their blocks
	blocks uint64
	block  uint64 // bytes of data in one, 0: there is no protection information at all
	key    uint32
	inMem  bool
	onWire bool
	// What a tuple of one domain is not to have from that of the other.
	newGuard, newApp, newRef bool

	wire []byte // of state, while the view is registered
}

// sigEntry is an entry of a signature region, with what it shows.
type sigEntry struct {
	entry
	view sigView
}

// dif is the description of protection information that one of the domains has, or
// nil.
func dif(a *ib.SigAttrs) *ib.T10DIFDomain {
	switch {
	case a.Mem.SigType == ib.SigTypeT10DIF:
		return &a.Mem.DIF
	case a.Wire.SigType == ib.SigTypeT10DIF:
		return &a.Wire.DIF
	}
	return nil
}

// show makes of v the view of data and metadata that fit the attributes of s.
func (v *sigView) show(s *signature) {
	*v = sigView{state: s, box: v.box, attrs: s.attrs, data: v.data, meta: v.meta}
	m, w := &v.attrs.Mem, &v.attrs.Wire
	v.inMem, v.onWire = m.SigType == ib.SigTypeT10DIF, w.SigType == ib.SigTypeT10DIF
	if d := dif(&v.attrs); d != nil {
		v.block = uint64(d.PIInterval)
		v.blocks = v.data.length() / v.memStride()
	}
	both := v.inMem && v.onWire
	v.newGuard = !both || m.DIF.BGType != w.DIF.BGType || m.DIF.BG != w.DIF.BG
	v.newApp = !both || m.DIF.AppTag != w.DIF.AppTag
	v.newRef = !both || m.DIF.RefTag != w.DIF.RefTag || m.DIF.RefRemap != w.DIF.RefRemap
}

// mixed reports whether the tuples stand in the list of data.
func (v *sigView) mixed() bool { return v.inMem && len(v.meta) == 0 }

// memStride is the distance of two blocks in the list of data.
func (v *sigView) memStride() uint64 {
	if v.mixed() {
		return v.block + pi.TupleLen
	}
	return v.block
}

// wireStride is that on the wire.
func (v *sigView) wireStride() uint64 {
	if v.onWire {
		return v.block + pi.TupleLen
	}
	return v.block
}

// length is that of the whole view.
func (v *sigView) length() uint64 {
	if v.block == 0 {
		return v.data.length()
	}
	return v.blocks * v.wireStride()
}

// pieces appends n > 0 bytes at off of the view, which are inside it, to out. To be
// read the tuples among them are made, and what leaves is checked.
func (v *sigView) pieces(off, n uint64, how purpose, out [][]byte) (res [][]byte, err error) {
	defer guard(debug.SetPanicOnFault(true), &err)
	res = out
	if v.block == 0 {
		res, _ = v.data.cut(off, n, 0, res)
		return res, nil
	}
	from, end := off, off+n
	stride, run := v.wireStride(), 0
	for off < end {
		k := off / stride
		at := off - k*stride
		if at < v.block {
			take := min(v.block-at, end-off)
			if !v.onWire && !v.mixed() {
				take = end - off // one behind the other on both sides
			}
			res, run = v.data.cut(k*v.memStride()+at, take, run, res)
			off += take
			continue
		}
		if how != toWrite {
			v.leave(k, how)
		}
		t := k*pi.TupleLen + at - v.block
		take := min(stride-at, end-off)
		res = append(res, v.wire[t:t+take:t+take])
		off += take
	}
	if !v.onWire && how != toWrite {
		// The last byte of a block is the end of it.
		for k := from / stride; (k+1)*stride <= end; k++ {
			v.leave(k, how)
		}
	}
	return res, nil
}

// leave checks block k, and makes its tuple on the wire.
func (v *sigView) leave(k uint64, how purpose) {
	var b [pi.TupleLen]byte
	if v.inMem {
		v.readTuple(k, b[:])
	}
	t := v.turn(k, &v.attrs.Mem, &v.attrs.Wire, pi.Get(&b), how)
	if !v.onWire {
		return
	}
	t.Put(&b)
	p := (*[pi.TupleLen]byte)(v.wire[k*pi.TupleLen:])
	// Several shards may work with one key. Who makes the same tuple again leaves it
	// alone: the other one may be reading it.
	v.state.mu.Lock()
	if *p != b {
		*p = b
	}
	v.state.mu.Unlock()
}

// arrived tells that n > 0 bytes at off have been written: blocks that have come to
// their end are checked, and their tuples in memory written.
func (v *sigView) arrived(off, n uint64) (err error) {
	if v.block == 0 {
		return nil
	}
	defer guard(debug.SetPanicOnFault(true), &err)
	stride, end := v.wireStride(), off+n
	for k := off / stride; (k+1)*stride <= end; k++ {
		var b [pi.TupleLen]byte
		if v.onWire {
			b = [pi.TupleLen]byte(v.wire[k*pi.TupleLen:])
		}
		t := v.turn(k, &v.attrs.Wire, &v.attrs.Mem, pi.Get(&b), toWrite)
		if v.inMem {
			t.Put(&b)
			v.writeTuple(k, b[:])
		}
	}
	return nil
}

// turn takes block k from one domain to the other: its tuple in is checked, if from has
// one, and the tuple for to comes out, if that has one. As on NICs (mlx5) what of a
// tuple is the same by the attributes of both is handed on, right or wrong, and the
// rest made anew.
func (v *sigView) turn(k uint64, from, to *ib.SigDomain, in pi.Tuple, how purpose) (out pi.Tuple) {
	if from.SigType == ib.SigTypeT10DIF {
		if mask := v.attrs.CheckMask; mask != 0 && !pi.Escaped(&from.DIF, &in) {
			var g uint16
			if pi.WantsGuard(mask) {
				g = v.guard(k, &from.DIF)
			}
			if e, ok := pi.Check(&from.DIF, mask, &in, g, k); !ok {
				v.report(k, e, how)
			}
		}
		out = in
	}
	if to.SigType != ib.SigTypeT10DIF {
		return out
	}
	if v.newGuard {
		out.Guard = v.guard(k, &to.DIF)
	}
	if v.newApp {
		out.App = to.DIF.AppTag
	}
	if v.newRef {
		out.Ref = pi.Ref(&to.DIF, k)
	}
	return out
}

// guard is the guard of block k as it stands in memory.
func (v *sigView) guard(k uint64, d *ib.T10DIFDomain) uint16 {
	g := pi.NewGuard(d.BGType, d.BG)
	v.data.sum(&g, k*v.memStride(), v.block)
	return g.Value()
}

// report remembers the first error. What is read once more because a peer asks again
// tells nothing new of a block that was found to be wrong before.
func (v *sigView) report(k uint64, e ib.SigErr, how purpose) {
	s := v.state
	s.mu.Lock()
	defer s.mu.Unlock()
	word, bit := &s.seen[k/64], uint64(1)<<(k%64)
	if how == toReadAgain && *word&bit != 0 {
		return
	}
	*word |= bit
	if !s.bad {
		e.SigErrOffset, e.Key = k*(v.block+pi.TupleLen), v.key
		s.err, s.bad = e, true
	}
}

// tuples is the list that has the tuples in memory, and where in it that of block k is.
func (v *sigView) tuples(k uint64) (runs, uint64) {
	if v.mixed() {
		return v.data, k*v.memStride() + v.block
	}
	return v.meta, k * pi.TupleLen
}

func (v *sigView) readTuple(k uint64, b []byte) {
	l, at := v.tuples(k)
	for i := l.find(at, 0); len(b) > 0; i++ {
		n := copy(b, l.from(i, at))
		b, at = b[n:], at+uint64(n)
	}
}

func (v *sigView) writeTuple(k uint64, b []byte) {
	l, at := v.tuples(k)
	for i := l.find(at, 0); len(b) > 0; i++ {
		n := copy(l.from(i, at), b)
		b, at = b[n:], at+uint64(n)
	}
}

// Arrived tells that length bytes at addr, which Local or Remote gave under key to be
// written, have been written. False: memory that is not there any more.
func (t *Table) Arrived(key uint32, addr, length uint64) bool {
	if !t.HasSignatures() || length == 0 {
		return true
	}
	e := t.lookup(key)
	if e == nil || e.kind != kindSignature || e.sig == nil {
		return true
	}
	return e.sig.arrived(addr-e.iova, length) == nil
}

// HasSignatures reports whether the table has signature regions: only then Arrived does
// something.
func (t *Table) HasSignatures() bool { return t.signatures.Load() != 0 }
