package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/pi/pimodel"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

const sigRights = ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessRemoteWrite

// sigMR makes a signature region.
func (n *node) sigMR(data, meta int) *verbs.SigMR {
	n.t.Helper()
	m := ok(n.pd.AllocMRIntegrity(data, meta))(n.t)
	n.later(m.Dereg)
	return m
}

// sigPair is a pair of queue pairs that register signature regions.
func (r *rig) sigPair(typ ib.QPType) (qa, qb *verbs.QP) {
	aa, ab := r.a.attr(typ), r.b.attr(typ)
	aa.IntegrityEn, ab.IntegrityEn = true, true
	aa.Cap.MaxSendWR, ab.Cap.MaxSendWR = 64, 64
	return r.connect(aa, ab)
}

func regSig(m *verbs.SigMR, key ib.RKey, a ib.Access) *verbs.SendWR {
	return &verbs.SendWR{Opcode: ib.WRRegMRIntegrity, Flags: ib.SendSignaled, RKey: key, Bind: &verbs.BindInfo{MR: m, Access: a}}
}

func difCRC(interval int) ib.SigDomain {
	return ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{
		PIInterval: interval, AppTag: 0x1234, RefTag: 0xABCD0000, RefRemap: true, AppEscape: true, AppTagCheckMask: 0xFFFF,
	}}
}

// mapSig gives a region memory and attributes, and registers it on q.
func (r *rig) mapSig(n *node, q *verbs.QP, m *verbs.SigMR, data, meta [][]byte, a *ib.SigAttrs) {
	r.t.Helper()
	if k, err := m.MapSGPI(data, 0, meta, 0, page); err != nil || k != len(data)+len(meta) {
		r.t.Fatal(k, err)
	}
	if err := errors.Join(m.SetSigAttrs(a), m.Ready()); err != nil {
		r.t.Fatal(err)
	}
	r.ends("registration", r.do(n, q, regSig(m, ib.IncRKey(m.RKey()), sigRights)), ib.WCSuccess)
}

// counted is n bytes that count up from first.
func counted(n int, first byte, step int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i*step)
	}
	return b
}

// The bytes that a WRITE from a signature key carries, by hand: blocks of zeros and
// T10's code words, to memory that knows nothing of it.
func TestSignatureOnTheWire(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.sigPair(ib.RC)
	data := append(append(make([]byte, 480), counted(32, 0, 1)...), append(make([]byte, 480), bytes.Repeat([]byte{0xFF}, 32)...)...)
	m, far := r.a.sigMR(1, 0), r.b.mem(2000)
	r.mapSig(r.a, qa, m, [][]byte{data}, nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: difCRC(512)})
	if m.Length() != 1040 {
		t.Fatalf("length %d, want 1040", m.Length())
	}
	wr := &verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{m.SGE(0, 1040)}, RemoteAddr: far.Addr(), RKey: far.RKey()}
	r.ends("write", r.do(r.a, qa, wr), ib.WCSuccess)
	got := far.Bytes()
	if !bytes.Equal(got[512:520], []byte{0x02, 0x24, 0x12, 0x34, 0xAB, 0xCD, 0, 0}) ||
		!bytes.Equal(got[1032:1040], []byte{0xA2, 0x93, 0x12, 0x34, 0xAB, 0xCD, 0, 1}) ||
		!bytes.Equal(got[:512], data[:512]) || !bytes.Equal(got[520:1032], data[512:]) {
		t.Errorf("on the wire:\n% x", got[:1040])
	}
	// Inline too: the bytes are gathered at the post.
	wr.Flags |= ib.SendInline
	wr.SGList[0] = m.SGE(500, 30)
	wr.RemoteAddr += 1100
	r.ends("inline write", r.do(r.a, qa, wr), ib.WCSuccess)
	if !bytes.Equal(got[1100:1130], got[500:530]) {
		t.Errorf("inline: % x", got[1100:1130])
	}
}

// sigOps are what the model below does with a signature key.
var sigOps = []string{"WRITE from it", "WRITE to it", "READ into it", "READ of it", "SEND from it", "SEND into it"}

