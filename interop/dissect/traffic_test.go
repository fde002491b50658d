package dissect

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// bench is one device with two addresses that talks to itself: its capture has
// each packet twice, as sent and as received.
type bench struct {
	t     *testing.T
	ctx   *verbs.Context
	addrs [2]netip.Addr
	wait  func(*verbs.CQ) // makes progress until the queue may have something

	pd  *verbs.PD
	cq  *verbs.CQ
	mr  *verbs.MR
	buf []byte
	end []func() error
}

const (
	size    = 1 << 16
	pathMTU = ib.MTU256
	long    = 600 // bytes: three packets
	qkey    = 0x11223344
	tclass  = 0x28
	hops    = 33
	rights  = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic
)

func newBench(t *testing.T, ctx *verbs.Context, addrs [2]netip.Addr, wait func(*verbs.CQ)) *bench {
	t.Helper()
	b := &bench{t: t, ctx: ctx, addrs: addrs, wait: wait, buf: make([]byte, size)}
	for i := range b.buf {
		b.buf[i] = byte(i*7 + i>>8)
	}
	b.pd = must(ctx.AllocPD())(t)
	b.cq = must(ctx.CreateCQ(256, nil, nil))(t)
	b.mr = must(b.pd.RegMR(b.buf, rights))(t)
	b.end = []func() error{b.pd.Dealloc, b.cq.Destroy, b.mr.Dereg}
	return b
}

// close ends everything, the device too: then the capture is complete.
func (b *bench) close() {
	b.t.Helper()
	for i := len(b.end) - 1; i >= 0; i-- {
		if err := b.end[i](); err != nil {
			b.t.Error(err)
		}
	}
	if err := b.ctx.Close(); err != nil {
		b.t.Error(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// pair makes two queue pairs, connected if they have connections.
func (b *bench) pair(typ ib.QPType) (q [2]*verbs.QP) {
	b.t.Helper()
	for i := range q {
		q[i] = must(b.pd.CreateQP(&verbs.QPInitAttr{
			SendCQ: b.cq, RecvCQ: b.cq, Type: typ, Cap: ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 1},
		}))(b.t)
		b.end = append(b.end, q[i].Destroy)
	}
	for i := range q {
		b.connect(q[i], q[1-i].Num(), i)
	}
	return q
}

func (b *bench) ah(from int) ib.AHAttr {
	return ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(b.addrs[1-from]), SGIDIndex: uint8(from), HopLimit: hops, TrafficClass: tclass, PortNum: 1}
}

func (b *bench) connect(q *verbs.QP, peer ib.QPN, from int) {
	b.t.Helper()
	a := ib.QPAttr{
		PortNum: 1, QPAccessFlags: rights, QKey: qkey, PathMTU: pathMTU, DestQPN: peer, RQPSN: 0xFFFFF0, SQPSN: 0xFFFFF0, // wraps soon
		MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 14, Timeout: 14, RetryCnt: 7, RNRRetry: 7, AHAttr: b.ah(from),
	}
	init, rtr, rts := ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort, ib.QPAttrState, ib.QPAttrState|ib.QPAttrSQPSN
	switch q.Type() {
	case ib.UD:
		init |= ib.QPAttrQKey
	case ib.RC:
		rts |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
		rtr |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
		fallthrough
	default:
		init |= ib.QPAttrAccessFlags
		rtr |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	for _, s := range []struct {
		to   ib.QPState
		mask ib.QPAttrMask
	}{{ib.QPStateInit, init}, {ib.QPStateRTR, rtr}, {ib.QPStateRTS, rts}} {
		a.QPState = s.to
		if err := q.Modify(&a, s.mask); err != nil {
			b.t.Fatalf("%v to %v: %v", q.Type(), s.to, err)
		}
	}
}

// completions waits for n.
func (b *bench) completions(n int) []verbs.WC {
	b.t.Helper()
	got := make([]verbs.WC, n)
	for at := 0; at < n; {
		k, err := b.cq.Poll(got[at:])
		if err != nil {
			b.t.Fatal(err)
		}
		if at += k; k == 0 {
			b.wait(b.cq)
		}
	}
	return got
}

func (b *bench) recv(q *verbs.QP) {
	b.t.Helper()
	if err := q.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(32<<10, 4096)}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) post(q *verbs.QP, wr *verbs.SendWR) {
	b.t.Helper()
	wr.Flags |= ib.SendSignaled
	if err := q.PostSendOne(wr); err != nil {
		b.t.Fatalf("%v: %v", wr.Opcode, err)
	}
}

// request is a work request of n bytes for the region's second half.
func (b *bench) request(op ib.WROpcode, n int) *verbs.SendWR {
	wr := &verbs.SendWR{Opcode: op, RemoteAddr: b.mr.Addr() + 48<<10, RKey: b.mr.RKey()}
	if n > 0 {
		wr.SGList = []verbs.SGE{b.mr.SGE(n, n)}
	}
	if n > 8 { // of several pieces
		wr.SGList = []verbs.SGE{b.mr.SGE(1, 5), b.mr.SGE(100, n-5)}
	}
	wr.ImmData = 0xA1B2C3D4
	return wr
}

// connected runs every operation of a connected service, of one packet and of
// several.
func (b *bench) connected(typ ib.QPType) {
	b.t.Helper()
	q := b.pair(typ)
	for _, n := range []int{0, 5, 8, long} {
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm} {
			wcs := 1
			if op != ib.WRRDMAWrite {
				b.recv(q[1])
				wcs++
			}
			wr := b.request(op, n)
			if op != ib.WRRDMAWrite {
				wr.Flags = ib.SendSolicited
			}
			b.post(q[0], wr)
			b.success(wcs)
		}
	}
}

