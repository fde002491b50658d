package simnet

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
)

// Defaults of Config.
const (
	defaultSegs     = 64
	defaultQueue    = 8192
	defaultTurnTime = 1000
	defaultTTL      = 64
	groBytes        = 65535 - 48 // most that the kernel coalesces into one datagram
)

// Config describes a port. The zero value is a good port that may have any
// address.
type Config struct {
	Addrs    []netip.Addr // addresses that it may open; empty: any
	MaxSegs  int          // segments in one send; 0: 64, 1: no offload
	Queue    int          // datagrams that wait to be received at most; 0: 8,192
	RecvBuf  int          // bytes that wait at most, as the kernel accounts; 0: no limit
	GRO      float64      // probability that a datagram is coalesced with the one before it, where the kernel could
	TurnTime int64        // ns that a turn takes: the next one begins no earlier; 0: 1 us, -1: no time
	HideID   bool         // received datagrams do not tell their identification, as with sockets

	// Renumber gives segments of one send identifications that Linux would not
	// give, as some network cards do; Probe tells the device to expect that.
	Renumber bool
	Probe    bool
}

// Port is a port of a simulated network. It implements port.Port.
type Port struct {
	net    *Net
	cfg    Config
	locals []*host
	turn   Turn
	due    int64 // when the next turn is wanted, 0: never
	busy   int64 // no turn before
	closed bool

	queue      fifo
	queued     int       // bytes in queue, as accounted
	held       []*packet // handed out by the last Recv
	joined     [][]byte  // space for coalesced datagrams
	stats      port.Stats
	overflowed uint64
	renumber   uint16
}

var _ port.Port = (*Port)(nil)

// NewPort adds a port. It has no address until AddLocal.
func (n *Net) NewPort(cfg Config) *Port {
	if cfg.MaxSegs == 0 {
		cfg.MaxSegs = defaultSegs
	}
	if cfg.Queue == 0 {
		cfg.Queue = defaultQueue
	}
	switch cfg.TurnTime {
	case 0:
		cfg.TurnTime = defaultTurnTime
	case -1:
		cfg.TurnTime = 0
	}
	p := &Port{net: n, cfg: cfg}
	n.ports = append(n.ports, p)
	return p
}

// AddLocal opens an address. See port.Port for errors.
func (p *Port) AddLocal(addr netip.Addr) (int, error) {
	addr = addr.Unmap()
	if p.closed {
		return 0, fmt.Errorf("simnet: port is closed: %w", syscall.EBADF)
	}
	if !addr.IsValid() || addr.IsMulticast() || addr.IsUnspecified() ||
		len(p.cfg.Addrs) > 0 && !slices.Contains(p.cfg.Addrs, addr) {
		return 0, fmt.Errorf("simnet: address %v: %w", addr, syscall.EADDRNOTAVAIL)
	}
	h := p.net.host(addr)
	switch h.owner {
	case p:
		return h.local, nil
	case nil:
		h.owner, h.local = p, len(p.locals)
		p.locals = append(p.locals, h)
		return h.local, nil
	}
	return 0, fmt.Errorf("simnet: address %v: %w", addr, syscall.EADDRINUSE)
}

// Send cuts the messages of the batch into datagrams and sends each.
func (p *Port) Send(b *pkt.Tx) {
	for i := range b.Msgs {
		m := &b.Msgs[i]
		p.stats.TxMsgs++
		if p.closed {
			p.stats.TxErrors++
			continue
		}
		if m.Flow.Dst().IsMulticast() {
			p.sendGroup(m, b.Frags[m.First:m.First+m.Count])
			continue
		}
		r, ok := m.Flow.Port.(*route)
		if !ok || r.net != p.net || r.src.addr != m.Flow.Src() || r.dst.addr != m.Flow.Dst() {
			r = p.net.route(m.Flow.Src(), m.Flow.Dst())
			m.Flow.Port = r
		}
		if r.src.owner != p { // a socket cannot send from an address that is not its own
			p.stats.TxErrors++
			continue
		}
		p.split(r, m, b.Frags[m.First:m.First+m.Count], nil)
	}
}

// split sends the segments of one message, to a member of a group if to is not
// nil. Memory that has vanished ends it, as EFAULT from the kernel would: nothing
// of the message is sent after.
func (p *Port) split(r *route, m *pkt.Msg, frags [][]byte, to *member) {
	left := m.Bytes
	var frag []byte
	for seg := 0; left > 0; seg++ {
		k := p.net.pool.get(min(m.SegSize, left))
		left -= len(k.data)
		for at := 0; at < len(k.data); {
			if len(frag) == 0 {
				if len(frags) == 0 {
					panic("simnet: a message has fewer bytes than it says")
				}
				frag, frags = frags[0], frags[1:]
				continue
			}
			c := min(len(frag), len(k.data)-at)
			if mem.Copy(k.data[at:at+c], frag[:c]) != nil {
				p.stats.TxFault++
				p.net.pool.put(k)
				return
			}
			frag = frag[c:]
			at += c
		}
		k.src = netip.AddrPortFrom(m.Flow.Src(), m.Flow.SrcPort())
		k.dst, k.tos, k.ttl, k.label = r.dst, m.Flow.TClass, m.Flow.HopLimit, m.Flow.FlowLabel
		if k.ttl == 0 {
			k.ttl = defaultTTL
		}
		k.id = p.identify(m, seg)
		if to != nil {
			k.to, k.group = to.port, to.group
		} else {
			p.stats.TxPackets++
			p.stats.TxBytes += uint64(len(k.data))
		}
		p.net.transmit(r, k)
	}
}

