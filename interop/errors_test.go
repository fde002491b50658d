//go:build interop && linux

package interop

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// failure is work that must fail, and how each side tells. rdma_rxe of 6.1 differs from NICs, which Verbena follows, in what a
// responder reports; what goes over the wire is the same unless a comment says so.
type failure struct {
	name string
	link link
	// recv is what the responder posts before.
	recv *request
	work request
	// remote is the offset in the responder's memory.
	remote int
	// requester is the status at the requester, whichever side that is.
	requester ib.WCStatus
	// toKernel, if not 0, is the requester's status where the kernel answers, fromKernel where it asks.
	toKernel, fromKernel ib.WCStatus
	// refused: rxe's user space does not post it.
	refused bool
	// ours and kernel are the statuses of the receive: at Verbena, at the kernel. 0 with recv: the receive is flushed.
	ours, kernel ib.WCStatus
	// event is what Verbena raises as the responder.
	event ib.EventType
	// alive: the responder's queue pair stays in RTS.
	alive bool
	// counters may rise at the kernel.
	counters []string
}

const (
	// badKey is no key of any side: rxe's and Verbena's are near the peer's own.
	badKeyBits = 0xFFFF00
	wrSize     = 100
)

var (
	onePiece = [][2]int{{0, wrSize}}
	eight    = [][2]int{{0, 8}}
	reads    = allAccess &^ ib.AccessRemoteRead
	writes   = allAccess &^ ib.AccessRemoteWrite
	atomics  = allAccess &^ ib.AccessRemoteAtomic
)

