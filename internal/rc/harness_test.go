package rc

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// fate is what a hook does with a packet.
type fate int

const (
	pass fate = iota
	drop
	dup
	hold // until world.release
)

// seen is a packet that entered the wire.
type seen struct {
	at      int64
	from    *side
	op      roce.Opcode
	psn     uint32
	ask, se bool
	syn     roce.Syndrome
	msn     uint32
	n       int // payload bytes
	id      uint16
	fate    fate
	bth     []byte
}

type inFlight struct {
	to  *side
	b   []byte
	id  uint16
	due int64
}

// side is one end of a connection, with a device of its own.
type side struct {
	w        *world
	name     string
	peer     *side
	env      transport.Env
	q        *transport.QP
	qp       *QP
	pd       *mem.PD
	tab      *mem.Table
	buf      []byte
	mr       *mem.Region
	scq, rcq *queue.CQ
	events   []ib.EventType
	badICRC  int
}

// world is two sides and a wire with virtual time between them.
type world struct {
	t    testing.TB
	now  int64
	a, b *side
	wire []inFlight
	kept []inFlight
	log  []seen
	hook func(s *seen, p *roce.Packet) fate
	lag  func() int64 // delay of a packet; nil: none
	mute bool         // keep no log
}

type options struct {
	mtu      ib.MTU
	rd       uint8
	destRD   int // -1: 0
	timeout  uint8
	retry    uint8
	rnrRetry uint8
	rnrTimer uint8
	access   ib.Access // of the queue pairs
	mrAccess ib.Access
	psn      uint32
	sq, bufs int
	segs     int
}

const allRemote = ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

func defaults() options {
	return options{
		mtu: ib.MTU1024, rd: 4, timeout: 14, retry: 7, rnrRetry: 7, rnrTimer: 12, access: allRemote,
		mrAccess: allRemote | ib.AccessLocalWrite, psn: 0xFFFFF0, sq: 64, bufs: 640 << 10, segs: 64,
	}
}

func newWorld(t testing.TB, o options) *world {
	w := &world{t: t, now: 1_000_000}
	w.a, w.b = newSide(w, "A", 1, o), newSide(w, "B", 2, o)
	w.a.peer, w.b.peer = w.b, w.a
	w.a.connect(o, o.psn, o.psn+100)
	w.b.connect(o, o.psn+100, o.psn)
	return w
}

func newSide(w *world, name string, n byte, o options) *side {
	s := &side{w: w, name: name, pd: mem.NewPD(), tab: mem.NewTable(64, uint64(n))}
	s.buf = make([]byte, o.bufs)
	s.mr = s.register(s.buf, o.mrAccess)
	s.scq, s.rcq = queue.NewCQ(4096), queue.NewCQ(4096)
	s.q = &transport.QP{
		Num: ib.QPN(0x100 + int(n)), Type: ib.RC, PD: s.pd, PKey: ib.PKeyDefault,
		SQ: queue.NewSQ(o.sq, 4, 64), RQ: queue.NewRQ(64, 4), SendCQ: s.scq, RecvCQ: s.rcq,
		Events: func(e ib.EventType) { s.events = append(s.events, e) },
	}
	s.env = transport.Env{Tx: pkt.NewTx(pkt.TxCaps{MaxSegs: o.segs}), Mem: s.tab, Send: s.send, Stats: new(transport.Stats)}
	s.qp = New(s.q)
	return s
}

func (s *side) register(b []byte, access ib.Access) *mem.Region {
	s.w.t.Helper()
	r, err := s.tab.Register(s.pd, b, mem.Address(b), access)
	if err != nil {
		s.w.t.Fatal(err)
	}
	s.w.t.Cleanup(func() { s.tab.Release(r) })
	return r
}

func addrOf(s *side) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(s.q.Num)})
}

