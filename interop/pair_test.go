//go:build interop && linux

package interop

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

const (
	// patience is for completions that come; a translated guest on a busy machine is slow.
	patience  = 20 * time.Second
	allAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic
	peerQKey  = 0x11223344
	// startPSN lets the serial numbers wrap in every test.
	startPSN = 0xFFFFF0
)

// end is one of two connected queue pairs.
type end struct {
	*peer
	t    *testing.T
	id   int
	info *reply
	to   *end
	size int
	// closed: nothing is left at the peer.
	closed bool
}

func (e *end) close() {
	if !e.closed {
		e.closed = true
		e.do(e.t, &request{Op: "close", QP: e.id})
	}
}

// link says what is special about a pair of queue pairs. The zero value of a field is a usual one.
type link struct {
	service  string // RC
	family   int    // 4
	mtu      int    // 1024
	size     int    // of the memory on each side, 64 KiB
	access   ib.Access
	qpAccess ib.Access
	// noAccess: access and qpAccess are really 0.
	noAccess, noQPAccess bool
	timeout, retries     uint8 // 17 (537 ms) and 6: kernel 6.1 takes 7 for infinite
	rnrRetries           uint8 // 7, infinite
	noRNR                bool  // really 0
	rnrTimer             uint8 // 12, 0.64 ms
}

// connect makes a queue pair on each side and connects them; they are destroyed at the end of the test. Only the responder has what
// l says about access.
func connect(t *testing.T, requester, responder *peer, l link) (*end, *end) {
	t.Helper()
	def := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	if l.service == "" {
		l.service = "RC"
	}
	if l.family == 0 {
		l.family = 4
	}
	if l.mtu == 0 {
		l.mtu = 1024
	}
	if l.size == 0 {
		l.size = 64 << 10
	}
	if l.access == 0 && !l.noAccess {
		l.access = allAccess
	}
	if l.qpAccess == 0 && !l.noQPAccess {
		l.qpAccess = allAccess
		if l.service == "UC" {
			l.qpAccess = ib.AccessRemoteWrite
		}
	}
	def(&l.timeout, 17)
	def(&l.retries, 6)
	def(&l.rnrTimer, 12)
	if !l.noRNR {
		def(&l.rnrRetries, 7)
	}
	a, b := &end{peer: requester, t: t, size: l.size}, &end{peer: responder, t: t, size: l.size}
	a.to, b.to = b, a
	for _, e := range []*end{a, b} {
		access, qpAccess := l.access, l.qpAccess
		if e == a {
			access, qpAccess = allAccess, ib.AccessRemoteWrite
		}
		e.info = e.do(t, &request{
			Op: "qp", Type: l.service, Family: l.family, Size: l.size, Access: access, QPAccess: qpAccess, QKey: peerQKey,
		})
		e.id = e.info.QP
		t.Cleanup(e.close)
	}
	for _, e := range []*end{b, a} {
		e.do(t, &request{
			Op: "connect", QP: e.id, GID: e.to.info.GID, QPN: e.to.info.QPN, PSN: startPSN, PeerPSN: startPSN, MTU: l.mtu,
			Timeout: l.timeout, RetryCnt: l.retries, RNRRetry: l.rnrRetries, RNRTimer: l.rnrTimer, RDAtomic: 4,
		})
	}
	return a, b
}

func (e *end) ask(r *request) (*reply, error) {
	r.QP = e.id
	return e.peer.ask(r)
}

func (e *end) must(r *request) *reply {
	e.t.Helper()
	r.QP = e.id
	return e.do(e.t, r)
}

func (e *end) fill(off, length int, seed uint64) {
	e.t.Helper()
	e.must(&request{Op: "fill", Off: off, Length: length, Seed: seed})
}

// holds wants the bytes to be the stream of the seed.
func (e *end) holds(off, length int, seed uint64) {
	e.t.Helper()
	if got := e.must(&request{Op: "digest", Off: off, Length: length}).Text; got != digest(stream(seed, length)) {
		e.t.Errorf("%s: %d bytes at %d are not those of seed %d", e.name, length, off, seed)
	}
}

