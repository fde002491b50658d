package rc

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const flushed = "Work Request Flushed Error"

// Real work requests that fail at the responder: what both sides see, as NICs
// do it (the NIC column of the status table).
func TestFailuresOnBothSides(t *testing.T) {
	type row struct {
		name   string
		opt    func(*options)
		prep   func(w *world)
		wr     func(w *world) driver.SendWR
		nak    string // syndrome@PSN of the last response of B, "" = none
		a      string // status of the WR
		bRecv  string
		event  ib.EventType
		events int
	}
	send := func(n int) func(*world) driver.SendWR {
		return func(w *world) driver.SendWR { return w.a.sendWR(1, 0, n) }
	}
	badKey := func(op ib.WROpcode, n int) func(*world) driver.SendWR {
		return func(w *world) driver.SendWR {
			wr := w.a.write(1, 0, 0, n)
			wr.Opcode, wr.RKey = op, wr.RKey^0x100
			return wr
		}
	}
	recv := func(n int) func(*world) {
		return func(w *world) { w.b.recv(50, w.b.sge(0, n)); w.b.recv(51, w.b.sge(0, 10)) }
	}
	noQP := func(a ib.Access) func(*options) { return func(o *options) { o.access &^= a } }
	noMR := func(a ib.Access) func(*options) { return func(o *options) { o.mrAccess &^= a } }
	op := func(op ib.WROpcode, va int) func(*world) driver.SendWR {
		return func(w *world) driver.SendWR {
			wr := w.a.atomicWR(1, op, 0, 0, 1, 2)
			wr.RemoteAddr += uint64(va)
			return wr
		}
	}
	const req, acc = ib.EventQPReqErr, ib.EventQPAccessErr
	rows := []row{
		{"SEND longer than the buffer", nil, recv(99), send(100), "61@0", "remote invalid request error", "50:local length error 51:" + flushed, 0, 0},
		{"SEND longer, in a later packet", nil, recv(1500), send(2000), "61@1", "remote invalid request error", "50:local length error 51:" + flushed, 0, 0},
		{"bad L_Key in the receive", nil, func(w *world) {
			s := w.b.sge(0, 100)
			s.LKey ^= 0x100
			w.b.recv(50, s)
			w.b.recv(51)
		}, send(100), "63@0", "remote operation error", "50:local protection error 51:" + flushed, 0, 0},
		{"receive memory without local write", noMR(ib.AccessLocalWrite | allRemote), recv(100), send(100), "63@0", "remote operation error", "50:local protection error 51:" + flushed, 0, 0},
		{"WRITE, bad R_Key", nil, recv(10), badKey(ib.WRRDMAWrite, 8), "62@0", "remote access error", "50:" + flushed + " 51:" + flushed, acc, 1},
		{"WRITE of many packets, bad R_Key", nil, recv(10), badKey(ib.WRRDMAWrite, 5000), "62@0", "remote access error", "50:" + flushed + " 51:" + flushed, acc, 1},
		{"READ, bad R_Key", nil, recv(10), badKey(ib.WRRDMARead, 5000), "62@0", "remote access error", "50:" + flushed + " 51:" + flushed, acc, 1},
		{"atomic, bad R_Key", nil, recv(10), badKey(ib.WRAtomicFetchAndAdd, 8), "62@0", "remote access error", "50:" + flushed + " 51:" + flushed, acc, 1},
		{"WRITE_IMM, bad R_Key", nil, recv(10), badKey(ib.WRRDMAWriteWithImm, 8), "62@0", "remote access error", "50:local access error 51:" + flushed, acc, 1},
		{"QP without REMOTE_WRITE", noQP(ib.AccessRemoteWrite), nil, badKey(ib.WRRDMAWrite, 8), "61@0", "remote invalid request error", "", req, 1},
		{"QP without REMOTE_READ", noQP(ib.AccessRemoteRead), nil, badKey(ib.WRRDMARead, 8), "61@0", "remote invalid request error", "", req, 1},
		{"case 48: QP without REMOTE_ATOMIC", noQP(ib.AccessRemoteAtomic), nil, op(ib.WRAtomicFetchAndAdd, 0), "61@0", "remote invalid request error", "", req, 1},
		{"case 48: misaligned atomic", nil, nil, op(ib.WRAtomicCmpAndSwp, 4), "61@0", "remote invalid request error", "", req, 1},
		{"case 48: MR without REMOTE_ATOMIC", noMR(ib.AccessRemoteAtomic), nil, op(ib.WRAtomicCmpAndSwp, 0), "62@0", "remote access error", "", acc, 1},
		{"MR without REMOTE_WRITE", noMR(ib.AccessRemoteWrite), nil, op(ib.WRRDMAWrite, 0), "62@0", "remote access error", "", acc, 1},
		{"MR without REMOTE_READ", noMR(ib.AccessRemoteRead), nil, op(ib.WRRDMARead, 0), "62@0", "remote access error", "", acc, 1},
		{"WRITE out of bounds by one byte", nil, nil, func(w *world) driver.SendWR {
			return w.a.write(1, 0, len(w.b.buf)-4999, 5000)
		}, "62@0", "remote access error", "", acc, 1},
		{"READ with no resources", func(o *options) { o.destRD = -1 }, nil, op(ib.WRRDMARead, 0), "61@0", "remote invalid request error", "", req, 1},
		{"SEND_INV with a bad key", func(o *options) { o.retry, o.timeout = 1, 5 }, recv(100), func(w *world) driver.SendWR {
			wr := w.a.sendWR(1, 0, 8)
			wr.Opcode, wr.InvalidateRKey = ib.WRSendWithInv, 0x1234
			return wr
		}, "", "transport retry counter exceeded", "50:remote invalid request error 51:" + flushed, 0, 0},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			o := defaults()
			if r.opt != nil {
				r.opt(&o)
			}
			if r.opt != nil && o.mrAccess&ib.AccessLocalWrite == 0 {
				o.mrAccess = 0
			}
			w := newWorld(t, o)
			fill(w.a.buf, 1)
			if r.prep != nil {
				r.prep(w)
			}
			w.a.post(r.wr(w))
			w.a.post(w.a.write(2, 0, 0, 8))
			w.run(0)
			w.want("NAK", w.ops(w.b, o.psn), r.nak)
			w.want("A", wcs(w.a.scq), "1:"+r.a+" 2:"+flushed)
			w.want("B's receives", wcs(w.b.rcq), r.bRecv)
			w.want("A's state", w.a.q.State, ib.QPStateErr)
			w.want("B's state", w.b.q.State, ib.QPStateErr)
			want := []ib.EventType{}
			if r.events > 0 {
				want = append(want, r.event)
			}
			w.want("events", w.b.events, want)
			if r.event == acc {
				w.want("memory untouched", same(w.b.buf, make([]byte, len(w.b.buf))), true)
			}
			w.idle()
		})
	}
}

