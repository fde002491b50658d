package udp

import (
	"sync/atomic"

	"github.com/verbena-rdma/verbena/internal/port"
)

// counters are port.Stats that several goroutines count. Senders and the
// receiver write different cache lines.
type counters struct {
	_ [64]byte

	txMsgs, txPackets, txBytes atomic.Uint64
	txErrors, txAgain, txFault atomic.Uint64
	gsoOff                     atomic.Uint64

	_ [64]byte

	rxDgrams, rxBytes, rxTrunc atomic.Uint64
	rxForeign, rxOverflow      atomic.Uint64
	rxGarbage                  atomic.Uint64
	relayed, relayLost         atomic.Uint64

	_ [64]byte
}

func (c *counters) stats() port.Stats {
	return port.Stats{
		TxMsgs: c.txMsgs.Load(), TxPackets: c.txPackets.Load(), TxBytes: c.txBytes.Load(),
		TxErrors: c.txErrors.Load(), TxAgain: c.txAgain.Load(), TxFault: c.txFault.Load(),
		RxDgrams: c.rxDgrams.Load(), RxBytes: c.rxBytes.Load(), RxTrunc: c.rxTrunc.Load(),
		RxForeign: c.rxForeign.Load(), RxGarbage: c.rxGarbage.Load(),
		Relayed: c.relayed.Load(), RelayLost: c.relayLost.Load(),
		GSOOff: c.gsoOff.Load(),
	}
}

// sent sums what one Send got rid of.
type sent struct{ msgs, packets, bytes, errors, again, fault uint64 }

func (c *counters) add(s *sent) {
	add(&c.txMsgs, s.msgs)
	add(&c.txPackets, s.packets)
	add(&c.txBytes, s.bytes)
	add(&c.txErrors, s.errors)
	add(&c.txAgain, s.again)
	add(&c.txFault, s.fault)
}

func add(c *atomic.Uint64, n uint64) {
	if n != 0 {
		c.Add(n)
	}
}