// Every operation, signature keys of this side's and of the peer's, every path MTU,
// random attributes, lists and errors, over a network that loses, doubles and
// reorders: the same bytes as the model's on both sides, and the same first error.
func TestSignatureModel(t *testing.T) {
	r := newRig(t, 9000)
	var qas, qbs [ib.MTU4096 + 1]*verbs.QP
	for mtu := ib.MTU256; mtu <= ib.MTU4096; mtu++ {
		r.a.mtu, r.b.mtu = mtu, mtu
		qas[mtu], qbs[mtu] = r.sigPair(ib.RC)
	}
	const room = 256 << 10 // more than one READ request asks for
	plain := r.a.mem(room)
	far := r.b.mem(room)
	rapid.Check(t, func(t *rapid.T) {
		mtu := ib.MTU(rapid.IntRange(int(ib.MTU256), int(ib.MTU4096)).Draw(t, "MTU"))
		qa, qb := qas[mtu], qbs[mtu]
		op := rapid.SampledFrom(sigOps).Draw(t, "op")
		r.net.SetDefault(simnet.Link{
			Loss:    rapid.SampledFrom([]float64{0, 0.03, 0.1}).Draw(t, "loss"),
			Dup:     rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "dup"),
			Reorder: rapid.SampledFrom([]float64{0, 0.05}).Draw(t, "reorder"),
		})
		a := drawSigAttrs(t)
		interval := max(a.Mem.DIF.PIInterval, a.Wire.DIF.PIInterval)
		n := rapid.IntRange(1, rapid.SampledFrom([]int{4, 40000 / interval, 200_000 / interval}).Draw(t, "most blocks")).Draw(t, "blocks")
		blocks := make([][]byte, n)
		first := rapid.Byte().Draw(t, "data")
		for k := range blocks {
			blocks[k] = counted(interval, first+byte(k)*7, 13)
		}
		inMem := a.Mem.SigType != ib.SigTypeNone
		mixed := inMem && rapid.Bool().Draw(t, "mixed")
		var meta [][]byte
		size := n * interval
		if mixed {
			size += 8 * n
		} else if inMem {
			meta = drawSlices(t, "meta", 8*n)
		}
		data := drawSlices(t, "data", size)
		out := op == "WRITE from it" || op == "READ of it" || op == "SEND from it"
		mine := op != "WRITE to it" && op != "READ of it" && op != "SEND into it"
		owner, q, other := r.a, qa, far
		if !mine {
			owner, q, other = r.b, qb, plain
		}
		m := ok(owner.pd.AllocMRIntegrity(len(data), len(meta)))(r.t)
		defer m.Dereg()
		from, to := &a.Mem, &a.Wire
		if !out {
			from, to = to, from
		}
		var tuples []pimodel.Tuple
		if from.SigType != ib.SigTypeNone {
			for k := range blocks {
				tuples = append(tuples, pimodel.Make(&from.DIF, blocks[k], k))
			}
			spoilBlocks(t, blocks, tuples)
		}
		result, wrong := pimodel.Turn(a, from, to, blocks, tuples)
		onTheWire := pimodel.Mix(blocks, result)
		if !out {
			onTheWire = pimodel.Mix(blocks, tuples)
			clear(other.Bytes())
			copy(other.Bytes(), onTheWire)
		} else if mixed {
			spreadOver(data, pimodel.Mix(blocks, tuples))
		} else {
			spreadOver(data, pimodel.Mix(blocks, nil))
			spreadOver(meta, pimodel.Mix(make([][]byte, n), tuples))
		}
		r.mapSig(owner, q, m, data, meta, a)
		if int(m.Length()) != len(onTheWire) {
			t.Fatalf("length %d, want %d", m.Length(), len(onTheWire))
		}

		// The lists of both sides, cut anywhere.
		lists := map[*verbs.MR][]verbs.SGE{}
		for _, mr := range []*verbs.MR{m.MR, other} {
			off := 0
			for i := range 4 {
				k := len(onTheWire) - off
				if i < 3 {
					k = rapid.IntRange(0, k).Draw(t, "element")
				}
				lists[mr] = append(lists[mr], mr.SGE(off, k))
				off += k
			}
		}
		wr := verbs.SendWR{Flags: ib.SendSignaled}
		switch op {
		case "WRITE from it":
			wr.Opcode, wr.SGList, wr.RemoteAddr, wr.RKey = ib.WRRDMAWrite, lists[m.MR], far.Addr(), far.RKey()
		case "WRITE to it":
			wr.Opcode, wr.SGList, wr.RemoteAddr, wr.RKey = ib.WRRDMAWrite, lists[plain], m.Addr(), m.RKey()
		case "READ into it":
			wr.Opcode, wr.SGList, wr.RemoteAddr, wr.RKey = ib.WRRDMARead, lists[m.MR], far.Addr(), far.RKey()
		case "READ of it":
			wr.Opcode, wr.SGList, wr.RemoteAddr, wr.RKey = ib.WRRDMARead, lists[plain], m.Addr(), m.RKey()
		case "SEND from it":
			wr.Opcode, wr.SGList = ib.WRSend, lists[m.MR]
			if err := qb.PostRecvOne(&verbs.RecvWR{SGList: lists[far]}); err != nil {
				t.Fatal(err)
			}
		case "SEND into it":
			wr.Opcode, wr.SGList = ib.WRSend, lists[plain]
			if err := qb.PostRecvOne(&verbs.RecvWR{SGList: lists[m.MR]}); err != nil {
				t.Fatal(err)
			}
		}
		// A WRITE is whole in the peer's memory, and what a READ took is checked, when it
		// completes; so is a SEND, whose completion there is still to be taken.
		r.ends(op, r.do(r.a, qa, &wr), ib.WCSuccess)
		if wr.Opcode == ib.WRSend {
			r.ends("receive", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
		}
		e, bad := m.CheckStatus()
		if wrong != nil {
			wrong.Key = uint32(m.RKey())
		}
		if bad != (wrong != nil) || bad && e != *wrong {
			t.Fatalf("%s: %+v %v, want %+v", op, e, bad, wrong)
		}
		if _, bad := m.CheckStatus(); bad {
			t.Fatal("told twice")
		}
		if out {
			if got := other.Bytes()[:len(onTheWire)]; !bytes.Equal(got, onTheWire) {
				t.Fatalf("%s: on the wire\n% x\nwant\n% x", op, got, onTheWire)
			}
		} else {
			wantData, wantMeta := pimodel.Mix(blocks, nil), pimodel.Mix(make([][]byte, n), result)
			if mixed {
				wantData, wantMeta = pimodel.Mix(blocks, result), nil
			}
			if got := bytes.Join(data, nil); !bytes.Equal(got, wantData) {
				t.Fatalf("%s: in memory\n% x\nwant\n% x", op, got, wantData)
			}
			if got := bytes.Join(meta, nil); !bytes.Equal(got, wantMeta) {
				t.Fatalf("%s: metadata\n% x\nwant\n% x", op, got, wantMeta)
			}
		}
		if qa.State() != ib.QPStateRTS || qb.State() != ib.QPStateRTS {
			t.Fatal("a wrong block ends a queue pair")
		}
		r.ends("invalidation", r.do(owner, q, localInv(m.RKey())), ib.WCSuccess)
	})
}

