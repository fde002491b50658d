package verbs_test

import (
	"cmp"
	"errors"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// rig is two software devices on a simulated network.
type rig struct {
	t    testing.TB
	net  *simnet.Net
	a, b *node

	limits soft.Limits // of its devices
}

// node is an open device with a domain and a completion queue.
type node struct {
	t    testing.TB
	net  *simnet.Net
	port *simnet.Port
	soft *soft.Device
	ctx  *verbs.Context
	pd   *verbs.PD
	cq   *verbs.CQ
	addr netip.Addr

	mtu  ib.MTU // path MTU of queue pairs; 0: 1024
	qps  []*verbs.QP
	rest []func() error // further objects, to be destroyed before the others
}

func newRig(t testing.TB, mtu int) *rig {
	t.Helper()
	r := &rig{t: t, net: simnet.New(1)}
	r.a = r.node("a", mtu, "192.0.2.1", "2001:db8::1")
	r.b = r.node("b", mtu, "192.0.2.2", "2001:db8::2")
	return r
}

func (r *rig) node(name string, mtu int, addrs ...string) *node {
	r.t.Helper()
	return r.nodeOn(r.net.NewPort(simnet.Config{}), name, mtu, addrs...)
}

func (r *rig) nodeOn(port *simnet.Port, name string, mtu int, addrs ...string) *node {
	r.t.Helper()
	n := &node{t: r.t, net: r.net, port: port, addr: netip.MustParseAddr(addrs[0])}
	cfg := soft.Config{Name: name, LinkMTU: mtu, Port: n.port, Clock: r.net.Now, Seed: 1, Manual: true, Limits: r.limits}
	for _, a := range addrs {
		cfg.Addrs = append(cfg.Addrs, netip.MustParseAddr(a))
	}
	var err error
	if n.soft, err = soft.NewDevice(cfg); err != nil {
		r.t.Fatal(err)
	}
	r.net.Attach(n.port, n.soft.Turn)
	n.ctx = verbs.NewContext(n.soft)
	n.pd = ok(n.ctx.AllocPD())(r.t)
	n.cq = ok(n.ctx.CreateCQ(1024, nil, nil))(r.t)
	r.t.Cleanup(n.close)
	return n
}

// close destroys everything in order and looks for what is left.
func (n *node) close() {
	for _, q := range n.qps {
		if err := q.Destroy(); err != nil {
			n.t.Error(err)
		}
	}
	n.net.RunFor(1e9)
	for i := len(n.rest) - 1; i >= 0; i-- {
		if err := n.rest[i](); err != nil {
			n.t.Error(err)
		}
	}
	if err := errors.Join(n.cq.Destroy(), n.pd.Dealloc(), n.soft.Leaks(), n.ctx.Close()); err != nil {
		n.t.Error(err)
	}
}

// drop forgets the queue pairs made so far: the test destroyed them.
func (n *node) drop() { n.qps = nil }

// later has f called when the node is closed.
func (n *node) later(f func() error) { n.rest = append(n.rest, f) }

func ok[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// mem registers n bytes with all rights.
func (n *node) mem(size int) *verbs.MR {
	n.t.Helper()
	return n.memWith(make([]byte, size), allRights)
}

const allRights = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

func (n *node) memWith(b []byte, access ib.Access) *verbs.MR {
	n.t.Helper()
	mr := ok(n.pd.RegMR(b, access))(n.t)
	n.later(mr.Dereg)
	return mr
}

// attr describes a queue pair of moderate size.
func (n *node) attr(typ ib.QPType) *verbs.QPInitAttr {
	return &verbs.QPInitAttr{
		SendCQ: n.cq, RecvCQ: n.cq, Type: typ,
		Cap: ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 128},
	}
}

func (n *node) qp(attr *verbs.QPInitAttr) *verbs.QP {
	n.t.Helper()
	q := ok(n.pd.CreateQP(attr))(n.t)
	n.qps = append(n.qps, q)
	return q
}

const qkey = 0x11111111

// to moves a queue pair step by step up to a state; peer is where it leads.
func (n *node) to(q *verbs.QP, state ib.QPState, peer *verbs.QP, peerAddr netip.Addr) {
	n.t.Helper()
	for s := q.State() + 1; s <= min(state, ib.QPStateRTS); s++ {
		n.step(q, s, peer, peerAddr)
	}
	if state > ib.QPStateRTS {
		if err := q.Modify(&ib.QPAttr{QPState: state}, ib.QPAttrState); err != nil {
			n.t.Fatal(err)
		}
	}
}

func (n *node) step(q *verbs.QP, s ib.QPState, peer *verbs.QP, peerAddr netip.Addr) {
	n.t.Helper()
	a := ib.QPAttr{
		QPState: s, PortNum: 1, QPAccessFlags: ib.AccessRemote &^ (ib.AccessFlushGlobal | ib.AccessFlushPersistent), QKey: qkey,
		PathMTU: cmp.Or(n.mtu, ib.MTU1024), MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 1, Timeout: 8, RetryCnt: 7, RNRRetry: 6,
		RQPSN: 100, SQPSN: 100,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(peerAddr), PortNum: 1, HopLimit: 64},
	}
	if peer != nil {
		a.DestQPN = peer.Num()
	}
	if peerAddr.Is6() {
		a.AHAttr.SGIDIndex = 1
	}
	mask := ib.QPAttrState
	switch s {
	case ib.QPStateInit:
		mask |= ib.QPAttrPKeyIndex | ib.QPAttrPort
		if q.Type() == ib.UD {
			mask |= ib.QPAttrQKey
		} else {
			mask |= ib.QPAttrAccessFlags
		}
	case ib.QPStateRTR:
		switch q.Type() {
		case ib.RC, ib.XRCRecv:
			mask |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
			fallthrough
		case ib.UC, ib.XRCSend:
			mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
		}
	case ib.QPStateRTS:
		mask |= ib.QPAttrSQPSN
		switch q.Type() {
		case ib.RC, ib.XRCSend:
			mask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
		case ib.XRCRecv:
			mask |= ib.QPAttrTimeout
		}
	}
	if err := q.Modify(&a, mask); err != nil {
		n.t.Fatal(err)
	}
}

