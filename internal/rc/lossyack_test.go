package rc

import (
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// In a window that losses made small the loss of one ACK does not stop a
// message until the timer ends.
func TestLostAckDoesNotStopSmallWindow(t *testing.T) {
	for k := range 10 {
		w := newWorld(t, defaults())
		for range 4 {
			w.now += 2 * ms
			w.a.env.Now = w.now
			w.a.q.Dest.Lost(&w.a.env)
		}
		acks := 0
		w.hook = func(s *seen, _ *roce.Packet) fate {
			if s.from == w.b && s.op == roce.OpRCAcknowledge {
				if acks++; acks == k+1 {
					return drop
				}
			}
			return pass
		}
		w.a.post(w.a.write(1, 0, 0, 256<<10))
		w.run(0)
		w.want("completion", wcs(w.a.scq), "1:success")
		if n := w.a.env.Stats.LocalTimeouts; n != 0 && k+1 < acks {
			t.Errorf("ACK %d of %d lost: %d timeouts", k, acks, n)
		}
		if acks <= k {
			t.Errorf("only %d ACKs", acks)
		}
		w.idle()
	}
}
