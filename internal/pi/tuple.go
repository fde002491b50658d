package pi

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/ib"
)

// TupleLen is the length of a tuple.
const TupleLen = 8

// Tuple is the protection information of a block.
type Tuple struct {
	Guard, App uint16
	Ref        uint32
}

// Get reads a tuple.
func Get(b *[TupleLen]byte) Tuple {
	return Tuple{binary.BigEndian.Uint16(b[:]), binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:])}
}

// Put writes it.
func (t Tuple) Put(b *[TupleLen]byte) {
	binary.BigEndian.PutUint16(b[:], t.Guard)
	binary.BigEndian.PutUint16(b[2:], t.App)
	binary.BigEndian.PutUint32(b[4:], t.Ref)
}

// Ref is the reference tag that a domain wants of block k.
func Ref(d *ib.T10DIFDomain, k uint64) uint32 {
	if d.RefRemap {
		return d.RefTag + uint32(k)
	}
	return d.RefTag
}

// Escaped reports whether a domain leaves the block of a tuple unchecked.
func Escaped(d *ib.T10DIFDomain, t *Tuple) bool {
	return d.AppEscape && t.App == 0xFFFF && (!d.RefEscape || t.Ref == 0xFFFFFFFF)
}

// WantsGuard reports whether a mask (ib.SigAttrs.CheckMask) has a byte of the guard.
func WantsGuard(mask uint8) bool { return mask&ib.SigCheckGuard != 0 }

// Check compares the tuple t of block k with what a domain wants, and with the guard
// that was computed, in the bytes that mask has. ok: there is nothing wrong, or the
// block is left unchecked. Of several things that are wrong the error tells the guard
// before the reference tag before the application tag, as NICs do (mlx5). Its offset
// and key are the caller's.
func Check(d *ib.T10DIFDomain, mask uint8, t *Tuple, guard uint16, k uint64) (e ib.SigErr, ok bool) {
	if Escaped(d, t) {
		return e, true
	}
	ref := Ref(d, k)
	switch {
	case (t.Guard^guard)&uint16(byteMask(mask>>6, 2)) != 0:
		e = ib.SigErr{Type: ib.SigBadGuard, Expected: uint32(guard), Actual: uint32(t.Guard)}
	case (t.Ref^ref)&byteMask(mask, 4) != 0:
		e = ib.SigErr{Type: ib.SigBadRefTag, Expected: ref, Actual: t.Ref}
	case (t.App^d.AppTag)&d.AppTagCheckMask&uint16(byteMask(mask>>4, 2)) != 0:
		e = ib.SigErr{Type: ib.SigBadAppTag, Expected: uint32(d.AppTag), Actual: uint32(t.App)}
	default:
		return e, true
	}
	return e, false
}

// byteMask makes n bytes of the lowest n bits of m, all ones for a one.
func byteMask(m uint8, n int) (v uint32) {
	for i := range n {
		if m>>i&1 != 0 {
			v |= 0xFF << (8 * i)
		}
	}
	return v
}