var failures = []failure{
	// Keys, bounds and rights of memory: NAK 0x62.
	{name: "WRITE bad key", work: request{Opcode: ib.WRRDMAWrite, SGEs: onePiece, RKey: badKeyBits}, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "READ bad key", work: request{Opcode: ib.WRRDMARead, SGEs: onePiece, RKey: badKeyBits}, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "atomic bad key", work: request{Opcode: ib.WRAtomicFetchAndAdd, SGEs: eight, RKey: badKeyBits}, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "WRITE beyond", work: request{Opcode: ib.WRRDMAWrite, SGEs: onePiece}, remote: 64<<10 - wrSize + 1, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "WRITE beyond, long", work: request{Opcode: ib.WRRDMAWrite, SGEs: [][2]int{{0, 30000}}}, remote: 64<<10 - 30000 + 1, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "READ beyond", work: request{Opcode: ib.WRRDMARead, SGEs: onePiece}, remote: 64<<10 - wrSize + 1, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "WRITE before", work: request{Opcode: ib.WRRDMAWrite, SGEs: onePiece}, remote: -1, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "atomic beyond", work: request{Opcode: ib.WRAtomicCmpAndSwp, SGEs: eight}, remote: 64 << 10, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "WRITE memory forbids", link: link{access: writes}, work: request{Opcode: ib.WRRDMAWrite, SGEs: onePiece}, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "READ memory forbids", link: link{access: reads}, work: request{Opcode: ib.WRRDMARead, SGEs: onePiece}, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{name: "atomic memory forbids", link: link{access: atomics}, work: request{Opcode: ib.WRAtomicFetchAndAdd, SGEs: eight}, requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr},
	{
		name: "WRITE_IMM bad key", recv: &request{SGEs: onePiece}, work: request{Opcode: ib.WRRDMAWriteWithImm, SGEs: onePiece, RKey: badKeyBits},
		requester: ib.WCRemAccessErr, event: ib.EventQPAccessErr, ours: ib.WCLocAccessErr, kernel: ib.WCRemAccessErr,
	},

	// What the queue pair forbids, or no responder can do: NAK 0x61.
	{name: "WRITE queue pair forbids", link: link{qpAccess: writes}, work: request{Opcode: ib.WRRDMAWrite, SGEs: onePiece}, requester: ib.WCRemInvReqErr, event: ib.EventQPReqErr},
	{name: "READ queue pair forbids", link: link{qpAccess: reads}, work: request{Opcode: ib.WRRDMARead, SGEs: onePiece}, requester: ib.WCRemInvReqErr, event: ib.EventQPReqErr},
	{name: "atomic queue pair forbids", link: link{qpAccess: atomics}, work: request{Opcode: ib.WRAtomicFetchAndAdd, SGEs: eight}, requester: ib.WCRemInvReqErr, event: ib.EventQPReqErr},
	{name: "atomic misaligned", work: request{Opcode: ib.WRAtomicFetchAndAdd, SGEs: eight}, remote: 4, requester: ib.WCRemInvReqErr, refused: true, event: ib.EventQPReqErr},

	// Receives.
	{
		// rxe answers with NAK 0x63 where NICs say 0x61.
		name: "receive too short", recv: &request{SGEs: [][2]int{{0, wrSize - 1}}}, work: request{Opcode: ib.WRSend, SGEs: onePiece},
		requester: ib.WCRemInvReqErr, toKernel: ib.WCRemOpErr, ours: ib.WCLocLenErr, kernel: ib.WCLocQPOpErr,
	},
	{
		name: "receive with a bad key", recv: &request{SGEs: onePiece, BadLKey: true}, work: request{Opcode: ib.WRSend, SGEs: onePiece},
		requester: ib.WCRemOpErr, ours: ib.WCLocProtErr, kernel: ib.WCLocQPOpErr,
	},
	{
		name: "no receive", link: link{rnrRetries: 2}, work: request{Opcode: ib.WRSend, SGEs: onePiece}, requester: ib.WCRNRRetryExcErr, alive: true,
		counters: []string{"rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err"},
	},
	{
		name: "no receive for WRITE_IMM", link: link{noRNR: true}, work: request{Opcode: ib.WRRDMAWriteWithImm, SGEs: onePiece}, requester: ib.WCRNRRetryExcErr, alive: true,
		counters: []string{"rcvd_rnr_err", "send_rnr_err", "retry_rnr_exceeded_err"},
	},

	// At home.
	{name: "send with a bad key", work: request{Opcode: ib.WRSend, SGEs: onePiece, BadLKey: true}, requester: ib.WCLocProtErr, fromKernel: ib.WCLocQPOpErr, alive: true},
	{name: "READ into a bad key", work: request{Opcode: ib.WRRDMARead, SGEs: onePiece, BadLKey: true}, requester: ib.WCLocProtErr, alive: true},
}

// TestVerbsErrors: statuses, states and events of both sides when work fails, with each side as requester; and between two kernels,
// which shows what the kernel does by itself.
func TestVerbsErrors(t *testing.T) {
	ours, kernel := peers(t)
	all := append(directions(ours, kernel), struct{ requester, responder *peer }{kernel, kernel})
	for _, d := range all {
		for i := range failures {
			f := &failures[i]
			t.Run(fmt.Sprintf("%s/%s", direction(d.requester, d.responder), f.name), func(t *testing.T) {
				// Errors that the responder found are not in rxe's counters.
				kernelContent(t, f.counters...)
				ours.do(t, &request{Op: "events"})
				a, b := connect(t, d.requester, d.responder, f.link)
				b.fill(0, b.size, 1)
				if f.recv != nil {
					b.must(&request{Op: "recv", WRID: 1, SGEs: f.recv.SGEs, BadLKey: f.recv.BadLKey})
				}
				fail(t, f, a, b)
				var want []ib.EventType // a requester learns it by its completion
				if f.event != 0 && !d.responder.kernel && !(f.refused && d.requester.kernel) {
					want = append(want, f.event)
				}
				ours.events(t, want...)
			})
		}
	}
}

// fail does the work, wants it to fail as f says, and what comes behind to be flushed.
func fail(t *testing.T, f *failure, a, b *end) {
	t.Helper()
	wr := f.work
	wr.WRID = 10
	wr.Imm = 1
	if wr.RKey != 0 {
		wr.RKey ^= b.info.RKey
	}
	if f.refused && a.kernel {
		wr.Op, wr.Flags, wr.QP = "send", ib.SendSignaled, a.id
		wr.RKey, wr.RemoteAddr = b.info.RKey, b.info.Addr+uint64(f.remote)
		if r, err := a.ask(&wr); err != nil || r.Errno != syscall.EINVAL {
			t.Errorf("%s: posting: %+v %v, want EINVAL", a.name, r, err)
		}
		return
	}
	a.send(&wr, f.remote)
	want := f.requester
	if f.fromKernel != 0 && a.kernel {
		want = f.fromKernel
	}
	if f.toKernel != 0 && b.kernel {
		want = f.toKernel
	}
	if wc := a.one(want); wc.WRID != 10 {
		t.Errorf("%s: completion %+v", a.name, wc)
	}
	a.state(ib.QPStateErr)
	a.send(&request{WRID: 11, Opcode: ib.WRRDMAWrite, SGEs: onePiece}, 0)
	if wc := a.one(ib.WCWRFlushErr); wc.WRID != 11 {
		t.Errorf("%s: completion %+v", a.name, wc)
	}
	if f.recv != nil {
		want := f.ours
		if b.kernel {
			want = f.kernel
		}
		if wc := b.one(want); wc.WRID != 1 {
			t.Errorf("%s: completion %+v", b.name, wc)
		}
	}
	if f.alive {
		b.state(ib.QPStateRTS)
	} else {
		b.state(ib.QPStateErr)
		if !b.kernel { // rxe of 6.1 does not flush a receive that is posted in ERR
			b.recv(2, [2]int{0, 10})
			if wc := b.one(ib.WCWRFlushErr); wc.WRID != 2 {
				t.Errorf("%s: completion %+v", b.name, wc)
			}
		}
	}
	a.quiet()
	b.quiet()
	if f.ours == 0 { // a receive that was too short may have taken what fits
		b.holds(0, b.size, 1)
	}
}

// TestVerbsLate: a receive that is posted during the RNR wait is found, by SEND and by WRITE with immediate.
func TestVerbsLate(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWriteWithImm} {
			t.Run(fmt.Sprintf("%s/%v", direction(d.requester, d.responder), op), func(t *testing.T) {
				kernelContent(t, "rcvd_rnr_err", "send_rnr_err", "out_of_seq_request", "rcvd_seq_err")
				a, b := connect(t, d.requester, d.responder, link{rnrTimer: 24}) // 41 ms
				a.fill(0, 5000, 1)
				a.send(&request{Opcode: op, SGEs: [][2]int{{0, 5000}}}, 0)
				a.send(&request{Opcode: ib.WRRDMAWrite, SGEs: [][2]int{{0, 1000}}}, 8000)
				// 80 ms without a receive.
				if wcs := a.must(&request{Op: "poll", Count: 1, TimeoutMS: 80}).WCs; len(wcs) != 0 {
					t.Errorf("%s: %+v without a receive", a.name, wcs)
				}
				b.recv(1, [2]int{0, 6000})
				b.one(ib.WCSuccess)
				a.one(ib.WCSuccess)
				a.one(ib.WCSuccess)
				b.holds(0, 5000, 1)
				b.holds(8000, 1000, 1)
			})
		}
	}
}

