//go:build interop && linux

package netns

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// weather is a middlebox that drops, repeats and delays single packets at random.
type weather struct {
	rnd                       [2]*rand.Rand // one for each direction
	drop, repeat, delay       float64
	held                      [2][][]byte
	dropped, repeated, swaped atomic.Int64
}

func newWeather(seed uint64, drop, repeat, delay float64) *weather {
	return &weather{
		rnd:  [2]*rand.Rand{rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))},
		drop: drop, repeat: repeat, delay: delay,
	}
}

func (w *weather) pass(way int, ip []byte, forward func([]byte)) {
	r := w.rnd[way]
	switch x := r.Float64(); {
	case x < w.drop:
		w.dropped.Add(1)
	case x < w.drop+w.repeat:
		w.repeated.Add(1)
		forward(ip)
		forward(ip)
	case x < w.drop+w.repeat+w.delay:
		w.swaped.Add(1)
		w.held[way] = append(w.held[way], slices.Clone(ip))
		return
	default:
		forward(ip)
	}
	// What is held back comes behind one to three later packets.
	if len(w.held[way]) > 0 && r.IntN(3) == 0 {
		for _, p := range w.held[way] {
			forward(p)
		}
		w.held[way] = w.held[way][:0]
	}
}

// lossTimeout is 134 ms: short enough for a test that waits for it some twenty times, and long enough for a busy machine, on
// which the peer may not run for hundreds of milliseconds.
const lossTimeout = 15

// TestLoss: 30 MB arrive whole over a network that loses, repeats and reorders packets, with retry_cnt 7.
func TestLoss(t *testing.T) {
	for _, net := range []struct {
		name                string
		drop, repeat, delay float64
		families            []family
	}{
		{"2% lost", 0.02, 0, 0, families[:1]},
		{"1% lost 1% repeated 1% delayed", 0.01, 0.01, 0.01, families[:2]},
	} {
		for _, f := range net.families {
			t.Run(net.name+" "+f.name, func(t *testing.T) {
				const seed, n, count = 20240611, 1 << 20, 10
				w := newWeather(seed, net.drop, net.repeat, net.delay)
				r := newRelay(t, 9000, false, w.pass)
				a, b := r.a.open(t, "a"), r.b.open(t, "b")
				c := connect(a, b, connArgs{typ: ib.RC, addr: f.is, size: n * count, timeout: lossTimeout})
				wrote := c.write(n, count, 4, 1)
				read := c.read(n, count, 4, 2)
				c.message(n, count, 4, 3)
				c.atomics()
				m := a.counters()
				t.Logf("seed %d: 10 MiB written in %v, read in %v; the network dropped %d, repeated %d, delayed %d packets; a sent %d, %d of them again, %d timeouts, %d NAKs",
					seed, wrote, read, w.dropped.Load(), w.repeated.Load(), w.swaped.Load(), m["sent_pkts"], m["retrans_pkts"], m["local_ack_timeout_err"], m["rcvd_seq_err"])
				if w.dropped.Load() == 0 {
					t.Error("nothing was lost")
				}
			})
		}
	}
}
