package soft

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// side is one end of a connection over real sockets.
type side struct {
	dev  *Device
	pd   driver.PD
	cq   driver.CQ
	qp   driver.QP
	buf  []byte
	mr   driver.MR
	addr netip.Addr
}

// loopAddr picks a loopback address that other tests do not use at the moment.
func loopAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(10 + rand.IntN(200)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
}

func newSide(t testing.TB, typ ib.QPType, size int, tune func(*driver.QPInitAttr)) *side {
	t.Helper()
	s := &side{addr: loopAddr()}
	p, err := udp.Open(udp.Config{})
	must(t, err)
	s.dev, err = NewDevice(Config{Name: "soft_test", NetDev: "lo", Addrs: []netip.Addr{s.addr}, Port: p})
	must(t, err)
	t.Cleanup(func() { s.close(t) })
	s.pd, err = s.dev.AllocPD()
	must(t, err)
	s.cq, err = s.dev.CreateCQ(4096, nil)
	must(t, err)
	s.buf = make([]byte, size)
	s.mr, err = s.pd.RegMR(s.buf, 0, false, ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead|ib.AccessRemoteAtomic)
	must(t, err)
	a := driver.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, Type: typ,
		Cap: ib.QPCap{MaxSendWR: 256, MaxRecvWR: 256, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 220},
	}
	if tune != nil {
		tune(&a)
	}
	s.qp, err = s.dev.CreateQP(s.pd, &a, func(e ib.EventType) { t.Logf("event %v", e) })
	must(t, err)
	return s
}

func (s *side) close(t testing.TB) {
	for _, f := range []func() error{s.qp.Destroy, s.cq.Destroy, s.mr.Dereg, s.pd.Dealloc} {
		must(t, f())
	}
	if err := s.dev.Leaks(); err != nil {
		t.Error(err)
	}
	must(t, s.dev.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *side) connect(t testing.TB, peer *side, mtu ib.MTU) {
	t.Helper()
	must(t, s.qp.Modify(&ib.QPAttr{
		QPState: ib.QPStateInit, PortNum: 1,
		QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic,
	}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
	must(t, s.qp.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: mtu, DestQPN: peer.qp.Num(), RQPSN: 100, MaxDestRDAtomic: 16, MinRNRTimer: 12,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(peer.addr), PortNum: 1},
	}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer))
	must(t, s.qp.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTS, SQPSN: 100, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16,
	}, ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRDAtomic))
}

// wait waits for one completion, which must be a success.
func (s *side) wait(t testing.TB) driver.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wc [1]driver.WC
	for {
		n, err := s.cq.Poll(wc[:])
		must(t, err)
		if n == 1 {
			if wc[0].Status != ib.WCSuccess {
				t.Fatalf("completion %+v: %v", wc[0], wc[0].Status)
			}
			return wc[0]
		}
		if err := s.cq.Wait(ctx); err != nil {
			t.Fatalf("wait: %v; %v", err, s.dev.Counters())
		}
	}
}

func pair(t testing.TB, typ ib.QPType, size int) (a, b *side) {
	a, b = newSide(t, typ, size, nil), newSide(t, typ, size, nil)
	a.connect(t, b, ib.MTU4096)
	b.connect(t, a, ib.MTU4096)
	return a, b
}

func (s *side) sge(off, n int) []driver.SGE {
	return []driver.SGE{{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}}
}

func (s *side) post(t testing.TB, wr driver.SendWR) {
	t.Helper()
	wr.Flags |= ib.SendSignaled
	if _, err := s.qp.PostSend([]driver.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
}

func TestRealSockets(t *testing.T) {
	const size = 8 << 20
	a, b := pair(t, ib.RC, size)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range a.buf {
		a.buf[i] = byte(rnd.Uint32())
	}
	sync := func() { // the race detector does not see the order that packets make
		a.dev.eng.Quiesce()
		b.dev.eng.Quiesce()
	}
	for _, n := range []int{0, 1, 8, 4095, 4096, 4097, 65536, 1 << 20, size} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			clear(b.buf)
			sync()
			a.post(t, driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: a.sge(0, n), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
			a.wait(t)
			sync()
			if !bytes.Equal(a.buf[:n], b.buf[:n]) {
				t.Fatal("written data differs")
			}
			clear(b.buf)
			sync()
			b.post(t, driver.SendWR{Opcode: ib.WRRDMARead, SGList: b.sge(0, n), RemoteAddr: a.mr.Addr(), RKey: a.mr.RKey()})
			b.wait(t)
			sync()
			if !bytes.Equal(a.buf[:n], b.buf[:n]) {
				t.Fatal("read data differs")
			}
			clear(b.buf)
			sync()
			if _, err := b.qp.PostRecv([]driver.RecvWR{{WRID: 7, SGList: b.sge(0, size)}}); err != nil {
				t.Fatal(err)
			}
			a.post(t, driver.SendWR{Opcode: ib.WRSendWithImm, SGList: a.sge(0, n), ImmData: 42})
			if wc := b.wait(t); wc.WRID != 7 || int(wc.ByteLen) != n || wc.ImmData != 42 || !bytes.Equal(a.buf[:n], b.buf[:n]) {
				t.Fatalf("received %+v", wc)
			}
			a.wait(t)
		})
	}
	t.Logf("a: %v", a.dev.Counters())
	t.Logf("b: %v", b.dev.Counters())
}