// TestVerbsGone: a peer whose queue pair does not exist any more is noticed.
func TestVerbsGone(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMARead} {
			t.Run(fmt.Sprintf("%s/%v", direction(d.requester, d.responder), op), func(t *testing.T) {
				kernelContent(t, "retry_exceeded_err")
				a, b := connect(t, d.requester, d.responder, link{timeout: 12, retries: 2})
				b.close()
				a.send(&request{Opcode: op, SGEs: onePiece}, 0)
				a.one(ib.WCRetryExcErr)
				a.state(ib.QPStateErr)
			})
		}
	}
}

// TestVerbsForeignKey: SEND with invalidate of what cannot be invalidated, a plain region's key. The receive fails on both sides; rxe
// acknowledges before it looks at the key, a NIC and Verbena do not answer (IBA 9.9.6.3, class J).
func TestVerbsForeignKey(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		t.Run(direction(d.requester, d.responder), func(t *testing.T) {
			kernelContent(t, "retry_exceeded_err")
			ours.do(t, &request{Op: "events"})
			l := link{timeout: 14, retries: 2}
			if d.responder.kernel {
				l = link{}
			}
			a, b := connect(t, d.requester, d.responder, l)
			b.recv(1, [2]int{0, 1000})
			a.send(&request{Opcode: ib.WRSendWithInv, InvKey: b.info.RKey, SGEs: onePiece}, 0)
			b.one(ib.WCRemInvReqErr)
			b.state(ib.QPStateErr)
			want := ib.WCRetryExcErr
			if b.kernel {
				want = ib.WCSuccess
			}
			a.one(want)
			// The region lives.
			c, e := connect(t, d.requester, d.responder, link{})
			c.send(&request{Opcode: ib.WRRDMAWrite, SGEs: onePiece}, 0)
			c.one(ib.WCSuccess)
			e.quiet()
		})
	}
}