func (s *side) connect(o options, sq, rq uint32) {
	s.q.MTU = o.mtu.Bytes()
	s.q.Flow = &pkt.Flow{Path: roce.NewPath(addrOf(s), addrOf(s.peer), 0xC000)}
	s.q.Dest = transport.NewDest(addrOf(s.peer), transport.GSOOn)
	dest := uint8(max(o.destRD, 0))
	if o.destRD == 0 {
		dest = o.rd
	}
	s.q.Attr = ib.QPAttr{
		SQPSN: sq & 0xFFFFFF, RQPSN: rq & 0xFFFFFF, DestQPN: s.peer.q.Num, QPAccessFlags: o.access,
		MaxRDAtomic: o.rd, MaxDestRDAtomic: dest, MinRNRTimer: o.rnrTimer, Timeout: o.timeout,
		RetryCnt: o.retry, RNRRetry: o.rnrRetry,
	}
	s.to(ib.QPStateInit)
	s.to(ib.QPStateRTR)
	s.to(ib.QPStateRTS)
}

func (s *side) to(st ib.QPState, also ...ib.QPAttrMask) {
	from, mask := s.q.State, ib.QPAttrState
	for _, m := range also {
		mask |= m
	}
	s.q.State = st
	s.env.Now = s.w.now
	s.qp.Modified(&s.env, from, mask)
}

// send puts the batch on the wire, as Linux would: a segment's identification is
// its index.
func (s *side) send() {
	tx := s.env.Tx
	for i := range tx.Msgs {
		m := &tx.Msgs[i]
		var b []byte
		for _, f := range tx.Frags[m.First : m.First+m.Count] {
			b = append(b, f...)
		}
		if len(b) != m.Bytes {
			s.w.t.Fatalf("message of %d bytes has %d", m.Bytes, len(b))
		}
		for k := range m.Segs {
			n := min(m.SegSize, len(b))
			s.w.enter(s, b[:n:n], uint16(k))
			b = b[n:]
		}
	}
	tx.Reset()
}

func (w *world) enter(from *side, b []byte, id uint16) {
	var p roce.Packet
	if err := roce.Parse(b, &p); err != nil {
		w.t.Fatalf("%s sent a bad packet %x: %v", from.name, b, err)
	}
	s := seen{
		at: w.now, from: from, op: p.Op, psn: uint32(p.BTH.PSN()), ask: p.BTH.AckReq(), se: p.BTH.SE(),
		n: len(p.Payload), id: id, bth: b[:p.Info.HdrLen],
	}
	if h := p.AETH(); h != nil {
		s.syn, s.msn = h.Syndrome(), h.MSN()
	}
	if w.hook != nil {
		s.fate = w.hook(&s, &p)
	}
	if !w.mute {
		w.log = append(w.log, s)
	}
	f := inFlight{to: from.peer, b: b, id: id, due: w.now}
	if w.lag != nil {
		f.due += w.lag()
	}
	switch s.fate {
	case drop:
	case hold:
		w.kept = append(w.kept, f)
	case dup:
		w.wire = append(w.wire, f, f)
	default:
		w.wire = append(w.wire, f)
	}
}

// release lets go of what hooks held.
func (w *world) release() {
	w.wire = append(w.wire, w.kept...)
	w.kept = nil
}

func (f *inFlight) deliver() {
	s := f.to
	s.env.Now = s.w.now
	if path := roce.NewPath(addrOf(s.peer), addrOf(s), 0xC000); !path.Check(f.b, f.id) {
		s.badICRC++
		return
	}
	var p transport.Packet
	if roce.Parse(f.b, &p.Packet) == nil || p.Info != nil {
		s.qp.Packet(&s.env, &p)
	}
}

