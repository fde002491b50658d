package verbs_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestCase11_OneCompletionPerWorkRequestAfterAnError(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	src, dst := r.a.mem(64), r.b.mem(64)
	wrs := make([]verbs.SendWR, 4)
	for i := range wrs {
		wrs[i] = verbs.SendWR{
			WRID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 64)},
			RemoteAddr: dst.Addr(), RKey: dst.RKey(),
		}
	}
	wrs[1].RKey ^= 0x5A00
	wrs[2].RKey ^= 0x5A00
	if err := qa.PostSend(wrs); err != nil {
		t.Fatal(err)
	}
	got := r.wcs(r.a.cq, 4)
	want := []ib.WCStatus{ib.WCSuccess, ib.WCRemAccessErr, ib.WCWRFlushErr, ib.WCWRFlushErr}
	if !slices.Equal(statuses(got), want) {
		t.Errorf("%v, want %v", statuses(got), want)
	}
	for i, wc := range got {
		if wc.WRID != uint64(i) || (wc.Err() == nil) != (i == 0) {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
	// Each new post flushes.
	if err := qa.PostSend(wrs[:1]); err != nil || qa.State() != ib.QPStateErr {
		t.Fatal(err, qa.State())
	}
	if got := r.wcs(r.a.cq, 1); got[0].Status != ib.WCWRFlushErr {
		t.Errorf("%+v", got)
	}
	r.quiet(r.a.cq)
}

func TestCase24_PathMTUBeyondTheLink(t *testing.T) {
	r := newRig(t, 1500)
	q := r.a.qp(r.a.attr(ib.RC))
	r.a.to(q, ib.QPStateInit, q, r.b.addr)
	attr := ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: ib.MTU4096, DestQPN: 0x1234, PortNum: 1, MaxDestRDAtomic: 1, MinRNRTimer: 1,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1},
	}
	mask := ib.QPAttrState | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
	if err := q.Modify(&attr, mask); !errors.Is(err, syscall.EINVAL) || q.State() != ib.QPStateInit {
		t.Error(err, q.State())
	}
	port := ok(r.a.ctx.QueryPort(1))(t)
	attr.PathMTU = port.ActiveMTU
	if err := q.Modify(&attr, mask); err != nil || port.ActiveMTU != ib.MTU1024 {
		t.Error(err, port.ActiveMTU)
	}
}

func TestAddressWithoutGRH(t *testing.T) {
	r := newRig(t, 9000)
	q := r.a.qp(r.a.attr(ib.UC))
	r.a.to(q, ib.QPStateInit, q, r.b.addr)
	for _, a := range []ib.AHAttr{
		{DLID: 1, PortNum: 1},
		{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), SGIDIndex: 9, PortNum: 1},
		{IsGlobal: true, PortNum: 1},
	} {
		attr := ib.QPAttr{QPState: ib.QPStateRTR, PathMTU: ib.MTU1024, DestQPN: 5, AHAttr: a}
		err := q.Modify(&attr, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN)
		_, err2 := r.a.pd.CreateAH(&a)
		if !errors.Is(err, syscall.EINVAL) || !errors.Is(err2, syscall.EINVAL) || q.State() != ib.QPStateInit {
			t.Errorf("%+v: %v, %v", a, err, err2)
		}
	}
}

func TestCase50_UnsupportedOpcodes(t *testing.T) {
	r := newRig(t, 9000)
	rc, _ := r.pair(ib.RC)
	uc, _ := r.pair(ib.UC)
	ud, _ := r.pair(ib.UD)
	for _, c := range []struct {
		q  *verbs.QP
		op ib.WROpcode
	}{
		{ud, ib.WRRDMARead},
		{ud, ib.WRRDMAWrite},
		{ud, ib.WRAtomicFetchAndAdd},
		{ud, 99},
		{uc, ib.WRRDMARead},
		{uc, ib.WRAtomicCmpAndSwp},
		{uc, ib.WRSendWithInv},
		{uc, 99},
		{rc, ib.WRTSO},
		{rc, 99},
		{rc, 255},
	} {
		err := c.q.PostSend([]verbs.SendWR{{WRID: 7, Opcode: c.op, Flags: ib.SendSignaled}})
		var pe *verbs.PostError
		if !errors.As(err, &pe) || pe.Index != 0 || pe.WRID != 7 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v on %v: %v", c.op, c.q.Type(), err)
		}
	}
	r.quiet(r.a.cq)
}

