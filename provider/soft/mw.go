package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// mw is a memory window.
type mw struct {
	pd     *pd
	win    *mem.Window
	posted atomic.Uint32 // type 1: the key of the newest bind that was posted

	mu   sync.Mutex // whoever deallocates, also as the second, returns when it is done
	dead atomic.Bool
}

// AllocMW implements driver.MWPD.
func (p *pd) AllocMW(typ ib.MWType) (driver.MW, error) {
	win, err := p.dev.table.AllocWindow(&p.mem, typ)
	if err != nil {
		return nil, err
	}
	if p.dev.closed.Load() {
		p.dev.table.FreeWindow(win)
		return nil, fmt.Errorf("memory window: %w", shard.ErrClosed)
	}
	w := &mw{pd: p, win: win}
	w.posted.Store(uint32(win.RKey()))
	return w, nil
}

// RKey implements driver.MW. A window of type 1 has the key of the bind that was
// posted last (ibv_bind_mw(3)), one of type 2 that of the bind that was executed
// last.
func (w *mw) RKey() ib.RKey {
	if w.win.Type() == ib.MWType1 {
		return ib.RKey(w.posted.Load())
	}
	return w.win.RKey()
}

// Dealloc implements driver.MW. When it returns nobody reaches memory through
// the window any more.
func (w *mw) Dealloc() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dead.Swap(true) {
		w.pd.dev.table.FreeWindow(w.win)
		w.pd.dev.eng.Quiesce()
	}
	return nil
}

// mwOf finds this provider's own window in what a work request has.
func (d *Device) mwOf(h driver.MW) (*mw, error) {
	if u, ok := h.(driver.MWUnwrapper); ok {
		h = u.UnwrapMW()
	}
	w, ok := h.(*mw)
	why := ""
	switch {
	case h == nil || ok && w == nil:
		why = "is nil"
	case !ok || w.pd.dev != d:
		why = "is not a memory window of this device"
	case w.dead.Load():
		why = "is deallocated"
	default:
		return w, nil
	}
	return nil, &queue.WRError{Field: "Bind.MW", Err: syscall.EINVAL, Detail: why}
}

// regionOf finds this provider's own region in what a work request has; nil for
// none.
func (d *Device) regionOf(h driver.MR) (*mr, error) {
	if u, ok := h.(driver.MRUnwrapper); ok {
		h = u.UnwrapMR()
	}
	if h == nil {
		return nil, nil
	}
	var m *mr
	switch h := h.(type) {
	case *mr:
		m = h
	case *fastMR:
		if h != nil {
			m = h.mr
		}
	case *sigMR:
		if h != nil {
			m = h.mr
		}
	}
	if m == nil || m.dev != d {
		return nil, &queue.WRError{Field: "Bind.MR", Err: syscall.EINVAL, Detail: "is not a memory region of this device"}
	}
	return m, nil
}

// pushLocal puts a local operation, which was checked, into the send queue.
func (q *qp) pushLocal(wr *driver.SendWR) error {
	var win *mem.Window
	var reg *mem.Region
	var key ib.RKey
	if wr.Bind != nil && wr.Opcode != ib.WRLocalInv {
		m, err := q.dev.regionOf(wr.Bind.MR)
		if err != nil {
			return err
		}
		if m != nil {
			reg = m.region
		}
	}
	switch wr.Opcode {
	case ib.WRBindMW:
		w, err := q.dev.mwOf(wr.Bind.MW)
		if err != nil {
			return err
		}
		switch win = w.win; {
		case win.Type() != ib.MWType2:
			return &queue.WRError{Field: "Bind.MW", Err: syscall.EINVAL, Detail: "is a window of type 1, which is bound by BindMW"}
		case reg == nil:
			return &queue.WRError{Field: "Bind.MR", Err: syscall.EINVAL, Detail: "is nil"}
		}
		key = win.RKey()
	case ib.WRRegMR:
		if reg == nil || !reg.Fast() {
			return &queue.WRError{Field: "Bind.MR", Err: syscall.EINVAL, Detail: "is not a region for fast registration"}
		}
		key = reg.RKey()
	case ib.WRRegMRIntegrity:
		if err := q.checkIntegrity(reg, wr.Bind.Access); err != nil {
			return err
		}
		key = reg.RKey()
	default:
		key = wr.RKey
	}
	if (key^wr.RKey)>>8 != 0 {
		return &queue.WRError{
			Field: "RKey", Err: syscall.EINVAL,
			Detail: fmt.Sprintf("%#x may differ from %#x in the low 8 bits only: ib.IncRKey makes one of RKey()", uint32(wr.RKey), uint32(key)),
		}
	}
	if q.SQ.Push(wr) == nil {
		return queue.ErrFull
	}
	if wr.Bind != nil && wr.Opcode != ib.WRLocalInv {
		q.SQ.SetBind(win, reg, wr.Bind)
	}
	return nil
}

// BindMW implements driver.MWBinder.
func (q *qp) BindMW(h driver.MW, bind *driver.MWBind) error {
	w, err := q.dev.mwOf(h)
	if err != nil {
		return err
	}
	m, err := q.dev.regionOf(bind.Info.MR)
	if err != nil {
		return err
	}
	var reg *mem.Region
	switch {
	case w.win.Type() != ib.MWType1:
		return invalid("mw", "is a window of type 2, which is bound by a work request: ib.WRBindMW")
	case bind.Flags&^(ib.SendFence|ib.SendSignaled) != 0:
		return invalid("Flags", "%v, a bind has FENCE and SIGNALED only", bind.Flags)
	case bind.Info.Access&ib.AccessZeroBased != 0:
		return invalid("Access", "a window of type 1 is not zero-based")
	case m == nil && (bind.Info.Addr != 0 || bind.Info.Length != 0):
		return invalid("MR", "is nil, but address or length are not 0")
	case m != nil && m.domain() != w.pd:
		// As ibv_bind_mw of libibverbs.
		return &paramError{"MR", "is of another protection domain than the window", syscall.EPERM}
	case m != nil:
		reg = m.region
	}
	e := q.sh.LockFor(&q.QP)
	defer q.sh.Unlock(&q.QP)
	if err := q.canPost(); err != nil {
		return err
	}
	wr := driver.SendWR{WRID: bind.WRID, Opcode: ib.WRBindMW, Flags: bind.Flags, Bind: &bind.Info}
	if err := queue.Check(&wr, q.Type, &q.limits); err != nil {
		return err
	}
	if q.SQ.Len() == q.SQ.Cap() {
		return queue.ErrFull
	}
	// Under the lock, so that keys are in the order of the binds of this queue pair.
	for {
		key := w.posted.Load()
		wr.RKey = ib.IncRKey(ib.RKey(key))
		if w.posted.CompareAndSwap(key, uint32(wr.RKey)) {
			break
		}
	}
	q.SQ.Push(&wr)
	q.SQ.SetBind(w.win, reg, &bind.Info)
	q.Service.Post(e)
	return nil
}
