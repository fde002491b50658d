package rdmarw_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
)

const (
	block    = 512
	tupleLen = 8
)

// crc is CRC-16/T10-DIF (polynomial 0x8BB7), bit by bit.
func crc(b []byte) uint16 {
	var c uint16
	for _, v := range b {
		c ^= uint16(v) << 8
		for range 8 {
			c = c<<1 ^ c>>15*0x8BB7
		}
	}
	return c
}

func TestCRCOfTheTest(t *testing.T) {
	if c := crc([]byte("123456789")); c != 0xD0DB { // the catalogue's check value
		t.Errorf("%#x", c)
	}
}

// type1 is protection information of T10's type 1.
func type1(ref uint32) ib.SigDomain {
	return ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{
		PIInterval: block, AppTag: 0x1234, RefTag: ref, RefRemap: true, AppEscape: true, AppTagCheckMask: 0xFFFF,
	}}
}

// tuples are those of blocks of data under type1.
func tuples(data []byte, ref uint32) []byte {
	var out []byte
	for b := range slices.Chunk(data, block) {
		out = binary.BigEndian.AppendUint16(out, crc(b))
		out = binary.BigEndian.AppendUint16(out, 0x1234)
		out = binary.BigEndian.AppendUint32(out, ref)
		ref++
	}
	return out
}

// mixed is data with the tuples behind its blocks, as on the wire.
func mixed(data, pi []byte) []byte {
	var out []byte
	for b := range slices.Chunk(data, block) {
		out = append(append(out, b...), pi[:tupleLen]...)
		pi = pi[tupleLen:]
	}
	return out
}

// sigCase is one way to treat protection information.
type sigCase struct {
	name      string
	mem, wire bool // has tuples
}

var sigCases = []sigCase{{"insert", false, true}, {"strip", true, false}, {"pass", true, true}, {"none", false, false}}

func (c *sigCase) attrs(ref uint32) *ib.SigAttrs {
	a := &ib.SigAttrs{CheckMask: ib.SigCheckGuard | ib.SigCheckAppTag | ib.SigCheckRefTag}
	if c.mem {
		a.Mem = type1(ref)
	}
	if c.wire {
		a.Wire = type1(ref)
	}
	return a
}

// Blocks with tuples on neither side, one or both, in both directions: one registration
// and one transfer of the length that the wire has, byte for byte under loss.
func TestSignature(t *testing.T) {
	for _, readInv := range []bool{false, true} {
		for _, c := range sigCases {
			for _, dir := range directions {
				t.Run(fmt.Sprintf("%s/%v/%v", c.name, dir, readInv), func(t *testing.T) {
					r := newRig(t, setup{link: simnet.Link{Loss: 0.02, Delay: 5000}, limits: soft.Limits{ReadWithInv: readInv}})
					q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.IntegrityEn = true })
					const blocks = 48
					b, remote := r.a.buffer(blocks*block), r.b.mem(blocks*(block+tupleLen))
					pi := make([]byte, blocks*tupleLen)
					w := newWatch()
					var x rdmarw.Ctx
					for turn := range 4 {
						ref := uint32(1000 * turn)
						data := make([]byte, len(b))
						r.fill(data)
						tags := tuples(data, ref)
						wire := data
						if c.wire {
							wire = mixed(data, tags)
						}
						clear(b)
						clear(pi)
						clear(remote.Bytes())
						if dir == rdmarw.DMAToDevice {
							copy(b, data)
							copy(pi, tags)
						} else {
							copy(remote.Bytes(), wire)
						}
						// Elements of any place and length: tuples are made of what they are together.
						list, prot := [][]byte{b[:100], b[100:7777], b[7777:]}, [][]byte(nil)
						if c.mem {
							prot = [][]byte{pi[:3], pi[3:]}
						}
						n := ok(x.SignatureInit(q, 1, list, prot, c.attrs(ref), remote.Addr(), remote.RKey(), dir))(t)
						wrs := ok(x.WRs(q, 1, &w.CQE, nil))(t)
						want := []ib.WROpcode{ib.WRRegMRIntegrity, ib.WRRDMAWrite}
						if dir == rdmarw.DMAFromDevice {
							want[1] = ib.WRRDMARead // never with invalidate
						}
						if turn > 0 {
							want = slices.Insert(want, 0, ib.WRLocalInv)
						}
						if got := opcodes(wrs); !slices.Equal(got, want) || n != len(want) || x.Kind() != rdmarw.KindSigMR {
							t.Fatalf("%v, %d told, want %v", got, n, want)
						}
						if e := wrs[len(wrs)-1].SGList; len(e) != 1 || int(e[0].Length) != len(wire) {
							t.Fatalf("%+v, want %d bytes", e, len(wire))
						}
						w.got = nil
						must(t, x.Post(q, 1, &w.CQE, nil))
						r.done(w)
						if e, bad := x.CheckMRStatus(); bad {
							t.Errorf("%+v", e)
						}
						must(t, x.DestroySignature(q, 1, list, prot, dir))
						if !bytes.Equal(b, data) || !bytes.Equal(remote.Bytes()[:len(wire)], wire) || !bytes.Equal(remote.Bytes()[len(wire):], make([]byte, remote.Length()-uint64(len(wire)))) {
							t.Fatal("other bytes")
						}
						if c.mem && (c.wire || dir == rdmarw.DMAFromDevice) && !bytes.Equal(pi, tags) {
							t.Fatal("other tuples")
						}
					}
				})
			}
		}
	}
}