// drawSigAttrs draws attributes that fit each other.
func drawSigAttrs(t *rapid.T) *ib.SigAttrs {
	interval := rapid.SampledFrom([]int{512, 520, 1024, 2048, 4096, 4104}).Draw(t, "interval")
	d := ib.T10DIFDomain{
		PIInterval: interval, BGType: rapid.SampledFrom([]ib.T10DIFGuard{ib.T10DIFCRC, ib.T10DIFCSUM}).Draw(t, "guard"),
		BG: rapid.SampledFrom([]uint16{0, 0xFFFF}).Draw(t, "seed"), AppTag: 0xA5, RefTag: rapid.Uint32().Draw(t, "ref tag"), AppTagCheckMask: 0xFFFF, AppEscape: true,
	}
	switch rapid.IntRange(1, 3).Draw(t, "type") {
	case 1, 2:
		d.RefRemap = true
	case 3:
		d.RefEscape = true
	}
	a := &ib.SigAttrs{CheckMask: rapid.SampledFrom([]uint8{0xFF, 0xC0, 0xCF, 0}).Draw(t, "check")}
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	if kind != 0 {
		a.Wire = ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: d}
	}
	if kind != 1 {
		a.Mem = ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: d}
	}
	if kind == 3 {
		a.Mem.DIF.BGType ^= 1
		a.Mem.DIF.RefTag++
	}
	return a
}

func drawSlices(t *rapid.T, name string, n int) (list [][]byte) {
	for n > 0 {
		k := n
		if len(list) < 12 && rapid.IntRange(0, 3).Draw(t, name+" cut") > 0 {
			k = rapid.IntRange(1, n).Draw(t, name+" length")
		}
		list = append(list, make([]byte, k))
		n -= k
	}
	return list
}

func spreadOver(list [][]byte, b []byte) {
	for _, s := range list {
		b = b[copy(s, b):]
	}
}

// spoilBlocks breaks some blocks and tuples, and gives some tuples the marks of an
// escape.
func spoilBlocks(t *rapid.T, blocks [][]byte, tuples []pimodel.Tuple) {
	for range rapid.IntRange(0, 3).Draw(t, "spoilt") {
		k := rapid.IntRange(0, len(blocks)-1).Draw(t, "block")
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			blocks[k][rapid.IntRange(0, len(blocks[k])-1).Draw(t, "byte")] ^= 0x40
		case 1:
			tuples[k][rapid.IntRange(0, 7).Draw(t, "tuple byte")] ^= 0x10
		case 2:
			copy(tuples[k][2:], bytes.Repeat([]byte{0xFF}, 6))
		}
	}
}