// settle does what a shard does at the end of a turn.
func (s *side) settle() {
	s.env.Now = s.w.now
	for len(s.env.Ready) > 0 {
		r := s.env.Ready
		s.env.Ready = nil
		for _, q := range r {
			q.Service.Post(&s.env)
		}
	}
	owed := s.env.Owed
	s.env.Owed = nil
	for _, q := range owed {
		q.Owes = false
		q.Service.Ack(&s.env)
	}
	for d := s.qp.Deadline(); d != 0 && d <= s.w.now; d = s.qp.Deadline() {
		s.qp.Timer(&s.env)
	}
	s.env.Send()
	if s.env.Pending() {
		var d transport.Deliveries
		s.env.Take(&d)
		d.Deliver()
	}
}

func (w *world) busy() bool {
	return len(w.a.env.Ready)+len(w.b.env.Ready)+len(w.a.env.Owed)+len(w.b.env.Owed) > 0 ||
		!w.a.env.Tx.Empty() || !w.b.env.Tx.Empty()
}

// run lets everything happen that happens until the time end, and leaves the
// clock there; with 0 until nothing happens any more.
func (w *world) run(end int64) {
	w.t.Helper()
	for steps := 0; ; steps++ {
		if steps > 5_000_000 {
			w.t.Fatal("no end in sight")
		}
		w.a.settle()
		w.b.settle()
		if w.busy() {
			continue
		}
		next, at := -1, int64(0)
		for i := range w.wire {
			if next < 0 || w.wire[i].due < w.wire[next].due {
				next = i
			}
		}
		if next >= 0 {
			at = w.wire[next].due
		}
		for _, s := range []*side{w.a, w.b} {
			if d := s.qp.Deadline(); d != 0 && (next < 0 && at == 0 || d < at) {
				next, at = -1, d
			}
		}
		if at == 0 || end != 0 && at > end {
			if end != 0 {
				w.now = end
			}
			return
		}
		w.now = max(w.now, at)
		if next < 0 {
			continue
		}
		if w.lag == nil {
			// A whole batch at once.
			batch := w.wire
			w.wire = nil
			for i := range batch {
				batch[i].deliver()
			}
			continue
		}
		f := w.wire[next]
		w.wire = append(w.wire[:next], w.wire[next+1:]...)
		f.deliver()
	}
}

func (s *side) sge(off, n int) driver.SGE {
	return driver.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
}

// push queues a work request without sending it.
func (s *side) push(wr driver.SendWR) {
	s.w.t.Helper()
	wr.Flags |= ib.SendSignaled
	var ok bool
	if wr.Flags&ib.SendInline != 0 {
		_, err := s.q.SQ.PushInline(&wr, nil)
		ok = err == nil
	} else {
		ok = s.q.SQ.Push(&wr) != nil
	}
	if !ok {
		s.w.t.Fatal("send queue full")
	}
}

// post queues a work request and sends, as a post does.
func (s *side) post(wr driver.SendWR) {
	s.w.t.Helper()
	s.push(wr)
	s.kick()
}

func (s *side) kick() {
	s.env.Now = s.w.now
	s.qp.Post(&s.env)
	s.env.Send()
}

func (s *side) recv(id uint64, sg ...driver.SGE) {
	s.w.t.Helper()
	if _, err := s.q.RQ.Post([]driver.RecvWR{{WRID: id, SGList: sg}}); err != nil {
		s.w.t.Fatal(err)
	}
}

func (s *side) write(id uint64, from, to, n int) driver.SendWR {
	return driver.SendWR{
		WRID: id, Opcode: ib.WRRDMAWrite, SGList: []driver.SGE{s.sge(from, n)},
		RemoteAddr: s.peer.mr.Addr() + uint64(to), RKey: s.peer.mr.RKey(),
	}
}

func (s *side) read(id uint64, to, from, n int) driver.SendWR {
	wr := s.write(id, to, from, n)
	wr.Opcode = ib.WRRDMARead
	return wr
}

func (s *side) sendWR(id uint64, from, n int) driver.SendWR {
	return driver.SendWR{WRID: id, Opcode: ib.WRSend, SGList: []driver.SGE{s.sge(from, n)}}
}

