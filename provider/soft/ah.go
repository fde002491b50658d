package soft

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// ah is an address handle: a prepared flow.
type ah struct {
	pd    *pd
	flow  *pkt.Flow
	group bool // leads to a multicast group
	dead  atomic.Bool
}

// CreateAH implements driver.Device.
func (d *Device) CreateAH(p driver.PD, attr *ib.AHAttr) (driver.AH, error) {
	dom, err := d.pdOf(p)
	if err != nil {
		return nil, err
	}
	if err := d.alive(); err != nil {
		return nil, err
	}
	flow, err := d.flow(attr, addressKey(attr))
	if err != nil {
		return nil, err
	}
	if err := d.ahs.add(d, "address handle"); err != nil {
		return nil, err
	}
	if !dom.mem.Hold() {
		d.ahs.drop()
		return nil, fmt.Errorf("protection domain is deallocated: %w", syscall.EINVAL)
	}
	if d.cfg.Port.Caps().NeedsProbe && !flow.Is6() && !onHost(flow) {
		// Datagrams are not acknowledged: nothing tells whether segmentation works
		// on the way.
		flow.MaxSegs = 1
	}
	return &ah{pd: dom, flow: flow, group: flow.Dst().IsMulticast()}, nil
}

// Flow gives the prepared flow to the datagram service; nil once destroyed.
func (a *ah) Flow() *pkt.Flow {
	if a.dead.Load() {
		return nil
	}
	return a.flow
}

// Destroy implements driver.AH.
func (a *ah) Destroy() error {
	if !a.dead.Swap(true) {
		a.pd.mem.Drop()
		a.pd.dev.ahs.drop()
	}
	return nil
}

// addressKey spreads address handles over the UDP source ports.
func addressKey(a *ib.AHAttr) uint32 {
	k := a.FlowLabel
	for _, b := range a.DGID {
		k = k*31 + uint32(b)
	}
	return k
}

// checkAH refuses addresses that no RoCE packet can carry.
func (d *Device) checkAH(a *ib.AHAttr) (src, dst netip.Addr, err error) {
	switch {
	case !a.IsGlobal:
		return src, dst, invalid("AHAttr.IsGlobal", "is false, but RoCE has no LIDs: an address needs a GRH")
	case a.PortNum != portNum:
		return src, dst, invalid("AHAttr.PortNum", "%d, the device has port 1 only", a.PortNum)
	case a.DGID.IsZero():
		return src, dst, invalid("AHAttr.DGID", "is empty")
	case a.FlowLabel > 0xFFFFF:
		return src, dst, invalid("AHAttr.FlowLabel", "%#x, it has 20 bits", a.FlowLabel)
	case a.SL > 15:
		return src, dst, invalid("AHAttr.SL", "%d, want 0 to 15", a.SL)
	}
	if src, err = d.gids.addr(int(a.SGIDIndex)); err != nil {
		return src, dst, err
	}
	dst = a.DGID.Addr()
	if src.Is4() != dst.Is4() {
		return src, dst, invalid("AHAttr.SGIDIndex", "%d is %s, the destination %s: both must be IPv4 or both IPv6",
			a.SGIDIndex, src, dst)
	}
	if dst.Is6() && (dst.IsLinkLocalUnicast() || dst.IsLinkLocalMulticast() || dst.IsInterfaceLocalMulticast()) {
		zone := src.Zone()
		if zone == "" {
			zone = d.cfg.NetDev
		}
		dst = dst.WithZone(zone)
	}
	return src, dst, nil
}

// flow prepares the packets' addressing. key picks the UDP source port.
func (d *Device) flow(a *ib.AHAttr, key uint32) (*pkt.Flow, error) {
	src, dst, err := d.checkAH(a)
	if err != nil {
		return nil, err
	}
	local, err := d.localIndex(src)
	if err != nil {
		return nil, err
	}
	if dst.IsMulticast() {
		if err := d.reach(local, dst.WithZone("")); err != nil {
			return nil, err
		}
	}
	f := &pkt.Flow{Local: local, To: netip.AddrPortFrom(dst, roce.Port), TClass: a.TrafficClass, HopLimit: a.HopLimit}
	if dst.Is6() {
		f.FlowLabel = a.FlowLabel
	}
	udpPort := uint16(roce.Port)
	if s, ok := d.cfg.Port.(port.Sourcer); ok {
		if f.Source, udpPort, err = s.Source(local, key); err != nil {
			return nil, fmt.Errorf("UDP source port on %s: %w", src, err)
		}
	}
	f.Path = roce.NewPath(src.WithZone(""), dst.WithZone(""), udpPort)
	if p, ok := d.cfg.Port.(port.Preparer); ok {
		p.Prepare(f)
	}
	return f, nil
}

// onHost tells that a flow's packets do not leave the host.
func onHost(f *pkt.Flow) bool { return f.Src() == f.Dst() || f.Dst().IsLoopback() }
