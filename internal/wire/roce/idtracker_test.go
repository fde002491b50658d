package roce

import (
	"math/rand/v2"
	"testing"
)

const testSeed = 20240611

// feed gives ids to the tracker and returns how many it refused.
func feed(t *IDTracker, ids ...uint16) (refused int) {
	for _, id := range ids {
		if !t.Plausible(id) {
			refused++
		}
	}
	return refused
}

func count(from uint16, n int) []uint16 {
	ids := make([]uint16, n)
	for i := range ids {
		ids[i] = from + uint16(i)
	}
	return ids
}

// refusedOf returns how many of all 65536 values a tracker in this state would refuse.
func refusedOf(t IDTracker) (n int) {
	for id := range 0x10000 {
		c := t
		if !c.Plausible(uint16(id)) {
			n++
		}
	}
	return n
}

func TestIDTrackerSegments(t *testing.T) {
	var tr IDTracker
	for range 100 {
		if n := feed(&tr, count(0, 128)...); n != 0 {
			t.Fatalf("%d segments refused", n)
		}
	}
	if got, want := refusedOf(tr), 0x10000-idLow; got != want {
		t.Errorf("an address that sends only low values: %d of 65536 refused, want %d", got, want)
	}
}

func TestIDTrackerCounter(t *testing.T) {
	for _, start := range []uint16{0, 1, 127, 128, 1000, 30000, 0xF000, 0xFFFF} {
		var tr IDTracker
		// Who begins with many low values looks like a sender of segments until the second value that is not.
		allowed := 0
		if start < idLow-idLearnLow {
			allowed = 1
		}
		if n := feed(&tr, count(start, 200000)...); n > allowed {
			t.Errorf("counting from %d: %d refused", start, n)
		}
		// 4096 back, the value itself, 4096 ahead, and the low ones, which overlap or not.
		if got := 0x10000 - refusedOf(tr); got < 2*idWindow+1 || got > 2*idWindow+1+idLow {
			t.Errorf("counting from %d: %d values are plausible", start, got)
		}
	}
}

func TestIDTrackerStepsAndReorder(t *testing.T) {
	t.Logf("seed %d", testSeed)
	r := rand.New(rand.NewPCG(testSeed, 0))
	var tr IDTracker
	base := 40000
	for i := range 100000 {
		base += r.IntN(64) // the counter counts packets to others as well
		id := uint16(base - r.IntN(1024))
		if !tr.Plausible(id) {
			t.Fatalf("packet %d with identification %d refused", i, id)
		}
	}
}

// TestIDTrackerJump: a jump costs one packet, wherever it goes.
func TestIDTrackerJump(t *testing.T) {
	for _, to := range []uint16{10000, 20000, 50000, 1000 + idWindow + 1, 0x10000 + 1000 - idWindow - 1} {
		var tr IDTracker
		feed(&tr, count(900, 101)...) // last is 1000
		if n := feed(&tr, count(to, 1000)...); n != 1 {
			t.Errorf("jump from 1000 to %d: %d refused, want 1", to, n)
		}
		if n := feed(&tr, count(to+1000, 100000)...); n != 0 {
			t.Errorf("after a jump to %d: %d refused", to, n)
		}
	}
}

// TestIDTrackerTwoSources: an address with a counting sender and one that sends segments, in turn, from either start.
func TestIDTrackerTwoSources(t *testing.T) {
	for _, lowFirst := range []bool{false, true} {
		var tr IDTracker
		refused := 0
		if lowFirst {
			refused += feed(&tr, count(0, 64)...)
		}
		for i := range 1000 {
			refused += feed(&tr, count(uint16(30000+i*8), 8)...)
			refused += feed(&tr, count(0, 16)...)
		}
		if refused > 1 {
			t.Errorf("low first %v: %d refused", lowFirst, refused)
		}
	}
}

// TestIDTrackerManyCounters: more counters than the tracker knows, as with one counter per queue pair. Nothing may be refused for
// long.
func TestIDTrackerManyCounters(t *testing.T) {
	t.Logf("seed %d", testSeed)
	r := rand.New(rand.NewPCG(testSeed, 1))
	for _, n := range []int{2, 4, 5, 16, 200} {
		var tr IDTracker
		next := make([]uint16, n)
		for i := range next {
			next[i] = uint16(r.Uint32())
		}
		refused, late := 0, 0
		for i := range 200000 {
			k := r.IntN(n)
			next[k]++
			if !tr.Plausible(next[k]) {
				refused++
				if i > 100000 {
					late++
				}
			}
		}
		if refused > 16 || late > 0 {
			t.Errorf("%d counters: %d refused, %d of them late", n, refused, late)
		}
	}
}

// TestIDTrackerRandomSender: a sender with random identifications loses a few packets, then none.
func TestIDTrackerRandomSender(t *testing.T) {
	t.Logf("seed %d", testSeed)
	r := rand.New(rand.NewPCG(testSeed, 2))
	var tr IDTracker
	refused := 0
	for range 100000 {
		if !tr.Plausible(uint16(r.Uint32())) {
			refused++
		}
	}
	if refused > idCostLimit/idCostBad {
		t.Errorf("%d refused", refused)
	}
	// When it counts, it is checked again.
	feed(&tr, count(7000, 2*idCostMax)...)
	if got := refusedOf(tr); got < 0x8000 {
		t.Errorf("after %d plausible packets only %d of 65536 values are refused", 2*idCostMax, got)
	}
}

// TestIDTrackerCorruption: among the packets of a counting sender, corrupt ones with random identifications are refused, and the
// good ones are not.
func TestIDTrackerCorruption(t *testing.T) {
	t.Logf("seed %d", testSeed)
	r := rand.New(rand.NewPCG(testSeed, 3))
	var tr IDTracker
	next := uint16(50000)
	corrupt, passed := 0, 0
	for i := range 2000000 {
		if i%5000 == 4999 { // far more often than Solve ever lets one pass
			corrupt++
			if tr.Plausible(uint16(r.Uint32())) {
				passed++
			}
			continue
		}
		next++
		if !tr.Plausible(next) {
			t.Fatalf("packet %d refused: a corrupt one misled the tracker", i)
		}
	}
	if passed*4 > corrupt {
		t.Errorf("%d of %d corrupt packets passed", passed, corrupt)
	}
}

// TestIDTrackerIdle: the Linux kernel adds up to one count per clock tick of silence.
func TestIDTrackerIdle(t *testing.T) {
	t.Logf("seed %d", testSeed)
	r := rand.New(rand.NewPCG(testSeed, 4))
	var tr IDTracker
	now, next := int64(1e18), uint16(1)
	for i := range 20000 {
		idle := int64(r.ExpFloat64() * 5e9)
		now += idle
		next += 1 + uint16(r.Int64N(idle/1e6+1))
		if !tr.PlausibleAt(now, next) {
			t.Fatalf("packet %d after %d ms of silence refused", i, idle/1e6)
		}
	}
	// Time that stands still or goes back is no time.
	if got := refusedOf(tr); got < 0x8000 {
		t.Errorf("without a clock only %d of 65536 values are refused", got)
	}
	for id := range 0x10000 {
		c, d := tr, tr
		if c.PlausibleAt(now-1e12, uint16(id)) != d.Plausible(uint16(id)) {
			t.Fatalf("time going back changes the answer for %d", id)
		}
	}
}

func BenchmarkIDTracker(b *testing.B) {
	b.ReportAllocs()
	var tr IDTracker
	for i := 0; b.Loop(); i++ {
		tr.PlausibleAt(int64(i)*1000, uint16(i))
	}
}
