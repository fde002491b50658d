package mem

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/pi/pimodel"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
)

const sigRights = ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessRemoteWrite

// sigRegion makes a signature region and registers it.
func sigRegion(t fataler, tb *Table, pd *PD, data, meta [][]byte, a *ib.SigAttrs) *Region {
	t.Helper()
	r, err := tb.RegisterSignature(pd, len(data)+2, len(meta)+2)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := tb.MapSignature(r, data, 0, meta, 0, 4096); err != nil || n != len(data)+len(meta) {
		t.Fatal(n, err)
	}
	if err := tb.SetSigAttrs(r, a); err != nil {
		t.Fatal(err)
	}
	if err := tb.SignatureReady(r); err != nil {
		t.Fatal(err)
	}
	if !tb.FastRegister(pd, r, r.RKey(), sigRights) {
		t.Fatal("not registered: ", tb.FastRegisterFault(pd, r, r.RKey(), sigRights))
	}
	return r
}

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// gather reads n bytes at off of the region.
func gather(t fataler, tb *Table, pd *PD, r *Region, off, n int) []byte {
	t.Helper()
	pieces, ok := tb.Local(pd, r.LKey(), r.Addr()+uint64(off), uint64(n), false, nil)
	if !ok {
		t.Fatalf("%d bytes at %d are not to be read", n, off)
	}
	return bytes.Join(pieces, nil)
}

// scatter writes b at off.
func scatter(t fataler, tb *Table, pd *PD, r *Region, off int, b []byte) {
	t.Helper()
	at := r.Addr() + uint64(off)
	pieces, ok := tb.Local(pd, r.LKey(), at, uint64(len(b)), true, nil)
	if !ok {
		t.Fatalf("%d bytes at %d are not to be written", len(b), off)
	}
	n := uint64(len(b))
	for _, p := range pieces {
		b = b[copy(p, b):]
	}
	if len(b) != 0 || !tb.Arrived(uint32(r.LKey()), at, n) {
		t.Fatal("pieces are too short, or the memory went")
	}
}

func crcDomain(interval int) ib.SigDomain {
	return ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{
		BGType: ib.T10DIFCRC, PIInterval: interval, AppTag: 0x1234, RefTag: 0xABCD0000, RefRemap: true, AppEscape: true, AppTagCheckMask: 0xFFFF,
	}}
}

// zerosThen is a block of 512 bytes that ends with tail: zeros in front change neither
// the CRC nor the sum.
func zerosThen(tail ...byte) []byte { return append(make([]byte, 512-len(tail)), tail...) }

func counting(n int, first byte, step int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i*step)
	}
	return b
}