func TestCase51_PostsByState(t *testing.T) {
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		r := newRig(t, 9000)
		qb := r.b.qp(r.b.attr(typ))
		ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(t)
		r.a.later(ah.Destroy)
		for _, c := range []struct {
			state      ib.QPState
			send, recv bool
		}{
			{ib.QPStateReset, false, false},
			{ib.QPStateInit, false, true},
			{ib.QPStateRTR, false, true},
			{ib.QPStateRTS, true, true},
			{ib.QPStateSQD, true, true},
			{ib.QPStateErr, true, true},
		} {
			q := r.a.qp(r.a.attr(typ))
			if c.state != ib.QPStateReset {
				r.a.to(q, c.state, qb, r.b.addr)
			}
			for what, p := range map[string]struct {
				ok  bool
				err error
			}{
				"send":    {c.send, q.PostSend([]verbs.SendWR{{WRID: 3, Opcode: ib.WRSend, AH: ah}})},
				"receive": {c.recv, q.PostRecv([]verbs.RecvWR{{WRID: 3}})},
			} {
				var pe *verbs.PostError
				if p.ok != (p.err == nil) || !p.ok && (!errors.Is(p.err, syscall.EINVAL) || !errors.As(p.err, &pe) || pe.WRID != 3) {
					t.Errorf("%v, %v, %s: %v", typ, c.state, what, p.err)
				}
			}
		}
	}
}

func TestCase53_InlineGathersAllElements(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	src, dst := r.a.mem(64), r.b.mem(64)
	copy(src.Bytes(), "one..two...three")
	if err := qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	if err := qa.PostSendOne(&verbs.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendInline | ib.SendSignaled,
		SGList: []verbs.SGE{src.SGE(0, 3), src.SGE(5, 3), src.SGE(11, 5)},
	}); err != nil {
		t.Fatal(err)
	}
	clear(src.Bytes()) // read at the post, not later
	if wc := r.wcs(r.b.cq, 1)[0]; wc.Err() != nil || wc.ByteLen != 11 || string(dst.Bytes()[:11]) != "onetwothree" {
		t.Errorf("%+v %q", wc, dst.Bytes()[:11])
	}
	r.wcs(r.a.cq, 1)
}

func TestCase54_InlineSizes(t *testing.T) {
	r := newRig(t, 9000)
	limit := ok(r.a.ctx.QueryDevice())(t).MaxInlineData
	for _, want := range []uint32{0, 220, 512, 1024, 65536} {
		attr := r.a.attr(ib.RC)
		attr.Cap.MaxInlineData = want
		q, err := r.a.pd.CreateQP(attr)
		if int(want) > limit {
			if !errors.Is(err, syscall.EINVAL) || attr.Cap.MaxInlineData != want {
				t.Errorf("%d: %v", want, err)
			}
			continue
		}
		if err != nil || attr.Cap.MaxInlineData < want {
			t.Errorf("%d: %v, got %d", want, err, attr.Cap.MaxInlineData)
			continue
		}
		if _, init, err := q.Query(); err != nil || init.Cap != attr.Cap {
			t.Errorf("query shows %+v, create %+v", init.Cap, attr.Cap)
		}
		if err := q.Destroy(); err != nil {
			t.Error(err)
		}
	}
	if limit < 220 {
		t.Errorf("limit %d: 220 is what programs ask for", limit)
	}
}

