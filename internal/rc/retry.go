package rc

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// rnrInfinite is the rnr_retry that never gives up. retry_cnt has no such
// value: 7 is seven retries.
const rnrInfinite = 7

// rnrTime is how long to wait after an RNR NAK, by its code, in units of 10 us
// (IBA table 45). Code 0 is the longest.
var rnrTime = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// rnrNanos is the time of an RNR timer code in ns.
func rnrNanos(code uint8) int64 { return int64(rnrTime[code&31]) * 10_000 }

// ackTimeout is the local ACK timeout of a code in ns: 4.096 us x 2^code, 0 =
// never (IBA 9.9.2.1.1).
func ackTimeout(code uint8) int64 {
	if code&31 == 0 {
		return 0
	}
	return 4096 << (code & 31)
}

// startTimer starts the ACK timer for the oldest packet under way.
func (r *requester) startTimer(e *transport.Env) {
	r.ackAt = 0
	if t := ackTimeout(r.b.Attr.Timeout); t != 0 {
		r.ackAt = e.Now + t
	}
}

// reload fills the retry counters, at the start and after progress.
func (r *requester) reload() {
	r.retries, r.rnrRetries = r.b.Attr.RetryCnt&7, r.b.Attr.RNRRetry&7
}

// timedOut handles the end of the ACK timer.
func (r *requester) timedOut(e *transport.Env) {
	e.Stats.LocalTimeouts++
	r.gapped = false
	r.retry(e)
}

// lostResponse handles the news that the response at una is lost: something
// later came. The READ or atomic is asked for again at once, but only once
// until something comes: more of what was in flight tells nothing new.
func (r *requester) lostResponse(e *transport.Env) {
	if r.gapped || r.rnrAt != 0 || r.next == r.una {
		e.Stats.DropStale++
		return
	}
	e.Stats.ImpliedNAK++
	r.retry(e)
	r.gapped = true
}

// retry sends everything from una again, if the counter allows (go-back-N).
func (r *requester) retry(e *transport.Env) {
	if r.retries == 0 {
		e.Stats.RetryExceeded++
		r.qp.failSend(e, ib.WCRetryExcErr)
		return
	}
	r.retries--
	e.Stats.CompleterRetry++
	r.b.Dest.Lost(e)
	r.b.Flow.MaxSegs = r.b.Dest.GSO.MaxSegs()
	r.forget(e)
	r.seek()
	r.send(e)
}

// rnrNAK handles an RNR NAK for una: nothing is sent for the time that it
// tells, and the ACK timer rests (IBA 9.7.5.2.8).
func (r *requester) rnrNAK(e *transport.Env, s roce.Syndrome) {
	e.Stats.RcvdRNR++
	if r.rnrAt != 0 {
		return // a copy: nothing was sent since the first one
	}
	r.retries = r.b.Attr.RetryCnt & 7 // the peer is there; RNR has a limit of its own
	if r.b.Attr.RNRRetry&7 != rnrInfinite {
		if r.rnrRetries == 0 {
			e.Stats.RNRRetryExceed++
			r.qp.failSend(e, ib.WCRNRRetryExcErr)
			return
		}
		r.rnrRetries--
	}
	r.forget(e)
	r.seek()
	r.rnrPSN = r.una
	r.rnrAt = e.Now + rnrNanos(s.RNRTimer())
}

// rnrElapsed ends an RNR wait.
func (r *requester) rnrElapsed(e *transport.Env) {
	r.rnrAt = 0
	r.send(e)
}

// forget takes what is under way out of the window: it is lost, or nobody
// waits for it any more.
func (r *requester) forget(e *transport.Env) {
	bytes, pkts := r.outBytes, r.outPkts
	r.outBytes, r.outPkts = 0, 0
	r.ackAt = 0
	if pkts > 0 {
		r.b.Dest.Forget(e, bytes, pkts)
	}
}
