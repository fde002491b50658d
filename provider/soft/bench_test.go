package soft

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// The benchmarks here run both ends in one process: they find regressions of
// the path; what is compared with other software runs in two (bench/).

// BenchmarkWrite keeps 16 WRITEs under way.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{8, 4096, 65536, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			src, dst := pair(b, ib.RC, size)
			stop := poller(dst)
			defer stop()
			wr := []driver.SendWR{{
				Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: src.sge(0, size),
				RemoteAddr: dst.mr.Addr(), RKey: dst.mr.RKey(),
			}}
			wcs := make([]driver.WC, 16)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			for posted, done := 0, 0; done < b.N; {
				for posted < b.N && posted-done < 16 {
					if _, err := src.qp.PostSend(wr); err != nil {
						b.Fatal(err)
					}
					posted++
				}
				n, _ := src.cq.Poll(wcs)
				for _, wc := range wcs[:n] {
					if wc.Status != ib.WCSuccess {
						b.Fatal(wc.Status)
					}
				}
				done += n
			}
		})
	}
}

// BenchmarkWriteBatch posts lists of 32 small WRITEs of which the last is
// signaled.
func BenchmarkWriteBatch(b *testing.B) {
	src, dst := pair(b, ib.RC, 4096)
	stop := poller(dst)
	defer stop()
	wrs := make([]driver.SendWR, 32)
	for i := range wrs {
		wrs[i] = driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: src.sge(0, 8), RemoteAddr: dst.mr.Addr(), RKey: dst.mr.RKey()}
	}
	wrs[31].Flags = ib.SendSignaled
	wcs := make([]driver.WC, 16)
	b.ReportAllocs()
	b.ResetTimer()
	for posted, done := 0, 0; done < b.N; {
		for posted < b.N && posted-done < 128 {
			if _, err := src.qp.PostSend(wrs); err != nil {
				b.Fatal(err)
			}
			posted += 32
		}
		n, _ := src.cq.Poll(wcs)
		done += 32 * n
	}
}

// BenchmarkLatency is half a ping-pong of 8-byte WRITEs, each side watching its
// memory.
func BenchmarkLatency(b *testing.B) {
	x, y := pair(b, ib.RC, 16)
	done := make(chan struct{})
	go func() {
		defer close(done)
		pingpong(y, x, b.N, false)
	}()
	b.ResetTimer()
	pingpong(x, y, b.N, true)
	<-done
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half")
}

func pingpong(s, peer *side, n int, first bool) {
	// Plain loads: a benchmark does not run under the race detector, and the poll
	// between two of them keeps the compiler from merging them.
	seen := func() uint64 { return binary.NativeEndian.Uint64(s.buf[8:]) }
	wr := []driver.SendWR{{
		Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled | ib.SendInline, InlineData: make([]byte, 8),
		RemoteAddr: peer.mr.Addr() + 8, RKey: peer.mr.RKey(),
	}}
	wcs := make([]driver.WC, 16)
	for i := 1; i <= n; i++ {
		if !first {
			for seen() != uint64(i) {
				_, _ = s.cq.Poll(wcs)
			}
		}
		binary.NativeEndian.PutUint64(wr[0].InlineData, uint64(i))
		for {
			if _, err := s.qp.PostSend(wr); err == nil {
				break
			}
			_, _ = s.cq.Poll(wcs)
		}
		if first {
			for seen() != uint64(i) {
				_, _ = s.cq.Poll(wcs)
			}
		}
	}
}

// poller makes progress for the passive side.
func poller(s *side) (stop func()) {
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		wcs := make([]driver.WC, 16)
		for !end.Load() {
			_, _ = s.cq.Poll(wcs)
		}
	}()
	return func() { end.Store(true); <-done }
}
