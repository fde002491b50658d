package simnet

import "net/netip"

// Link is the condition of the way from one address to another. Probabilities
// are from 0 to 1, each datagram for itself; times are nanoseconds. The zero
// value is perfect and takes no time.
type Link struct {
	Loss    float64
	Dup     float64 // a second copy arrives, up to ReorderBy later
	Reorder float64 // the datagram is late by up to ReorderBy and does not hold up what follows
	Corrupt float64 // one to three bits of the UDP payload are flipped

	Delay     int64 // on the way
	Jitter    int64 // a random addition, which keeps the order
	ReorderBy int64 // 0: 20 us and 4 times Delay and Jitter

	Bandwidth int64 // bytes a second, headers included; 0 is without limit
	Backlog   int64 // waiting time for bandwidth from which datagrams are dropped; 0 is without limit

	Partition bool // nothing passes
}

func (l *Link) reorderBy() int64 {
	if l.ReorderBy > 0 {
		return l.ReorderBy
	}
	return 20_000 + 4*(l.Delay+l.Jitter)
}

// Bytes of Ethernet, IP and UDP headers around a UDP payload, for bandwidth.
const overhead = 14 + 4 + 20 + 8

// host is an address of the network; it stays when its owner goes.
type host struct {
	addr  netip.Addr
	owner *Port // nil: nobody has it now
	local int   // index at the owner
}

// route is the way from one address to another.
type route struct {
	net      *Net
	src, dst *host
	own      bool // link was set for this pair; else the default counts
	link     Link
	free     int64 // when the bandwidth is free again
	last     int64 // latest arrival of a datagram that keeps its place
	count    uint64
}

func (r *route) cond() *Link {
	if r.own {
		return &r.link
	}
	return &r.net.def
}

type pair struct{ src, dst netip.Addr }

func (n *Net) host(a netip.Addr) *host {
	a = a.Unmap()
	h := n.hosts[a]
	if h == nil {
		h = &host{addr: a}
		n.hosts[a] = h
	}
	return h
}

func (n *Net) route(src, dst netip.Addr) *route {
	k := pair{src.Unmap(), dst.Unmap()}
	r := n.routes[k]
	if r == nil {
		r = &route{net: n, src: n.host(k.src), dst: n.host(k.dst)}
		n.routes[k] = r
	}
	return r
}

// SetDefault sets the condition of all links that have none of their own. A
// new network has a delay of 2 us and no faults.
func (n *Net) SetDefault(l Link) { n.def = l }

// SetLink sets the condition of the way from src to dst.
func (n *Net) SetLink(src, dst netip.Addr, l Link) {
	r := n.route(src, dst)
	r.own, r.link = true, l
}

// GetLink gives the condition of the way from src to dst.
func (n *Net) GetLink(src, dst netip.Addr) Link { return *n.route(src, dst).cond() }

// SetPartition cuts or heals the ways between a and b, both directions.
func (n *Net) SetPartition(a, b netip.Addr, cut bool) {
	for _, r := range []*route{n.route(a, b), n.route(b, a)} {
		l := *r.cond()
		l.Partition = cut
		r.own, r.link = true, l
	}
}
