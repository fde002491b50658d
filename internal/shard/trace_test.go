package shard

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Every packet of a batch is shown with its own headers, size and
// identification, however the packets share sends and memory; Copy shows all of
// it, Head nothing of registered memory.
func TestTraceTx(t *testing.T) {
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	f := &pkt.Flow{Path: roce.NewPath(src, dst, 50000), TClass: 0x28, HopLimit: 9}
	for _, segs := range []int{1, 64} {
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: segs})
		payload := bytes.Repeat([]byte{0xEE}, 4096)
		type want struct{ hdr, size int }
		var wants []want
		for i, n := range []int{4096, 4096, 4096, 100, 0, 0, 8, 256, 257, 1, 4095, 4096} {
			hdr := roce.BTHLen
			if i%3 == 0 {
				hdr += roce.RETHLen
			}
			h := tx.Begin(f, hdr, n)
			for j := range h {
				h[j] = byte(i)
			}
			roce.BTH(h).SetPSN(psn.PSN(i))
			for left := n; left > 0; {
				k := min(left, 1500)
				if err := tx.Payload(payload[:k]); err != nil {
					t.Fatal(err)
				}
				left -= k
			}
			tx.End()
			wants = append(wants, want{hdr, hdr + n + (-n)&3 + roce.ICRCLen})
		}
		i := 0
		traceTx(func(p *trace.Packet) {
			if i >= len(wants) {
				t.Fatal("too many packets")
			}
			w := wants[i]
			whole := make([]byte, w.size+10)
			if n := p.Copy(whole); n != w.size || !f.Check(whole[:n], p.ID) || !p.IDKnown || p.TOS != 0x28 || p.TTL != 9 || p.SrcPort != 50000 {
				t.Errorf("%d segments, packet %d: %d bytes with identification %d: %x", segs, i, n, p.ID, whole)
			}
			if !p.Sent || p.Time != 7 || p.Src != src || p.Dst != dst || p.Size != w.size || len(p.Head) < w.hdr || len(p.Head) > w.size {
				t.Errorf("%d segments, packet %d: %+v, want size %d", segs, i, *p, w.size)
			} else if h := roce.BTH(p.Head[:roce.BTHLen]); int(h.PSN()) != i || h[0] != byte(i) || p.Head[w.hdr-1] != byte(i) {
				t.Errorf("%d segments, packet %d: header %x", segs, i, p.Head[:w.hdr])
			}
			if w.size > pkt.InlineCopy+60 && bytes.Contains(p.Head, payload[:8]) {
				t.Errorf("packet %d shows payload", i)
			}
			i++
		}, 7, tx)
		if i != len(wants) {
			t.Errorf("%d packets of %d", i, len(wants))
		}
	}
}
