package transport

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// A key is taken away between the packets that may refer to its memory and the
// wait for those who looked it up; where none was taken, nobody waits.
func TestRevoke(t *testing.T) {
	for _, taken := range []bool{true, false} {
		for _, packets := range []int{0, 1} {
			var got, want []string
			e := &Env{Tx: pkt.NewTx(pkt.TxCaps{MaxSegs: 1}), Stats: new(Stats)}
			e.Send = func() { got = append(got, "send"); e.Tx.Reset() }
			e.Settle = func() { got = append(got, "settle") }
			f := &pkt.Flow{Path: roce.NewPath(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 50000)}
			for range packets {
				roce.BTH(e.Tx.Begin(f, roce.BTHLen, 0)).Put(roce.OpRCSendOnly, false, 0, 0xFFFF, 7, false, psn.PSN(1))
				e.Tx.End()
				want = append(want, "send")
			}
			if want = append(want, "take"); taken {
				want = append(want, "settle")
			}
			if e.Revoke(func() bool { got = append(got, "take"); return taken }) != taken || !slices.Equal(got, want) {
				t.Errorf("taken %v, %d packets: %v, want %v", taken, packets, got, want)
			}
			e.Settle = nil // one shard: there is nobody to wait for
			if !e.Revoke(func() bool { return true }) {
				t.Error("not taken")
			}
		}
	}
}