// Bytes written by hand, with T10's code words (see package pi) and RFC 1071's sum:
// inserted, stripped, passed, converted.
func TestSignatureBytes(t *testing.T) {
	blocks := [][]byte{zerosThen(counting(32, 0, 1)...), zerosThen(counting(32, 0xFF, -1)...), zerosThen(bytes.Repeat([]byte{0xFF}, 32)...)}
	crc := []pimodel.Tuple{
		{0x02, 0x24, 0x12, 0x34, 0xAB, 0xCD, 0x00, 0x00},
		{0xA0, 0xB7, 0x12, 0x34, 0xAB, 0xCD, 0x00, 0x01},
		{0xA2, 0x93, 0x12, 0x34, 0xAB, 0xCD, 0x00, 0x02},
	}
	data := bytes.Join(blocks, nil)
	tb, pd := NewTable(8, 1), NewPD()
	none, dif := ib.SigDomain{}, crcDomain(512)

	r := sigRegion(t, tb, pd, [][]byte{data}, nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: dif})
	if r.Length() != 3*520 {
		t.Errorf("length %d, want 1560", r.Length())
	}
	// Who begins inside a tuple that nobody has asked for yet gets it too.
	if got := gather(t, tb, pd, r, 515, 6); !bytes.Equal(got, append(bytes.Clone(crc[0][3:]), blocks[1][0])) {
		t.Errorf("from inside a tuple: % x", got)
	}
	if got := gather(t, tb, pd, r, 0, 3*520); !bytes.Equal(got, pimodel.Mix(blocks, crc)) {
		t.Errorf("inserted:\n% x", got)
	}

	// Stripped: what arrives without tuples in memory is the data.
	into := make([]byte, 3*512)
	r = sigRegion(t, tb, pd, [][]byte{into}, nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: dif})
	scatter(t, tb, pd, r, 0, pimodel.Mix(blocks, crc))
	if e, bad := r.SigStatus(); !bytes.Equal(into, data) || bad {
		t.Errorf("stripped: %+v, %v", e, bad)
	}

	// Inserted into memory; passed to memory, to a list and behind the blocks.
	meta := make([]byte, 24)
	r = sigRegion(t, tb, pd, [][]byte{into}, [][]byte{meta}, &ib.SigAttrs{CheckMask: 0xFF, Mem: dif, Wire: none, MetaLength: 24})
	if r.Length() != 3*512 {
		t.Errorf("length %d, want 1536", r.Length())
	}
	clear(into)
	scatter(t, tb, pd, r, 0, data)
	if e, bad := r.SigStatus(); !bytes.Equal(into, data) || !bytes.Equal(meta, pimodel.Mix(make([][]byte, 3), crc)) || bad {
		t.Errorf("inserted into memory: % x, %+v", meta, e)
	}
	behind := make([]byte, 3*520)
	r = sigRegion(t, tb, pd, [][]byte{behind}, nil, &ib.SigAttrs{CheckMask: 0xFF, Mem: dif, Wire: dif})
	scatter(t, tb, pd, r, 0, pimodel.Mix(blocks, crc))
	if e, bad := r.SigStatus(); !bytes.Equal(behind, pimodel.Mix(blocks, crc)) || bad {
		t.Errorf("passed: %+v", e)
	}

	// Converted: 0001 f203 f4f5 f6f7 add up to ddf2.
	sum := dif
	sum.DIF.BGType = ib.T10DIFCSUM
	one := zerosThen(0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7)
	r = sigRegion(t, tb, pd, [][]byte{one}, [][]byte{meta[:8]}, &ib.SigAttrs{CheckMask: 0xFF, Mem: sum, Wire: dif})
	copy(meta, []byte{0x22, 0x0D, 0x12, 0x34, 0xAB, 0xCD, 0, 0})
	got := gather(t, tb, pd, r, 512, 8)
	want := pimodel.Make(&dif.DIF, one, 0)
	if e, bad := r.SigStatus(); !bytes.Equal(got, want[:]) || bad {
		t.Errorf("converted: % x, want % x; %+v", got, want, e)
	}
	scatter(t, tb, pd, r, 0, append(bytes.Clone(blocks[0]), crc[0][:]...))
	// 0001 0203 ... 1E1F add up to F0 FF: 15*16 = 0xF0 in the high bytes, 16*16 = 0x100 in the low ones, 0xF100.
	if e, bad := r.SigStatus(); !bytes.Equal(meta[:8], []byte{0x0E, 0xFF, 0x12, 0x34, 0xAB, 0xCD, 0, 0}) || bad {
		t.Errorf("converted to a sum: % x, %+v", meta[:8], e)
	}
}

// drawAttrs draws attributes that fit each other.
func drawAttrs(t *rapid.T) *ib.SigAttrs {
	interval := rapid.SampledFrom([]int{512, 520, 528, 1024, 4096, 4104}).Draw(t, "interval")
	domain := func(name string) ib.SigDomain {
		return ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{
			PIInterval:      interval,
			BGType:          rapid.SampledFrom([]ib.T10DIFGuard{ib.T10DIFCRC, ib.T10DIFCSUM}).Draw(t, name+" guard"),
			BG:              rapid.SampledFrom([]uint16{0, 0xFFFF, 0x1234}).Draw(t, name+" seed"),
			AppTag:          rapid.SampledFrom([]uint16{0, 1, 0xFFFF}).Draw(t, name+" app tag"),
			RefTag:          rapid.SampledFrom([]uint32{0, 7, 0xFFFFFFFE}).Draw(t, name+" ref tag"),
			RefRemap:        rapid.Bool().Draw(t, name+" remap"),
			AppEscape:       rapid.Bool().Draw(t, name+" app escape"),
			RefEscape:       rapid.Bool().Draw(t, name+" ref escape"),
			AppTagCheckMask: rapid.SampledFrom([]uint16{0xFFFF, 0, 0xFF00, 1}).Draw(t, name+" app mask"),
		}}
	}
	a := &ib.SigAttrs{CheckMask: rapid.SampledFrom([]uint8{0xFF, 0, 0xC0, 0x30, 0x0F, 0x80, 0x55}).Draw(t, "check")}
	kind := rapid.IntRange(0, 4).Draw(t, "kind")
	if kind != 0 {
		a.Wire = domain("wire")
	}
	if kind != 1 {
		a.Mem = domain("memory")
	}
	if kind > 2 { // most of the time both agree in something
		m, w := &a.Mem.DIF, &a.Wire.DIF
		m.BGType, m.BG, m.AppTag, m.RefTag, m.RefRemap = w.BGType, w.BG, w.AppTag, w.RefTag, w.RefRemap
		if kind == 4 {
			m.BGType ^= 1
		}
	}
	return a
}

