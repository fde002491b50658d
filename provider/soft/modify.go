package soft

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Modify implements driver.QP: the transition table and the values are checked
// before anything changes.
func (q *qp) Modify(attr *ib.QPAttr, mask ib.QPAttrMask) error {
	q.mu.Lock()
	// What the application is told may make it come back for this queue pair.
	var news shard.Delivery
	defer func() {
		q.mu.Unlock()
		news.Deliver()
	}()
	from, dead := q.state()
	if dead {
		return fmt.Errorf("queue pair was destroyed: %w", syscall.EINVAL)
	}
	if mask&ib.QPAttrCurState != 0 && attr.CurQPState != from {
		return invalid("CurQPState", "%v, the queue pair is in %v", attr.CurQPState, from)
	}
	to := from
	if mask&ib.QPAttrState != 0 {
		to = attr.QPState
	}
	if to != ib.QPStateErr && to != ib.QPStateReset {
		if err := q.dev.alive(); err != nil {
			return err
		}
	}
	if err := ib.CheckTransition(q.Type, from, to, mask); err != nil {
		return err
	}
	if err := ib.CheckAttr(attr, mask); err != nil {
		return err
	}
	if err := q.checkValues(attr, mask); err != nil {
		return err
	}
	var flow *pkt.Flow
	if mask&ib.QPAttrAV != 0 {
		var err error
		if flow, err = q.dev.flow(&attr.AHAttr, uint32(q.QP.Num)*0x61C88647); err != nil {
			return err
		}
		if mask&ib.QPAttrPathMTU != 0 {
			if err := q.dev.checkPathMTU(attr.PathMTU, flow, q.Type); err != nil {
				return err
			}
		}
	}
	if q.Type == ib.UD && to == ib.QPStateRTR && from != to {
		if err := q.dev.listenAll(); err != nil {
			return err
		}
	}
	return q.apply(from, to, attr, mask, flow, &news)
}

// state reads the state, which failing work may change at any time.
func (q *qp) state() (s ib.QPState, dead bool) {
	q.sh.Inspect(func() { s, dead = q.State, q.dead })
	return s, dead
}

// checkValues checks what only the device can know.
func (q *qp) checkValues(a *ib.QPAttr, mask ib.QPAttrMask) error {
	bad := func(param string, v any, want string) error { return invalid(param, "%v, want %s", v, want) }
	has := func(m ib.QPAttrMask) bool { return mask&m != 0 }
	active := q.dev.activeMTU()
	switch {
	case has(ib.QPAttrPort) && a.PortNum != portNum:
		return bad("PortNum", a.PortNum, "1")
	case has(ib.QPAttrPKeyIndex) && a.PKeyIndex >= pkeyTableLen:
		return bad("PKeyIndex", a.PKeyIndex, "0")
	case has(ib.QPAttrAccessFlags) && a.QPAccessFlags&^accessQP != 0:
		return bad("QPAccessFlags", a.QPAccessFlags, "remote rights only")
	case has(ib.QPAttrPathMTU) && a.PathMTU > active:
		// A path MTU beyond the link's would lose every full packet: DF is set.
		return bad("PathMTU", a.PathMTU.Bytes(), fmt.Sprintf("at most the port's active MTU %d (the link's MTU is %d)", active.Bytes(), q.dev.linkMTU()))
	case has(ib.QPAttrMaxRDAtomic) && a.MaxRDAtomic > maxRDAtomic:
		return bad("MaxRDAtomic", a.MaxRDAtomic, fmt.Sprintf("at most %d", maxRDAtomic))
	case has(ib.QPAttrMaxDestRDAtomic) && a.MaxDestRDAtomic > maxRDAtomic:
		return bad("MaxDestRDAtomic", a.MaxDestRDAtomic, fmt.Sprintf("at most %d", maxRDAtomic))
	case has(ib.QPAttrAV) && a.AHAttr.DGID.IsMulticast():
		return bad("AHAttr.DGID", a.AHAttr.DGID.Addr(), "a unicast address")
	case has(ib.QPAttrPathMigState) && a.PathMigState != ib.MigMigrated:
		return bad("PathMigState", a.PathMigState, "MIGRATED: there is no path migration")
	case has(ib.QPAttrAltPath):
		return notOffered("AltAHAttr", "there is no path migration")
	case has(ib.QPAttrCap):
		return notOffered("Cap", "queues are not resized")
	case has(ib.QPAttrRateLimit):
		return notOffered("RateLimit", "is not offered")
	}
	return nil
}

// longest6 is the most that stands around a payload over IPv6: a WRITE ONLY with
// immediate data has 40+8+12+16+4 bytes of headers and the ICRC. The active MTU
// counts 80. XRC has 4 more.
const longest6 = 84

// checkPathMTU refuses a path MTU with which a full packet would not fit the
// link although the active MTU says so: over IPv6, at link MTUs 80 to 83 bytes
// above it. The packet would vanish, since it may not be fragmented.
func (d *Device) checkPathMTU(m ib.MTU, flow *pkt.Flow, typ ib.QPType) error {
	longest := longest6
	if typ == ib.XRCSend || typ == ib.XRCRecv {
		longest += roce.XRCETHLen
	}
	if flow.Is6() && !onHost(flow) && m.Bytes()+longest > d.linkMTU() {
		return invalid("PathMTU", "%d needs a link MTU of %d over IPv6, the link has %d; use a smaller one",
			m.Bytes(), m.Bytes()+longest, d.linkMTU())
	}
	return nil
}