// pair makes two queue pairs of one type, connected if it has connections.
func (r *rig) pair(typ ib.QPType) (qa, qb *verbs.QP) {
	r.t.Helper()
	return r.connect(r.a.attr(typ), r.b.attr(typ))
}

func (r *rig) connect(aa, ab *verbs.QPInitAttr) (qa, qb *verbs.QP) {
	r.t.Helper()
	qa, qb = r.a.qp(aa), r.b.qp(ab)
	r.a.to(qa, ib.QPStateRTS, qb, r.b.addr)
	r.b.to(qb, ib.QPStateRTS, qa, r.a.addr)
	return qa, qb
}

// wcs runs the network until the queue has given n completions.
func (r *rig) wcs(cq *verbs.CQ, n int) []verbs.WC {
	r.t.Helper()
	got := make([]verbs.WC, 0, n)
	buf := make([]verbs.WC, n)
	take := func() bool {
		k, err := cq.Poll(buf[:n-len(got)])
		if err != nil {
			r.t.Fatal(err)
		}
		got = append(got, buf[:k]...)
		return len(got) == n
	}
	r.net.Kick(r.a.port)
	r.net.Kick(r.b.port)
	if !r.net.Run(take, 60e9) {
		r.t.Fatalf("%d of %d completions: %+v", len(got), n, got)
	}
	return got
}

// quiet runs the network for a while and checks that nothing completes.
func (r *rig) quiet(cq *verbs.CQ) {
	r.t.Helper()
	r.net.Kick(r.a.port)
	r.net.Kick(r.b.port)
	r.net.RunFor(1e9)
	buf := make([]verbs.WC, 4)
	if n, err := cq.Poll(buf); n != 0 || err != nil {
		r.t.Fatalf("unexpected: %+v, %v", buf[:n], err)
	}
}

// statuses are the statuses of completions.
func statuses(wcs []verbs.WC) []ib.WCStatus {
	s := make([]ib.WCStatus, len(wcs))
	for i := range wcs {
		s[i] = wcs[i].Status
	}
	return s
}
