package soft

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/rc"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/ud"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// qp is a queue pair.
type qp struct {
	transport.QP
	dev    *Device
	sh     *shard.Shard
	pd     *pd
	srq    *srq
	scq    *cq
	rcq    *cq
	limits queue.Limits
	cap    ib.QPCap
	// integrity: signature regions may be registered.
	integrity bool
	ece       ib.ECE // under mu

	mu     sync.Mutex // serializes modify and destroy
	mcast  mcastQP
	cntrs  []*compCntr // attached, under mu
	dead   bool        // under the shard's lock
	pieces [][]byte    // scratch of inline posts, under the shard's lock
}

// CreateQP implements driver.Device.
func (d *Device) CreateQP(p driver.PD, attr *driver.QPInitAttr, ev driver.EventSink) (driver.QP, error) {
	switch {
	case attr.Type == ib.XRCRecv:
		return d.createTarget(attr, ev)
	case attr.XRCD != nil:
		return nil, invalid("XRCD", "is for queue pairs of type XRC_RECV")
	case attr.Type == ib.XRCSend:
		// There is no receive side: whatever stands here is ignored.
		attr.RecvCQ, attr.SRQ, attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = attr.SendCQ, nil, 0, 0
	}
	q := &qp{dev: d}
	var err error
	if q.pd, err = d.pdOf(p); err != nil {
		return nil, err
	}
	if q.scq, err = d.cqOf("SendCQ", attr.SendCQ); err != nil {
		return nil, err
	}
	if q.rcq, err = d.cqOf("RecvCQ", attr.RecvCQ); err != nil {
		return nil, err
	}
	if attr.SRQ != nil {
		if q.srq, err = d.srqOf(attr.SRQ); err != nil {
			return nil, err
		}
		if q.srq.xrc != nil {
			return nil, invalid("SRQ", "is one for XRC")
		}
	}
	if attr.IntegrityEn && d.cfg.Limits.MaxPIFastRegPages <= 0 {
		return nil, notOffered("IntegrityEn", "the device has no signature regions")
	}
	if err = checkCap(&attr.Cap, q.srq != nil); err != nil {
		return nil, err
	}
	switch attr.Type {
	case ib.RC, ib.UC, ib.UD, ib.XRCSend:
	case ib.RawPacket, ib.Driver:
		return nil, notOffered("Type", fmt.Sprintf("%v is not offered", attr.Type))
	default:
		return nil, invalid("Type", "%d is unknown", attr.Type)
	}
	if err = d.qps.add(d, "queue pair"); err != nil {
		return nil, err
	}
	if err = q.hold(); err != nil {
		d.qps.drop()
		return nil, err
	}
	q.Type, q.PD, q.PKey, q.SigAll = attr.Type, &q.pd.mem, ib.PKeyDefault, attr.SQSigAll
	q.SQ = queue.NewSQ(int(attr.Cap.MaxSendWR), int(attr.Cap.MaxSendSGE), int(attr.Cap.MaxInlineData))
	q.SendCQ, q.RecvCQ, q.Events, q.MTU = q.scq.q, q.rcq.q, ev, d.activeMTU().Bytes()
	q.SQ.SigAll = attr.SQSigAll
	q.mcast.blockSelf = attr.BlockSelfMcastLB
	q.integrity = attr.IntegrityEn
	if q.srq != nil {
		q.RQ, q.Shared, q.SRQEvents = q.srq.q, true, q.srq.events
		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 0
	} else {
		q.RQ = queue.NewRQ(int(attr.Cap.MaxRecvWR), int(attr.Cap.MaxRecvSGE))
		q.RQ.SetClosed(true) // until INIT
		attr.Cap.MaxRecvWR = uint32(q.RQ.Cap())
	}
	attr.Cap.MaxSendWR = uint32(q.SQ.Cap())
	q.cap = attr.Cap
	l := &d.cfg.Limits
	q.limits = queue.Limits{MaxSGE: int(attr.Cap.MaxSendSGE), MaxSGERd: l.MaxSGERd, MaxInline: int(attr.Cap.MaxInlineData), Ops: l.ops()}
	q.SinkRemoteWrite = l.IWARP
	switch attr.Type {
	case ib.RC, ib.XRCSend:
		rc.New(&q.QP)
	case ib.UC:
		ud.NewUC(&q.QP)
	case ib.UD:
		ud.NewUD(&q.QP)
	}
	d.addQP(q)
	return q, nil
}

