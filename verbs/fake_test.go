package verbs

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// fakeProvider offers one fake device, or fails.
type fakeProvider struct {
	name string
	err  error
	dev  *fakeDevice
}

func (p *fakeProvider) Devices(context.Context) ([]driver.DeviceInfo, error) {
	if p.err != nil {
		return nil, p.err
	}
	if p.name == "" {
		return nil, nil
	}
	return []driver.DeviceInfo{{Name: p.name, GUID: 7, NodeType: ib.NodeCA}}, nil
}

func (p *fakeProvider) Open(_ context.Context, name string) (driver.Device, error) {
	if name != p.name || p.dev == nil {
		return nil, fmt.Errorf("no device %s: %w", name, syscall.ENODEV)
	}
	return p.dev, nil
}

// fakeDevice keeps objects and completes what is posted at once.
type fakeDevice struct {
	fail   error // what every create call gives
	sink   driver.EventSink
	gids   map[int]ib.GID
	link   ib.LinkLayer
	closed int
	qps    []*fakeQP
	cqs    []*fakeCQ
}

func newFake() *fakeDevice {
	return &fakeDevice{link: ib.LinkEthernet, gids: map[int]ib.GID{}}
}

func (d *fakeDevice) Info() driver.DeviceInfo { return driver.DeviceInfo{Name: "fake", GUID: 7} }
func (d *fakeDevice) Query() ib.DeviceAttr    { return ib.DeviceAttr{PhysPortCnt: 1, MaxCQE: 1024} }

func (d *fakeDevice) QueryPort(p uint8) (ib.PortAttr, error) {
	if p != 1 {
		return ib.PortAttr{}, syscall.EINVAL
	}
	return ib.PortAttr{LinkLayer: d.link, GIDTblLen: 8, PKeyTblLen: 3}, nil
}

func (d *fakeDevice) GIDEntry(p uint8, i int) (ib.GIDEntry, error) {
	if p != 1 || i < 0 || i >= 8 {
		return ib.GIDEntry{}, syscall.EINVAL
	}
	g, ok := d.gids[i]
	if !ok {
		return ib.GIDEntry{}, ib.ErrNoData
	}
	return ib.GIDEntry{GID: g, Index: i, Port: p, Type: ib.GIDTypeRoCEv2}, nil
}

func (d *fakeDevice) PKey(_ uint8, i int) (ib.PKey, error) {
	keys := []ib.PKey{0xFFFF, 0x8001, 0x0001}
	if i < 0 || i >= len(keys) {
		return 0, syscall.EINVAL
	}
	return keys[i], nil
}

func (d *fakeDevice) AllocPD() (driver.PD, error) { return fakePD{d}, d.fail }

func (d *fakeDevice) CreateCQ(cqe int, notify func()) (driver.CQ, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	c := &fakeCQ{cap: cqe, notify: notify}
	d.cqs = append(d.cqs, c)
	return c, nil
}

func (d *fakeDevice) CreateAH(driver.PD, *ib.AHAttr) (driver.AH, error) { return fakeAH{}, d.fail }

func (d *fakeDevice) CreateSRQ(_ driver.PD, a *ib.SRQAttr, ev driver.EventSink) (driver.SRQ, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	a.MaxWR++ // the real size is larger
	return &fakeSRQ{attr: *a, sink: ev}, nil
}

func (d *fakeDevice) CreateQP(_ driver.PD, a *driver.QPInitAttr, ev driver.EventSink) (driver.QP, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	if a.SRQ == nil {
		a.Cap.MaxRecvWR++
	}
	a.Cap.MaxSendWR++
	q := &fakeQP{num: ib.QPN(0x100 + len(d.qps)), init: *a, sink: ev, send: a.SendCQ.(*fakeCQ), recv: a.RecvCQ.(*fakeCQ)}
	d.qps = append(d.qps, q)
	return q, nil
}

func (d *fakeDevice) Events(s driver.EventSink) { d.sink = s }
func (d *fakeDevice) Close() error              { d.closed++; return nil }

type fakePD struct{ d *fakeDevice }

func (p fakePD) RegMR(b []byte, iova uint64, use bool, _ ib.Access) (driver.MR, error) {
	if !use {
		iova = 0x1000
	}
	return fakeMR{iova, uint64(len(b))}, p.d.fail
}

func (p fakePD) RegMRPointer(a uintptr, n, iova uint64, use bool, _ ib.Access) (driver.MR, error) {
	if !use {
		iova = uint64(a)
	}
	return fakeMR{iova, n}, p.d.fail
}

func (p fakePD) NullMR() (driver.MR, error) { return fakeMR{}, p.d.fail }
func (p fakePD) Dealloc() error             { return nil }

type fakeMR struct{ addr, size uint64 }

func (m fakeMR) LKey() ib.LKey  { return 0x11 }
func (m fakeMR) RKey() ib.RKey  { return 0x22 }
func (m fakeMR) Addr() uint64   { return m.addr }
func (m fakeMR) Length() uint64 { return m.size }
func (m fakeMR) Dereg() error   { return nil }

type fakeAH struct{}

func (fakeAH) Destroy() error { return nil }

// fakeCQ holds completions in a slice that does not grow in steady state.
type fakeCQ struct {
	mu     sync.Mutex
	cap    int
	list   []driver.WC
	armed  bool
	notify func()
	sink   driver.EventSink
	err    error
	dead   bool
}