// drawList cuts n bytes into slices of their own.
func drawList(t *rapid.T, name string, n int) (list [][]byte) {
	for n > 0 {
		k := n
		if len(list) < 20 && rapid.IntRange(0, 3).Draw(t, name+" cut") > 0 {
			k = rapid.IntRange(1, n).Draw(t, name+" length")
		}
		list = append(list, make([]byte, k))
		n -= k
	}
	return list
}

// spread copies b over the slices.
func spread(list [][]byte, b []byte) {
	for _, s := range list {
		b = b[copy(s, b):]
	}
}

// spoil breaks some tuples and blocks, and gives some tuples the marks of an escape.
func spoil(t *rapid.T, blocks [][]byte, tuples []pimodel.Tuple) {
	for range rapid.IntRange(0, 3).Draw(t, "spoilt") {
		k := rapid.IntRange(0, len(blocks)-1).Draw(t, "block")
		switch rapid.IntRange(0, 3).Draw(t, "how") {
		case 0:
			blocks[k][rapid.IntRange(0, len(blocks[k])-1).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		case 1:
			tuples[k][rapid.IntRange(0, 7).Draw(t, "tuple byte")] ^= 0x10
		case 2:
			tuples[k][2], tuples[k][3] = 0xFF, 0xFF
		case 3:
			copy(tuples[k][2:], bytes.Repeat([]byte{0xFF}, 6))
		}
	}
}

// Random attributes, lists and errors, read and written in random cuts, against the
// model: the same bytes, the same first error.
func TestSignatureModel(t *testing.T) { rapid.Check(t, signatureModel) }

func FuzzSignatureModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(signatureModel)) }

func signatureModel(t *rapid.T) {
	tb, pd := NewTable(64, 1), NewPD()
	a := drawAttrs(t)
	interval := dif(a).PIInterval
	n := rapid.IntRange(1, 5).Draw(t, "blocks")
	blocks := make([][]byte, n)
	seed := rapid.Byte().Draw(t, "data")
	for k := range blocks {
		blocks[k] = counting(interval, seed+byte(k)*7, 13)
	}
	inMem, onWire := a.Mem.SigType != ib.SigTypeNone, a.Wire.SigType != ib.SigTypeNone
	mixed := inMem && rapid.Bool().Draw(t, "mixed")
	var metaList [][]byte
	size := n * interval
	if mixed {
		size += 8 * n
	} else if inMem {
		metaList = drawList(t, "meta", 8*n)
	}
	dataList := drawList(t, "data", size)
	right := func(d *ib.T10DIFDomain) []pimodel.Tuple {
		l := make([]pimodel.Tuple, n)
		for k := range l {
			l[k] = pimodel.Make(d, blocks[k], k)
		}
		return l
	}
	r := sigRegion(t, tb, pd, dataList, metaList, a)
	defer tb.Release(r)
	key := uint32(r.LKey())
	check := func(what string, want *ib.SigErr) {
		got, bad := r.SigStatus()
		if want != nil {
			want.Key = key
		}
		if bad != (want != nil) || bad && got != *want {
			t.Fatalf("%s: %+v %v, want %+v", what, got, bad, want)
		}
		if _, bad := r.SigStatus(); bad {
			t.Fatalf("%s: told twice", what)
		}
	}
	cuts := func(n int, f func(off, n int)) {
		for off := 0; off < n; {
			k := rapid.IntRange(1, min(n-off, 3000)).Draw(t, "packet")
			f(off, k)
			off += k
		}
	}

	// From memory to the wire.
	var tuples []pimodel.Tuple
	if inMem {
		tuples = right(&a.Mem.DIF)
		spoil(t, blocks, tuples)
	}
	if mixed {
		spread(dataList, pimodel.Mix(blocks, tuples))
	} else {
		spread(dataList, pimodel.Mix(blocks, nil))
		spread(metaList, pimodel.Mix(make([][]byte, n), tuples))
	}
	out, first := pimodel.Turn(a, &a.Mem, &a.Wire, blocks, tuples)
	want := pimodel.Mix(blocks, out)
	if int(r.Length()) != len(want) {
		t.Fatalf("length %d, want %d", r.Length(), len(want))
	}
	got := make([]byte, len(want))
	cuts(len(want), func(off, n int) { copy(got[off:], gather(t, tb, pd, r, off, n)) })
	if !bytes.Equal(got, want) {
		t.Fatalf("on the wire:\n% x\nwant\n% x", got, want)
	}
	check("to the wire", first)
	// Once more, in other cuts: the same bytes, whatever was read before.
	off := rapid.IntRange(0, len(want)-1).Draw(t, "again")
	if !bytes.Equal(gather(t, tb, pd, r, off, len(want)-off), want[off:]) {
		t.Fatal("read again: other bytes")
	}
	r.SigStatus()

	// From the wire to memory.
	tuples = nil
	if onWire {
		tuples = right(&a.Wire.DIF)
		spoil(t, blocks, tuples)
	}
	out, first = pimodel.Turn(a, &a.Wire, &a.Mem, blocks, tuples)
	wire := pimodel.Mix(blocks, tuples)
	spread(dataList, make([]byte, size))
	cuts(len(wire), func(off, n int) { scatter(t, tb, pd, r, off, wire[off:off+n]) })
	check("to memory", first)
	wantData, wantMeta := pimodel.Mix(blocks, nil), pimodel.Mix(make([][]byte, n), out)
	if mixed {
		wantData, wantMeta = pimodel.Mix(blocks, out), nil
	}
	if got := bytes.Join(dataList, nil); !bytes.Equal(got, wantData) {
		t.Fatalf("in memory:\n% x\nwant\n% x", got, wantData)
	}
	if got := bytes.Join(metaList, nil); !bytes.Equal(got, wantMeta) {
		t.Fatalf("metadata:\n% x\nwant\n% x", got, wantMeta)
	}
}

