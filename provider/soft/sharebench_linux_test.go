package soft

import (
	"context"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// sharedPair is pair with devices of a provider: on one address, or, if they do not share,
// on two.
func sharedPair(t testing.TB, size int, way string) (a, b *side) {
	addr := loopAddr()
	mk := func() *side {
		opts := []Option{WithAddrs("lo", addr)}
		switch way {
		case "alone":
			addr = loopAddr()
			opts = []Option{WithAddrs("lo", addr), WithoutSharing()}
		case "unsteered":
			opts = append(opts, WithoutSteering())
		case "relayed":
			opts = append(opts, WithoutSteering(), withoutHanding)
		}
		d, err := NewProvider(opts...).Open(context.Background(), "soft_lo")
		must(t, err)
		return newSideOn(t, d.(*Device), addr, ib.RC, size, nil)
	}
	a, b = mk(), mk()
	a.connect(t, b, ib.MTU4096)
	b.connect(t, a, ib.MTU4096)
	return a, b
}

// newSideOn is newSide on an open device.
func newSideOn(t testing.TB, d *Device, addr netip.Addr, typ ib.QPType, size int, tune func(*driver.QPInitAttr)) *side {
	t.Helper()
	s := &side{addr: addr, dev: d}
	t.Cleanup(func() { s.close(t) })
	var err error
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

// cpuTime is the processor time of this process in ns: on a busy machine it tells more than the
// clock.
func cpuTime(b *testing.B) int64 {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkShare is what sharing costs: 16 WRITEs of 64 KiB under way, the receiver polling or
// asleep, and half a ping-pong. What sleeps does so in its own process as well, see bench/.
func BenchmarkShare(b *testing.B) {
	for _, way := range []string{"alone", "steered", "unsteered", "relayed"} {
		for _, rx := range []string{"polls", "sleeps"} {
			b.Run(way+"/"+rx, func(b *testing.B) {
				const size = 64 << 10
				src, dst := sharedPair(b, size, way)
				if rx == "polls" {
					defer poller(dst)()
				}
				wr := []driver.SendWR{{
					Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: src.sge(0, size), RemoteAddr: dst.mr.Addr(), RKey: dst.mr.RKey(),
				}}
				wcs := make([]driver.WC, 16)
				b.SetBytes(size)
				b.ReportAllocs()
				b.ResetTimer()
				cpu := cpuTime(b)
				for posted, done := 0, 0; done < b.N; {
					for posted < b.N && posted-done < 16 {
						if _, err := src.qp.PostSend(wr); err != nil {
							b.Fatal(err)
						}
						posted++
					}
					n, _ := src.cq.Poll(wcs)
					if n == 0 && rx == "sleeps" {
						if err := src.cq.Wait(context.Background()); err != nil {
							b.Fatal(err)
						}
					}
					done += n
				}
				b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
			})
		}
		b.Run(way+"/latency", func(b *testing.B) {
			x, y := sharedPair(b, 16, way)
			done := make(chan struct{})
			go func() {
				defer close(done)
				pingpong(y, x, b.N, false)
			}()
			b.ResetTimer()
			pingpong(x, y, b.N, true)
			<-done
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half")
		})
	}
}
