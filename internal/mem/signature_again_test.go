package mem

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
)

// Registrations show the memory and the attributes that they were given last, in any
// order of calls, though entries and lists are used again.
func TestSignatureUsedAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb, pd := NewTable(8, 1), NewPD()
		defer tb.Close()
		r, err := tb.RegisterSignature(pd, 3, 1)
		if err != nil {
			t.Fatal(err)
		}
		memory := counting(8*512, 3, 7)
		var (
			data, meta []byte // that were given last, nil: none
			attrs      *ib.SigAttrs
			wire       []byte // what is registered shows; nil: nothing is
			valid      bool
		)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				from := rapid.IntRange(0, 5).Draw(t, "block") * 512
				d := memory[from : from+512*rapid.IntRange(1, 3).Draw(t, "blocks")]
				list := [][]byte{d[:100], d[100:]}
				var m []byte
				var metas [][]byte
				if rapid.Bool().Draw(t, "tuples") {
					m = counting(len(d)/512*8, byte(from>>9), 3)
					metas = [][]byte{m}
				}
				if _, err := tb.MapSignature(r, list, 0, metas, 0, 4096); err != nil {
					t.Fatal(err)
				}
				data, meta = d, m
			case 1:
				a := new(ib.SigAttrs)
				if rapid.Bool().Draw(t, "in memory") {
					a.Mem = crcDomain(512)
				}
				if rapid.Bool().Draw(t, "on the wire") {
					a.Wire = crcDomain(512)
				}
				if err := tb.SetSigAttrs(r, a); err != nil {
					t.Fatal(err)
				}
				attrs = a
			case 2: // refused calls change nothing
				for _, err := range []error{
					tb.SetSigAttrs(r, &ib.SigAttrs{Wire: ib.SigDomain{SigType: 9}}),
					second(tb.MapSignature(r, [][]byte{memory, {}}, 0, nil, 0, 4096)),
					second(tb.MapSignature(r, [][]byte{memory}, 0, [][]byte{{}}, 0, 4096)),
					second(tb.MapSignature(r, [][]byte{memory, memory, memory, memory}, 0, nil, 0, 4096)),
				} {
					if err == nil {
						t.Fatal("not refused")
					}
				}
			case 3:
				access := sigRights
				if rapid.Bool().Draw(t, "zero-based") {
					access |= ib.AccessZeroBased
				}
				want := expectWire(data, meta, attrs)
				if got := tb.FastRegister(pd, r, ib.IncRKey(r.RKey()), access); got != (want != nil && !valid) {
					t.Fatalf("registered: %v; valid before: %v; fits: %v", got, valid, want != nil)
				} else if got {
					wire, valid = want, true
				}
			case 4:
				if valid {
					tb.Invalidate(pd, 1, r.RKey(), false)
					valid = false
				}
			}
			if valid {
				e := r.cur.Load()
				out, ok := tb.Local(pd, r.LKey(), e.iova, uint64(len(wire)), false, nil)
				if !ok || !bytes.Equal(bytes.Join(out, nil), wire) {
					t.Fatal("other bytes")
				}
				if _, ok := tb.Local(pd, r.LKey(), e.iova, uint64(len(wire))+1, false, nil); ok {
					t.Fatal("longer than it is")
				}
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// expectWire is what is seen of data and metadata; nil: they do not fit the attributes.
// Tuples are not checked, so that those in memory may be anything.
func expectWire(data, meta []byte, a *ib.SigAttrs) []byte {
	if data == nil || a == nil {
		return nil
	}
	inMem, onWire := a.Mem.SigType != ib.SigTypeNone, a.Wire.SigType != ib.SigTypeNone
	switch {
	case !inMem && meta != nil, inMem && meta == nil: // 512 and 1,024 bytes are no blocks of 520
		return nil
	case !onWire:
		return data
	}
	var out []byte
	for k := range len(data) / 512 {
		b := data[k*512:][:512]
		out = append(out, b...)
		if inMem {
			out = append(out, meta[k*8:][:8]...)
			continue
		}
		g := crc16(b)
		ref := uint32(0xABCD0000) + uint32(k)
		out = append(out, byte(g>>8), byte(g), 0x12, 0x34, byte(ref>>24), byte(ref>>16), byte(ref>>8), byte(ref))
	}
	return out
}

// crc16 is CRC-16/T10-DIF bit by bit.
func crc16(b []byte) uint16 {
	var c uint16
	for _, v := range b {
		c ^= uint16(v) << 8
		for range 8 {
			c = c<<1 ^ c>>15*0x8BB7
		}
	}
	return c
}