// Each byte of two blocks and their tuples wrong in turn, on the way out and in.
func TestSignatureEveryByte(t *testing.T) {
	tb, pd := NewTable(8, 1), NewPD()
	for _, kind := range []ib.T10DIFGuard{ib.T10DIFCRC, ib.T10DIFCSUM} {
		dif := crcDomain(512)
		dif.DIF.BGType = kind
		a := &ib.SigAttrs{CheckMask: 0xFF, Mem: dif, Wire: dif}
		blocks := [][]byte{counting(512, 1, 3), counting(512, 9, 5)}
		right := pimodel.Mix(blocks, []pimodel.Tuple{pimodel.Make(&dif.DIF, blocks[0], 0), pimodel.Make(&dif.DIF, blocks[1], 1)})
		memory := bytes.Clone(right)
		r := sigRegion(t, tb, pd, [][]byte{memory}, nil, a)
		for i := range right {
			want := ib.SigErr{Type: ib.SigBadGuard, SigErrOffset: uint64(i / 520 * 520), Key: uint32(r.LKey())}
			switch at := i%520 - 512; {
			case at >= 4:
				want.Type = ib.SigBadRefTag
			case at >= 2:
				want.Type = ib.SigBadAppTag
			}
			status := func(way string) {
				t.Helper()
				e, bad := r.SigStatus()
				if e.Expected == e.Actual {
					t.Fatalf("%v, %s, byte %d: %+v", kind, way, i, e)
				}
				e.Expected, e.Actual = 0, 0
				if !bad || e != want {
					t.Fatalf("%v, %s, byte %d: %+v, want %+v", kind, way, i, e, want)
				}
			}
			memory[i] ^= 0x21
			gather(t, tb, pd, r, 0, len(memory))
			status("out")
			wrong := bytes.Clone(memory)
			copy(memory, right)
			scatter(t, tb, pd, r, 0, wrong)
			status("in")
			copy(memory, right)
			if gather(t, tb, pd, r, 0, len(memory)); r.fast.sig.bad {
				t.Fatalf("byte %d: put right, and still bad", i)
			}
		}
	}
}

