package verbs

import (
	"context"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// MW is a memory window: a key, with rights of its own, for a part of a region,
// that is given to peers and taken back by work requests (struct ibv_mw).
//
// A window of type 1 is bound by [QP.BindMW], again and again, by any queue pair
// of its domain, and serves them all; a bind of length 0 takes it back. One of
// type 2 is bound by a WRBindMW (SendWR.Bind, SendWR.RKey: the key from then on,
// which may differ from the present one in the low 8 bits), serves the queue
// pair that bound it and no other, and is invalidated by a WRLocalInv or the
// peer's SEND with invalidate on that queue pair before it can be bound again.
// Resetting or destroying that queue pair invalidates it too.
//
// A bind ends with ib.WCMWBindErr, and nothing has changed (WC.VendorErr, an
// ib.VendorErr, says why), unless (IBA 10.6.7):
// window, region and queue pair are of one domain; the region has
// ib.AccessMWBind and is not zero-based; it has ib.AccessLocalWrite if peers are
// to write or to use atomics; the range is inside it; the rights are remote
// ones, for type 2 also ib.AccessZeroBased, with which peers count addresses
// from 0; a window of type 2 is not bound, and the length is not 0. What the
// region allows peers itself does not matter.
type MW struct {
	life
	pd  *PD
	mw  driver.MW
	typ ib.MWType
}

var errMWClosed error = &closedError{"memory window", syscall.EINVAL}

// AllocMW makes a window that is not bound (ibv_alloc_mw). EINVAL: there is no
// such type; ENOMEM; EOPNOTSUPP.
func (p *PD) AllocMW(typ ib.MWType) (*MW, error) {
	const op = "alloc_mw"
	d, ok := p.pd.(driver.MWPD)
	if !ok {
		return nil, notOffered(op)
	}
	if !p.hold(anMW) {
		return nil, opErr(op, errPDClosed)
	}
	w, err := d.AllocMW(typ)
	if err != nil {
		p.drop(anMW)
		return nil, opErr(op, err)
	}
	return &MW{pd: p, mw: w, typ: typ}, nil
}

// PD is the domain of the window.
func (w *MW) PD() *PD { return w.pd }

// Type is the window's type.
func (w *MW) Type() ib.MWType { return w.typ }

// RKey names the window for the peer. For type 1 it is the key of the bind that
// was posted last (ibv_bind_mw(3): if that fails the key is still the one
// before), for type 2 that of the bind that was executed last.
func (w *MW) RKey() ib.RKey { return w.mw.RKey() }

// Dealloc ends the window, bound or not (ibv_dealloc_mw). When it returns nobody
// reaches memory through it any more.
func (w *MW) Dealloc() error {
	return opErr("dealloc_mw", w.end(context.Background(), w.mw.Dealloc, nil, w.pd.dropper(anMW)))
}

// UnwrapMW gives the provider's window.
func (w *MW) UnwrapMW() driver.MW {
	if w == nil {
		return nil
	}
	return w.mw
}

// BindMW posts the bind of a window of type 1 (ibv_bind_mw). The new key is
// mw.RKey() when it returns; a later send on the same queue pair may carry it to
// the peer at once. bind.Info.Length 0 unbinds (MR may be nil then).
//
// EINVAL: the window is of type 2, access is zero-based, MR is nil but address
// or length is not 0, flags other than ib.SendFence and ib.SendSignaled, the
// queue pair's type or state; EPERM: window and region are of different domains;
// ENOMEM: the queue is full; EOPNOTSUPP. What shows only when it is executed is
// the status of the completion, see [MW].
func (q *QP) BindMW(mw *MW, bind *MWBind) error {
	const op = "bind_mw"
	d, ok := q.qp.(driver.MWBinder)
	switch {
	case mw == nil:
		return paramErr(op, "mw", "is nil", syscall.EINVAL)
	case bind == nil:
		return paramErr(op, "bind", "is nil", syscall.EINVAL)
	case !q.alive():
		return opErr(op, errQPClosed)
	case !mw.alive():
		return opErr(op, errMWClosed)
	case !ok:
		return notOffered(op)
	}
	return opErr(op, d.BindMW(mw.mw, bind))
}