// identify is the IP identification of a segment: Linux numbers those of one
// send from 0.
func (p *Port) identify(m *pkt.Msg, seg int) uint16 {
	switch {
	case m.Flow.Is6():
		return 0
	case p.cfg.Renumber && m.Segs > 1:
		p.renumber++
		return p.renumber
	}
	return uint16(seg)
}

// Recv gives datagrams that have arrived, up to the capacity of b. Their bytes are valid until the next
// Recv or Close.
func (p *Port) Recv(b *pkt.Rx) int {
	p.release()
	b.Dgrams = b.Dgrams[:cap(b.Dgrams)]
	got := 0
	for got < len(b.Dgrams) && p.queue.n > 0 {
		k := p.take()
		d := &b.Dgrams[got]
		*d = pkt.Datagram{
			Data: k.data, SegSize: len(k.data), Src: k.src, Dst: k.destination(), Local: k.dst.local,
			TOS: k.tos, TTL: k.ttl,
		}
		if k.to != nil {
			d.Local = -1
		}
		if !p.cfg.HideID {
			d.ID, d.IDKnown = k.id, true
		}
		p.coalesce(d, k, got)
		p.stats.RxDgrams++
		p.stats.RxBytes += uint64(len(d.Data))
		got++
	}
	b.Dgrams = b.Dgrams[:got]
	return got
}

// coalesce joins what follows k in the queue to it as the kernel's GRO could:
// the same flow and size, the last may be shorter. While identifications are
// told, they must count up.
func (p *Port) coalesce(d *pkt.Datagram, k *packet, slot int) {
	if p.cfg.GRO <= 0 {
		return
	}
	segs, last := 1, k
	for p.queue.n > 0 && segs < 64 {
		q := p.queue.peek()
		if q.src != k.src || q.dst != k.dst || q.group != k.group || q.tos != k.tos || q.ttl != k.ttl ||
			len(q.data) > d.SegSize || len(last.data) != d.SegSize || len(d.Data)+len(q.data) > groBytes ||
			!p.cfg.HideID && !k.dst.addr.Is6() && q.id != last.id+1 || !p.net.rng.chance(p.cfg.GRO) {
			return
		}
		if segs == 1 {
			for len(p.joined) <= slot {
				p.joined = append(p.joined, make([]byte, 0, groBytes))
			}
			d.Data = append(p.joined[slot][:0], k.data...)
		}
		d.Data = append(d.Data, q.data...)
		last = p.take()
		segs++
	}
}

// take moves a packet from the queue to those that are handed out.
func (p *Port) take() *packet {
	k := p.queue.pop()
	p.queued -= truesize(k)
	p.held = append(p.held, k)
	return k
}

func (p *Port) release() {
	for i, k := range p.held {
		p.net.pool.put(k)
		p.held[i] = nil
	}
	p.held = p.held[:0]
}

// truesize is what a datagram takes of a receive buffer: Linux counts the
// structures around it too.
func truesize(k *packet) int { return len(k.data) + 400 }

// Caps tells what the port can do.
func (p *Port) Caps() port.Caps {
	return port.Caps{
		MaxSegs: p.cfg.MaxSegs, RecvBuf: p.cfg.RecvBuf, IDKnown: !p.cfg.HideID, NeedsProbe: p.cfg.Probe,
	}
}

// Stats gives the counters.
func (p *Port) Stats() port.Stats {
	s := p.stats
	s.RxOverflow = p.overflowed
	return s
}

// Overflowed is the number of datagrams that found the queue full.
func (p *Port) Overflowed() uint64 { return p.overflowed }

// Pending is the number of datagrams that wait to be received.
func (p *Port) Pending() int { return p.queue.n }

// Close gives the addresses back and forgets what waits. Its owner is not
// called any more. It may be repeated.
func (p *Port) Close() error {
	p.closed = true
	p.release()
	for p.queue.n > 0 {
		p.net.pool.put(p.queue.pop())
	}
	p.queued = 0
	for _, h := range p.locals {
		h.owner = nil
	}
	p.locals = nil
	p.net.leaveAll(p)
	p.turn = nil
	p.net.ports = without(p.net.ports, p)
	return nil
}
