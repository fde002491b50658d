package transport

import "net/netip"

// Window limits, in bytes of UDP payload and in datagrams, of what may be under
// way to one destination socket. A default receive buffer of Linux (208 KiB)
// holds 512 small datagrams or 6 coalesced packets of 64 KiB, so the start is
// below that; success lets it grow, loss halves it.
const (
	WindowStartBytes = 128 << 10
	WindowStartPkts  = 256
	windowMinBytes   = 16 << 10
	windowMinPkts    = 16
	windowMaxBytes   = 4 << 20
	// On the same host more under way only pushes what was sent out of the caches
	// before it is received (measured: 1 MiB was slower than 256 to 512 KiB in most
	// of the runs on a noisy machine).
	windowMaxLocal = 512 << 10
	windowMaxPkts  = 8192

	// gsoRetry packets without a loss after segmentation went off, it is tried
	// again: the loss may have had another cause.
	gsoRetry = 1 << 14
)

// Dest is what the queue pairs of a shard share about one destination address:
// the window, and whether segmentation offload works on the way there.
type Dest struct {
	Addr netip.Addr

	limitBytes, limitPkts int
	mostBytes             int // what the limit may grow to
	bytes, pkts           int // under way
	acked                 int // bytes acknowledged since the window grew
	slowStart             bool
	lastLoss              int64
	waiters               []*QP

	// GSO says whether batches may be segmented by the kernel on the way.
	GSO    GSOState
	doubt  bool // it started as unknown: it may go off
	since  int  // packets acknowledged since the last loss
	rounds int  // losses in a row with next to nothing acknowledged between them

	// The same for READ responses, which nobody acknowledges.
	served  int // response packets that arrived since segmentation went off
	repeats int // requests to repeat in a row with next to nothing arrived between them
}

// GSOState is what is known about segmentation offload to a destination.
type GSOState uint8

// GSO states. While unknown, batches of two segments are the probe: once the
// second segment of one was acknowledged it is on. It goes off after two
// go-back-N rounds without progress, and is tried again much later.
const (
	GSOOn GSOState = iota
	GSOUnknown
	GSOOff
)

// MaxSegs is the limit for Flow.MaxSegs: 0 none.
func (g GSOState) MaxSegs() int {
	switch g {
	case GSOUnknown:
		return 2
	case GSOOff:
		return 1
	}
	return 0
}

// NewDest makes the record of a destination.
func NewDest(a netip.Addr, gso GSOState) *Dest {
	return &Dest{Addr: a, limitBytes: WindowStartBytes, limitPkts: WindowStartPkts, mostBytes: windowMaxBytes, slowStart: true, GSO: gso, doubt: gso != GSOOn}
}

// OnHost tells that the destination is on this host.
func (d *Dest) OnHost() { d.mostBytes = windowMaxLocal }

// Probed tells that the second segment of a batch has arrived as it was sent.
func (d *Dest) Probed() {
	if d.GSO == GSOUnknown {
		d.GSO = GSOOn
	}
}

// Served tells that the n response packets of a READ have arrived at the first
// attempt; probed: among them a second segment.
func (d *Dest) Served(n int, probed bool) {
	d.repeats = 0
	d.served += n
	switch {
	case probed:
		d.Probed()
	case d.GSO == GSOOff && d.served >= gsoRetry:
		d.GSO = GSOUnknown
	}
}

// Repeated tells that the peer asks for READ responses again after n more have
// arrived. Segmentation goes off as in Lost.
func (d *Dest) Repeated(n int) {
	d.served = 0
	d.repeats++
	if n > 2 {
		d.repeats = 0
	}
	if d.doubt && d.repeats >= 2 {
		d.GSO = GSOOff
	}
}

// Room reports whether one more packet of n bytes may leave. With nothing under
// way it always may. What needs more than half of the window, as a READ with its
// responses may, leaves when half of it is free: a window that losses made small
// never has more room while others use it.
func (d *Dest) Room(n int) bool {
	return d.pkts == 0 || d.bytes+min(n, d.limitBytes/2) <= d.limitBytes && d.pkts < d.limitPkts
}

