package simnet

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
)

// member is a port that has joined a group.
type member struct {
	group netip.Addr
	port  *Port
	at    *host // whose links its copies come over
}

var _ port.Multicaster = (*Port)(nil)

// destination is the address that a datagram was sent to.
func (k *packet) destination() netip.Addr {
	if k.group.IsValid() {
		return k.group
	}
	return k.dst.addr
}

// Join implements port.Multicaster. Copies take the links to the address on,
// which is opened.
func (p *Port) Join(group, on netip.Addr) error {
	group = group.Unmap().WithZone("")
	if on = on.Unmap(); !group.IsMulticast() || group.Is4() != on.Is4() {
		return fmt.Errorf("simnet: %v on %v is no multicast group of an interface: %w", group, on, syscall.EINVAL)
	}
	if _, err := p.AddLocal(on); err != nil {
		return err
	}
	list := p.net.groups[group]
	if slices.ContainsFunc(list, func(m member) bool { return m.port == p }) {
		return nil
	}
	// The order of joining is that of delivery.
	p.net.groups[group] = append(list, member{group, p, p.net.host(on)})
	return nil
}

// Leave implements port.Multicaster. Copies that are under way arrive.
func (p *Port) Leave(group netip.Addr) {
	p.net.leave(p, group.Unmap().WithZone(""))
}

// Reach implements port.Multicaster: there is always a way.
func (p *Port) Reach(int, netip.Addr) error { return nil }

func (n *Net) leave(p *Port, group netip.Addr) {
	n.groups[group] = slices.DeleteFunc(n.groups[group], func(m member) bool { return m.port == p })
	if len(n.groups[group]) == 0 {
		delete(n.groups, group)
	}
}

func (n *Net) leaveAll(p *Port) {
	for g := range n.groups {
		n.leave(p, g)
	}
}

// sendGroup sends a message to each member of its group, the sender too if it is
// one, as a copy with a fate of its own.
func (p *Port) sendGroup(m *pkt.Msg, frags [][]byte) {
	src := p.net.host(m.Flow.Src())
	if src.owner != p {
		p.stats.TxErrors++
		return
	}
	p.stats.TxPackets += uint64(m.Segs)
	p.stats.TxBytes += uint64(m.Bytes)
	list := p.net.groups[m.Flow.Dst().WithZone("")]
	for i := range list {
		p.split(p.net.route(src.addr, list[i].at.addr), m, frags, &list[i])
	}
}