// Case 23: a NAK to an atomic is an ACKNOWLEDGE with nothing but an AETH.
func TestCase23_NAKOfAtomicIsAcknowledge(t *testing.T) {
	w := newWorld(t, defaults())
	wr := w.a.atomicWR(1, ib.WRAtomicFetchAndAdd, 0, 0, 1, 0)
	wr.RKey ^= 0x100
	w.a.post(wr)
	w.run(0)
	last := w.log[len(w.log)-1]
	w.want("opcode", last.op, roce.OpRCAcknowledge)
	w.want("bytes", len(last.bth), 16)
	w.want("MSN does not count it", last.msn, 0)
}

func TestCase11_GoodBadBadGood(t *testing.T) {
	w := newWorld(t, defaults())
	bad := w.a.write(2, 0, 0, 8)
	bad.RKey ^= 0x100
	bad2 := bad
	bad2.WRID = 3
	w.a.push(w.a.write(1, 0, 0, 8))
	w.a.push(bad)
	w.a.push(bad2)
	w.a.push(w.a.write(4, 0, 0, 8))
	w.a.kick()
	w.run(0)
	w.want("completions", wcs(w.a.scq), "1:success 2:remote access error 3:"+flushed+" 4:"+flushed)
	w.a.post(w.a.write(5, 0, 0, 8))
	w.want("posted in Err", wcs(w.a.scq), "5:"+flushed)
}

