package soft

import (
	"context"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Sending, receiving, handing over and sleeping allocate nothing where addresses are shared.
func TestSharedPathAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			const size = 64 << 10
			x, y := sharedPair(t, size, way)
			wcs := make([]driver.WC, 16)
			for _, c := range []struct {
				src, dst *side
				n        int
			}{{x, y, size}, {y, x, size}, {x, y, 8}} {
				wr := []driver.SendWR{{
					Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: c.src.sge(0, c.n), RemoteAddr: c.dst.mr.Addr(), RKey: c.dst.mr.RKey(),
				}}
				work := func() {
					for range 8 {
						if _, err := c.src.qp.PostSend(wr); err != nil {
							t.Error(err)
						}
					}
					for done := 0; done < 8; {
						n, _ := c.src.cq.Poll(wcs)
						if done += n; n == 0 {
							if err := c.src.cq.Wait(context.Background()); err != nil {
								t.Error(err)
							}
						}
					}
				}
				for range 50 {
					work()
				}
				// Other goroutines of the process, those of the group, are counted too: the best of some runs
				// is this path's.
				n := testing.AllocsPerRun(100, work)
				for range 4 {
					n = min(n, testing.AllocsPerRun(100, work))
				}
				if n >= 1 {
					t.Errorf("%d bytes: %v allocations for eight WRITEs", c.n, n)
				}
			}
		})
	}
}
