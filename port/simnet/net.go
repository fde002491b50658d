package simnet

import (
	"bytes"
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// startTime is the time at which a network begins: not 0, since a deadline of
// 0 means none.
const startTime = 1_000_000_000

// Stats count datagrams; they only grow.
type Stats struct {
	Sent        uint64 // entered the network, injected ones too
	Delivered   uint64 // reached a port's queue
	Lost        uint64
	Partitioned uint64
	NoHost      uint64 // nobody has the destination address
	Duplicated  uint64 // additional copies
	Reordered   uint64
	Corrupted   uint64
	Overflowed  uint64 // the port's queue was full
	Turns       uint64
}

// Net is a simulated network.
type Net struct {
	now    int64
	seq    uint64
	rng    rng
	events events
	pool   pool
	ports  []*Port
	hosts  map[netip.Addr]*host
	routes map[pair]*route
	def    Link
	groups map[netip.Addr][]member
	stats  Stats

	filters  []*func(*Event) Verdict
	sniffers []*func(*Event)
	ev       Event
	orig     []byte // the datagram as sent, when a filter may change it
}

// New makes a network. Everything random in it comes from seed.
func New(seed uint64) *Net {
	return &Net{
		now:    startTime,
		rng:    rng{seed},
		hosts:  map[netip.Addr]*host{},
		routes: map[pair]*route{},
		groups: map[netip.Addr][]member{},
		def:    Link{Delay: 2000},
	}
}

// Now is the virtual time in ns. It starts at one second.
func (n *Net) Now() int64 { return n.now }

// Stats gives the counters.
func (n *Net) Stats() Stats { return n.stats }

// Buffers is the number of datagrams that the network holds: under way, in
// queues of ports, and received by a Recv that was not followed by another.
func (n *Net) Buffers() int { return n.pool.out }

// InFlight is the number of events that wait: datagrams under way and calls by
// After.
func (n *Net) InFlight() int { return len(n.events) }

// After calls f when d ns have passed.
func (n *Net) After(d int64, f func()) { n.schedule(n.now+max(d, 0), nil, f) }

// Inject delivers a UDP payload now, as if src had sent it, whatever the
// condition of the link. The network copies it; id is the IP identification.
// To a group it is delivered to each member.
func (n *Net) Inject(src netip.AddrPort, dst netip.Addr, payload []byte, id uint16) {
	if dst = dst.Unmap(); !dst.IsMulticast() {
		n.inject(src, n.host(dst), payload, id, nil)
		return
	}
	for i := range n.groups[dst] {
		n.inject(src, n.groups[dst][i].at, payload, id, &n.groups[dst][i])
	}
}

func (n *Net) inject(src netip.AddrPort, dst *host, payload []byte, id uint16, m *member) {
	k := n.pool.get(len(payload))
	copy(k.data, payload)
	k.src, k.dst, k.id, k.tos, k.ttl, k.label = src, dst, id, 0, defaultTTL, 0
	if m != nil {
		k.to, k.group = m.port, m.group
	}
	n.stats.Sent++
	if len(n.sniffers) > 0 {
		n.decode(k, nil)
		n.ev.Arrives = n.now
		n.ev.Injected = true
		n.sniff()
	}
	n.schedule(n.now, k, nil)
}

func (n *Net) schedule(at int64, k *packet, f func()) {
	n.seq++
	n.events.push(event{at: at, seq: n.seq, pkt: k, fn: f})
}

// decode prepares the event that hooks see.
func (n *Net) decode(k *packet, r *route) {
	n.ev = Event{Src: k.src, Dst: k.destination(), To: k.dst.addr, Now: n.now, ID: k.id, TOS: k.tos, TTL: k.ttl, FlowLabel: k.label, Count: n.stats.Sent - 1}
	n.ev.Err = roce.Parse(k.data, &n.ev.Packet)
	n.ev.B = k.data
	if r != nil {
		n.ev.LinkCount = r.count
	}
}

func (n *Net) sniff() {
	for _, f := range n.sniffers {
		(*f)(&n.ev)
	}
}

// transmit sends a datagram over a route and takes it over.
func (n *Net) transmit(r *route, k *packet) {
	n.stats.Sent++
	l := r.cond()
	hooked := len(n.filters)+len(n.sniffers) > 0
	var v Verdict
	if hooked {
		n.decode(k, r)
		if len(n.filters) > 0 {
			if len(n.sniffers) > 0 {
				n.orig = append(n.orig[:0], k.data...)
			}
			v = n.ask()
			if len(n.sniffers) > 0 && !bytes.Equal(n.orig, k.data) {
				n.ev.Fate |= Corrupted
				n.ev.Err = roce.Parse(n.orig, &n.ev.Packet)
				n.ev.B = n.orig
			}
		}
	}
	r.count++
	fate, at := n.fate(r, l, k, &v)
	if hooked {
		n.ev.Fate |= fate
		n.ev.Arrives = at
		n.sniff() // before the bits are flipped: sniffers see what was sent
	}
	if at == 0 {
		n.pool.put(k)
		return
	}
	if fate&Corrupted != 0 {
		bits := v.Corrupt
		if bits == 0 {
			bits = 1 + int(n.rng.below(3))
		}
		n.flip(k.data, bits)
	}
	for range v.Dup {
		n.stats.Duplicated++
		c := n.pool.get(len(k.data))
		copy(c.data, k.data)
		c.src, c.dst, c.to, c.group, c.id, c.tos, c.ttl, c.label = k.src, k.dst, k.to, k.group, k.id, k.tos, k.ttl, k.label
		n.schedule(at+n.rng.below(l.reorderBy()), c, nil)
	}
	n.schedule(at, k, nil)
}

// ask puts the question to all filters and adds up their verdicts.
func (n *Net) ask() (v Verdict) {
	for _, f := range n.filters {
		w := (*f)(&n.ev)
		v.Drop = v.Drop || w.Drop
		v.Dup += w.Dup
		v.Delay += w.Delay
		v.Corrupt += w.Corrupt
	}
	return v
}

// fate decides what becomes of a datagram: when it arrives (0: not at all) and
// what else happens. It adds the link's duplicate to v.Dup.
func (n *Net) fate(r *route, l *Link, k *packet, v *Verdict) (fate Fate, at int64) {
	switch {
	case l.Partition:
		n.stats.Partitioned++
		return Partitioned, 0
	case v.Drop || n.rng.chance(l.Loss):
		n.stats.Lost++
		return Lost, 0
	case k.to == nil && r.dst.owner == nil:
		n.stats.NoHost++
		return NoHost, 0
	}
	at = n.now
	if l.Bandwidth > 0 {
		at = max(at, r.free)
		if l.Backlog > 0 && at-n.now > l.Backlog {
			n.stats.Lost++
			return Lost, 0
		}
		at += int64(len(k.data)+overhead) * 1e9 / l.Bandwidth
		r.free = at
	}
	at += l.Delay
	if l.Jitter > 0 {
		at += n.rng.below(l.Jitter)
	}
	at = max(at, r.last)
	if v.Delay > 0 || n.rng.chance(l.Reorder) {
		fate |= Reordered
		n.stats.Reordered++
		if v.Delay > 0 {
			at += v.Delay
		} else {
			at += 1 + n.rng.below(l.reorderBy())
		}
	} else {
		r.last = at
	}
	if n.rng.chance(l.Dup) {
		v.Dup++
	}
	if v.Dup > 0 {
		fate |= Duplicated
	}
	if v.Corrupt > 0 || n.rng.chance(l.Corrupt) {
		fate |= Corrupted
		n.stats.Corrupted++
	}
	return fate, at
}

// flip inverts count different bits.
func (n *Net) flip(b []byte, count int) {
	total := int64(len(b)) * 8
	count = int(min(int64(count), total))
	var done [8]int64
	for i := 0; i < count; {
		bit := n.rng.below(total)
		dup := false
		for _, d := range done[:min(i, len(done))] {
			dup = dup || d == bit
		}
		if dup {
			continue
		}
		done[i%len(done)] = bit
		b[bit/8] ^= 1 << (bit % 8)
		i++
	}
}