// Both sides at a time: protection information is made where the data leaves, checked
// where it arrives, by type 1, 2 and 3; a byte that changes between is found there.
func TestSignatureAtBothSides(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.sigPair(ib.RC)
	for _, typ := range []int{1, 2, 3} {
		wire := difCRC(512)
		if typ == 3 {
			wire.DIF.RefRemap, wire.DIF.RefEscape = false, true
		}
		a := &ib.SigAttrs{CheckMask: 0xFF, Wire: wire}
		src, dst := counted(16*512, byte(typ), 3), make([]byte, 16*512)
		ma, mb := r.a.sigMR(1, 0), r.b.sigMR(1, 0)
		r.mapSig(r.a, qa, ma, [][]byte{src}, nil, a)
		r.mapSig(r.b, qb, mb, [][]byte{dst}, nil, a)
		write := &verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{ma.SGE(0, int(ma.Length()))}, RemoteAddr: mb.Addr(), RKey: mb.RKey()}
		r.ends("write", r.do(r.a, qa, write), ib.WCSuccess)
		if e, bad := mb.CheckStatus(); bad || !bytes.Equal(src, dst) {
			t.Errorf("type %d: %+v", typ, e)
		}
		// Other tags there: the first block is wrong, and the data arrives all the same.
		other := *a
		other.Wire.DIF.RefTag++
		r.ends("invalidation", r.do(r.b, qb, localInv(mb.RKey())), ib.WCSuccess)
		clear(dst)
		r.mapSig(r.b, qb, mb, [][]byte{dst}, nil, &other)
		write.RKey = mb.RKey()
		r.ends("write", r.do(r.a, qa, write), ib.WCSuccess)
		want := ib.SigErr{Type: ib.SigBadRefTag, Expected: 0xABCD0001, Actual: 0xABCD0000, Key: uint32(mb.RKey())}
		if e, bad := mb.CheckStatus(); !bad || e != want || !bytes.Equal(src, dst) {
			t.Errorf("type %d: %+v, want %+v", typ, e, want)
		}
		if _, bad := ma.CheckStatus(); bad {
			t.Errorf("type %d: an error where it was made", typ)
		}
	}
}

// UC and UD carry it too.
func TestSignatureUnreliable(t *testing.T) {
	r := newRig(t, 9000)
	wire := difCRC(512)
	src, dst := counted(4*512, 5, 3), make([]byte, 40+4*512)
	a := &ib.SigAttrs{CheckMask: 0xFF, Wire: wire}
	qa, qb := r.sigPair(ib.UC)
	ma, mb := r.a.sigMR(1, 0), r.b.sigMR(1, 0)
	r.mapSig(r.a, qa, ma, [][]byte{src}, nil, a)
	r.mapSig(r.b, qb, mb, [][]byte{dst[:4*512]}, nil, a)
	local := r.a.mem(2080)
	ud, far := r.a.qp(r.a.attr(ib.UD)), r.b.mem(4096)
	r.a.to(ud, ib.QPStateRTS, nil, r.b.addr)
	all := []verbs.SGE{ma.SGE(0, 2080)}
	for _, c := range []struct {
		name string
		wr   verbs.SendWR
		recv []verbs.SGE
	}{
		{"WRITE", verbs.SendWR{Opcode: ib.WRRDMAWriteWithImm, RemoteAddr: mb.Addr(), RKey: mb.RKey(), SGList: all}, nil},
		{"SEND", verbs.SendWR{Opcode: ib.WRSend, SGList: all}, []verbs.SGE{mb.SGE(0, 2080)}},
	} {
		clear(dst)
		if err := qb.PostRecvOne(&verbs.RecvWR{SGList: c.recv}); err != nil {
			t.Fatal(err)
		}
		c.wr.Flags = ib.SendSignaled
		r.ends(c.name, r.do(r.a, qa, &c.wr), ib.WCSuccess)
		r.ends("receive", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
		if e, bad := mb.CheckStatus(); bad || !bytes.Equal(src, dst[:2048]) {
			t.Errorf("%s: %+v", c.name, e)
		}
		// Once more with the third block wrong, from memory that knows nothing of it.
		var b []byte
		for k := range 4 {
			x := pimodel.Make(&wire.DIF, src[512*k:512*k+512], k)
			b = append(append(b, src[512*k:512*k+512]...), x[:]...)
		}
		b[2*520+100] ^= 1
		copy(local.Bytes(), b)
		c.wr.SGList = []verbs.SGE{local.SGE(0, 2080)}
		if err := qb.PostRecvOne(&verbs.RecvWR{SGList: c.recv}); err != nil {
			t.Fatal(err)
		}
		r.ends(c.name, r.do(r.a, qa, &c.wr), ib.WCSuccess)
		r.ends("receive", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
		if e, bad := mb.CheckStatus(); !bad || e.Type != ib.SigBadGuard || e.SigErrOffset != 2*520 {
			t.Errorf("%s of a wrong block: %+v, %v", c.name, e, bad)
		}
	}
	// A datagram, from a signature key to plain memory, and the way back.
	qd := r.b.qp(r.b.attr(ib.UD))
	r.b.to(qd, ib.QPStateRTS, nil, r.a.addr)
	ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1, HopLimit: 64}))(t)
	r.a.later(ah.Destroy)
	send := &verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, AH: ah, RemoteQPN: qd.Num(), RemoteQKey: qkey, SGList: []verbs.SGE{ma.SGE(0, 520)}}
	datagram := func(sge ...verbs.SGE) {
		t.Helper()
		if err := qd.PostRecvOne(&verbs.RecvWR{SGList: sge}); err != nil {
			t.Fatal(err)
		}
		r.ends("datagram", r.do(r.a, ud, send), ib.WCSuccess)
		r.ends("receive", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
	}
	datagram(far.SGE(0, 40), mb.SGE(0, 520))
	if e, bad := mb.CheckStatus(); bad || !bytes.Equal(dst[:512], src[:512]) {
		t.Errorf("datagram: %+v", e)
	}
	datagram(far.SGE(0, 600))
	want := pimodel.Make(&wire.DIF, src[:512], 0)
	if !bytes.Equal(far.Bytes()[40:560], append(bytes.Clone(src[:512]), want[:]...)) {
		t.Error("datagram: other bytes")
	}
	far.Bytes()[100] ^= 1
	back := r.a.mem(2048)
	copy(back.Bytes(), far.Bytes()[40:560])
	send.SGList = []verbs.SGE{back.SGE(0, 520)}
	datagram(far.SGE(0, 40), mb.SGE(0, 520))
	if e, bad := mb.CheckStatus(); !bad || e.Type != ib.SigBadGuard || e.SigErrOffset != 0 {
		t.Errorf("datagram: %+v, %v", e, bad)
	}
}