func TestCase55_ENOMEMMeansFull(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	src, dst := r.a.mem(256), r.b.mem(256)
	_, init, _ := qa.Query()
	room := int(init.Cap.MaxSendWR)
	wr := func(i int) verbs.SendWR {
		w := verbs.SendWR{WRID: uint64(i), Opcode: ib.WRRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 8)}, RemoteAddr: dst.Addr(), RKey: dst.RKey()}
		if i%4 == 3 || i == room-1 {
			w.Flags = ib.SendSignaled
		}
		return w
	}
	for round := range 3 {
		var wrs []verbs.SendWR
		for i := range room + 1 {
			wrs = append(wrs, wr(i))
		}
		err := qa.PostSend(wrs)
		var pe *verbs.PostError
		if !errors.As(err, &pe) || pe.Index != room || pe.WRID != uint64(room) || !errors.Is(err, syscall.ENOMEM) {
			t.Fatalf("round %d: %v", round, err)
		}
		// What is wrong with a request is EINVAL.
		many := make([]verbs.SGE, init.Cap.MaxSendSGE+1)
		for i := range many {
			many[i] = src.SGE(0, 1)
		}
		r.wcs(r.a.cq, (room+3)/4)
		for what, w := range map[string]verbs.SendWR{
			"too many elements": {Opcode: ib.WRRDMAWrite, SGList: many},
			"inline too long":   {Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, SGList: []verbs.SGE{src.SGE(0, 200)}},
			"inline data":       {Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, InlineData: make([]byte, 200)},
			"checksum offload":  {Opcode: ib.WRRDMAWrite, Flags: ib.SendIPCSum},
			"unknown flag":      {Opcode: ib.WRRDMAWrite, Flags: 1 << 20},
		} {
			if err := qa.PostSendOne(&w); !errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	// The receive queue too.
	q := r.b.qp(r.b.attr(ib.RC))
	r.b.to(q, ib.QPStateInit, qa, r.a.addr)
	_, init, _ = q.Query()
	err := q.PostRecv(make([]verbs.RecvWR, init.Cap.MaxRecvWR+1))
	var pe *verbs.PostError
	if !errors.As(err, &pe) || pe.Index != int(init.Cap.MaxRecvWR) || !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	if err := q.PostRecvOne(&verbs.RecvWR{SGList: make([]verbs.SGE, 9)}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// Null regions need no memory, so that the longest messages can be sent.
func TestCase56_57_LongestMessages(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("sends gigabytes")
	}
	r := newRig(t, 9000)
	r.a.mtu, r.b.mtu = ib.MTU4096, ib.MTU4096
	qa, qb := r.pair(ib.RC)
	src, dst := ok(r.a.pd.NullMR())(t), ok(r.b.pd.NullMR())(t)
	r.a.later(src.Dereg)
	r.b.later(dst.Dereg)
	port := ok(r.a.ctx.QueryPort(1))(t)
	if port.MaxMsgSz != 1<<31 {
		t.Fatalf("max_msg_sz %d", port.MaxMsgSz)
	}
	for _, size := range []int{1<<30 + 4, 1 << 31} {
		half := size / 2
		if err := qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, half), dst.SGE(half, size-half)}}); err != nil {
			t.Fatal(err)
		}
		if err := qa.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, half), src.SGE(half, size-half)},
		}); err != nil {
			t.Fatal(size, err)
		}
		if wc := r.wcs(r.b.cq, 1)[0]; wc.Err() != nil || wc.ByteLen != uint32(size) {
			t.Errorf("%d bytes: %+v", size, wc)
		}
		if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil {
			t.Errorf("%d bytes: %+v", size, wc)
		}
	}
	for _, list := range [][]verbs.SGE{
		{src.SGE(0, 1<<31), src.SGE(0, 1)},
		{src.SGE(0, math.MaxUint32)},
		{src.SGE(0, math.MaxUint32), src.SGE(0, math.MaxUint32)}, // would be 2^33-2, or 2^32-2 if truncated
		{src.SGE(0, 1<<31), src.SGE(0, 1<<31)},                   // would be 0 if truncated
	} {
		if err := qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, SGList: list}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", list, err)
		}
	}
	r.quiet(r.a.cq)
	// What the device says it takes, the post takes: here by a queue pair that flushes.
	r.a.to(qa, ib.QPStateErr, qb, r.b.addr)
	for _, size := range []int{1 << 30, 1<<30 + 4, 1<<31 - 1, 1 << 31} {
		if err := qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{src.SGE(0, size)}}); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		r.wcs(r.a.cq, 1)
	}
}

func TestListRunsUpToTheBadOne(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	src, dst := r.a.mem(8), r.b.mem(64)
	copy(src.Bytes(), "ABCDEFGH")
	var wrs []verbs.SendWR
	for i := range 4 {
		wrs = append(wrs, verbs.SendWR{
			WRID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)},
			RemoteAddr: dst.Addr() + uint64(8*i), RKey: dst.RKey(),
		})
	}
	wrs[2].Opcode = 99
	err := qa.PostSend(wrs)
	var pe *verbs.PostError
	if !errors.As(err, &pe) || pe.Index != 2 || pe.WRID != 2 {
		t.Fatal(err)
	}
	if got := r.wcs(r.a.cq, 2); got[0].WRID != 0 || got[1].WRID != 1 {
		t.Errorf("%+v", got)
	}
	r.quiet(r.a.cq)
	if want := append(bytes.Repeat([]byte("ABCDEFGH"), 2), make([]byte, 48)...); !bytes.Equal(dst.Bytes(), want) {
		t.Errorf("%q", dst.Bytes())
	}
}
