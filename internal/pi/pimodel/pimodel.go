// Package pimodel says what becomes of blocks with protection information between memory and wire in the simplest way, a whole
// block at a time, bit by bit and byte by byte: what tests of the fast way compare with.
package pimodel

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/ib"
)

// Tuple is the protection information of a block, as it lies in memory and on the wire.
type Tuple [8]byte

// Guard is the guard of a block by definition.
func Guard(d *ib.T10DIFDomain, block []byte) uint16 {
	if d.BGType == ib.T10DIFCSUM {
		s := uint32(d.BG)
		for i := 0; i < len(block); i += 2 {
			s += uint32(block[i])<<8 | uint32(block[i+1])
		}
		for s > 0xFFFF {
			s = s>>16 + s&0xFFFF
		}
		return ^uint16(s)
	}
	crc := d.BG
	for _, c := range block {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x8BB7
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// Make is the right Tuple of block k.
func Make(d *ib.T10DIFDomain, block []byte, k int) (t Tuple) {
	ref := d.RefTag
	if d.RefRemap {
		ref += uint32(k)
	}
	binary.BigEndian.PutUint16(t[0:], Guard(d, block))
	binary.BigEndian.PutUint16(t[2:], d.AppTag)
	binary.BigEndian.PutUint32(t[4:], ref)
	return t
}

// Check is the error of block k, nil if there is none.
func Check(a *ib.SigAttrs, d *ib.T10DIFDomain, block []byte, t Tuple, k int) *ib.SigErr {
	if d.AppEscape && t[2] == 0xFF && t[3] == 0xFF {
		if !d.RefEscape || t[4]&t[5]&t[6]&t[7] == 0xFF {
			return nil
		}
	}
	want := Make(d, block, k)
	wrong := [8]bool{}
	for i := range 8 {
		if a.CheckMask&(0x80>>i) == 0 {
			continue
		}
		diff := t[i] ^ want[i]
		switch i {
		case 2:
			diff &= byte(d.AppTagCheckMask >> 8)
		case 3:
			diff &= byte(d.AppTagCheckMask)
		}
		wrong[i] = diff != 0
	}
	off := uint64(k) * uint64(d.PIInterval+8)
	u16 := func(b []byte) uint32 { return uint32(binary.BigEndian.Uint16(b)) }
	switch {
	case wrong[0] || wrong[1]:
		return &ib.SigErr{Type: ib.SigBadGuard, Expected: u16(want[:]), Actual: u16(t[:]), SigErrOffset: off}
	case wrong[4] || wrong[5] || wrong[6] || wrong[7]:
		return &ib.SigErr{Type: ib.SigBadRefTag, Expected: binary.BigEndian.Uint32(want[4:]), Actual: binary.BigEndian.Uint32(t[4:]), SigErrOffset: off}
	case wrong[2] || wrong[3]:
		return &ib.SigErr{Type: ib.SigBadAppTag, Expected: u16(want[2:]), Actual: u16(t[2:]), SigErrOffset: off}
	}
	return nil
}

// Turn takes blocks with their tuples, if from has some, from one domain to another: the
// tuples that come out, if it has some, and the first error.
func Turn(a *ib.SigAttrs, from, to *ib.SigDomain, blocks [][]byte, in []Tuple) (out []Tuple, first *ib.SigErr) {
	for k, b := range blocks {
		if from.SigType != ib.SigTypeNone {
			if e := Check(a, &from.DIF, b, in[k], k); e != nil && first == nil {
				first = e
			}
		}
		if to.SigType == ib.SigTypeNone {
			continue
		}
		t := Make(&to.DIF, b, k)
		if from.SigType != ib.SigTypeNone {
			f, d := &from.DIF, &to.DIF
			if f.BGType == d.BGType && f.BG == d.BG {
				copy(t[0:2], in[k][0:2])
			}
			if f.AppTag == d.AppTag {
				copy(t[2:4], in[k][2:4])
			}
			if f.RefTag == d.RefTag && f.RefRemap == d.RefRemap {
				copy(t[4:8], in[k][4:8])
			}
		}
		out = append(out, t)
	}
	return out, first
}

// Mix puts tuples behind their blocks.
func Mix(blocks [][]byte, tuples []Tuple) (b []byte) {
	for k := range blocks {
		b = append(b, blocks[k]...)
		if tuples != nil {
			b = append(b, tuples[k][:]...)
		}
	}
	return b
}