// What the region remembers is the first error, until it is asked or registered anew;
// what a peer reads again does not count again.
func TestSignatureStatus(t *testing.T) {
	tb, pd := NewTable(8, 1), NewPD()
	dif := crcDomain(512)
	data, meta := make([]byte, 4*512), make([]byte, 4*8)
	for k := range 4 {
		x := pimodel.Make(&dif.DIF, data[:512], k)
		copy(meta[8*k:], x[:])
	}
	r := sigRegion(t, tb, pd, [][]byte{data}, [][]byte{meta}, &ib.SigAttrs{CheckMask: 0xFF, Mem: dif})
	read := func(again bool, block int) {
		t.Helper()
		get := tb.Remote
		va := r.Addr() + uint64(512*block)
		if again {
			get = func(pd *PD, qpn ib.QPN, key ib.RKey, va, n uint64, _ ib.Access, out [][]byte) ([][]byte, bool) {
				return tb.RemoteAgain(pd, qpn, key, va, n, out)
			}
		}
		if _, ok := get(pd, 5, r.RKey(), va, 512, ib.AccessRemoteRead, nil); !ok {
			t.Fatal("not to be read")
		}
	}
	want := func(off int) {
		t.Helper()
		e, bad := r.SigStatus()
		if bad != (off >= 0) || bad && e.SigErrOffset != uint64(off) {
			t.Errorf("%+v, %v; want one at %d", e, bad, off)
		}
	}
	want(-1)
	data[512*2] = 1
	data[512*1] = 1
	read(false, 2)
	read(false, 1)
	want(2 * 520)
	want(-1)
	read(true, 2) // a late copy of the request
	want(-1)
	read(false, 2) // another transfer
	want(2 * 520)
	data[512*3] = 1
	read(true, 3) // its first answer was never made
	want(3 * 520)
	read(true, 3)
	want(-1)
	read(false, 0)
	want(-1)
	// Half a block leaves nothing to check, its last byte does.
	if _, ok := tb.Local(pd, r.LKey(), r.Addr()+512, 511, false, nil); !ok {
		t.Fatal("not to be read")
	}
	want(-1)
	if _, ok := tb.Local(pd, r.LKey(), r.Addr()+512+511, 1, false, nil); !ok {
		t.Fatal("not to be read")
	}
	// Another registration forgets.
	if !tb.Invalidate(pd, 5, r.RKey(), true) || !tb.FastRegister(pd, r, ib.IncRKey(r.RKey()), sigRights) {
		t.Fatal("not registered anew")
	}
	want(-1)
	read(true, 1)
	e, bad := r.SigStatus()
	if !bad || e.Key != uint32(r.RKey()) {
		t.Errorf("%+v, %v; want the new key %#x", e, bad, uint32(r.RKey()))
	}
}

// What is mapped or set meanwhile comes into force with the next registration.
func TestSignatureSnapshot(t *testing.T) {
	tb, pd := NewTable(8, 1), NewPD()
	one, two := bytes.Repeat([]byte{1}, 512), bytes.Repeat([]byte{2}, 1024)
	dif := crcDomain(512)
	r := sigRegion(t, tb, pd, [][]byte{one}, nil, &ib.SigAttrs{Wire: dif})
	addr := r.Addr()
	get := func(n uint64) ([]byte, bool) {
		p, ok := tb.Local(pd, r.LKey(), addr, n, false, nil)
		return bytes.Join(p, nil), ok
	}
	before, _ := get(520)
	if _, err := tb.MapSignature(r, [][]byte{two}, 0, nil, 0, 4096); err != nil {
		t.Fatal(err)
	}
	if err := tb.SetSigAttrs(r, &ib.SigAttrs{}); err != nil {
		t.Fatal(err)
	}
	if got, ok := get(520); !ok || !bytes.Equal(got, before) {
		t.Error("what is registered has changed")
	}
	if r.Length() != 1024 {
		t.Errorf("length %d, want that of the next registration, 1024", r.Length())
	}
	if tb.FastRegister(pd, r, r.RKey(), sigRights) {
		t.Error("registered twice")
	}
	if !tb.Invalidate(pd, 5, r.RKey(), false) || !tb.FastRegister(pd, r, r.RKey(), sigRights|ib.AccessZeroBased) {
		t.Fatal("not registered anew")
	}
	addr = 0
	if got, ok := get(1024); !ok || !bytes.Equal(got, two) {
		t.Error("not the new memory")
	}
	if _, ok := get(1025); ok {
		t.Error("read beyond the end")
	}

	// Longer ones, and parts of first slices: the tuples have room.
	if _, err := tb.MapSignature(r, [][]byte{counting(600, 0, 1), two, counting(500, 7, 1)}, 76, nil, 0, 4096); err != nil {
		t.Fatal(err)
	}
	if err := tb.SetSigAttrs(r, &ib.SigAttrs{Wire: dif}); err != nil {
		t.Fatal(err)
	}
	if !tb.Invalidate(pd, 5, r.RKey(), false) || !tb.FastRegister(pd, r, r.RKey(), sigRights) {
		t.Fatal("not registered anew")
	}
	addr = r.Addr()
	all := append(append(counting(600, 0, 1)[76:], two...), counting(500, 7, 1)...)
	var want []byte
	for k := 0; len(all) > 0; k++ {
		x := pimodel.Make(&dif.DIF, all[:512], k)
		want, all = append(append(want, all[:512]...), x[:]...), all[512:]
	}
	if got, ok := get(4 * 520); !ok || !bytes.Equal(got, want) {
		t.Errorf("from inside a slice: %v, % x", ok, got)
	}
	meta := make([]byte, 20)
	copy(meta[12:], want[512:520])
	if _, err := tb.MapSignature(r, [][]byte{counting(600, 0, 1)}, 88, [][]byte{meta[:14], meta[14:]}, 12, 4096); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tb.SetSigAttrs(r, &ib.SigAttrs{Mem: dif, MetaLength: 8}), tb.SignatureReady(r)); err != nil {
		t.Error(err)
	}
}