// HalfFull reports whether at least half of the window is under way: the sender
// then asks for an acknowledgement.
func (d *Dest) HalfFull() bool {
	return d.bytes >= d.limitBytes/2 || d.pkts >= d.limitPkts/2
}

// Narrow reports that losses made the window smaller than it was at the start.
func (d *Dest) Narrow() bool { return d.limitBytes < WindowStartBytes }

// Sent counts a packet of n bytes that was put under way.
func (d *Dest) Sent(n int) { d.bytes += n; d.pkts++ }

// Wait queues q for a Post when the window opens; once, however often called.
func (d *Dest) Wait(q *QP) {
	if !q.waiting {
		q.waiting = true
		d.waiters = append(d.waiters, q)
	}
}

// Contended reports whether queue pairs wait for the window. Something is under
// way then, so that they will be called.
func (d *Dest) Contended() bool { return len(d.waiters) > 0 }

// Forget removes packets that are not under way any more without news about
// the path: a queue pair went to error or starts over.
func (d *Dest) Forget(e *Env, bytes, pkts int) {
	d.bytes -= bytes
	d.pkts -= pkts
	d.wake(e)
}

// Acked counts packets as arrived, lets the window grow, and wakes who waits.
func (d *Dest) Acked(e *Env, bytes, pkts int) {
	d.bytes -= bytes
	d.pkts -= pkts
	d.since += pkts
	if d.GSO == GSOOff && d.since >= gsoRetry {
		d.GSO, d.rounds = GSOUnknown, 0
	}
	// Grow only if the window was the limit: at least half of it in use.
	if bytes > 0 && 2*(d.bytes+bytes) >= d.limitBytes || 2*(d.pkts+pkts) >= d.limitPkts {
		d.acked += max(bytes, pkts*(d.limitBytes/d.limitPkts))
		if d.slowStart || d.acked >= 4*d.limitBytes {
			step := d.limitBytes / 8
			if d.slowStart {
				step = min(d.acked, d.limitBytes)
			}
			d.setLimit(d.limitBytes + step)
			d.acked = 0
		}
	}
	d.wake(e)
}

// Lost tells of a loss: the window is halved, at most once a millisecond, since
// one overflow shows in every queue pair.
//
// Where the way numbers segments otherwise than the ICRC counts on, just the
// first packet of each batch arrives: loss after loss with a packet or two
// between them.
func (d *Dest) Lost(e *Env) {
	d.slowStart = false
	d.acked = 0
	if e.Now-d.lastLoss >= 1e6 || d.lastLoss == 0 {
		d.lastLoss = e.Now
		d.setLimit(d.limitBytes / 2)
	}
	d.rounds++
	if d.since > 2 {
		d.rounds = 0
	}
	d.since = 0
	if d.doubt && d.rounds >= 2 {
		d.GSO = GSOOff
	}
}

// Leave removes q from those that wait for the window: it is being destroyed.
func (d *Dest) Leave(q *QP) {
	n := 0
	for _, w := range d.waiters {
		if w != q {
			d.waiters[n] = w
			n++
		}
	}
	clear(d.waiters[n:])
	d.waiters = d.waiters[:n]
	q.waiting = false
}

// Idle reports whether nothing is under way and nobody waits.
func (d *Dest) Idle() bool { return d.bytes == 0 && d.pkts == 0 && len(d.waiters) == 0 }

func (d *Dest) setLimit(b int) {
	b = min(max(b, windowMinBytes), d.mostBytes)
	d.limitBytes = b
	d.limitPkts = min(max(b/(WindowStartBytes/WindowStartPkts), windowMinPkts), windowMaxPkts)
}

func (d *Dest) wake(e *Env) {
	if len(d.waiters) == 0 || d.bytes >= d.limitBytes || d.pkts >= d.limitPkts {
		return
	}
	for i, q := range d.waiters {
		q.waiting = false
		e.Ready = append(e.Ready, q)
		d.waiters[i] = nil
	}
	d.waiters = d.waiters[:0]
}
