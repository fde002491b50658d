package rdmacm

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/cm"
)

// InitQPAttr gives attributes and mask with which an application moves its own queue pair to
// the state attr.QPState: INIT, RTR or RTS (rdma_init_qp_attr). EINVAL: another
// state, or too early.
func (id *ID) InitQPAttr(attr *ib.QPAttr) (ib.QPAttrMask, error) {
	const op = "init_qp_attr"
	if attr == nil {
		return 0, paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return 0, opErr(op, err)
	}
	mask, err := id.qpAttr(attr)
	return mask, opErr(op, err)
}

// ready moves the ID's queue pair from INIT to RTS. The caller holds mu.
func (id *ID) ready() error {
	// Rights depend on what was agreed on: INIT again.
	for _, s := range []ib.QPState{ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS} {
		if err := id.modify(id.qp, s); err != nil {
			return err
		}
	}
	return nil
}

// toErr moves the ID's queue pair to ERR. The caller holds mu.
func (id *ID) toErr() {
	if id.qp != nil {
		// It may have been destroyed meanwhile, or be in RESET, where there is nothing to end.
		_ = id.qp.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState)
	}
}

// keyOr is the ID's Q_Key. The caller holds mu.
func (id *ID) keyOr() ib.QKey {
	if id.qkey == 0 {
		id.qkey = UDPQKey
	}
	return id.qkey
}

// rights are what a peer may do by a connection.
func (id *ID) rights() ib.Access {
	a := ib.AccessRemoteWrite
	if id.respRes > 0 {
		a |= ib.AccessRemoteRead | ib.AccessRemoteAtomic
		if id.dev.attr.DeviceCapFlags&ib.DeviceCapFlushGlobal != 0 {
			a |= ib.AccessFlushGlobal
		}
		if id.dev.attr.DeviceCapFlags&ib.DeviceCapFlushPersistent != 0 {
			a |= ib.AccessFlushPersistent
		}
	}
	return a
}

// qpAttr fills in the attributes of the state in a. The caller holds mu.
func (id *ID) qpAttr(a *ib.QPAttr) (mask ib.QPAttrMask, err error) {
	if id.dev == nil {
		return 0, fmt.Errorf("the ID is not bound to a device: %w", syscall.EINVAL)
	}
	to := a.QPState
	*a = ib.QPAttr{QPState: to}
	mask = ib.QPAttrState
	switch to {
	case ib.QPStateInit:
		a.PortNum = id.port
		mask |= ib.QPAttrPKeyIndex | ib.QPAttrPort
		if id.typ == ib.UD {
			a.QKey = id.keyOr()
			return mask | ib.QPAttrQKey, nil
		}
		a.QPAccessFlags = id.rights()
		return mask | ib.QPAttrAccessFlags, nil
	case ib.QPStateRTR, ib.QPStateRTS:
	default:
		return 0, fmt.Errorf("QPState: %v, want INIT, RTR or RTS: %w", to, syscall.EINVAL)
	}
	if id.typ == ib.UD {
		if to == ib.QPStateRTS {
			mask |= ib.QPAttrSQPSN
		}
		return mask, nil
	}
	if !id.agreed() {
		return 0, fmt.Errorf("the peer is not known: %w", syscall.EINVAL)
	}
	p := id.conn.QPParams()
	depth, resources := p.MaxRDAtomic, p.MaxDestRDAtomic
	if id.passive {
		depth, resources = id.initDepth, id.respRes
	}
	if to == ib.QPStateRTR {
		return mask | id.rtr(a, &p, resources), nil
	}
	a.SQPSN, a.Timeout, a.RetryCnt, a.RNRRetry = p.SQPSN, p.Timeout, p.RetryCnt, p.RNRRetry
	a.MaxRDAtomic = min(depth, limit(int(id.dev.attr.MaxQPInitRDAtom)))
	if id.ackSet {
		a.Timeout = id.ackTimeout
	}
	mask |= ib.QPAttrSQPSN
	switch id.typ {
	case ib.RC, ib.XRCSend:
		mask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
	case ib.XRCRecv:
		mask |= ib.QPAttrTimeout
	}
	return mask, nil
}

func (id *ID) rtr(a *ib.QPAttr, p *cm.QPParams, resources uint8) ib.QPAttrMask {
	a.AHAttr = id.vector(p.Path)
	a.PathMTU, a.DestQPN, a.RQPSN = p.PathMTU, ib.QPN(p.RemoteQPN), id.seq
	mask := ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	if id.typ == ib.RC || id.typ == ib.XRCRecv {
		a.MaxDestRDAtomic = min(resources, limit(int(id.dev.attr.MaxQPRDAtom)))
		// 655.36 ms, as Linux's rdma_cm; programs that want another one modify the queue pair.
		a.MinRNRTimer = 0
		mask |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
	}
	return mask
}

// vector is the address vector to the peer. The caller holds mu.
func (id *ID) vector(p cm.Path) ib.AHAttr {
	gid, _ := id.dev.gid(id.src.Addr())
	hop := p.HopLimit
	if hop == 0 {
		hop = hopLimit
	}
	return ib.AHAttr{
		IsGlobal: true, DGID: ib.GIDFromAddr(id.dst.Addr().WithZone("")), SGIDIndex: uint8(gid), PortNum: id.port,
		HopLimit: hop, TrafficClass: p.TrafficClass, FlowLabel: p.FlowLabel, SL: p.SL,
	}
}

// agreed reports whether the peer's queue pair is known. The caller holds mu.
func (id *ID) agreed() bool {
	if id.conn == nil {
		return false
	}
	switch id.conn.State() {
	case cm.StateIdle, cm.StateReqSent, cm.StateMRAReqRcvd, cm.StateSidrReqSent, cm.StateSidrReqRcvd, cm.StateTimewait:
		return false
	}
	return true
}
