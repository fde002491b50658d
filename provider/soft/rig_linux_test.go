package soft

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// patience is how long a test waits before it takes something for lost.
const patience = 30 * time.Second

const allRights = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic

const testQKey = 0x1234

// setup is how a test wants a host; zero values are usual.
type setup struct {
	addrs  []netip.Addr // one of 127.0.0.0/8
	netdev string       // lo
	link   int          // MTU of the link
	udp    udp.Config
	shards int
	size   int // bytes of memory
	notify func()
}

// host is an open device over real sockets, with memory and a queue for completions.
type host struct {
	t     testing.TB
	dev   *Device
	port  *udp.Port
	pd    driver.PD
	cq    driver.CQ
	buf   []byte
	mr    driver.MR
	addrs []netip.Addr
	rest  []func() error
}

func newHost(t testing.TB, c setup) *host {
	t.Helper()
	if c.addrs == nil {
		c.addrs = []netip.Addr{loopAddr()}
	}
	if c.netdev == "" {
		c.netdev = "lo"
	}
	if c.size == 0 {
		c.size = 64 << 10
	}
	h := &host{t: t, addrs: c.addrs, buf: make([]byte, c.size)}
	var err error
	h.port, err = udp.Open(c.udp)
	must(t, err)
	h.dev, err = NewDevice(Config{
		Name: "soft_test", NetDev: c.netdev, LinkMTU: c.link, Addrs: c.addrs, Port: h.port, Shards: c.shards,
	})
	must(t, err)
	t.Cleanup(h.close)
	h.pd, err = h.dev.AllocPD()
	must(t, err)
	h.cq, err = h.dev.CreateCQ(1<<14, c.notify)
	must(t, err)
	h.mr, err = h.pd.RegMR(h.buf, 0, false, allRights)
	must(t, err)
	h.later(h.pd.Dealloc)
	h.later(h.cq.Destroy)
	h.later(h.mr.Dereg)
	return h
}

// later has f called, in reverse order, when the host is closed.
func (h *host) later(f func() error) { h.rest = append(h.rest, f) }

func (h *host) close() {
	h.t.Helper()
	for i := len(h.rest) - 1; i >= 0; i-- {
		if err := h.rest[i](); err != nil {
			h.t.Error(err)
		}
	}
	if err := errors.Join(h.dev.Leaks(), h.dev.Close()); err != nil {
		h.t.Error(err)
	}
}

// end is one queue pair with where it is.
type end struct {
	driver.QP
	h   *host
	gid int
	typ ib.QPType
}

func (h *host) attr(typ ib.QPType) *driver.QPInitAttr {
	return &driver.QPInitAttr{
		SendCQ: h.cq, RecvCQ: h.cq, Type: typ,
		Cap: ib.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 220},
	}
}

func (h *host) qp(typ ib.QPType, gid int) *end { h.t.Helper(); return h.qpWith(h.attr(typ), gid) }

func (h *host) qpWith(a *driver.QPInitAttr, gid int) *end {
	h.t.Helper()
	q, err := h.dev.CreateQP(h.pd, a, nil)
	must(h.t, err)
	h.later(q.Destroy)
	return &end{q, h, gid, a.Type}
}

func (e *end) addr() netip.Addr { return e.h.addrs[e.gid] }

func (e *end) init() error {
	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	if e.typ == ib.UD {
		mask |= ib.QPAttrQKey
	} else {
		mask |= ib.QPAttrAccessFlags
	}
	return e.Modify(&ib.QPAttr{
		QPState: ib.QPStateInit, PortNum: 1, QKey: testQKey,
		QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessFlushGlobal,
	}, mask)
}

func (e *end) rtr(peer *end, mtu ib.MTU) error {
	mask := ib.QPAttrState
	if e.typ != ib.UD {
		mask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	if e.typ == ib.RC || e.typ == ib.XRCRecv {
		mask |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
	}
	return e.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: mtu, DestQPN: peer.Num(), RQPSN: 0xFFFFF0, MaxDestRDAtomic: 16, MinRNRTimer: 1,
		AHAttr: e.ah(peer),
	}, mask)
}

func (e *end) ah(peer *end) ib.AHAttr {
	return ib.AHAttr{
		IsGlobal: true, DGID: ib.GIDFromAddr(peer.addr().WithZone("")), SGIDIndex: uint8(e.gid), PortNum: 1,
		HopLimit: 64, TrafficClass: 0x20,
	}
}

func (e *end) rts() error { return e.rtsWith(14, 7) }

func (e *end) rtsWith(timeout, retry uint8) error {
	mask := ib.QPAttrState | ib.QPAttrSQPSN
	switch e.typ {
	case ib.RC, ib.XRCSend:
		mask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
	case ib.XRCRecv:
		mask |= ib.QPAttrTimeout
	}
	return e.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTS, SQPSN: 0xFFFFF0, Timeout: timeout, RetryCnt: retry, RNRRetry: 7, MaxRDAtomic: 16,
	}, mask)
}

func (e *end) up(peer *end, mtu ib.MTU) {
	e.h.t.Helper()
	must(e.h.t, e.init())
	must(e.h.t, e.rtr(peer, mtu))
	must(e.h.t, e.rts())
}

func join(a, b *end, mtu ib.MTU) {
	a.h.t.Helper()
	a.up(b, mtu)
	if b != a {
		b.up(a, mtu)
	}
}

// sge names a piece of the host's memory.
func (h *host) sge(off, n int) []driver.SGE {
	return []driver.SGE{{Addr: h.mr.Addr() + uint64(off), Length: uint32(n), LKey: h.mr.LKey()}}
}

func (e *end) send(wr driver.SendWR) {
	e.h.t.Helper()
	wr.Flags |= ib.SendSignaled
	_, err := e.PostSend([]driver.SendWR{wr})
	must(e.h.t, err)
}

func (e *end) recv(id uint64, off, n int) {
	e.h.t.Helper()
	_, err := e.PostRecv([]driver.RecvWR{{WRID: id, SGList: e.h.sge(off, n)}})
	must(e.h.t, err)
}

func wcFrom(t testing.TB, c driver.CQ, dev *Device) driver.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wc [1]driver.WC
	for {
		n, err := c.Poll(wc[:])
		must(t, err)
		if n == 1 {
			return wc[0]
		}
		if err := c.Wait(ctx); err != nil {
			t.Fatalf("wait: %v; %v", err, dev.Counters())
		}
	}
}

// wc waits for one completion with the status.
func (h *host) wc(want ib.WCStatus) driver.WC {
	h.t.Helper()
	wc := wcFrom(h.t, h.cq, h.dev)
	if wc.Status != want {
		h.t.Fatalf("completion %+v: %v, want %v; %v; %v", wc, wc.Status, want, h.addrs, h.dev.Counters())
	}
	return wc
}

func (h *host) ok() driver.WC { h.t.Helper(); return h.wc(ib.WCSuccess) }

func (h *host) fill(seed uint64) { randomize(h.buf, seed) }

func randomize(b []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b)
}

func sum(b []byte) uint32 { return crc32.ChecksumIEEE(b) }

// newNetwork gives the test's goroutine, and the thread under it, a network of
// its own; subtests do not see it. It goes away with the test.
func newNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
}

// must6 skips where IPv6 is off or the address is somebody's.
func must6(t testing.TB, err error) {
	t.Helper()
	for _, e := range []syscall.Errno{syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.EADDRINUSE} {
		if errors.Is(err, e) {
			t.Skip(err)
		}
	}
	must(t, err)
}