func (s *side) atomicWR(id uint64, op ib.WROpcode, to, from int, arg, swap uint64) driver.SendWR {
	wr := s.write(id, to, from, 8)
	wr.Opcode, wr.CompareAdd, wr.Swap = op, arg, swap
	return wr
}

func poll(c *queue.CQ) []driver.WC {
	wcs := make([]driver.WC, 4096)
	return wcs[:c.Poll(wcs)]
}

// wcs prints completions as "id:status".
func wcs(c *queue.CQ) string {
	var b strings.Builder
	for _, wc := range poll(c) {
		fmt.Fprintf(&b, "%d:%v ", wc.WRID, wc.Status)
	}
	return strings.TrimSpace(b.String())
}

func (w *world) want(what string, got, want any) {
	w.t.Helper()
	if g, x := fmt.Sprint(got), fmt.Sprint(want); g != x {
		w.t.Errorf("%s:\n got %s\nwant %s", what, g, x)
	}
}

// fill gives memory a recognizable content.
func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i*7+i>>8*13) + seed
	}
}

// ops prints the packets that a side sent: opcode names without RC_, PSN relative to base.
func (w *world) ops(from *side, base uint32) string {
	var out []string
	for _, s := range w.log {
		if s.from == from {
			name := strings.TrimPrefix(s.op.String(), "RC_")
			if s.op == roce.OpRCAcknowledge {
				name = fmt.Sprintf("%02X", uint8(s.syn))
			}
			out = append(out, fmt.Sprintf("%s@%d", name, (s.psn-base)&0xFFFFFF))
		}
	}
	return strings.Join(out, " ")
}

func (w *world) count(f func(s *seen) bool) (n int) {
	for i := range w.log {
		if f(&w.log[i]) {
			n++
		}
	}
	return n
}

// idle checks that nothing is left over.
func (w *world) idle() {
	w.t.Helper()
	for _, s := range []*side{w.a, w.b} {
		if !s.q.Dest.Idle() {
			w.t.Errorf("%s: something is still under way: %d bytes, %d packets of this queue pair", s.name, s.qp.req.outBytes, s.qp.req.outPkts)
		}
		if s.qp.req.outBytes != 0 || s.qp.req.outPkts != 0 || s.qp.req.reads != 0 {
			w.t.Errorf("%s: under way: %d bytes, %d packets, %d reads", s.name, s.qp.req.outBytes, s.qp.req.outPkts, s.qp.req.reads)
		}
		if d := s.qp.Deadline(); d != 0 {
			w.t.Errorf("%s: deadline %d is left", s.name, d)
		}
		if s.badICRC != 0 {
			w.t.Errorf("%s: %d packets with a bad ICRC", s.name, s.badICRC)
		}
	}
}

// inject gives a side a packet as if it came from the peer.
func (s *side) inject(op roce.Opcode, p uint32, ask bool, payload []byte, ext func(h []byte, i *roce.OpInfo)) {
	i := op.Info()
	pad := -len(payload) & 3
	b := make([]byte, i.HdrLen+len(payload)+pad+roce.ICRCLen)
	putBTH(b, op, pad, s, ask, p)
	if ext != nil {
		ext(b, i)
	}
	copy(b[i.HdrLen:], payload)
	path := roce.NewPath(addrOf(s.peer), addrOf(s), 0xC000)
	roce.PutICRC(b[len(b)-4:], path.Compute(b, 0))
	s.w.wire = append(s.w.wire, inFlight{to: s, b: b, due: s.w.now})
}

func reth(va uint64, key ib.RKey, n uint32) func([]byte, *roce.OpInfo) {
	return func(h []byte, i *roce.OpInfo) { roce.RETH(h[i.RETH:]).Put(va, uint32(key), n) }
}

func aeth(s roce.Syndrome) func([]byte, *roce.OpInfo) {
	return func(h []byte, i *roce.OpInfo) { roce.AETH(h[i.AETH:]).Put(s, 0) }
}

func same(a, b []byte) bool { return bytes.Equal(a, b) }
