package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// resKind is what a resource holds.
type resKind uint8

const (
	resEmpty resKind = iota
	resRead
	resAtomic
	resFlush
	resAtomicWrite
)

// resource is a READ, an atomic, a FLUSH or an ATOMIC WRITE that was executed: what is needed to answer it
// and, if the answer gets lost, to answer it again (IBA 9.7.7). A queue pair has
// max_dest_rd_atomic of them, used in turn.
type resource struct {
	kind   resKind
	queued bool // in the fifo
	again  bool // ... for a repeated answer

	asked  bool // the peer asked again, last from PSN lost on
	lost   psn.PSN
	probed bool // a packet of the answer left as second segment while nobody knew whether that works

	first, last psn.PSN
	pd          *mem.PD // READ: whose memory; a target of XRC serves many domains
	va          uint64  // READ: address of the first byte; atomic: original value
	rkey        ib.RKey
	length      uint32

	// The answer that is queued: bytes from PSN from on, and how far it got.
	from, next, end psn.PSN
	bytes           uint32
}

// resize makes as many resources as the attributes ask for and keeps the newest
// of those that there are. Answers that are on their way are given up; the peer
// asks again and gets them from what was kept.
func (r *responder) resize() {
	n, old := int(r.b.Attr.MaxDestRDAtomic), r.res
	if n == len(old) {
		return
	}
	r.res, r.fifo = make([]resource, n), make([]uint8, n)
	keep := min(n, len(old))
	for k := range keep {
		s := &r.res[k]
		*s = old[(int(r.slot)+len(old)-keep+k)%len(old)]
		s.queued, s.again = false, false
	}
	r.slot = 0
	if keep < n {
		r.slot = uint8(keep)
	}
	r.fifoHead, r.fifoLen = 0, 0
}

// slotFree reports whether the next entry may be used. It may not while its own
// answer has not left: the peer has more outstanding than it was allowed. An
// answer that is only being repeated must have arrived the first time.
func (r *responder) slotFree() bool {
	if len(r.res) == 0 {
		if r.resize(); len(r.res) == 0 {
			return false
		}
	}
	s := &r.res[r.slot]
	return !s.queued || s.again
}

// takeSlot gives the next entry, emptied.
func (r *responder) takeSlot() (*resource, uint8) {
	i := r.slot
	s := &r.res[i]
	if s.queued {
		r.unqueue(i)
	}
	if s.kind == resRead && !s.asked {
		// The peer has no more than this many outstanding: it has this answer.
		r.b.Dest.Served(int((s.last-s.first)&psn.Mask)+1, s.probed)
	}
	*s = resource{}
	if r.slot++; int(r.slot) == len(r.res) {
		r.slot = 0
	}
	return s, i
}

// queue puts entry i among those that wait for being answered, in the order of
// PSNs: a requester that asks again for several drops what comes too early.
func (r *responder) queue(i uint8) {
	at := func(k int) *uint8 { return &r.fifo[(int(r.fifoHead)+k)%len(r.fifo)] }
	k := int(r.fifoLen)
	for ; k > 0 && r.res[*at(k - 1)].first.After(r.res[i].first); k-- {
		*at(k) = *at(k - 1)
	}
	*at(k) = i
	r.res[i].queued = true
	r.fifoLen++
}

// unqueue removes entry i from the queue.
func (r *responder) unqueue(i uint8) {
	n := len(r.fifo)
	out := 0
	for k := range int(r.fifoLen) {
		j := r.fifo[(int(r.fifoHead)+k)%n]
		if j != i {
			r.fifo[(int(r.fifoHead)+out)%n] = j
			out++
		}
	}
	r.fifoLen = uint8(out)
	r.res[i].queued = false
}

// popAnswer removes the entry whose answer is complete.
func (r *responder) popAnswer() {
	r.res[r.fifo[r.fifoHead]].queued = false
	if r.fifoHead++; int(r.fifoHead) == len(r.fifo) {
		r.fifoHead = 0
	}
	r.fifoLen--
}

// executeRead saves a READ and begins to answer it.
func (r *responder) executeRead(e *transport.Env, p *transport.Packet) verdict {
	h := p.RETH()
	s, i := r.takeSlot()
	n := r.responses(h.DMALen())
	*s = resource{
		kind: resRead, first: r.epsn, last: r.epsn.Add(n - 1),
		pd: r.b.PD, va: h.VA(), rkey: ib.RKey(h.RKey()), length: h.DMALen(),
	}
	s.answer(s.first, s.last, s.length)
	r.epsn = s.last.Next()
	r.msn++
	r.b.CountRemote(ib.CompCntrRemoteRDMARead, true)
	r.enqueue(e, i)
	return good
}