func TestSignatureRefusals(t *testing.T) {
	tb, pd := NewTable(8, 1), NewPD()
	r, err := tb.RegisterSignature(pd, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	dif := crcDomain(512)
	refused := func(what string, err error, param string) {
		t.Helper()
		var p *ParamError
		if !errors.As(err, &p) || !errors.Is(err, syscall.EINVAL) || p.Param != param {
			t.Errorf("%s: %v, want EINVAL of %s", what, err, param)
		}
	}
	mapped := func(data [][]byte, off int, meta [][]byte, moff, page int) error {
		n, err := tb.MapSignature(r, data, off, meta, moff, page)
		if err != nil && n != 0 {
			t.Errorf("%d slices with an error", n)
		}
		return err
	}
	b := make([]byte, 4096)
	refused("not ready", tb.SignatureReady(r), "data")
	refused("no data", mapped(nil, 0, nil, 0, 4096), "data")
	refused("three slices", mapped([][]byte{b, b, b}, 0, nil, 0, 4096), "data")
	refused("two of meta", mapped([][]byte{b}, 0, [][]byte{b, b}, 0, 4096), "meta")
	refused("an empty slice", mapped([][]byte{b, {}}, 0, nil, 0, 4096), "data")
	refused("an empty first", mapped([][]byte{{}}, 0, nil, 0, 4096), "data")
	refused("an empty slice of meta", mapped([][]byte{b}, 0, [][]byte{{}}, 0, 4096), "meta")
	refused("offset", mapped([][]byte{b}, 4096, nil, 0, 4096), "dataOffset")
	refused("negative offset", mapped([][]byte{b}, -1, nil, 0, 4096), "dataOffset")
	refused("offset of meta", mapped([][]byte{b}, 0, [][]byte{b}, 4096, 4096), "metaOffset")
	refused("offset without meta", mapped([][]byte{b}, 0, nil, 1, 4096), "metaOffset")
	refused("page size", mapped([][]byte{b}, 0, nil, 0, 2048), "pageSize")
	refused("odd page size", mapped([][]byte{b}, 0, nil, 0, 4097), "pageSize")
	if err := mapped([][]byte{b}, 0, nil, 0, 4096); err != nil {
		t.Error(err)
	}
	refused("no attributes", tb.SignatureReady(r), "attrs")

	with := func(f func(a *ib.SigAttrs)) *ib.SigAttrs {
		a := &ib.SigAttrs{CheckMask: 0xFF, Mem: dif, Wire: dif}
		f(a)
		return a
	}
	for _, c := range []struct {
		param string
		f     func(a *ib.SigAttrs)
	}{
		{"Mem.SigType", func(a *ib.SigAttrs) { a.Mem.SigType = 2 }},
		{"Wire.SigType", func(a *ib.SigAttrs) { a.Wire.SigType = 9 }},
		{"Mem.DIF.BGType", func(a *ib.SigAttrs) { a.Mem.DIF.BGType = 2 }},
		{"Mem.DIF.PIInterval", func(a *ib.SigAttrs) { a.Mem.DIF.PIInterval = 0 }},
		{"Mem.DIF.PIInterval", func(a *ib.SigAttrs) { a.Mem.DIF.PIInterval = -512 }},
		{"Mem.DIF.PIInterval", func(a *ib.SigAttrs) { a.Mem.DIF.PIInterval = 504 }},
		{"Wire.DIF.PIInterval", func(a *ib.SigAttrs) { a.Wire.DIF.PIInterval = 516 }},
		{"Wire.DIF.PIInterval", func(a *ib.SigAttrs) { a.Wire.DIF.PIInterval = 65536 }},
		{"Wire.DIF.PIInterval", func(a *ib.SigAttrs) { a.Wire.DIF.PIInterval = 1024 }},
		{"MetaLength", func(a *ib.SigAttrs) { a.MetaLength = -1 }},
	} {
		refused(c.param, tb.SetSigAttrs(r, with(c.f)), c.param)
	}
	refused("still no attributes", tb.SignatureReady(r), "attrs")

	// Together.
	for i, c := range []struct {
		data, meta int
		a          *ib.SigAttrs
		param      string // "": fits
	}{
		{1024, 0, &ib.SigAttrs{Wire: dif}, ""},
		{1025, 0, &ib.SigAttrs{Wire: dif}, "data"},
		{511, 0, &ib.SigAttrs{Wire: dif}, "data"},
		{1024, 16, &ib.SigAttrs{Mem: dif}, ""},
		{1024, 17, &ib.SigAttrs{Mem: dif}, ""}, // some may be left
		{1024, 15, &ib.SigAttrs{Mem: dif}, "meta"},
		{1024, 16, &ib.SigAttrs{Wire: dif}, "meta"},
		{1024, 16, &ib.SigAttrs{}, "meta"},
		{1024, 16, &ib.SigAttrs{Mem: dif, MetaLength: 16}, ""},
		{1024, 16, &ib.SigAttrs{Mem: dif, MetaLength: 24}, "MetaLength"},
		{1024, 0, &ib.SigAttrs{Mem: dif, Wire: dif}, "data"}, // its tuples are to stand in it
		{1040, 0, &ib.SigAttrs{Mem: dif, Wire: dif}, ""},
		{1, 0, &ib.SigAttrs{}, ""},
	} {
		var meta [][]byte
		if c.meta > 0 {
			meta = [][]byte{b[:c.meta]}
		}
		if err := errors.Join(mapped([][]byte{b[:c.data]}, 0, meta, 0, 4096), tb.SetSigAttrs(r, c.a)); err != nil {
			t.Error(i, err)
			continue
		}
		err := tb.SignatureReady(r)
		if c.param == "" {
			if err != nil {
				t.Error(i, err)
			}
			continue
		}
		refused(fmt.Sprint(i), err, c.param)
		if tb.FastRegister(pd, r, r.RKey(), sigRights) || tb.FastRegisterFault(pd, r, r.RKey(), sigRights) != ib.VendorErrRegSignature {
			t.Errorf("%d: registered, or for another reason not", i)
		}
		if r.Length() != 0 {
			t.Errorf("%d: length %d of what does not fit", i, r.Length())
		}
	}
	// Rights.
	for _, a := range []ib.Access{ib.AccessLocalWrite | ib.AccessRemoteAtomic, ib.AccessMWBind, ib.AccessFlushGlobal, ib.AccessRemoteWrite, 1 << 30} {
		if tb.FastRegister(pd, r, r.RKey(), a) || tb.FastRegisterFault(pd, r, r.RKey(), a) != ib.VendorErrRegRights {
			t.Errorf("registered with %v, or for another reason not", a)
		}
	}
	// Kinds.
	plain, err := tb.RegisterFast(pd, 4)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tb.MapSignature(plain, [][]byte{b}, 0, nil, 0, 4096)
	refused("map of another kind", err, "mr")
	refused("attributes of another kind", tb.SetSigAttrs(plain, with(func(*ib.SigAttrs) {})), "mr")
	refused("ready of another kind", tb.SignatureReady(plain), "mr")
	_, _, err = tb.Map(r, [][]byte{b}, 0, 4096)
	refused("plain map", err, "mr")
	if _, bad := plain.SigStatus(); bad {
		t.Error("a status of another kind")
	}
	for _, c := range [][2]int{{0, 0}, {-1, 0}, {1, -1}} {
		if _, err := tb.RegisterSignature(pd, c[0], c[1]); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", c, err)
		}
	}
	// Gone.
	if err := tb.Remove(r); err != nil {
		t.Fatal(err)
	}
	refused("map of a region that is gone", mapped([][]byte{b}, 0, nil, 0, 4096), "mr")
	refused("attributes of one", tb.SetSigAttrs(r, &ib.SigAttrs{}), "mr")
	tb.Release(r)
	refused("ready", tb.SignatureReady(r), "mr")
	if tb.HasSignatures() {
		t.Error("signature regions are left")
	}
}