// The life of a storage client: a chain of [LOCAL_INV] REG_MR_INTEGRITY SEND carries
// the key to the target, which writes or reads and takes the key back, or leaves that
// to the client. An error of one registration is not told in the next.
func TestSignatureChains(t *testing.T) {
	r := newRig(t, 9000)
	r.net.SetDefault(simnet.Link{Loss: 0.02})
	client, target := r.sigPair(ib.RC)
	m, req, into := r.a.sigMR(4, 4), r.a.mem(8), r.b.mem(8)
	disk := r.b.mem(8 * 520)
	owed := false
	for i := range 40 {
		data, meta := make([]byte, 8*512), make([]byte, 64)
		a := &ib.SigAttrs{CheckMask: 0xFF, Mem: difCRC(512), Wire: difCRC(512), MetaLength: 64}
		a.Mem.DIF.RefTag, a.Wire.DIF.RefTag = uint32(i), uint32(i)
		blocks := make([][]byte, 8)
		tuples := make([]pimodel.Tuple, 8)
		for k := range blocks {
			blocks[k] = counted(512, byte(i+k), 3)
			tuples[k] = pimodel.Make(&a.Wire.DIF, blocks[k], k)
		}
		broken := i%3 == 0
		if broken {
			blocks[5][7] ^= 0x80
		}
		copy(disk.Bytes(), pimodel.Mix(blocks, tuples))
		if _, err := m.MapSGPI([][]byte{data[:1000], data[1000:]}, 0, [][]byte{meta}, 0, page); err != nil {
			t.Fatal(err)
		}
		if err := m.SetSigAttrs(a); err != nil {
			t.Fatal(err)
		}
		key := ib.IncRKey(m.RKey())
		var wrs []verbs.SendWR
		if owed {
			wrs = append(wrs, verbs.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: m.RKey()})
		}
		wrs = append(wrs, *regSig(m, key, sigRights), verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{req.SGE(0, 8)}})
		wrs[len(wrs)-2].Flags = 0
		if err := errors.Join(target.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{into.SGE(0, 8)}}), client.PostRecvOne(&verbs.RecvWR{}), client.PostSend(wrs)); err != nil {
			t.Fatal(err)
		}
		r.ends("request", r.wcs(r.a.cq, 1)[0].Status, ib.WCSuccess)
		r.ends("its arrival", r.wcs(r.b.cq, 1)[0].Status, ib.WCSuccess)
		if m.RKey() != key {
			t.Fatalf("key %#x, want %#x", m.RKey(), key)
		}
		r.ends("transfer", r.do(r.b, target, &verbs.SendWR{
			Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{disk.SGE(0, 8*520)}, RemoteAddr: m.Addr(), RKey: key,
		}), ib.WCSuccess)
		answer := verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled}
		if owed = i%2 == 0; !owed {
			answer.Opcode, answer.InvalidateRKey = ib.WRSendWithInv, key
		}
		r.ends("answer", r.do(r.b, target, &answer), ib.WCSuccess)
		wc := r.wcs(r.a.cq, 1)[0]
		if wc.Status != ib.WCSuccess || !owed && (wc.Flags&ib.WCWithInv == 0 || wc.InvalidatedRKey != key) {
			t.Fatalf("%+v", wc)
		}
		if i%6 != 0 { // else nobody asks
			e, bad := m.CheckStatus()
			if bad != broken || bad && (e.Type != ib.SigBadGuard || e.SigErrOffset != 5*520 || e.Key != uint32(key)) {
				t.Errorf("round %d: %+v, %v", i, e, bad)
			}
		}
		if !bytes.Equal(data, pimodel.Mix(blocks, nil)) || !bytes.Equal(meta, pimodel.Mix(make([][]byte, 8), tuples)) {
			t.Fatalf("round %d: other bytes", i)
		}
	}
}