func (c *fakeCQ) push(wc driver.WC) {
	c.mu.Lock()
	c.list = append(c.list, wc)
	fire := c.armed && c.notify != nil
	c.armed = false
	c.mu.Unlock()
	if fire {
		c.notify()
	}
}

func (c *fakeCQ) Poll(dst []driver.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(dst, c.list)
	c.list = c.list[:copy(c.list, c.list[n:])]
	if n == 0 {
		return 0, c.err
	}
	return n, nil
}

func (c *fakeCQ) Arm(bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return len(c.list) > 0
}

func (c *fakeCQ) Wait(ctx context.Context) error {
	c.mu.Lock()
	n := len(c.list)
	c.mu.Unlock()
	if n > 0 {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (c *fakeCQ) Resize(n int) error {
	if n < len(c.list) {
		return syscall.EINVAL
	}
	c.cap = n
	return nil
}
func (c *fakeCQ) CQE() int                  { return c.cap }
func (c *fakeCQ) Events(s driver.EventSink) { c.sink = s }
func (c *fakeCQ) Destroy() error            { c.dead = true; return nil }

type fakeSRQ struct {
	attr ib.SRQAttr
	sink driver.EventSink
	n    int
}

func (s *fakeSRQ) PostRecv(wrs []driver.RecvWR) (int, error) {
	for i := range wrs {
		if s.n == int(s.attr.MaxWR) {
			return i, syscall.ENOMEM
		}
		s.n++
	}
	return len(wrs), nil
}

func (s *fakeSRQ) Modify(a *ib.SRQAttr, mask ib.SRQAttrMask) error {
	if a.MaxWR == 0 && mask&ib.SRQMaxWR != 0 {
		a.MaxWR = 99 // a careless provider
		return syscall.EINVAL
	}
	a.MaxWR++
	s.attr.MaxWR = a.MaxWR
	return nil
}
func (s *fakeSRQ) Query() ib.SRQAttr { return s.attr }
func (s *fakeSRQ) Num() uint32       { return 5 }
func (s *fakeSRQ) Destroy() error    { return nil }

// fakeQP completes sends at once and keeps receives until it goes to ERR.
type fakeQP struct {
	num        ib.QPN
	init       driver.QPInitAttr
	sink       driver.EventSink
	send, recv *fakeCQ
	state      ib.QPState
	recvs      []uint64
	destroyed  int
	mods       int
}

func (q *fakeQP) Num() ib.QPN { return q.num }

func (q *fakeQP) Modify(a *ib.QPAttr, mask ib.QPAttrMask) error {
	if a.RetryCnt > 7 {
		return &ib.ParamError{Param: "RetryCnt", Value: "8", Want: "0 to 7"}
	}
	q.mods++
	if mask&ib.QPAttrState != 0 {
		q.state = a.QPState
	}
	if q.state == ib.QPStateErr {
		q.flush()
	}
	return nil
}

func (q *fakeQP) flush() {
	for _, id := range q.recvs {
		q.recv.push(driver.WC{WRID: id, Status: ib.WCWRFlushErr, Opcode: ib.WCRecv, QPNum: q.num})
	}
	q.recvs = q.recvs[:0]
}
func (q *fakeQP) Query() (ib.QPAttr, error) { return ib.QPAttr{QPState: q.state}, nil }

func (q *fakeQP) PostSend(wrs []driver.SendWR) (int, error) {
	for i := range wrs {
		if wrs[i].Opcode == 99 {
			return i, syscall.EINVAL
		}
		if q.init.Type == ib.UD {
			if _, ok := wrs[i].AH.(driver.AHUnwrapper).UnwrapAH().(fakeAH); !ok {
				return i, syscall.EINVAL
			}
		}
		st := ib.WCSuccess
		if q.state == ib.QPStateErr {
			st = ib.WCWRFlushErr
		}
		q.send.push(driver.WC{WRID: wrs[i].WRID, Status: st, QPNum: q.num})
	}
	return len(wrs), nil
}

func (q *fakeQP) PostRecv(wrs []driver.RecvWR) (int, error) {
	for i := range wrs {
		if len(q.recvs) == int(q.init.Cap.MaxRecvWR) {
			return i, syscall.ENOMEM
		}
		q.recvs = append(q.recvs, wrs[i].WRID)
	}
	if q.state == ib.QPStateErr {
		q.flush()
	}
	return len(wrs), nil
}
func (q *fakeQP) Destroy() error { q.destroyed++; return nil }

// kit is a set of objects on a fake device.
type kit struct {
	dev *fakeDevice
	ctx *Context
	pd  *PD
	cq  *CQ
	ch  *CompChannel
}

func newKit(t testing.TB) *kit {
	t.Helper()
	k := &kit{dev: newFake()}
	k.ctx = NewContext(k.dev)
	k.pd = must(k.ctx.AllocPD())(t)
	k.ch = must(k.ctx.CreateCompChannel())(t)
	k.cq = must(k.ctx.CreateCQ(16, k.ch, "user"))(t)
	return k
}

func (k *kit) qp(t testing.TB, typ ib.QPType) *QP {
	t.Helper()
	return must(k.pd.CreateQP(&QPInitAttr{
		SendCQ: k.cq, RecvCQ: k.cq, Type: typ,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	}))(t)
}

// must is for calls that may not fail: must(f())(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
