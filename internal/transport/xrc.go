package transport

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// XRCSRQ is a shared receive queue of an XRC domain (IBA A14): a peer names it in
// the XRCETH of each request. It brings along what the receiving queue pair does
// not have of its own: the protection domain, for local and for remote access, and
// the completion queue. Its fields do not change.
type XRCSRQ struct {
	Num    uint32
	PD     *mem.PD
	RQ     *queue.RQ
	CQ     *queue.CQ
	Events driver.EventSink

	gone atomic.Bool
}

// XRCD is an XRC domain: what a target queue pair finds its receive queues in.
type XRCD struct {
	mu   sync.Mutex
	srqs atomic.Pointer[map[uint32]*XRCSRQ] // never changed, only replaced
}

// Add makes a receive queue reachable under its number. False: the number is
// taken.
func (d *XRCD) Add(s *XRCSRQ) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := map[uint32]*XRCSRQ{}
	if m := d.srqs.Load(); m != nil {
		if (*m)[s.Num] != nil {
			return false
		}
		next = maps.Clone(*m)
	}
	next[s.Num] = s
	d.srqs.Store(&next)
	return true
}

// Remove makes a receive queue unreachable. Whoever found it before may be at
// work with it until the locks of all shards were passed through; after that
// nobody touches it, nor its completion queue.
func (d *XRCD) Remove(s *XRCSRQ) {
	s.gone.Store(true)
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.srqs.Load(); m != nil && (*m)[s.Num] == s {
		next := maps.Clone(*m)
		delete(next, s.Num)
		d.srqs.Store(&next)
	}
}

// find gives the receive queue with a number, or nil.
func (d *XRCD) find(n uint32) *XRCSRQ {
	if m := d.srqs.Load(); m != nil {
		return (*m)[n]
	}
	return nil
}

// SelectSRQ makes the receive queue that a request names the queue pair's own
// until the next one: domain, receive queue, completion queue. False: the XRC
// domain has no such queue (any more). A receive that was taken from a queue which
// was destroyed since has vanished with it.
func (q *QP) SelectSRQ(n uint32) bool {
	s := q.xrcSRQ
	if s == nil || s.Num != n || s.gone.Load() {
		q.dropGone()
		if s = q.XRCD.find(n); s == nil {
			return false
		}
		q.xrcSRQ = s
		q.PD, q.RQ, q.RecvCQ, q.SRQEvents = s.PD, s.RQ, s.CQ, s.Events
	}
	return true
}

// SRQNum is the number of the receive queue that SelectSRQ chose last.
func (q *QP) SRQNum() uint32 {
	if q.xrcSRQ == nil {
		return 0
	}
	return q.xrcSRQ.Num
}

// dropGone forgets a receive in progress that belongs to a destroyed queue.
func (q *QP) dropGone() {
	if q.xrcSRQ != nil && q.xrcSRQ.gone.Load() {
		q.RecvBusy = false
		q.xrcSRQ = nil
	}
}

// Class is the transport class of the queue pair's opcodes, in its place: XRC is
// the reliable connection's protocol with other numbers.
func (q *QP) Class() roce.Opcode {
	switch q.Type {
	case ib.XRCSend, ib.XRCRecv:
		return roce.Opcode(roce.TransportXRC)
	case ib.UC:
		return roce.Opcode(roce.TransportUC)
	case ib.UD:
		return roce.Opcode(roce.TransportUD)
	}
	return roce.Opcode(roce.TransportRC)
}