// A wrong block neither fails the transfer nor harms the queue pair. The first is told,
// once.
func TestSignatureErrors(t *testing.T) {
	r := newRig(t, setup{})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.IntegrityEn = true })
	const blocks = 10
	b, remote := r.a.buffer(blocks*block), r.b.mem(blocks*(block+tupleLen))
	data := make([]byte, len(b))
	r.fill(data)
	w := newWatch()
	var x rdmarw.Ctx
	for _, c := range []struct {
		name string
		at   int // byte of block 4 on the wire that is wrong; -1: none
		typ  ib.SigErrType
	}{
		{"data", 17, ib.SigBadGuard},
		{"guard", block, ib.SigBadGuard},
		{"nothing", -1, 0},
		{"application tag", block + 3, ib.SigBadAppTag},
		{"reference tag", block + 7, ib.SigBadRefTag},
	} {
		wire := mixed(data, tuples(data, 7))
		copy(remote.Bytes(), wire)
		if c.at >= 0 {
			remote.Bytes()[4*(block+tupleLen)+c.at] ^= 0x40
			remote.Bytes()[8*(block+tupleLen)+c.at] ^= 0x40
		}
		list := [][]byte{b}
		ok(x.SignatureInit(q, 1, list, nil, (&sigCase{wire: true}).attrs(7), remote.Addr(), remote.RKey(), rdmarw.DMAFromDevice))(t)
		w.got = nil
		must(t, x.Post(q, 1, &w.CQE, nil))
		r.done(w)
		e, bad := x.CheckMRStatus()
		if bad != (c.at >= 0) || bad && (e.Type != c.typ || e.SigErrOffset != 4*(block+tupleLen) || e.Expected == e.Actual) {
			t.Errorf("%s: %+v, %v", c.name, e, bad)
		}
		if _, again := x.CheckMRStatus(); again {
			t.Errorf("%s: told twice", c.name)
		}
		if q.QP().State() != ib.QPStateRTS {
			t.Errorf("%s: %v", c.name, q.QP().State())
		}
		must(t, x.DestroySignature(q, 1, list, nil, rdmarw.DMAFromDevice))
	}
	if _, bad := x.CheckMRStatus(); bad {
		t.Error("of a context that is not initialized")
	}
}

