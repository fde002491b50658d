package transport

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func newDest(gso GSOState) *Dest { return NewDest(netip.MustParseAddr("192.0.2.1"), gso) }

func TestWindowStartsBelowADefaultSocketBuffer(t *testing.T) {
	d := newDest(GSOOn)
	n := 0
	for d.Room(4112) {
		d.Sent(4112)
		n++
	}
	if n != WindowStartBytes/4112 {
		t.Errorf("%d full packets may leave, want %d", n, WindowStartBytes/4112)
	}
	d = newDest(GSOOn)
	for n = 0; d.Room(40); n++ {
		d.Sent(40)
	}
	if n != WindowStartPkts {
		t.Errorf("%d small packets may leave, want %d", n, WindowStartPkts)
	}
}

func TestWindowGrowsOnlyWhenItIsTheLimit(t *testing.T) {
	var e Env
	d := newDest(GSOOn)
	for range 10000 {
		d.Sent(40)
		d.Acked(&e, 40, 1)
	}
	if d.limitBytes != WindowStartBytes {
		t.Errorf("a ping-pong grew the window to %d", d.limitBytes)
	}
	for d.Room(4112) {
		d.Sent(4112)
	}
	d.Acked(&e, d.bytes, d.pkts)
	if d.limitBytes <= WindowStartBytes {
		t.Errorf("a full window that arrived left it at %d", d.limitBytes)
	}
	if !d.Idle() {
		t.Error("not idle after everything arrived")
	}
}

func TestWindowHalvesOnceForOneOverflow(t *testing.T) {
	e := Env{Now: 5e9}
	d := newDest(GSOOn)
	for range 8 {
		d.Lost(&e)
		e.Now += 1000
	}
	if d.limitBytes != WindowStartBytes/2 {
		t.Errorf("8 losses in 8 us: window %d, want %d", d.limitBytes, WindowStartBytes/2)
	}
	for range 20 {
		e.Now += 2e6
		d.Lost(&e)
	}
	if d.limitBytes != windowMinBytes || d.limitPkts < windowMinPkts {
		t.Errorf("after many losses %d bytes, %d packets", d.limitBytes, d.limitPkts)
	}
	if d.GSO != GSOOn {
		t.Error("segmentation went off where it never was in doubt")
	}
}

// TestProbe: on after a proven second segment, off after two rounds in which
// next to nothing arrived, tried again after long success.
func TestProbe(t *testing.T) {
	var e Env
	d := newDest(GSOUnknown)
	if d.GSO.MaxSegs() != 2 {
		t.Errorf("unknown: batches of %d", d.GSO.MaxSegs())
	}
	d.Sent(40)
	d.Sent(40)
	d.Acked(&e, 80, 2)
	if d.GSO != GSOUnknown {
		t.Error("lone packets proved segmentation")
	}
	d.Probed()
	if d.GSO != GSOOn || d.GSO.MaxSegs() != 0 {
		t.Errorf("after the probe: %v", d.GSO)
	}
	for range 100 { // an ordinary lossy path
		e.Now += 2e6
		d.since += 10
		d.Lost(&e)
	}
	if d.GSO != GSOOn {
		t.Error("losses with progress between them switched segmentation off")
	}
	for range 3 { // only first segments arrive
		e.Now += 2e6
		d.Sent(4112)
		d.Acked(&e, 4112, 1)
		d.Lost(&e)
	}
	if d.GSO != GSOOff || d.GSO.MaxSegs() != 1 {
		t.Errorf("after rounds of one packet each: %v", d.GSO)
	}
	for range gsoRetry {
		d.Sent(40)
		d.Acked(&e, 40, 1)
	}
	if d.GSO != GSOUnknown {
		t.Errorf("after %d packets without loss: %v", gsoRetry, d.GSO)
	}
}

// TestWaitersWakeOnce: everybody who waits gets one Post when there is room,
// none is forgotten, none is woken twice.
func TestWaitersWakeOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e Env
		d := newDest(GSOOn)
		qps := make([]QP, rapid.IntRange(1, 8).Draw(t, "qps"))
		waiting := make(map[*QP]bool)
		for range 200 {
			q := &qps[rapid.IntRange(0, len(qps)-1).Draw(t, "qp")]
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				if n := rapid.IntRange(20, 4128).Draw(t, "n"); d.Room(n) {
					d.Sent(n)
				} else {
					d.Wait(q)
					waiting[q] = true
				}
			case 2:
				if d.pkts > 0 {
					k := rapid.IntRange(1, d.pkts).Draw(t, "k")
					d.Acked(&e, d.bytes*k/d.pkts, k)
				}
			case 3:
				d.Leave(q)
				delete(waiting, q)
			}
			for _, w := range e.Ready {
				if !waiting[w] {
					t.Fatal("woken without waiting")
				}
				delete(waiting, w)
			}
			e.Ready = e.Ready[:0]
			if d.pkts == 0 && len(waiting) > 0 {
				t.Fatalf("%d wait although nothing is under way", len(waiting))
			}
			if d.bytes < 0 || d.pkts < 0 {
				t.Fatalf("window went to %d bytes, %d packets", d.bytes, d.pkts)
			}
		}
	})
}

// A READ of more bytes than a small window has gets its turn beside others.
func TestRoomForLargeInSmallWindow(t *testing.T) {
	e := &Env{}
	d := NewDest(netip.MustParseAddr("192.0.2.1"), GSOOn)
	for i := range 20 {
		e.Now = int64(i+1) * 10_000_000
		d.Lost(e)
	}
	const large = 66 << 10
	d.Sent(100)
	if !d.Room(large) {
		t.Error("no room beside one small packet")
	}
	d.Sent(large)
	if d.Room(large) || d.Room(100) {
		t.Error("room for more than one of them")
	}
	d.Forget(e, large+100, 2)
	for range 10 {
		d.Sent(1000)
	}
	if d.Room(large) {
		t.Error("room beside more than half a window")
	}
	if !d.Room(1000) {
		t.Error("no room for a small packet")
	}
}
