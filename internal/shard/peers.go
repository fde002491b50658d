package shard

import (
	"net/netip"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// maxPeers bounds what is remembered about senders: addresses are chosen by
// the network. Beyond it everything learnt is forgotten.
const maxPeers = 4096

// peer is what is known about a sending host, for one of our addresses or one
// group: Linux counts identifications for each pair of addresses by itself. With
// one count for all, the first datagram to a group would look implausible after
// much unicast, and nobody sends a datagram again.
type peer struct {
	ids roce.IDTracker
}

// peerKey is who sends to what.
type peerKey struct{ from, to netip.Addr }

// peerPath is the way from one socket of a peer to one of our addresses.
type peerPath struct {
	roce.Path
	from netip.AddrPort
	to   netip.Addr
	peer *peer
}

// peers remembers senders. The cache is direct-mapped: a run of packets of one
// queue pair comes from one UDP port.
type peers struct {
	byKey map[peerKey]*peer
	cache [64]peerPath
}

func (p *peers) init() { p.byKey = make(map[peerKey]*peer) }

// path gives the sender's record; valid until the next call.
func (p *peers) path(d *pkt.Datagram) *peerPath {
	a := d.Src.Addr()
	b := a.As16()
	c := &p.cache[(int(d.Src.Port())^int(b[15])^int(b[14])<<3)&(len(p.cache)-1)]
	if c.from == d.Src && c.to == d.Dst && c.peer != nil {
		return c
	}
	k := peerKey{a.WithZone(""), d.Dst.WithZone("")}
	h := p.byKey[k]
	if h == nil {
		if len(p.byKey) >= maxPeers {
			clear(p.byKey)
			clear(p.cache[:])
		}
		h = new(peer)
		p.byKey[k] = h
	}
	*c = peerPath{roce.NewPath(k.from, k.to, d.Src.Port()), d.Src, d.Dst, h}
	return c
}