// Memory that peers may not touch, or not in that way.
func TestSignatureRemote(t *testing.T) {
	tb, pd := NewTable(8, 1), NewPD()
	data := make([]byte, 1024)
	r := sigRegion(t, tb, pd, [][]byte{data}, nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: crcDomain(512)})
	for _, c := range []struct {
		off, n uint64
		need   ib.Access
		want   bool
	}{
		{0, 1040, ib.AccessRemoteRead, true},
		{0, 1041, ib.AccessRemoteRead, false},
		{1039, 1, ib.AccessRemoteWrite, true},
		{1040, 1, ib.AccessRemoteWrite, false},
		{0, 8, ib.AccessRemoteAtomic, false},
	} {
		if got := tb.Reachable(pd, 5, r.RKey(), r.Addr()+c.off, c.n, c.need); got != c.want {
			t.Errorf("%+v: reachable %v", c, got)
		}
		if _, got := tb.Remote(pd, 5, r.RKey(), r.Addr()+c.off, c.n, c.need, nil); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if tb.Reachable(NewPD(), 5, r.RKey(), r.Addr(), 8, ib.AccessRemoteRead) {
		t.Error("reachable from another domain")
	}
	if _, ok := tb.RemoteWord(pd, 5, r.RKey(), r.Addr(), ib.AccessRemoteWrite, nil); ok {
		t.Error("a word is stored past the guard")
	}
	w, err := tb.AllocWindow(pd, ib.MWType2)
	if err != nil {
		t.Fatal(err)
	}
	if tb.Bind(pd, 5, w, r, w.RKey(), r.Addr(), 8, ib.AccessRemoteRead) {
		t.Error("a window is bound to it")
	}
}

