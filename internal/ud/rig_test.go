package ud

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const (
	numA, numB = ib.QPN(0x11), ib.QPN(0x22)
	testQKey   = ib.QKey(0x11111111)

	bufLen   = 384 << 10
	recvArea = 128 << 10 // offset of the memory of receives
)

// rig is two queue pairs, a and b, of one shard, connected to each other by a
// wire that the test looks at and changes: what the requesters send waits in
// rig.wire until pump delivers it.
type rig struct {
	t    testing.TB
	env  transport.Env
	pd   *mem.PD
	a, b *end
	wire []frame
	// sends counts the batches that left.
	sends int
	// onSend is called before a batch leaves.
	onSend func()
}

// frame is a packet under way.
type frame struct {
	b    []byte
	flow *pkt.Flow
	id   uint16
}

// end is one queue pair with what belongs to it.
type end struct {
	q          *transport.QP
	svc        transport.Service
	scq, rcq   *queue.CQ
	events     []ib.EventType
	notified   int
	flow       *pkt.Flow
	buf        []byte // registered with all rights
	mr         *mem.Region
	nextRecvID uint64
}

// handle is an address handle.
type handle struct{ flow *pkt.Flow }

func (h *handle) Destroy() error  { h.flow = nil; return nil }
func (h *handle) Flow() *pkt.Flow { return h.flow }