// What is wrong with a request, before it is posted and when it is executed.
func TestSignatureRequests(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.sigPair(ib.RC)
	plain, _ := r.pair(ib.RC)
	m, fast, mr := r.a.sigMR(2, 1), r.a.fastMR(4), r.a.mem(64)
	refused := func(what string, err error, field string, errno syscall.Errno) {
		t.Helper()
		var e *verbs.OpError
		if !errors.As(err, &e) || e.Param != field || !errors.Is(err, errno) {
			t.Errorf("%s: %v, want %v of %s", what, err, errno, field)
		}
	}
	post := func(q *verbs.QP, wr *verbs.SendWR) error { return q.PostSendOne(wr) }
	refused("not ready", post(qa, regSig(m, m.RKey(), sigRights)), "Bind.MR", syscall.EINVAL)
	refused("ready", m.Ready(), "data", syscall.EINVAL)
	data := make([]byte, 1024)
	if _, err := m.MapSGPI([][]byte{data}, 0, nil, 0, page); err != nil {
		t.Fatal(err)
	}
	refused("no attributes", post(qa, regSig(m, m.RKey(), sigRights)), "Bind.MR", syscall.EINVAL)
	refused("nil attributes", m.SetSigAttrs(nil), "attrs", syscall.EINVAL)
	refused("bad attributes", m.SetSigAttrs(&ib.SigAttrs{Wire: ib.SigDomain{SigType: 5}}), "Wire.SigType", syscall.EINVAL)
	refused("bad interval", m.SetSigAttrs(&ib.SigAttrs{Wire: difCRC(100)}), "Wire.DIF.PIInterval", syscall.EINVAL)
	_, err := m.MapSGPI([][]byte{data, data, data}, 0, nil, 0, page)
	refused("a long list", err, "data", syscall.EINVAL)
	if err := m.SetSigAttrs(&ib.SigAttrs{CheckMask: 0xFF, Wire: difCRC(512)}); err != nil {
		t.Fatal(err)
	}
	refused("without IntegrityEn", post(plain, regSig(m, m.RKey(), sigRights)), "Opcode", syscall.EINVAL)
	refused("atomics", post(qa, regSig(m, m.RKey(), sigRights|ib.AccessRemoteAtomic)), "Bind.Access", syscall.EINVAL)
	refused("windows", post(qa, regSig(m, m.RKey(), sigRights|ib.AccessMWBind)), "Bind.Access", syscall.EINVAL)
	refused("another index", post(qa, regSig(m, m.RKey()^0x100, sigRights)), "RKey", syscall.EINVAL)
	refused("no bind", post(qa, &verbs.SendWR{Opcode: ib.WRRegMRIntegrity}), "Bind", syscall.EINVAL)
	refused("nil region", post(qa, &verbs.SendWR{Opcode: ib.WRRegMRIntegrity, Bind: &verbs.BindInfo{MR: (*verbs.SigMR)(nil)}}), "Bind.MR", syscall.EINVAL)
	refused("a plain region", post(qa, &verbs.SendWR{Opcode: ib.WRRegMRIntegrity, RKey: fast.RKey(), Bind: &verbs.BindInfo{MR: fast}}), "Bind.MR", syscall.EINVAL)
	refused("REG_MR", post(qa, &verbs.SendWR{Opcode: ib.WRRegMR, RKey: m.RKey(), Bind: &verbs.BindInfo{MR: m}}), "Bind.MR", syscall.EINVAL)
	_, _, err = m.MapSG([][]byte{data}, 0, page)
	refused("MapSG", err, "mr", syscall.EINVAL)
	refused("Rereg", m.Rereg(ib.ReregAccess, &verbs.ReregAttr{}), "mr", syscall.EINVAL)
	for _, c := range [][2]int{{0, 0}, {257, 0}, {1, -1}, {1, 257}} {
		if _, err := r.a.pd.AllocMRIntegrity(c[0], c[1]); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", c, err)
		}
	}

	// Executed: a key that is valid is not registered again, and tells why.
	r.ends("registration", r.do(r.a, qa, regSig(m, m.RKey(), sigRights)), ib.WCSuccess)
	for _, c := range []struct {
		name string
		wr   *verbs.SendWR
		want ib.WCStatus
	}{
		{"a window", bind(r.a.mw(ib.MWType2), 0, m.MR, 0, 8, ib.AccessRemoteRead), ib.WCMWBindErr},
		{"twice", regSig(m, m.RKey(), sigRights), ib.WCMWBindErr},
	} {
		q, _ := r.sigPair(ib.RC)
		if c.wr.Opcode == ib.WRBindMW {
			c.wr.RKey = c.wr.Bind.MW.RKey()
		}
		if err := q.PostSendOne(c.wr); err != nil {
			t.Fatal(c.name, err)
		}
		wc := r.wcs(r.a.cq, 1)[0]
		if wc.Status != c.want || c.name == "twice" && ib.VendorErr(wc.VendorErr) != ib.VendorErrRegValid {
			t.Errorf("%s: %+v", c.name, wc)
		}
	}
	// Memory and attributes that no longer fit when the request is executed: the first
	// READ holds the queue up.
	q, _ := r.sigPair(ib.RC)
	far := r.b.mem(64)
	wrs := []verbs.SendWR{
		{Opcode: ib.WRRDMARead, SGList: []verbs.SGE{mr.SGE(0, 8)}, RemoteAddr: far.Addr(), RKey: far.RKey()},
		{Opcode: ib.WRLocalInv, Flags: ib.SendFence, InvalidateRKey: m.RKey()},
		*regSig(m, m.RKey(), sigRights),
	}
	if err := q.PostSend(wrs); err != nil {
		t.Fatal(err)
	}
	if err := m.SetSigAttrs(&ib.SigAttrs{Wire: difCRC(4096)}); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCMWBindErr || ib.VendorErr(wc.VendorErr) != ib.VendorErrRegSignature {
		t.Errorf("what does not fit any more: %+v", wc)
	}
}

