package capture

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/internal/trace"
)

// What a captured packet costs the data path, and what fits through.
func BenchmarkPacket(b *testing.B) {
	for _, n := range []int{8, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, err := New(Options{W: io.Discard})
			if err != nil {
				b.Fatal(err)
			}
			p := udp(v4a, v4b, 50000, 0, strings.Repeat("x", n))
			k := &trace.Packet{Sent: true, Src: v4a, Dst: v4b, SrcPort: 50000, IDKnown: true, Head: p[:12], Rest: [][]byte{p[12:]}, Size: len(p)}
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				c.Packet(k)
			}
			b.ReportMetric(100*float64(c.Dropped())/float64(b.N), "%dropped")
			if err := c.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