// word reads a 64-bit number.
func (e *end) bytes(off, length int) string {
	e.t.Helper()
	return e.must(&request{Op: "bytes", Off: off, Length: length}).Text
}

// recv posts a receive into the elements.
func (e *end) recv(wrid uint64, sges ...[2]int) {
	e.t.Helper()
	e.must(&request{Op: "recv", WRID: wrid, SGEs: sges})
}

// send posts a request to the peer's memory at remote; r has the rest.
func (e *end) send(r *request, remote int) {
	e.t.Helper()
	r.Op = "send"
	r.Flags |= ib.SendSignaled
	if r.RKey == 0 {
		r.RKey = e.to.info.RKey
	}
	if r.RemoteAddr == 0 {
		r.RemoteAddr = e.to.info.Addr + uint64(remote)
	}
	e.must(r)
}

// poll waits for n completions; fewer are an error of the test.
func (e *end) poll(n int) []completion {
	e.t.Helper()
	wcs := e.must(&request{Op: "poll", Count: n, TimeoutMS: patience.Milliseconds()}).WCs
	if len(wcs) != n {
		e.t.Fatalf("%s: %d of %d completions: %+v; state %v", e.name, len(wcs), n, wcs, e.must(&request{Op: "state"}).State)
	}
	return wcs
}

// one wants one completion with a status.
func (e *end) one(want ib.WCStatus) completion {
	e.t.Helper()
	wc := e.poll(1)[0]
	if wc.Status != want {
		e.t.Fatalf("%s: completion %+v: %v, want %v", e.name, wc, wc.Status, want)
	}
	return wc
}

// quiet wants no completion; what would come has come when it is called.
func (e *end) quiet() {
	e.t.Helper()
	if wcs := e.must(&request{Op: "poll", Count: 1, TimeoutMS: 1}).WCs; len(wcs) != 0 {
		e.t.Errorf("%s: a completion too many: %+v", e.name, wcs)
	}
}

// state wants a state.
func (e *end) state(want ib.QPState) {
	e.t.Helper()
	if got := e.must(&request{Op: "state"}).State; got != want {
		e.t.Errorf("%s: state %v, want %v", e.name, got, want)
	}
}

// events wants exactly these asynchronous events on Verbena; rxe raises none for errors of queue pairs.
func (p *peer) events(t *testing.T, want ...ib.EventType) {
	t.Helper()
	if p.kernel {
		want = nil
	}
	got := p.do(t, &request{Op: "events", Count: len(want)}).Events
	if !slices.Equal(got, want) {
		t.Errorf("%s: events %v, want %v", p.name, got, want)
	}
}

// directions are who asks and who answers.
func directions(ours, kernel *peer) []struct{ requester, responder *peer } {
	return []struct{ requester, responder *peer }{{ours, kernel}, {kernel, ours}}
}

func direction(requester, responder *peer) string {
	return fmt.Sprintf("%s-to-%s", requester.name, responder.name)
}

// cleanDevice fails t if Verbena counts drops between this call and the end of the test, but for stale responses: those of requests
// that were sent again.
func cleanDevice(t *testing.T, ours *peer) {
	t.Helper()
	ours.do(t, &request{Op: "events"}) // those of tests before
	before := ours.do(t, &request{Op: "counters"}).Counters
	t.Cleanup(func() {
		after := ours.do(t, &request{Op: "counters"}).Counters
		for name, v := range after {
			n := v - before[name]
			switch {
			case n == 0 || len(name) < 4 || name[:4] != "Drop":
			case name == "DropStale" || name == "DropDuplicate" || name == "DropRNRWait":
				t.Logf("verbena: %s rose by %d", name, n)
			default:
				t.Errorf("verbena: %s rose by %d", name, n)
			}
		}
	})
}
