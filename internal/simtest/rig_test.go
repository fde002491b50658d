package simtest

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// rig is a network for directed tests: devices with one region and one
// completion queue each.
type rig struct {
	t   testing.TB
	net *simnet.Net
	at  []*host
}

type host struct {
	r    *rig
	dev  *soft.Device
	port *simnet.Port
	addr netip.Addr
	pd   driver.PD
	cq   driver.CQ
	mr   driver.MR
	mem  []byte
	wcs  []driver.WC // polled and not taken
}

const rigMemory = 1 << 20

const allAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

// newRig makes hosts with the given port configuration.
func newRig(t testing.TB, seed uint64, hosts int, cfg simnet.Config) *rig {
	t.Helper()
	r := &rig{t: t, net: simnet.New(seed)}
	for i := range hosts {
		h := &host{r: r, addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), mem: make([]byte, rigMemory)}
		h.port = r.net.NewPort(cfg)
		var err error
		h.dev, err = soft.NewDevice(soft.Config{
			Name: "soft", Port: h.port, Addrs: []netip.Addr{h.addr}, Clock: r.net.Now, Seed: seed*16 + uint64(i) + 1, Manual: true,
		})
		r.must(err)
		r.net.Attach(h.port, h.dev.Turn)
		h.pd, err = h.dev.AllocPD()
		r.must(err)
		h.cq, err = h.dev.CreateCQ(4096, nil)
		r.must(err)
		h.mr, err = h.pd.RegMR(h.mem, 0, false, allAccess)
		r.must(err)
		r.at = append(r.at, h)
		t.Cleanup(func() { _ = h.dev.Close() })
	}
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (h *host) qp(typ ib.QPType) driver.QP {
	h.r.t.Helper()
	q, err := h.dev.CreateQP(h.pd, &driver.QPInitAttr{
		SendCQ: h.cq, RecvCQ: h.cq, Type: typ, SQSigAll: true,
		Cap: ib.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 256},
	}, nil)
	h.r.must(err)
	return q
}

// params are the attributes of a connection that tests care about.
type params struct {
	mtu                                ib.MTU
	timeout, retry, rnrRetry, rnrTimer uint8
	rdAtomic                           uint8
}

var usual = params{mtu: ib.MTU1024, timeout: 12, retry: 7, rnrRetry: 7, rnrTimer: 12, rdAtomic: 4}

// pair connects two RC queue pairs.
func (r *rig) pair(a, b *host, p params) (driver.QP, driver.QP) {
	r.t.Helper()
	qa, qb := a.qp(ib.RC), b.qp(ib.RC)
	a.connect(qa, b, qb, p)
	b.connect(qb, a, qa, p)
	return qa, qb
}

func (h *host) connect(q driver.QP, far *host, peer driver.QP, p params) {
	h.r.t.Helper()
	attr := ib.QPAttr{
		QPState: ib.QPStateInit, PortNum: 1, QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic,
		PathMTU: p.mtu, DestQPN: peer.Num(), MaxDestRDAtomic: p.rdAtomic, MinRNRTimer: p.rnrTimer,
		AHAttr:  ib.AHAttr{DGID: ib.GIDFromAddr(far.addr), HopLimit: 64, IsGlobal: true, PortNum: 1},
		Timeout: p.timeout, RetryCnt: p.retry, RNRRetry: p.rnrRetry, MaxRDAtomic: p.rdAtomic,
		SQPSN: uint32(q.Num()), RQPSN: uint32(peer.Num()),
	}
	h.r.must(q.Modify(&attr, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
	attr.QPState = ib.QPStateRTR
	h.r.must(q.Modify(&attr, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer))
	attr.QPState = ib.QPStateRTS
	h.r.must(q.Modify(&attr, ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRDAtomic))
}

// sge names n bytes of the host's region.
func (h *host) sge(off, n int) []driver.SGE {
	return []driver.SGE{{Addr: h.mr.Addr() + uint64(off), Length: uint32(n), LKey: h.mr.LKey()}}
}

func (h *host) send(q driver.QP, wrs ...driver.SendWR) {
	h.r.t.Helper()
	if n, err := q.PostSend(wrs); err != nil || n != len(wrs) {
		h.r.t.Fatalf("post_send: %d of %d, %v", n, len(wrs), err)
	}
	h.r.net.Kick(h.port)
}

func (h *host) recv(q driver.QP, wrs ...driver.RecvWR) {
	h.r.t.Helper()
	if n, err := q.PostRecv(wrs); err != nil || n != len(wrs) {
		h.r.t.Fatalf("post_recv: %d of %d, %v", n, len(wrs), err)
	}
}

// polled looks for completions without waiting.
func (h *host) polled() []driver.WC {
	h.r.t.Helper()
	var b [64]driver.WC
	for {
		n, err := h.cq.Poll(b[:])
		h.r.must(err)
		h.wcs = append(h.wcs, b[:n]...)
		if n < len(b) {
			return h.wcs
		}
	}
}

// take waits for n completions, at most d ns of virtual time.
func (h *host) take(n int, d int64) []driver.WC {
	h.r.t.Helper()
	if !h.r.net.Run(func() bool { return len(h.polled()) >= n }, d) {
		h.r.t.Fatalf("%d completions of %d after %d ns: %+v", len(h.wcs), n, d, h.wcs)
	}
	out := h.wcs[:n:n]
	h.wcs = h.wcs[n:]
	return out
}

// expect waits for completions with the given statuses, in order.
func (h *host) expect(d int64, want ...ib.WCStatus) []driver.WC {
	h.r.t.Helper()
	got := h.take(len(want), d)
	for i := range got {
		if got[i].Status != want[i] {
			h.r.t.Fatalf("completion %d: %+v, want status %v", i, got[i], want[i])
		}
	}
	return got
}