// Peers use the key for READ and WRITE inside its range, and for nothing else.
func TestSignaturePeers(t *testing.T) {
	r := newRig(t, 9000)
	data := make([]byte, 1024)
	far, local := r.b.sigMR(1, 0), r.a.mem(2048)
	for _, c := range []struct {
		name string
		wr   verbs.SendWR
		n    int
		off  uint64
		want ib.WCStatus
	}{
		{"all", verbs.SendWR{Opcode: ib.WRRDMARead}, 1040, 0, ib.WCSuccess},
		{"the last byte", verbs.SendWR{Opcode: ib.WRRDMAWrite}, 1, 1039, ib.WCSuccess},
		{"beyond", verbs.SendWR{Opcode: ib.WRRDMARead}, 1, 1040, ib.WCRemAccessErr},
		{"across", verbs.SendWR{Opcode: ib.WRRDMAWrite}, 1041, 0, ib.WCRemAccessErr},
		{"an atomic", verbs.SendWR{Opcode: ib.WRAtomicFetchAndAdd}, 8, 0, ib.WCRemAccessErr},
		{"an atomic WRITE", verbs.SendWR{Opcode: ib.WRAtomicWrite}, 8, 0, ib.WCRemAccessErr},
	} {
		qa, qb := r.sigPair(ib.RC)
		r.mapSig(r.b, qb, far, [][]byte{data}, nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: difCRC(512)})
		c.wr.Flags, c.wr.SGList = ib.SendSignaled, []verbs.SGE{local.SGE(0, c.n)}
		c.wr.RemoteAddr, c.wr.RKey = (far.Addr()+c.off)&^7, far.RKey()
		if c.n%8 != 0 {
			c.wr.RemoteAddr = far.Addr() + c.off
		}
		r.ends(c.name, r.do(r.a, qa, &c.wr), c.want)
		q, _ := r.sigPairB()
		r.ends("invalidation", r.do(r.b, q, localInv(far.RKey())), ib.WCSuccess)
		far.CheckStatus()
	}
}

// A copy of the request of a READ that comes late, when the owner has asked for the
// status already, is answered and tells nothing new; another READ does.
func TestSignatureLateRead(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.sigPair(ib.RC)
	data := make([]byte, 8*520)
	far, local := r.b.sigMR(1, 0), r.a.mem(8*520)
	r.mapSig(r.b, qb, far, [][]byte{data}, nil, &ib.SigAttrs{CheckMask: 0xFF, Mem: difCRC(512), Wire: difCRC(512)})
	read := &verbs.SendWR{
		Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: []verbs.SGE{local.SGE(0, 8*520)}, RemoteAddr: far.Addr(), RKey: far.RKey(),
	}
	var late []byte
	var src netip.AddrPort
	var id uint16
	remove := r.net.Sniff(func(e *simnet.Event) {
		if e.Op == roce.OpRCReadRequest {
			late, src, id = bytes.Clone(e.B), e.Src, e.ID
		}
	})
	r.ends("READ", r.do(r.a, qa, read), ib.WCSuccess)
	remove()
	if e, bad := far.CheckStatus(); !bad || e.SigErrOffset != 0 {
		t.Errorf("%+v, %v", e, bad)
	}
	r.net.Inject(src, r.b.addr, late, id)
	r.net.RunFor(1e9)
	if s := toCounts(ok(qb.Counters())(t))["duplicate_request"]; s != 1 {
		t.Fatalf("%d copies came", s)
	}
	if e, bad := far.CheckStatus(); bad {
		t.Errorf("the late copy tells %+v", e)
	}
	r.ends("another READ", r.do(r.a, qa, read), ib.WCSuccess)
	if _, bad := far.CheckStatus(); !bad {
		t.Error("another READ tells nothing")
	}
}