// executeAtomic executes an atomic, saves its result and answers it.
func (r *responder) executeAtomic(e *transport.Env, p *transport.Packet) verdict {
	h := p.AtomicETH()
	r.settleRefs(e)
	pieces, ok := e.Mem.Remote(r.b.PD, r.b.Num, ib.RKey(h.RKey()), h.VA(), 8, ib.AccessRemoteAtomic, r.qp.pieces[:0])
	var orig uint64
	if ok = ok && len(pieces) == 1; ok {
		var err error
		if p.Op.Operation() == roce.OpFetchAdd {
			orig, err = mem.FetchAdd(pieces[0], h.SwapAdd())
		} else {
			orig, err = mem.CompareSwap(pieces[0], h.Compare(), h.SwapAdd())
		}
		ok = err == nil
	}
	r.qp.keep(pieces)
	if !ok {
		return noAccess
	}
	s, i := r.takeSlot()
	*s = resource{kind: resAtomic, first: r.epsn, last: r.epsn, va: orig}
	s.answer(s.first, s.last, 0)
	r.epsn = r.epsn.Next()
	r.msn++
	r.enqueue(e, i)
	return good
}

// responses is the number of response packets, and of PSNs, of a READ.
func (r *responder) responses(n uint32) int {
	return max(1, int((uint64(n)+uint64(r.b.MTU)-1)/uint64(r.b.MTU)))
}

// answer sets what is to be answered.
func (s *resource) answer(from, end psn.PSN, bytes uint32) {
	s.from, s.next, s.end, s.bytes = from, from, end, bytes
}

// enqueue queues the answer of entry i and begins with it, unless others are
// before it: then the turn that works on those comes to it.
func (r *responder) enqueue(e *transport.Env, i uint8) {
	r.queue(i)
	if r.fifoLen == 1 {
		r.stream(e)
	}
}

// find gives the newest saved entry of a kind that holds the PSN.
func (r *responder) find(kind resKind, at psn.PSN) (uint8, bool) {
	n := len(r.res)
	for k := 1; k <= n; k++ {
		i := (int(r.slot) - k + n) % n
		if s := &r.res[i]; s.kind == kind && at.InRange(s.first, s.last) {
			return uint8(i), true
		}
	}
	return 0, false
}

// repeatRead answers a repeated READ request, which may ask for any part of the
// saved one. It is executed anew: the data are read from memory once more.
func (r *responder) repeatRead(e *transport.Env, p *transport.Packet) {
	at := p.BTH.PSN()
	i, ok := r.find(resRead, at)
	if !ok {
		e.Stats.DropDuplicate++
		return
	}
	s, h := &r.res[i], p.RETH()
	off := uint64((at-s.first)&psn.Mask) * uint64(r.b.MTU)
	if s.length > 0 {
		ok = h.VA() == s.va+off && ib.RKey(h.RKey()) == s.rkey &&
			h.DMALen() > 0 && uint64(h.DMALen()) <= uint64(s.length)-off
	} else {
		ok = h.DMALen() == 0
	}
	if !ok || len(p.Payload) != 0 {
		e.Stats.DropDuplicate++
		return
	}
	before := s.first
	if s.asked && !s.lost.After(at) {
		before = s.lost
	}
	s.asked, s.lost = true, at
	r.b.Dest.Repeated(int((at - before) & psn.Mask))
	s.answer(at, at.Add(r.responses(h.DMALen())-1), h.DMALen())
	if !s.queued {
		s.again = true
		r.enqueue(e, i)
	}
}

// repeatSaved answers a repeated atomic, FLUSH or ATOMIC WRITE with what was
// saved: it must not be executed again.
func (r *responder) repeatSaved(e *transport.Env, p *transport.Packet, kind resKind) {
	i, ok := r.find(kind, p.BTH.PSN())
	if !ok {
		e.Stats.DropDuplicate++
		return
	}
	if s := &r.res[i]; !s.queued {
		s.answer(s.first, s.last, 0)
		s.again = true
		r.enqueue(e, i)
	}
}
