package ud

import (
	"bytes"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// bindTo makes a region of the end's buffer that windows may be bound to, and a window.
func (r *rig) bindTo(e *end) (*mem.Region, *mem.Window) {
	r.t.Helper()
	mr, err := r.env.Mem.Register(r.pd, e.buf, 0x5000, ib.AccessLocalWrite|ib.AccessMWBind)
	if err != nil {
		r.t.Fatal(err)
	}
	win, err := r.env.Mem.AllocWindow(r.pd, ib.MWType2)
	if err != nil {
		r.t.Fatal(err)
	}
	return mr, win
}

func (r *rig) bind(e *end, id uint64, mr *mem.Region, win *mem.Window, n uint64) {
	r.t.Helper()
	b := &driver.BindInfo{Addr: mr.Addr(), Length: n, Access: ib.AccessRemoteWrite}
	if e.q.SQ.Push(&driver.SendWR{WRID: id, Opcode: ib.WRBindMW, RKey: ib.IncRKey(win.RKey()), Bind: b, Flags: ib.SendSignaled}) == nil {
		r.t.Fatal("send queue is full")
	}
	e.q.SQ.SetBind(win, mr, b)
}

// UC binds and invalidates between its messages; peers write through the window.
func TestUCLocalOperations(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	mr, win := r.bindTo(r.b)
	pattern(r.a.buf[:1000], 3)
	clear(r.b.buf[:1000])
	send := driver.SendWR{WRID: 1, Opcode: ib.WRSend, SGList: []driver.SGE{r.b.sge(2000, 600)}, Flags: ib.SendSignaled}
	if r.b.q.SQ.Push(&send) == nil {
		t.Fatal("full")
	}
	r.bind(r.b, 2, mr, win, 900)
	send.WRID = 3
	r.recv(r.a, 1000, 1000)
	r.post(r.b, send)
	r.wantWCs("bind", polled(r.b.scq), ended{1, ib.WCSuccess}, ended{2, ib.WCSuccess}, ended{3, ib.WCSuccess})
	if n := len(r.wire); n != 6 {
		t.Errorf("%d packets", n)
	}
	r.pump()
	r.wantWCs("sends", polled(r.a.rcq), ended{1, ib.WCSuccess}, ended{2, ib.WCSuccess})
	key := win.RKey()
	write := driver.SendWR{
		WRID: 4, Opcode: ib.WRRDMAWrite, SGList: []driver.SGE{r.a.sge(0, 900)}, RemoteAddr: mr.Addr(), RKey: key,
	}
	r.post(r.a, write)
	r.pump()
	if !bytes.Equal(r.b.buf[:900], r.a.buf[:900]) {
		t.Error("the write through the window did not arrive")
	}
	// Over the end, or after the invalidation: dropped.
	clear(r.b.buf[:1000])
	long := write
	long.SGList = []driver.SGE{r.a.sge(0, 901)}
	r.post(r.a, long)
	r.pump()
	r.post(r.b, driver.SendWR{WRID: 5, Opcode: ib.WRLocalInv, InvalidateRKey: key, Flags: ib.SendSignaled | ib.SendFence})
	r.wantWCs("invalidate", polled(r.b.scq), ended{5, ib.WCSuccess})
	r.post(r.a, write)
	r.pump()
	if !bytes.Equal(r.b.buf[:1000], make([]byte, 1000)) || r.env.Stats.DropAccess != 2 {
		t.Errorf("written, %d drops", r.env.Stats.DropAccess)
	}
}

// An invalidation in the middle of a WRITE ends it.
func TestCase06_UCInvalidateUnderWrite(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	mr, win := r.bindTo(r.b)
	r.bind(r.b, 1, mr, win, 1000)
	r.post(r.b)
	r.post(r.a, driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: []driver.SGE{r.a.sge(0, 1000)}, RemoteAddr: mr.Addr(), RKey: win.RKey()})
	rest := r.wire[2:]
	r.wire = r.wire[:2]
	r.pump()
	r.post(r.b, driver.SendWR{WRID: 2, Opcode: ib.WRLocalInv, InvalidateRKey: win.RKey(), Flags: ib.SendSignaled})
	r.wire = rest
	r.pump()
	if r.env.Stats.DropAccess != 1 || r.env.Stats.DropSequence != 1 || r.b.q.State != ib.QPStateRTS {
		t.Errorf("%+v", r.env.Stats)
	}
	r.wantWCs("local", polled(r.b.scq), ended{1, ib.WCSuccess}, ended{2, ib.WCSuccess})
}

// A failure stops the send side, as any other (state SQE).
func TestUCLocalOperationFails(t *testing.T) {
	r := newRig(t, ib.UC, 256)
	mr, win := r.bindTo(r.a)
	r.bind(r.a, 1, mr, win, 64)
	r.bind(r.a, 2, mr, win, 64)
	r.post(r.a, driver.SendWR{WRID: 3, Opcode: ib.WRSend})
	r.wantWCs("binds", polled(r.a.scq), ended{1, ib.WCSuccess}, ended{2, ib.WCMWBindErr}, ended{3, ib.WCWRFlushErr})
	if r.a.q.State != ib.QPStateSQE || len(r.wire) != 0 {
		t.Errorf("state %v, %d packets", r.a.q.State, len(r.wire))
	}
}
