package rc

import (
	"testing"

	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// A responder learns from READs alone whether its segments arrive.
func TestReadResponsesProbeSegmentation(t *testing.T) {
	for _, tt := range []struct {
		name    string
		drop    bool // second segments do not arrive
		want    transport.GSOState
		repeats int
	}{{"arrive", false, transport.GSOOn, 0}, {"vanish", true, transport.GSOOff, 8}} {
		t.Run(tt.name, func(t *testing.T) {
			o := defaults()
			w := newWorld(t, o)
			w.b.q.Dest = transport.NewDest(addrOf(w.a), transport.GSOUnknown)
			w.b.qp.req.dest = w.b.q.Dest
			fill(w.b.buf, 3)

			w.hook = func(s *seen, p *roce.Packet) fate {
				if s.from == w.b && s.id > 1 && w.b.q.Dest.GSO == transport.GSOUnknown {
					t.Errorf("segment %d while nobody knows whether segments arrive", s.id)
				}
				if tt.drop && s.from == w.b && s.id > 0 {
					return drop
				}
				return pass
			}
			for i := range 8 {
				w.a.post(w.a.read(uint64(i), 0, 0, 64<<10))
				w.run(0)
				if !same(w.a.buf[:64<<10], w.b.buf[:64<<10]) {
					t.Fatalf("READ %d: wrong data", i)
				}
				clear(w.a.buf)
			}
			w.want("completions", wcs(w.a.scq), "0:success 1:success 2:success 3:success 4:success 5:success 6:success 7:success")
			w.want("state", w.b.q.Dest.GSO, tt.want)
			if n := w.a.env.Stats.Retransmits; n > uint64(tt.repeats) {
				t.Errorf("%d requests were repeated, want at most %d", n, tt.repeats)
			}
			w.idle()
		})
	}
}

// Random losses do not switch it off.
func TestReadResponsesSegmentedInSpiteOfLoss(t *testing.T) {
	w := newWorld(t, defaults())
	w.b.q.Dest = transport.NewDest(addrOf(w.a), transport.GSOUnknown)
	w.b.qp.req.dest = w.b.q.Dest
	n := 0
	w.hook = func(s *seen, p *roce.Packet) fate {
		if n++; s.from == w.b && n%37 == 0 {
			return drop
		}
		return pass
	}
	for i := range 40 {
		w.a.post(w.a.read(uint64(i), 0, 0, 8<<10))
		w.run(0)
	}
	w.want("state", w.b.q.Dest.GSO, transport.GSOOn)
}
