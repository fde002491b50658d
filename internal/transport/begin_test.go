package transport_test

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// One send takes 1,024 fragments (UIO_MAXIOV), also where memory comes in crumbs:
// fast registration takes slices that are neighbours, however short, and what is
// refused is sent again until the retries are used up.
func TestPacketsOfCrumbs(t *testing.T) {
	const payload, most = 4096, 1024
	memory := make([]byte, payload)
	f := &pkt.Flow{Path: roce.NewPath(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 50000)}
	for _, size := range []int{1, 16, 40, 64, 66, 67, 128, payload} {
		e := &transport.Env{Tx: pkt.NewTx(pkt.TxCaps{MaxSegs: 64}), Stats: new(transport.Stats)}
		sent := 0
		e.Send = func() {
			for _, m := range e.Tx.Msgs {
				if m.Count > most {
					t.Errorf("pieces of %d bytes: a message of %d fragments", size, m.Count)
				}
				sent += m.Segs
			}
			e.Sent()
			e.Tx.Reset()
		}
		packet := func() {
			h := e.Begin(f, roce.BTHLen, payload, (payload+size-1)/size, false)
			roce.BTH(h).Put(roce.OpRCSendMiddle, false, 0, 0xFFFF, 7, false, psn.PSN(1))
			for at := 0; at < payload; at += size {
				if err := e.Tx.Payload(memory[at:min(at+size, payload)]); err != nil {
					t.Fatal(err)
				}
			}
			e.Tx.End()
		}
		const packets = 40
		if n := testing.AllocsPerRun(packets-1, packet); n != 0 {
			t.Errorf("pieces of %d bytes: %v allocations a packet", size, n)
		}
		if e.Send(); sent != packets {
			t.Errorf("pieces of %d bytes: %d packets of %d", size, sent, packets)
		}
	}
}