// listenAll opens every address of the GID table: a datagram queue pair
// receives on all of them. An address that cannot be opened is left out unless
// none can.
func (d *Device) listenAll() error {
	var first error
	open := 0
	d.listening.Store(true) // before the look: what is added later is opened then
	for _, a := range d.gids.all() {
		if _, err := d.localIndex(a); err != nil {
			d.log.Warn("address left out", "device", d.cfg.Name, "addr", a, "err", err)
			if first == nil {
				first = err
			}
			continue
		}
		open++
	}
	if open == 0 {
		if first == nil {
			first = fmt.Errorf("device %s has no address: %w", d.cfg.Name, syscall.EADDRNOTAVAIL)
		}
		return first
	}
	return nil
}

// apply stores the attributes and changes the state.
func (q *qp) apply(from, to ib.QPState, a *ib.QPAttr, mask ib.QPAttrMask, flow *pkt.Flow, news *shard.Delivery) error {
	e := q.sh.LockFor(&q.QP)
	defer func() { *news = q.sh.Release(&q.QP) }()
	switch {
	case to != ib.QPStateErr && to != ib.QPStateReset && q.dev.gone.Load():
		// Looked at under the lock: the device's queue pairs are all in Err, or will be.
		return errGone
	case q.State != from && to == from && mask&ib.QPAttrState == 0:
		return fmt.Errorf("queue pair went to %v meanwhile: %w", q.State, syscall.EINVAL)
	case q.State != from && to != ib.QPStateErr && to != ib.QPStateReset:
		return fmt.Errorf("queue pair went to %v meanwhile: %w", q.State, syscall.EINVAL)
	}
	from = q.State
	if to == ib.QPStateErr || to == ib.QPStateReset {
		q.Service.Ack(e) // of what was received before
	}
	q.store(a, mask)
	if flow != nil {
		if q.Type != ib.UD {
			if q.Dest != nil {
				q.Dest.Leave(&q.QP)
			}
			q.Flow = flow
			q.Dest = q.sh.Dest(flow.Dst(), onHost(flow))
			flow.MaxSegs = q.Dest.GSO.MaxSegs()
		}
	}
	if mask&ib.QPAttrPathMTU != 0 {
		q.MTU = a.PathMTU.Bytes()
	}
	if q.Type == ib.UD && to == ib.QPStateRTR {
		q.MTU = q.dev.activeMTU().Bytes() // the port's, which may have changed since (case 75)
	}
	q.State = to
	q.Service.Modified(e, from, mask)
	if to == ib.QPStateReset {
		q.dev.table.UnbindQP(q.QP.Num)
		if q.Dest != nil {
			q.Dest.Leave(&q.QP)
		}
		q.QP.Forget()
		q.Flow, q.Dest = nil, nil
		q.Attr = ib.QPAttr{}
		q.MTU = q.dev.activeMTU().Bytes()
		for q.SQ.Len() > 0 {
			q.SQ.Pop()
		}
		q.ece = ib.ECE{}
		if !q.Shared {
			q.RQ.Clear()
		}
	}
	if !q.Shared {
		q.RQ.SetClosed(to == ib.QPStateReset)
	}
	return nil
}

// store copies what mask names.
func (q *qp) store(a *ib.QPAttr, mask ib.QPAttrMask) {
	t := &q.Attr
	for _, f := range []struct {
		mask ib.QPAttrMask
		set  func()
	}{
		{ib.QPAttrEnSQDAsyncNotify, func() { t.EnSQDAsyncNotify = a.EnSQDAsyncNotify }},
		{ib.QPAttrAccessFlags, func() { t.QPAccessFlags = a.QPAccessFlags }},
		{ib.QPAttrPKeyIndex, func() { t.PKeyIndex = a.PKeyIndex }},
		{ib.QPAttrPort, func() { t.PortNum = a.PortNum }},
		{ib.QPAttrQKey, func() { t.QKey = a.QKey }},
		{ib.QPAttrAV, func() { t.AHAttr = a.AHAttr }},
		{ib.QPAttrPathMTU, func() { t.PathMTU = a.PathMTU }},
		{ib.QPAttrTimeout, func() { t.Timeout = a.Timeout }},
		{ib.QPAttrRetryCnt, func() { t.RetryCnt = a.RetryCnt }},
		{ib.QPAttrRNRRetry, func() { t.RNRRetry = a.RNRRetry }},
		{ib.QPAttrRQPSN, func() { t.RQPSN = a.RQPSN }},
		{ib.QPAttrMaxRDAtomic, func() { t.MaxRDAtomic = a.MaxRDAtomic }},
		{ib.QPAttrMinRNRTimer, func() { t.MinRNRTimer = a.MinRNRTimer }},
		{ib.QPAttrSQPSN, func() { t.SQPSN = a.SQPSN }},
		{ib.QPAttrMaxDestRDAtomic, func() { t.MaxDestRDAtomic = a.MaxDestRDAtomic }},
		{ib.QPAttrPathMigState, func() { t.PathMigState = a.PathMigState }},
		{ib.QPAttrDestQPN, func() { t.DestQPN = a.DestQPN }},
	} {
		if mask&f.mask != 0 {
			f.set()
		}
	}
}