func (b *bench) success(n int) {
	b.t.Helper()
	for _, wc := range b.completions(n) {
		if err := wc.Err(); err != nil {
			b.t.Fatal(err)
		}
	}
}

// reliable runs what RC has more: READ, atomics, invalidate, NAKs.
func (b *bench) reliable() {
	b.t.Helper()
	q := b.pair(ib.RC)
	for _, n := range []int{0, 5, 300, long} { // 300: no MIDDLE
		b.post(q[0], b.request(ib.WRRDMARead, n))
		b.success(1)
	}
	for _, op := range []ib.WROpcode{ib.WRAtomicCmpAndSwp, ib.WRAtomicFetchAndAdd} {
		wr := b.request(op, 8)
		wr.CompareAdd, wr.Swap = 0x0102030405060708, 0x1112131415161718
		b.post(q[0], wr)
		b.success(1)
	}
	// RNR NAK: nothing to receive into, until there is.
	b.post(q[0], b.request(ib.WRSend, 5))
	b.wait(b.cq)
	b.recv(q[1])
	b.success(2)
	// NAK: a key that does not exist.
	wr := b.request(ib.WRRDMAWrite, 5)
	wr.RKey ^= 0x5A5A00
	b.post(q[0], wr)
	if wc := b.completions(1)[0]; wc.Status != ib.WCRemAccessErr {
		b.t.Fatalf("WRITE with a wrong key: %v", wc.Status)
	}
	// Keys that cannot be invalidated: the packets leave all the same.
	for _, n := range []int{5, long} {
		q := b.pair(ib.RC)
		b.recv(q[1])
		wr := b.request(ib.WRSendWithInv, n)
		wr.InvalidateRKey = b.mr.RKey()
		b.post(q[0], wr)
		b.completions(2)
	}
}

func (b *bench) datagrams() {
	b.t.Helper()
	q := b.pair(ib.UD)
	attr := b.ah(0)
	ah := must(b.pd.CreateAH(&attr))(b.t)
	b.end = append(b.end, ah.Destroy)
	for _, n := range []int{0, 5, 256} {
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm} {
			b.recv(q[1])
			wr := b.request(op, n)
			wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, q[1].Num(), qkey
			b.post(q[0], wr)
			b.success(2)
		}
	}
}
