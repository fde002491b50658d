package host

import (
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A steward that stops is replaced before a connection gives up that it relays for, by a clock that
// the test moves: ibv_rc_pingpong's timers (timeout 14, retry 7) end after 537 ms, and the last repetition,
// 67 ms before, has to find somebody.
func TestStaleInTime(t *testing.T) {
	const retry = (4096 << 14) / 1_000_000 // ms
	const last = 7 * retry
	name := private(t)
	steward := start(t, name, nil)
	steward.do("join")
	var now atomic.Int64
	now.Store(1e12)
	g := mustJoin(t, Config{IfIndex: 1, Private: name, Now: now.Load})
	addr := netip.MustParseAddr("127.0.0.1")
	s, err := g.Sockets(addr, makeSockets(1))
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(s.Control)
	at, err := unix.Getsockname(s.Control)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendto(s.Control, []byte{1}, 0, at); err != nil { // something for the steward to read
		t.Fatal(err)
	}
	word := g.d.load(hdrSteward)
	steward.signal(syscall.SIGSTOP)

	l := new(loop)
	l.init()
	if err := l.open(g); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.follow(g, word, now.Load())
	g.d.add(hdrBeat, 1) // the last one, just after a look
	ms := 0
	for ; !g.Steward(); l.follow(g, word, now.Load()) {
		if ms > 10_000 {
			t.Fatal("it is never replaced")
		}
		wait := l.lookAgain(g)
		ms += wait
		now.Add(int64(wait) * 1e6)
	}
	if ms < int(g.cfg.Heartbeat.Milliseconds())*2 || ms > last {
		t.Errorf("replaced after %d ms, at most %d are left", ms, last)
	}
}
