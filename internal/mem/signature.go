package mem

import (
	"fmt"
	"math/bits"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pi"
)

// Blocks of a signature region are as long as a tuple can make sense of, and a length
// that the kernel's struct ib_t10_dif_domain can hold.
const (
	minInterval = 512
	maxInterval = 1<<16 - pi.TupleLen
)

// sigAccess is what a signature region may be registered with. Atomics would pass
// by the guard; a window would be a second key with another first block.
const sigAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessZeroBased | ib.AccessOptional

// CheckSigAccess says whether a signature region may have the rights. EINVAL.
func CheckSigAccess(a ib.Access) error {
	if u := a &^ sigAccess; u != 0 {
		return &ParamError{"access", fmt.Sprintf("%v is not for signature regions", u), syscall.EINVAL}
	}
	return CheckAccess(a)
}

// signature is the part of a fast-registration region with protection information.
type signature struct {
	maxData, maxMeta int // slices

	// Under the table's lock: what the next registration takes.
	next                 *sigEntry // with the memory that was given; fast.mapped is its entry
	attrs                ib.SigAttrs
	given                bool  // attrs were
	why                  error // why they do not fit together
	spareData, spareMeta runs  // empty, for the next mapping

	mu   sync.Mutex
	wire []byte   // for each block its tuple on the wire, as it arrives or was made last
	seen []uint64 // for each block a bit: an error was found in it
	err  ib.SigErr
	bad  bool // err was found, and not told yet
}

// RegisterSignature enters a region for fast registration whose key shows data with
// protection information, of up to maxData slices of data and maxMeta of metadata
// (kernel: ib_alloc_mr_integrity). EINVAL: a number is too low; ENOMEM.
func (t *Table) RegisterSignature(pd *PD, maxData, maxMeta int) (*Region, error) {
	switch {
	case maxData <= 0:
		return nil, &ParamError{"maxDataSG", fmt.Sprintf("%d", maxData), syscall.EINVAL}
	case maxMeta < 0:
		return nil, &ParamError{"maxMetaSG", fmt.Sprintf("%d", maxMeta), syscall.EINVAL}
	}
	s := &signature{maxData: maxData, maxMeta: maxMeta}
	s.why = s.fit()
	r := &Region{fast: &fast{max: maxData, sig: s}}
	r.first.kind = kindSignature
	t.signatures.Add(1)
	if _, err := t.enter(pd, r); err != nil {
		t.signatures.Add(-1)
		return nil, err
	}
	return r, nil
}