// addQP gives a queue pair its number and makes it reachable.
func (d *Device) addQP(q *qp) {
	for {
		q.QP.Num = d.newQPN()
		q.sh = d.eng.ShardFor(q.QP.Num)
		if d.eng.Add(&q.QP, q.sh) == nil {
			return
		}
	}
}

// newQPN picks an unpredictable number, of those that this process has where
// several share the addresses; 0, 1 and the multicast number are not for queue
// pairs, small ones are left to people who type them.
func (d *Device) newQPN() ib.QPN {
	bits, mask := d.eng.Numbers()
	for {
		if n := ib.QPN(d.random())&0xFFFFFF&^mask | bits; n > 0xFF && n != ib.QPNMulticast {
			return n
		}
	}
}

// checkCap refuses what the device does not have and makes the sizes at least
// one where a queue is needed.
func checkCap(c *ib.QPCap, shared bool) error {
	check := func(what string, v, most uint32) error {
		if v > most {
			return invalid(what, "%d, want at most %d", v, most)
		}
		return nil
	}
	if shared {
		// The receive side is the shared queue's: whatever stands here is ignored.
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	for _, err := range []error{
		check("MaxSendWR", c.MaxSendWR, maxQPWR), check("MaxRecvWR", c.MaxRecvWR, maxQPWR),
		check("MaxSendSGE", c.MaxSendSGE, maxSGE), check("MaxRecvSGE", c.MaxRecvSGE, maxSGE),
		check("MaxInlineData", c.MaxInlineData, maxInline),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Num implements driver.QP.
func (q *qp) Num() ib.QPN { return q.QP.Num }

// Query implements driver.QP.
func (q *qp) Query() (a ib.QPAttr, err error) {
	q.sh.Inspect(func() {
		if q.dead {
			err = fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
			return
		}
		a = q.Attr
		a.QPState, a.CurQPState, a.Cap = q.State, q.State, q.cap
		if d, ok := q.Service.(interface{ Draining() bool }); ok {
			a.SQDraining = d.Draining()
		}
	})
	return a, err
}

// PostRecv implements driver.QP.
func (q *qp) PostRecv(wrs []driver.RecvWR) (int, error) {
	switch {
	case q.Type == ib.XRCSend:
		return 0, fmt.Errorf("a queue pair of type XRC_SEND does not receive: %w", syscall.EINVAL)
	case q.Type == ib.XRCRecv:
		return 0, fmt.Errorf("an XRC target (XRC_RECV) has no receive queue, post to the shared receive queues of its domain: %w", syscall.EINVAL)
	case q.Shared:
		return 0, fmt.Errorf("the queue pair receives from a shared receive queue, post there: %w", syscall.EINVAL)
	}
	n, err := q.RQ.Post(wrs)
	// In Error receives complete at once (IBA 10.3.1). Looked at after the post:
	// a change to Error first says so, then flushes what it finds.
	if n > 0 && q.Flushed.Load() {
		e := q.sh.LockFor(&q.QP)
		if q.State == ib.QPStateErr && !q.dead {
			q.FlushRecvs(e)
		}
		q.sh.Unlock(nil)
	}
	return n, err
}

// PostSend implements driver.QP.
func (q *qp) PostSend(wrs []driver.SendWR) (n int, err error) {
	e := q.sh.LockFor(&q.QP)
	// Deferred: a handle that is not of this module may panic when it is unwrapped.
	defer q.sh.Unlock(&q.QP)
	if err = q.canPost(); err != nil {
		return 0, err
	}
	for n < len(wrs) {
		if err = q.push(&wrs[n]); err != nil {
			break
		}
		n++
	}
	if n > 0 {
		q.Service.Post(e)
	}
	return n, err
}

// canPost reports whether sends may be posted now.
func (q *qp) canPost() error {
	switch {
	case q.dead:
		return fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
	case q.Type == ib.XRCRecv:
		return fmt.Errorf("an XRC target (XRC_RECV) has no send queue: %w", syscall.EINVAL)
	case q.State < ib.QPStateRTS:
		return fmt.Errorf("queue pair is in state %v, sends need RTS: %w", q.State, syscall.EINVAL)
	}
	return nil
}

// push puts one work request into the send queue. The caller's is not changed.
func (q *qp) push(wr *driver.SendWR) error {
	if err := queue.Check(wr, q.Type, &q.limits); err != nil {
		return err
	}
	if queue.Local(wr.Opcode) {
		return q.pushLocal(wr)
	}
	var to *ah
	if q.Type == ib.UD {
		var err error
		if to, err = q.ahOf(wr.AH); err != nil {
			return err
		}
		// Whoever is addressed by its own number has not asked for what a group gets, and
		// drops it (rdma_rxe takes it): it would vanish without a word.
		if to.group && wr.RemoteQPN != ib.QPNMulticast {
			return &queue.WRError{
				Field: "RemoteQPN", Err: syscall.EINVAL,
				Detail: fmt.Sprintf("%#x, but AH is that of a group: want ib.QPNMulticast", uint32(wr.RemoteQPN)),
			}
		}
	}
	w, err := q.enqueue(wr)
	if err == nil && to != nil {
		w.AH = to
	}
	return err
}

func (q *qp) enqueue(wr *driver.SendWR) (*queue.WQE, error) {
	if wr.Flags&ib.SendInline == 0 {
		if w := q.SQ.Push(wr); w != nil {
			return w, nil
		}
		return nil, queue.ErrFull
	}
	q.pieces = q.pieces[:0]
	for i := range wr.SGList {
		s := &wr.SGList[i]
		var ok bool
		if q.pieces, ok = q.dev.table.Local(q.PD, s.LKey, s.Addr, uint64(s.Length), false, q.pieces); !ok {
			return nil, &queue.WRError{Field: "SGList", Err: syscall.EINVAL, Detail: "is not in a region of the protection domain"}
		}
	}
	w, err := q.SQ.PushInline(wr, q.pieces)
	clear(q.pieces)
	return w, err
}

// ahOf finds this provider's own address handle in what a work request has. It
// is of the queue pair's protection domain (IBA 11.4.1.1).
func (q *qp) ahOf(h driver.AH) (*ah, error) {
	if u, ok := h.(driver.AHUnwrapper); ok {
		h = u.UnwrapAH()
	}
	a, ok := h.(*ah)
	var why string
	switch {
	case h == nil || ok && a == nil:
		why = "is nil, PD.CreateAH makes one"
	case !ok || a.pd.dev != q.dev:
		why = "is not an address handle of this device"
	case a.pd != q.pd:
		why = "is of another protection domain than the queue pair"
	default:
		return a, nil
	}
	return nil, &queue.WRError{Field: "AH", Err: syscall.EINVAL, Detail: why}
}

// Destroy implements driver.QP.
func (q *qp) Destroy() error {
	q.mu.Lock()
	var news shard.Delivery
	defer func() {
		q.mu.Unlock()
		news.Deliver()
	}()
	if _, dead := q.state(); dead {
		return nil
	}
	if err := q.mcast.idle(); err != nil {
		return err
	}
	e := q.sh.LockFor(&q.QP)
	q.dead = true
	// What arrived is the application's already: the peer must not learn the
	// opposite because an ACK waited for company.
	q.Service.Ack(e)
	from := q.State
	q.State = ib.QPStateReset
	q.Service.Modified(e, from, ib.QPAttrState)
	q.dev.table.UnbindQP(q.QP.Num)
	if !q.Shared {
		q.RQ.SetClosed(true)
	}
	news = q.sh.Release(nil)
	q.dev.eng.Remove(&q.QP, q.sh)
	q.release()
	q.dev.qps.drop()
	return nil
}