// Requests that no correct requester sends.
func TestInvalidRequests(t *testing.T) {
	type pk struct {
		op  roce.Opcode
		n   int
		ext func(*world) func([]byte, *roce.OpInfo)
	}
	rw := func(n uint32) func(*world) func([]byte, *roce.OpInfo) {
		return func(w *world) func([]byte, *roce.OpInfo) { return reth(w.b.mr.Addr(), w.b.mr.RKey(), n) }
	}
	big := func(w *world) func([]byte, *roce.OpInfo) { return reth(w.b.mr.Addr(), w.b.mr.RKey(), 1<<31+1) }
	const mtu = 1024
	for name, seq := range map[string][]pk{
		"MIDDLE without FIRST":           {{roce.OpRCSendMiddle, mtu, nil}},
		"LAST without FIRST":             {{roce.OpRCWriteLast, 8, nil}},
		"FIRST in a message":             {{roce.OpRCSendFirst, mtu, nil}, {roce.OpRCSendFirst, mtu, nil}},
		"ONLY in a message":              {{roce.OpRCWriteFirst, mtu, rw(2000)}, {roce.OpRCSendOnly, 8, nil}},
		"WRITE in a SEND":                {{roce.OpRCSendFirst, mtu, nil}, {roce.OpRCWriteMiddle, mtu, nil}},
		"READ in a SEND":                 {{roce.OpRCSendFirst, mtu, nil}, {roce.OpRCReadRequest, 0, rw(8)}},
		"short FIRST":                    {{roce.OpRCSendFirst, mtu - 4, nil}},
		"short MIDDLE":                   {{roce.OpRCSendFirst, mtu, nil}, {roce.OpRCSendMiddle, 100, nil}},
		"empty LAST":                     {{roce.OpRCSendFirst, mtu, nil}, {roce.OpRCSendLast, 0, nil}},
		"long ONLY":                      {{roce.OpRCSendOnly, mtu + 4, nil}},
		"long LAST":                      {{roce.OpRCSendFirst, mtu, nil}, {roce.OpRCSendLast, mtu + 1, nil}},
		"WRITE_ONLY shorter than DMALen": {{roce.OpRCWriteOnly, 8, rw(9)}},
		"WRITE_ONLY longer than DMALen":  {{roce.OpRCWriteOnly, 8, rw(7)}},
		"WRITE_FIRST is all of DMALen":   {{roce.OpRCWriteFirst, mtu, rw(mtu)}},
		"WRITE_LAST too short":           {{roce.OpRCWriteFirst, mtu, rw(2000)}, {roce.OpRCWriteLast, 8, nil}},
		"WRITE_MIDDLE too much":          {{roce.OpRCWriteFirst, mtu, rw(2000)}, {roce.OpRCWriteMiddle, mtu, nil}},
		"WRITE beyond 2^31":              {{roce.OpRCWriteFirst, mtu, big}},
		"READ beyond 2^31":               {{roce.OpRCReadRequest, 0, big}},
		"READ with payload":              {{roce.OpRCReadRequest, 4, rw(8)}},
		"atomic with payload":            {{roce.OpRCFetchAdd, 4, nil}},
		"unknown opcode":                 {{roce.Opcode(0x1F), 0, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			o := defaults()
			w := newWorld(t, o)
			for i := range 3 {
				w.b.recv(uint64(i), w.b.sge(0, 100_000))
			}
			for i, p := range seq {
				var ext func([]byte, *roce.OpInfo)
				if p.ext != nil {
					ext = p.ext(w)
				}
				w.b.inject(p.op, o.psn+uint32(i), false, make([]byte, p.n), ext)
			}
			w.run(0)
			w.want("NAK", w.ops(w.b, o.psn), fmt.Sprintf("61@%d", len(seq)-1))
			w.want("state", w.b.q.State, ib.QPStateErr)
			w.want("events", w.b.events, []ib.EventType{ib.EventQPReqErr})
			w.want("receives", wcs(w.b.rcq), "0:"+flushed+" 1:"+flushed+" 2:"+flushed)
		})
	}
}