// MapSignature gives a signature region its memory: the slices of data, from byte
// dataOff of the first on, and those of meta, from metaOff of its first on. Slices
// may begin and end anywhere. n is how many there are. What is registered stays
// registered; the table keeps the slices. EINVAL, and nothing has changed: a list is
// too long, has an empty slice or an offset beyond its first, there is no data or more
// than a message can have, pageSize is not a power of two from 4096 on.
func (t *Table) MapSignature(r *Region, data [][]byte, dataOff int, meta [][]byte, metaOff, pageSize int) (n int, err error) {
	if !r.Integrity() {
		return 0, &ParamError{"mr", "is not a signature region", syscall.EINVAL}
	}
	s := r.fast.sig
	if len(data) == 0 {
		return 0, &ParamError{"data", "is empty", syscall.EINVAL}
	}
	if pageSize < minPage || bits.OnesCount(uint(pageSize)) != 1 {
		return 0, &ParamError{"pageSize", fmt.Sprintf("%d, want a power of two from %d on", pageSize, minPage), syscall.EINVAL}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.state != stateLive {
		return 0, &ParamError{"mr", "is deregistered", syscall.EINVAL}
	}
	d, err := makeRuns(s.spareData, "data", data, dataOff, s.maxData)
	if s.spareData = d[:0]; err != nil {
		return 0, err
	}
	m, err := makeRuns(s.spareMeta, "meta", meta, metaOff, s.maxMeta)
	if s.spareMeta = m[:0]; err != nil {
		return 0, err
	}
	v := &s.template(r).view
	s.spareData, v.data = v.data.empty(), d
	s.spareMeta, v.meta = v.meta.empty(), m
	s.prepare(r)
	return len(data) + len(meta), nil
}

// SetSigAttrs sets the attributes that the next registration of a signature region
// takes. EINVAL, and nothing has changed.
func (t *Table) SetSigAttrs(r *Region, a *ib.SigAttrs) error {
	if !r.Integrity() {
		return &ParamError{"mr", "is not a signature region", syscall.EINVAL}
	}
	if err := checkSigAttrs(a); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.state != stateLive {
		return &ParamError{"mr", "is deregistered", syscall.EINVAL}
	}
	s := r.fast.sig
	s.attrs, s.given = *a, true
	s.template(r)
	s.prepare(r)
	return nil
}

// SignatureReady says whether what MapSignature and SetSigAttrs gave fits together.
// EINVAL.
func (t *Table) SignatureReady(r *Region) error {
	if !r.Integrity() {
		return &ParamError{"mr", "is not a signature region", syscall.EINVAL}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return r.fast.sig.why
}

// Integrity reports whether the region is a signature region.
func (r *Region) Integrity() bool { return r.fast != nil && r.fast.sig != nil }

// SigStatus gives the first error that was found in a signature region since the last
// registration or call, and forgets it. False: there is none.
func (r *Region) SigStatus() (ib.SigErr, bool) {
	if !r.Integrity() {
		return ib.SigErr{}, false
	}
	s := r.fast.sig
	s.mu.Lock()
	defer s.mu.Unlock()
	e, bad := s.err, s.bad
	s.err, s.bad = ib.SigErr{}, false
	return e, bad
}

// template gives the entry of the next registration, with the memory of the last
// mapping: one that was not registered yet, or else one whose turn is over, or a new
// one. The table's lock is held.
func (s *signature) template(r *Region) *sigEntry {
	old := s.next
	if old != nil && old.key == 0 && !old.shared {
		return old
	}
	var x *sigEntry
	if e := r.fast.spare; e != nil {
		x, r.fast.spare = e.sig.box, nil
	} else {
		x = new(sigEntry)
	}
	x.kind, x.region, x.key, x.access = kindSignature, r, 0, 0 // and nobody's, as whatever was replaced
	x.view.box = x
	x.view.data, x.view.meta = x.view.data.empty(), x.view.meta.empty()
	if old != nil {
		x.view.data = append(x.view.data, old.view.data...)
		x.view.meta = append(x.view.meta, old.view.meta...)
	}
	s.next = x
	return x
}

// prepare makes of what was given what the next registration shows, if it fits
// together. The table's lock is held.
func (s *signature) prepare(r *Region) {
	x := s.next
	x.iova, x.length, x.sig = 0, 0, nil
	if len(x.view.data) > 0 {
		x.iova = uint64(address(x.view.data[0].buf))
	}
	if s.why = s.fit(); s.why == nil {
		x.view.show(s)
		x.sig = &x.view
		x.length = x.view.length()
	}
	r.fast.mapped.Store(&x.entry)
}

// register makes the entry that a registration shows. The table's lock is held, and
// nobody uses the entry of the registration before any more.
func (s *signature) register(key uint32, access ib.Access) *entry {
	x := s.next
	if x.key != 0 || access&ib.AccessZeroBased != 0 {
		// Lookups know it already, or it counts from 0 for this registration only. The
		// memory is that of both.
		x.shared = true
		y := &sigEntry{view: x.view}
		y.kind, y.region, y.sig, y.length, y.shared = kindSignature, x.region, &y.view, x.length, true
		y.view.box, y.iova = y, base(x.iova, access)
		x = y
	}
	e, v := &x.entry, &x.view
	n := int(v.blocks)
	if v.onWire && cap(s.wire) < n*pi.TupleLen {
		s.wire = make([]byte, n*pi.TupleLen)
	}
	words := (n + 63) / 64
	if cap(s.seen) < words {
		s.seen = make([]uint64, words)
	}
	s.mu.Lock()
	s.seen = s.seen[:words]
	clear(s.seen)
	s.err, s.bad = ib.SigErr{}, false
	s.mu.Unlock()
	v.key = key
	if v.onWire {
		v.wire = s.wire[:n*pi.TupleLen]
	}
	return e
}

// release lets go of the memory. The table's lock is held.
func (s *signature) release() {
	if s.next != nil { // mapped still knows it, with what does not fit too
		s.next.view.data, s.next.view.meta = nil, nil
	}
	s.next, s.wire, s.spareData, s.spareMeta = nil, nil, nil, nil
	s.why = &ParamError{"mr", "is deregistered", syscall.EINVAL}
}

// fit says why memory and attributes do not fit together. The table's lock is held.
func (s *signature) fit() error {
	a := &s.attrs
	switch {
	case s.next == nil || len(s.next.view.data) == 0:
		return &ParamError{"data", "was not given (SigMR.MapSGPI)", syscall.EINVAL}
	case !s.given:
		return &ParamError{"attrs", "were not given (SigMR.SetSigAttrs)", syscall.EINVAL}
	}
	data, meta := s.next.view.data.length(), s.next.view.meta.length()
	inMem := a.Mem.SigType == ib.SigTypeT10DIF
	bad := func(what, why string, v ...any) error {
		return &ParamError{what, fmt.Sprintf(why, v...), syscall.EINVAL}
	}
	switch {
	case a.MetaLength != 0 && uint64(a.MetaLength) != meta:
		return bad("MetaLength", "%d, but %d bytes of metadata are mapped", a.MetaLength, meta)
	case meta != 0 && !inMem:
		return bad("meta", "%d bytes, but the memory domain has no protection information", meta)
	}
	d := dif(a)
	if d == nil {
		return nil
	}
	block := uint64(d.PIInterval)
	if inMem && meta == 0 {
		block += pi.TupleLen
	}
	switch {
	case data%block != 0:
		return bad("data", "%d bytes, not a number of blocks of %d", data, block)
	case meta != 0 && meta < data/block*pi.TupleLen:
		return bad("meta", "%d bytes, %d blocks need %d", meta, data/block, data/block*pi.TupleLen)
	case data/block*(block+pi.TupleLen) > ib.MaxMsgSize:
		return bad("data", "%d bytes with their protection information are more than a message can have", data)
	}
	return nil
}

// checkSigAttrs says what is wrong with attributes by themselves.
func checkSigAttrs(a *ib.SigAttrs) error {
	for _, d := range []struct {
		name string
		*ib.SigDomain
	}{{"Mem", &a.Mem}, {"Wire", &a.Wire}} {
		f := &d.DIF
		switch {
		case d.SigType == ib.SigTypeNone:
			continue
		case d.SigType != ib.SigTypeT10DIF:
			return &ParamError{d.name + ".SigType", fmt.Sprintf("%v is unknown", d.SigType), syscall.EINVAL}
		case f.BGType != ib.T10DIFCRC && f.BGType != ib.T10DIFCSUM:
			return &ParamError{d.name + ".DIF.BGType", fmt.Sprintf("%v is unknown", f.BGType), syscall.EINVAL}
		case f.PIInterval < minInterval || f.PIInterval > maxInterval || f.PIInterval%pi.TupleLen != 0:
			return &ParamError{d.name + ".DIF.PIInterval", fmt.Sprintf("%d, want a multiple of %d from %d to %d", f.PIInterval, pi.TupleLen, minInterval, maxInterval), syscall.EINVAL}
		}
	}
	switch {
	case a.Mem.SigType != ib.SigTypeNone && a.Wire.SigType != ib.SigTypeNone && a.Mem.DIF.PIInterval != a.Wire.DIF.PIInterval:
		return &ParamError{"Wire.DIF.PIInterval", fmt.Sprintf("%d, that of memory is %d", a.Wire.DIF.PIInterval, a.Mem.DIF.PIInterval), syscall.EINVAL}
	case a.MetaLength < 0:
		return &ParamError{"MetaLength", fmt.Sprintf("%d", a.MetaLength), syscall.EINVAL}
	}
	return nil
}