// sigPairB is sigPair with the second node's queue pair first.
func (r *rig) sigPairB() (qb, qa *verbs.QP) {
	qa, qb = r.sigPair(ib.RC)
	return qb, qa
}

// A device without signature regions says so.
func TestSignatureNotOffered(t *testing.T) {
	r := &rig{t: t, net: simnet.New(1), limits: soft.Limits{MaxPIFastRegPages: -1}}
	r.a = r.node("a", 9000, "192.0.2.1")
	if _, err := r.a.pd.AllocMRIntegrity(1, 1); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	attr := r.a.attr(ib.RC)
	attr.IntegrityEn = true
	if _, err := r.a.pd.CreateQP(attr); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	dev := ok(r.a.ctx.QueryDevice())(t)
	if dev.MaxPIFastRegPageListLen != 0 || dev.SigProtCap != 0 || dev.SigGuardCap != 0 {
		t.Errorf("%+v", dev)
	}
	full := newRig(t, 9000)
	dev = ok(full.a.ctx.QueryDevice())(t)
	if dev.MaxPIFastRegPageListLen != 256 || dev.SigProtCap != 7 || dev.SigGuardCap != 3 {
		t.Errorf("%+v", dev)
	}
}

// The batch interface, and the flag of the extended creation call.
func TestSignatureBatch(t *testing.T) {
	r := newRig(t, 9000)
	ex := &verbs.QPInitAttrEx{QPInitAttr: *r.a.attr(ib.RC), PD: r.a.pd, CreateFlags: ib.QPCreateIntegrityEn}
	qa := ok(r.a.ctx.CreateQPEx(ex))(t)
	r.a.qps = append(r.a.qps, qa)
	qb := r.b.qp(r.b.attr(ib.RC))
	r.a.to(qa, ib.QPStateRTS, qb, r.b.addr)
	r.b.to(qb, ib.QPStateRTS, qa, r.a.addr)
	m, far := r.a.sigMR(1, 0), r.b.mem(520)
	data := counted(512, 3, 5)
	if _, err := m.MapSGPI([][]byte{data}, 0, nil, 0, page); err != nil {
		t.Fatal(err)
	}
	wire := difCRC(512)
	if err := m.SetSigAttrs(&ib.SigAttrs{CheckMask: 0xFF, Wire: wire}); err != nil {
		t.Fatal(err)
	}
	x := ok(qa.Ex(ib.WRRegMRIntegrity, ib.WRRDMAWrite))(t)
	key := ib.IncRKey(m.RKey())
	x.Start()
	x.WRFlags = ib.SendSignaled
	x.RegMRIntegrity(key, &verbs.BindInfo{MR: m, Access: sigRights})
	x.RDMAWrite(far.RKey(), far.Addr())
	x.SetSGE(ib.LKey(key), m.Addr(), 520)
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	wcs := r.wcs(r.a.cq, 2)
	if wcs[0].Opcode != ib.WCRegMR || wcs[0].Status != ib.WCSuccess || wcs[1].Status != ib.WCSuccess {
		t.Errorf("%+v", wcs)
	}
	want := pimodel.Make(&wire.DIF, data, 0)
	if !bytes.Equal(far.Bytes(), append(bytes.Clone(data), want[:]...)) {
		t.Errorf("% x", far.Bytes())
	}
}

// A region that is gone has no memory and no attributes to be given.
func TestSignatureGone(t *testing.T) {
	r := newRig(t, 9000)
	m := ok(r.a.pd.AllocMRIntegrity(1, 1))(t)
	if err := m.Dereg(); err != nil {
		t.Fatal(err)
	}
	_, err := m.MapSGPI([][]byte{{1}}, 0, nil, 0, page)
	for i, err := range []error{err, m.SetSigAttrs(&ib.SigAttrs{}), m.Ready()} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Error(i, err)
		}
	}
	if e, bad := m.CheckStatus(); bad {
		t.Error(e)
	}
	if s := fmt.Sprint(ib.SigErr{Type: ib.SigBadGuard}.Type); s != "bad guard" {
		t.Error(s)
	}
}