func newRig(t testing.TB, typ ib.QPType, mtu int) *rig {
	return newRigAt(t, typ, mtu, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"))
}

func newRigAt(t testing.TB, typ ib.QPType, mtu int, addrA, addrB netip.Addr) *rig {
	r := &rig{t: t, pd: mem.NewPD()}
	r.env.Now = 1e9
	r.env.Mem = mem.NewTable(100, 1)
	t.Cleanup(r.env.Mem.Close)
	r.env.Tx = pkt.NewTx(pkt.TxCaps{MaxSegs: 64})
	r.env.Send = r.send
	r.env.Stats = new(transport.Stats)
	r.a, r.b = r.newEnd(typ, numA, numB, mtu), r.newEnd(typ, numB, numA, mtu)
	r.a.flow = newFlow(addrA, addrB, 0xC123)
	r.b.flow = newFlow(addrB, addrA, 0xD456)
	r.a.connect(r)
	r.b.connect(r)
	return r
}

func newFlow(src, dst netip.Addr, port uint16) *pkt.Flow {
	return &pkt.Flow{Path: roce.NewPath(src, dst, port), To: netip.AddrPortFrom(dst, roce.Port), TClass: 0x20, HopLimit: 64}
}

func (r *rig) newEnd(typ ib.QPType, num, peer ib.QPN, mtu int) *end {
	e := &end{scq: queue.NewCQ(256), rcq: queue.NewCQ(256), buf: make([]byte, bufLen)}
	e.rcq.SetNotify(func(bool) { e.notified++ })
	mr, err := r.env.Mem.Register(r.pd, e.buf, uint64(num)<<32, ib.AccessLocalWrite|ib.AccessRemoteWrite)
	if err != nil {
		r.t.Fatal(err)
	}
	e.mr = mr
	e.q = &transport.QP{
		Num: num, Type: typ, PD: r.pd, SQ: queue.NewSQ(64, 4, 512), RQ: queue.NewRQ(64, 4), SendCQ: e.scq, RecvCQ: e.rcq,
		MTU: mtu, PKey: ib.PKeyDefault,
		Events:    func(t ib.EventType) { e.events = append(e.events, t) },
		SRQEvents: func(t ib.EventType) { e.events = append(e.events, t) },
	}
	e.q.Attr.DestQPN = peer
	e.q.Attr.QKey = testQKey
	e.q.Attr.QPAccessFlags = ib.AccessRemoteWrite
	if typ == ib.UD {
		e.svc = NewUD(e.q)
	} else {
		e.svc = NewUC(e.q)
	}
	if e.q.Service != e.svc || e.svc.Base() != e.q {
		r.t.Fatal("the service does not know its queue pair")
	}
	return e
}

// connect takes the queue pair to RTS. PSNs start at 0x123456 from a, 0xFFFFFE
// from b.
func (e *end) connect(r *rig) {
	e.q.Attr.SQPSN, e.q.Attr.RQPSN = 0x123456, 0xFFFFFE
	if e == r.b {
		e.q.Attr.SQPSN, e.q.Attr.RQPSN = 0xFFFFFE, 0x123456
	}
	e.q.Flow = e.flow
	e.modify(r, ib.QPStateInit, 0)
	e.modify(r, ib.QPStateRTR, ib.QPAttrRQPSN)
	e.modify(r, ib.QPStateRTS, ib.QPAttrSQPSN)
}

func (e *end) modify(r *rig, to ib.QPState, mask ib.QPAttrMask) {
	from := e.q.State
	e.q.State = to
	e.svc.Modified(&r.env, from, mask|ib.QPAttrState)
	r.settle()
}

// settle does what a shard does at the end of a step.
func (r *rig) settle() {
	for len(r.env.Ready) > 0 {
		q := r.env.Ready[0]
		r.env.Ready = r.env.Ready[1:]
		q.Service.Post(&r.env)
	}
	r.send()
	var d transport.Deliveries
	r.env.Take(&d)
	d.Deliver()
}

// send takes the batch apart as a network would, and checks every ICRC.
func (r *rig) send() {
	if r.env.Tx.Empty() {
		return
	}
	if r.onSend != nil {
		r.onSend()
	}
	r.sends++
	for _, m := range r.env.Tx.Msgs {
		all := bytes.Join(r.env.Tx.Frags[m.First:m.First+m.Count], nil)
		if len(all) != m.Bytes {
			r.t.Fatalf("message of %d bytes has %d", m.Bytes, len(all))
		}
		for id := uint16(0); len(all) > 0; id++ {
			n := min(m.SegSize, len(all))
			if !m.Flow.Check(all[:n], id) {
				r.t.Fatalf("wrong ICRC: %x", all[:n])
			}
			r.wire = append(r.wire, frame{all[:n], m.Flow, id})
			all = all[n:]
		}
	}
	r.env.Tx.Reset()
}

// pump delivers what is on the wire.
func (r *rig) pump() {
	for len(r.wire) > 0 {
		f := r.wire[0]
		r.wire = r.wire[1:]
		r.deliver(f)
	}
}

func newDatagram(f frame) pkt.Datagram {
	return pkt.Datagram{
		Data: f.b, SegSize: len(f.b), Src: netip.AddrPortFrom(f.flow.Src(), f.flow.SrcPort()), Dst: f.flow.Dst(),
		TOS: f.flow.TClass, TTL: f.flow.HopLimit, ID: f.id, IDKnown: true,
	}
}

func (r *rig) deliver(f frame) {
	d := newDatagram(f)
	p := transport.Packet{Dgram: &d, ID: f.id}
	if err := roce.Parse(f.b, &p.Packet); err != nil {
		r.t.Fatal(err)
	}
	e := r.b
	if ib.QPN(p.BTH.DestQP()) == numA {
		e = r.a
	}
	e.svc.Packet(&r.env, &p)
	r.settle()
}

// inject builds a packet to b as a would send it and delivers it. The headers
// are filled by set.
func (r *rig) inject(op roce.Opcode, p uint32, payload []byte, set func(*roce.Packet)) {
	hdr := op.Info().HdrLen
	b := make([]byte, hdr+len(payload)+roce.PadLen(len(payload))+roce.ICRCLen)
	copy(b[hdr:], payload)
	roce.BTH(b).Put(op, false, roce.PadLen(len(payload)), uint16(ib.PKeyDefault), uint32(numB), false, 0)
	roce.BTH(b).SetPSN(mustPSN(p))
	var v roce.Packet
	if err := roce.Parse(b, &v); err != nil {
		r.t.Fatal(err)
	}
	if set != nil {
		set(&v)
	}
	r.deliver(frame{b: b, flow: r.a.flow})
}

// post pushes a send request and runs the requester.
func (r *rig) post(e *end, wrs ...driver.SendWR) {
	r.t.Helper()
	for i := range wrs {
		if wrs[i].Flags&ib.SendInline != 0 {
			if _, err := e.q.SQ.PushInline(&wrs[i], nil); err != nil {
				r.t.Fatal(err)
			}
		} else if e.q.SQ.Push(&wrs[i]) == nil {
			r.t.Fatal("send queue is full")
		}
	}
	e.svc.Post(&r.env)
	r.settle()
}

// recv posts receives of n bytes each, at consecutive 64 KiB behind
// recvArea of e.buf. Their IDs count from 1.
func (r *rig) recv(e *end, sizes ...int) {
	r.t.Helper()
	for _, n := range sizes {
		wr := driver.RecvWR{WRID: e.nextRecvID + 1, SGList: []driver.SGE{{
			Addr: e.mr.Addr() + uint64(e.recvAt(e.nextRecvID+1)), Length: uint32(n), LKey: e.mr.LKey(),
		}}}
		e.nextRecvID++
		if _, err := e.q.RQ.Post([]driver.RecvWR{wr}); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (e *end) recvAt(id uint64) int { return recvArea + int(id-1)%4<<16 }

// got is the memory of receive id.
func (e *end) got(id uint64, n int) []byte { return e.buf[e.recvAt(id):][:n] }

// sge is n bytes of e's buffer at off.
func (e *end) sge(off, n int) driver.SGE {
	return driver.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

func polled(cq *queue.CQ) []driver.WC {
	wcs := make([]driver.WC, 257)
	return wcs[:cq.Poll(wcs)]
}

// ended is what a completion says, for comparisons.
type ended struct {
	id     uint64
	status ib.WCStatus
}

func (r *rig) wantWCs(what string, got []driver.WC, want ...ended) {
	r.t.Helper()
	var g []ended
	for _, wc := range got {
		g = append(g, ended{wc.WRID, wc.Status})
	}
	if len(g) != len(want) {
		r.t.Fatalf("%s: completions %v, want %v", what, g, want)
	}
	for i := range g {
		if g[i] != want[i] {
			r.t.Fatalf("%s: completions %v, want %v", what, g, want)
		}
	}
}

func (r *rig) wantOnWire(want ...string) {
	r.t.Helper()
	if len(r.wire) != len(want) {
		r.t.Fatalf("%d packets on the wire, want %d", len(r.wire), len(want))
	}
	for i, w := range want {
		got := hex.EncodeToString(r.wire[i].b[:len(r.wire[i].b)-roce.ICRCLen])
		if got != w {
			r.t.Errorf("packet %d is\n%s, want\n%s", i, got, w)
		}
	}
}

func (r *rig) ops() (ops []roce.Opcode) {
	for _, f := range r.wire {
		ops = append(ops, roce.BTH(f.b).Opcode())
	}
	return ops
}

// pattern fills b with bytes that differ from place to place.
func pattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*7 ^ seed
	}
}