// What the completer makes of responses, injected.
func TestResponses(t *testing.T) {
	for _, r := range []struct {
		name   string
		op     roce.Opcode
		syn    roce.Syndrome
		psn    uint32
		n      int
		status string // of WR 2, a READ of 3000 bytes at PSN 1 to 3
	}{
		{"NAK invalid request", roce.OpRCAcknowledge, roce.NAKInvReq, 1, 0, "remote invalid request error"},
		{"NAK remote access", roce.OpRCAcknowledge, roce.NAKRemAccess, 1, 0, "remote access error"},
		{"NAK remote operation", roce.OpRCAcknowledge, roce.NAKRemOp, 1, 0, "remote operation error"},
		{"response is short", roce.OpRCReadRespFirst, roce.AckNoCredit, 1, 1000, "bad response error"},
		{"response ends early", roce.OpRCReadRespOnly, roce.AckNoCredit, 1, 1024, "bad response error"},
		{"MIDDLE first", roce.OpRCReadRespMiddle, 0, 1, 1024, "bad response error"},
		{"atomic response for a READ", roce.OpRCAtomicAck, roce.AckNoCredit, 1, 0, "bad response error"},
		{"response with a NAK code", roce.OpRCReadRespFirst, roce.NAKInvReq, 1, 1024, "bad response error"},
		{"response for a WRITE", roce.OpRCReadRespOnly, roce.AckNoCredit, 0, 8, "-"},
	} {
		t.Run(r.name, func(t *testing.T) {
			o := defaults()
			w := newWorld(t, o)
			w.hook = func(*seen, *roce.Packet) fate { return drop }
			w.a.push(w.a.write(1, 0, 0, 8))
			w.a.push(w.a.read(2, 0, 0, 3000))
			w.a.push(w.a.write(3, 0, 0, 8))
			w.a.kick()
			w.a.inject(r.op, o.psn+r.psn, false, make([]byte, r.n), func(h []byte, i *roce.OpInfo) {
				if i.AETH != 0 {
					aeth(r.syn)(h, i)
				}
			})
			w.run(w.now + 1)
			if r.status == "-" {
				w.want("completions", wcs(w.a.scq), "1:bad response error 2:"+flushed+" 3:"+flushed)
			} else {
				w.want("completions", wcs(w.a.scq), "1:success 2:"+r.status+" 3:"+flushed)
			}
			w.want("state", w.a.q.State, ib.QPStateErr)
			w.idle()
		})
	}
}

// A local error waits for earlier work, and completes in its turn.
func TestLocalProtectionError(t *testing.T) {
	for _, middle := range []bool{false, true} {
		o := defaults()
		w := newWorld(t, o)
		w.hook = func(s *seen, _ *roce.Packet) fate {
			if s.from == w.b {
				return hold
			}
			return pass
		}
		bad := w.a.write(2, 0, 0, 3000)
		if middle {
			bad.SGList = []driver.SGE{w.a.sge(0, 2000), w.a.sge(0, 1000)}
			bad.SGList[1].LKey ^= 0x100
		} else {
			bad.SGList[0].LKey ^= 0x100
		}
		w.a.push(w.a.write(1, 0, 0, 8))
		w.a.push(bad)
		w.a.push(w.a.write(3, 0, 0, 8))
		w.a.kick()
		w.run(w.now + 1000)
		w.want("not yet", wcs(w.a.scq), "")
		w.hook = nil
		w.release()
		w.run(0)
		w.want("completions", wcs(w.a.scq), "1:success 2:local protection error 3:"+flushed)
		w.want("state", w.a.q.State, ib.QPStateErr)
		w.idle()
	}
	// Where READ data and results go.
	for _, op := range []ib.WROpcode{ib.WRRDMARead, ib.WRAtomicFetchAndAdd} {
		w := newWorld(t, defaults())
		wr := w.a.atomicWR(1, op, 0, 0, 1, 0)
		wr.SGList[0].LKey ^= 0x100
		w.a.post(wr)
		w.run(0)
		w.want("sink", wcs(w.a.scq), "1:local protection error")
	}
}

func TestLocalUnknownOperation(t *testing.T) {
	w := newWorld(t, defaults())
	w.a.post(driver.SendWR{WRID: 1, Opcode: ib.WRTSO})
	w.want("completion", wcs(w.a.scq), "1:local QP operation error")
}