func TestSignatureRefusals(t *testing.T) {
	r := newRig(t, setup{limits: soft.Limits{MaxPIFastRegPages: 3}})
	q, _ := r.target(func(a *rdmarw.QPInitAttr) { a.IntegrityEn, a.MaxRDMACtxs = true, 1 })
	plain, _ := r.target(nil)
	b := r.a.buffer(5 * block)
	four := [][]byte{b[:block], b[block : 2*block], b[2*block : 3*block], b[3*block : 4*block]}
	pi := make([]byte, 3*tupleLen)
	strip := (&sigCase{mem: true}).attrs(0)
	states := q.SigPoolStates()
	var x, y rdmarw.Ctx
	try := func(q *rdmarw.QP, list, prot [][]byte, a *ib.SigAttrs) error {
		n, err := x.SignatureInit(q, 1, list, prot, a, 0, 0, rdmarw.DMAToDevice)
		if n != 0 || x.Kind() != rdmarw.KindNone {
			t.Errorf("%d, %v", n, &x)
		}
		if !slices.Equal(q.SigPoolStates(), states) && q != plain {
			t.Errorf("the pool has %v", q.SigPoolStates())
		}
		return err
	}
	is(t, "too much data", try(q, four, nil, &ib.SigAttrs{}), syscall.EINVAL)
	is(t, "too many tuples", try(q, four[:1], [][]byte{pi[:1], pi[1:2], pi[2:3], pi[3:8]}, strip), syscall.EINVAL)
	is(t, "a queue pair without integrity", try(plain, four[:1], nil, &ib.SigAttrs{}), syscall.EINVAL)
	is(t, "no attributes", try(q, four[:1], nil, nil), syscall.EINVAL)
	is(t, "bad attributes", try(q, four[:1], nil, &ib.SigAttrs{Mem: ib.SigDomain{SigType: 9}}), syscall.EINVAL)
	is(t, "no data", try(q, nil, nil, &ib.SigAttrs{}), syscall.EINVAL)
	is(t, "half a block", try(q, [][]byte{b[:block/2]}, nil, (&sigCase{wire: true}).attrs(0)), syscall.EINVAL)
	is(t, "too few tuples", try(q, four[:3], [][]byte{pi[:tupleLen]}, strip), syscall.EINVAL)
	ok(y.SignatureInit(q, 1, four[:3], [][]byte{pi[:5], pi[5:17], pi[17:]}, strip, 0, 0, rdmarw.DMAToDevice))(t)
	states = nil
	is(t, "an empty pool", try(q, four[:1], nil, &ib.SigAttrs{}), syscall.EAGAIN)
	must(t, y.DestroySignature(q, 1, nil, nil, rdmarw.DMAToDevice))
	ok(x.SignatureInit(q, 1, four[:1], nil, &ib.SigAttrs{}, 0, 0, rdmarw.DMAToDevice))(t)
	must(t, x.DestroySignature(q, 1, nil, nil, rdmarw.DMAToDevice))
	// A device without signature regions.
	none := newRig(t, setup{limits: soft.Limits{MaxPIFastRegPages: -1}})
	attr := none.a.attr()
	attr.IntegrityEn = true
	_, err := rdmarw.CreateQP(none.a.pd, attr)
	is(t, "no signature regions", err, syscall.EOPNOTSUPP)
}

// C5 for signatures: a send queue without room, failing calls, and a flush.
func TestC5_Signature(t *testing.T) {
	points := 0
	for at := 1; ; at++ {
		f := &faults{at: at}
		failed := 0
		r := newRig(t, setup{faults: f})
		b, remote := r.a.buffer(4*block), r.b.mem(4*(block+tupleLen))
		attr := r.a.attr()
		attr.IntegrityEn, attr.MaxRDMACtxs = true, 2
		q, err := rdmarw.CreateQP(r.a.pd, attr)
		if err == nil {
			r.peer(q.QP())
			w := newWatch()
			var x rdmarw.Ctx
			for turn := range 3 {
				states := q.SigPoolStates()
				_, err = x.SignatureInit(q, 1, [][]byte{b}, nil, (&sigCase{wire: true}).attrs(0), remote.Addr(), remote.RKey(), rdmarw.DMAToDevice)
				if err == nil {
					w.got = nil
					if err = x.Post(q, 1, &w.CQE, nil); err == nil {
						r.done(w)
					} else if turn == 1 {
						must(t, x.Post(q, 1, &w.CQE, nil))
						r.done(w)
					}
					must(t, x.DestroySignature(q, 1, nil, nil, rdmarw.DMAToDevice))
				}
				if err != nil {
					is(t, "failure", err, syscall.ENOMEM)
					failed++
					if turn != 1 && !slices.Equal(q.SigPoolStates(), states) {
						t.Errorf("the pool has %v, had %v", q.SigPoolStates(), states)
					}
				}
			}
			must(t, q.QP().Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
			if _, err = x.SignatureInit(q, 1, [][]byte{b}, nil, (&sigCase{wire: true}).attrs(0), remote.Addr(), remote.RKey(), rdmarw.DMAToDevice); err == nil {
				w.got = nil
				if err = x.Post(q, 1, &w.CQE, nil); err == nil {
					r.wait(w, 1)
					if w.got[0].Status != ib.WCWRFlushErr {
						t.Errorf("%+v", w.got[0])
					}
				}
				must(t, x.DestroySignature(q, 1, nil, nil, rdmarw.DMAToDevice))
			}
			r.a.later(func() error { return errors.Join(q.QP().Destroy(), q.CleanupMRs()) })
		}
		if err != nil {
			is(t, "failure", err, syscall.ENOMEM)
			failed++
		}
		r.shut()
		if f.open != 0 {
			t.Fatalf("call %d fails: %d regions are left", at, f.open)
		}
		if f.calls < at {
			if failed != 0 {
				t.Errorf("%d failures without a failing call", failed)
			}
			break
		}
		if failed != 1 {
			t.Errorf("call %d fails: %d failures", at, failed)
		}
		points++
	}
	if t.Logf("%d failure points", points); points < 10 {
		t.Error("too few")
	}
}