// Several shards answer READs of one key at a time: who makes a tuple that is there
// already leaves it alone (for the race detector).
func TestSignatureSharedByShards(t *testing.T) {
	tb, pd := NewTable(8, 1), NewPD()
	data := counting(64*512, 1, 3)
	r := sigRegion(t, tb, pd, [][]byte{data}, nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: crcDomain(512)})
	var sums [4]uint32
	var wg sync.WaitGroup
	for i := range sums {
		wg.Go(func() {
			for off := uint64(0); off < r.Length(); off += 1000 {
				pieces, _ := tb.Remote(pd, 5, r.RKey(), r.Addr()+off, min(1000, r.Length()-off), ib.AccessRemoteRead, nil)
				for _, p := range pieces {
					sums[i], _ = CRC(sums[i], p)
				}
			}
		})
	}
	wg.Wait()
	if sums[0] == 0 || sums[1] != sums[0] || sums[2] != sums[0] || sums[3] != sums[0] {
		t.Errorf("they read different bytes: %x", sums)
	}
}

// A step with a registered region allocates nothing, whatever is made and checked.
func TestSignatureAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	tb, pd := NewTable(8, 1), NewPD()
	dif := crcDomain(512)
	sum := dif
	sum.DIF.BGType = ib.T10DIFCSUM
	data, meta := make([]byte, 8192), make([]byte, 128)
	r := sigRegion(t, tb, pd, [][]byte{data}, [][]byte{meta}, &ib.SigAttrs{CheckMask: 0xFF, Mem: sum, Wire: dif})
	out := make([][]byte, 0, 64)
	if n := testing.AllocsPerRun(20, func() {
		for off := uint64(0); off < 8000; off += 1000 {
			if _, ok := tb.Local(pd, r.LKey(), r.Addr()+off, 1000, false, out); !ok {
				t.Fatal("not to be read")
			}
			if _, ok := tb.Local(pd, r.LKey(), r.Addr()+off, 1000, true, out); !ok || !tb.Arrived(uint32(r.LKey()), r.Addr()+off, 1000) {
				t.Fatal("not to be written")
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSignature(b *testing.B) {
	for _, interval := range []int{512, 4096} {
		for _, kind := range []ib.T10DIFGuard{ib.T10DIFCRC, ib.T10DIFCSUM} {
			tb, pd := NewTable(8, 1), NewPD()
			dif := crcDomain(interval)
			dif.DIF.BGType = kind
			data := make([]byte, 64<<10)
			r := sigRegion(b, tb, pd, [][]byte{data}, nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: dif})
			out := make([][]byte, 0, 64)
			for _, write := range []bool{false, true} {
				way := map[bool]string{false: "insert", true: "strip"}[write]
				b.Run(fmt.Sprintf("%s/%v/%d", way, kind, interval), func(b *testing.B) {
					b.SetBytes(int64(r.Length()))
					for b.Loop() {
						for off := uint64(0); off < r.Length(); off += 4096 {
							n := min(4096, r.Length()-off)
							if _, ok := tb.Local(pd, r.LKey(), r.Addr()+off, n, write, out); !ok || write && !tb.Arrived(uint32(r.LKey()), r.Addr()+off, n) {
								b.Fatal("refused")
							}
						}
					}
				})
			}
		}
	}
}
