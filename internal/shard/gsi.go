package shard

import (
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// gsiQueue bounds the management datagrams that wait for who serves queue pair 1.
const gsiQueue = 1024

// GSI is queue pair 1: a queue of management datagrams that have arrived. It
// belongs to no shard; what is sent leaves through the first one.
type GSI struct {
	eng    *Engine
	notify driver.EventSink

	mu   sync.Mutex
	ring []driver.MAD
	head int
	n    int
}

// management is what parse finds for a datagram to queue pair 1 that somebody serves.
var management = new(member)

// OpenGSI begins to serve queue pair 1: notify is called without locks when a
// datagram has come to an empty queue. EBUSY: somebody does already.
func (e *Engine) OpenGSI(notify func()) (*GSI, error) {
	e.rxMu.Lock()
	defer e.rxMu.Unlock()
	if e.gsi != nil {
		return nil, syscall.EBUSY
	}
	e.gsi = &GSI{eng: e, notify: func(ib.EventType) { notify() }}
	return e.gsi, nil
}

// Close ends serving it; what arrives is dropped and counted again.
func (g *GSI) Close() {
	e := g.eng
	e.rxMu.Lock()
	defer e.rxMu.Unlock()
	if e.gsi == g {
		e.gsi = nil
	}
}

// Recv takes the oldest datagram; false: there is none.
func (g *GSI) Recv(m *driver.MAD) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n == 0 {
		return false
	}
	*m = g.ring[g.head]
	g.head = (g.head + 1) % len(g.ring)
	if g.n--; g.n == 0 && len(g.ring) > 64 {
		g.ring, g.head = nil, 0 // the memory of a burst goes back
	}
	return true
}

// push appends a datagram; ok is false if the queue is full, first tells that it was empty.
func (g *GSI) push(payload []byte, d *pkt.Datagram) (first, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n == len(g.ring) {
		if g.n == gsiQueue {
			return false, false
		}
		ring := make([]driver.MAD, max(16, 2*g.n))
		for i := range g.n {
			ring[i] = g.ring[(g.head+i)%len(g.ring)]
		}
		g.ring, g.head = ring, 0
	}
	m := &g.ring[(g.head+g.n)%len(g.ring)]
	m.Local, m.Remote, m.TrafficClass, m.HopLimit = d.Dst.Unmap(), d.Src.Addr().Unmap(), d.TOS, d.TTL
	copy(m.Data[:], payload)
	g.n++
	return g.n == 1, true
}

// manage gives the datagram in e.pkt to who serves queue pair 1, if it is what that
// queue pair may receive (IBA 13.5.3.2): of 256 bytes, in the default partition, with the
// Q_Key of the general services interface, and from a queue pair 1. AckReq, which Linux's
// rdma_rxe sets, means nothing. s is as for datagram; the first shard counts.
func (e *Engine) manage(now int64, s *Shard, path *peerPath, seg []byte, id uint16, d *pkt.Datagram) *Shard {
	s = e.enter(now, s, e.shards[0])
	st := &s.own
	s.env.Count(st)
	if e.pkt.Op != roce.OpUDSendOnly {
		st.DropTransport++
		return s
	}
	if !e.intact(st, now, path, seg, id, d) {
		return s
	}
	deth := e.pkt.DETH()
	switch {
	case !ib.PKey(e.pkt.BTH.PKey()).Matches(ib.PKeyDefault):
		s.env.BadPKey()
	case ib.QKey(deth.QKey()) != ib.QKeyGSI:
		s.env.BadQKey()
	case ib.QPN(deth.SrcQP()) != ib.QPNGSI:
		st.DropGSI++
	case len(e.pkt.Payload) != driver.MADLen:
		st.DropLength++
	default:
		first, ok := e.gsi.push(e.pkt.Payload, d)
		if !ok {
			st.DropGSI++
			return s
		}
		st.RcvdPackets++
		if first {
			e.rxDeliver.Raise(e.gsi.notify, 0)
		}
	}
	return s
}

// Send sends a management datagram over a flow.
func (g *GSI) Send(f *pkt.Flow, data *[driver.MADLen]byte) error { return g.eng.SendMAD(f, data) }

// SendMAD sends a management datagram over a flow, whoever serves queue pair 1.
func (x *Engine) SendMAD(f *pkt.Flow, data *[driver.MADLen]byte) error {
	s := x.shards[0]
	e := s.Lock()
	e.Count(&s.own)
	var err error
	e.RoomCopy(len(data))
	info := roce.OpUDSendOnly.Info()
	h := e.Tx.Begin(f, info.HdrLen, len(data))
	roce.BTH(h).Put(roce.OpUDSendOnly, false, 0, uint16(ib.PKeyDefault), uint32(ib.QPNGSI), false, x.gsiNext)
	roce.DETH(h[info.DETH:]).Put(uint32(ib.QKeyGSI), uint32(ib.QPNGSI))
	x.gsiNext = x.gsiNext.Next()
	e.Tx.Copy() // the caller's bytes may not outlive the call
	if err = e.Tx.Payload(data[:]); err != nil {
		e.Tx.Abort()
	} else {
		e.Tx.End()
	}
	s.Unlock(nil)
	return err
}
