package udp

import (
	"testing"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// Datagrams that find the receive buffer full are counted, each, and the count
// stays when the port is closed.
func TestOverflowIsCounted(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{RecvBuf: 1})
	from, local := addLoopback(t, a)
	to, _ := addLoopback(t, b)
	f := flow(from, to, local)
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	const n = 100
	sent := 0
	for range n / 10 {
		for range 10 {
			put(t, tx, f, sent, make([]byte, 1000))
			sent++
		}
		a.Send(tx)
		tx.Reset()
	}
	got := 0
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	for b.Recv(&rx) > 0 {
		for i := range rx.Dgrams {
			d := &rx.Dgrams[i]
			got += (len(d.Data) + d.SegSize - 1) / d.SegSize
		}
	}
	lost := b.Stats().RxOverflow
	if lost == 0 || got == 0 || got+int(lost) != n {
		t.Errorf("%d arrived, %d counted as dropped, of %d", got, lost, n)
	}
	if a.Stats().RxOverflow != 0 {
		t.Error("the sender dropped something")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if after := b.Stats().RxOverflow; after != lost {
		t.Errorf("%d after Close", after)
	}
}
