package soft

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Work whose owner neither polls nor waits goes on: the background thread reads,
// acknowledges, and sends again what a receiver without a receive refused, with
// no ACK timer to help.
func TestAbsentOwners(t *testing.T) {
	ha, hb := newHost(t, setup{}), newHost(t, setup{})
	a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
	for _, e := range [][2]*end{{a, b}, {b, a}} {
		must(t, e[0].init())
		must(t, e[0].rtr(e[1], ib.MTU1024))
		must(t, e[0].rtsWith(0, 7)) // timeout 0: never
	}
	for round := range 50 {
		// A poll that is not followed by another must leave nothing behind.
		if round%3 == 0 {
			ha.dev.Progress()
			hb.dev.Progress()
		}
		a.send(driver.SendWR{Opcode: ib.WRSend})
		if round%2 == 0 { // refused at least once
			for before := ha.dev.Stats().RcvdRNR; ha.dev.Stats().RcvdRNR == before; {
				ha.dev.Progress()
			}
		}
		b.recv(0, 0, 0)
		for hb.cq.(*cq).q.Empty() || ha.cq.(*cq).q.Empty() {
			// Looks, but makes no progress.
			ha.dev.eng.Quiesce()
		}
		both(t, a, b, 1, 1)
	}
}
