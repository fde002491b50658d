package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
)

// ResolveAddr finds the device and address from which dst is reached, and binds the
// ID to them (rdma_resolve_addr): EventAddrResolved or EventAddrError. src may be the zero
// value: then the routing table tells, as it does with an ID that is bound to a
// wildcard. 0.0.0.0 and :: as dst are this host. Nothing is asked of the peer: one
// that does not exist shows in Connect, and timeout has nothing to limit.
//
// EINVAL: it was resolved before, the families differ, or a zone is missing. Errors of
// Bind are those of src. In the event: ENETUNREACH, EHOSTUNREACH: no way there;
// ENODEV: the way is over an interface without a device; the ID can try again then.
func (id *ID) ResolveAddr(ctx context.Context, src, dst netip.AddrPort, timeout time.Duration) error {
	const op = "resolve_addr"
	if err := id.m.open(ctx); err != nil {
		return opErr(op, err)
	}
	if err := ctx.Err(); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	err := id.resolve(unmap(src), unmap(dst))
	id.m.mu.Unlock()
	if err != nil {
		return opErr(op, err)
	}
	return opErr(op, id.complete(ctx, EventAddrResolved, EventAddrError))
}

// resolve does it and raises the event; the error is what is wrong with the call. The
// caller holds mu.
func (id *ID) resolve(src, dst netip.AddrPort) error {
	if err := id.alive(); err != nil {
		return err
	}
	to := dst.Addr()
	if !to.IsValid() {
		return fmt.Errorf("dst: is no IP address: %w", syscall.EAFNOSUPPORT)
	}
	if id.state != stateIdle && id.state != stateBound {
		return syscall.EINVAL
	}
	if err := checkZone(to); err != nil {
		return err
	}
	from := id.src
	if id.state == stateIdle {
		if from = src; !from.Addr().IsValid() {
			any := netip.IPv6Unspecified()
			if to.Is4() {
				any = netip.IPv4Unspecified()
			}
			from = netip.AddrPortFrom(any, src.Port())
		}
	}
	if from.Addr().Is4() != to.Is4() {
		return fmt.Errorf("dst: %s and the source %s are of different families: %w", to, from.Addr(), syscall.EINVAL)
	}
	if id.state == stateIdle {
		if from.Addr().IsUnspecified() && from.Port() == 0 {
			// At once where it will be: no other device has to know of the port.
			if a, err := id.m.way(from.Addr(), to); err == nil {
				from = netip.AddrPortFrom(a, 0)
			}
		}
		if err := id.bind(from); err != nil {
			return err
		}
	}
	fail := func(err error) {
		errno := syscall.EHOSTUNREACH
		errors.As(err, &errno)
		id.m.log.Debug("address not resolved", "dst", to, "err", err)
		id.push(&Event{ID: id, Type: EventAddrError, Status: negative(errno)})
	}
	to, err := id.m.destination(id.src.Addr(), to)
	if err != nil {
		fail(err)
		return nil
	}
	if id.dev == nil {
		a, err := id.m.source(to)
		if err != nil {
			fail(err)
			return nil
		}
		d, err := id.m.deviceOf(a)
		if err != nil {
			fail(syscall.ENODEV)
			return nil
		}
		id.src = netip.AddrPortFrom(a, id.src.Port())
		id.attach(d)
		id.narrow()
	}
	id.dst = netip.AddrPortFrom(to, dst.Port())
	id.state = stateAddrResolved
	id.push(&Event{ID: id, Type: EventAddrResolved})
	return nil
}

// way is the own address from which a destination is reached. The caller holds mu.
func (m *Manager) way(src, dst netip.Addr) (netip.Addr, error) {
	dst, err := m.destination(src, dst)
	if err != nil {
		return netip.Addr{}, err
	}
	return m.source(dst)
}

// destination is what a destination stands for: an unspecified one is this host. The
// caller holds mu.
func (m *Manager) destination(src, dst netip.Addr) (netip.Addr, error) {
	if !dst.IsUnspecified() {
		return dst, nil
	}
	if !src.IsUnspecified() {
		return src, nil
	}
	var best netip.Addr
	for _, d := range m.devs {
		if d.gone {
			continue
		}
		for _, a := range d.addrs(dst.Is4()) {
			if a.IsLoopback() {
				return a, nil
			}
			if !best.IsValid() {
				best = a
			}
		}
	}
	if !best.IsValid() {
		return best, syscall.ENODEV
	}
	return best, nil
}

// ResolveRoute finds the way to the peer (rdma_resolve_route): EventRouteResolved or
// EventRouteError. On RoCE that needs no packets, and timeout has nothing to limit. EINVAL:
// ResolveAddr has not succeeded, or it was done already.
func (id *ID) ResolveRoute(ctx context.Context, timeout time.Duration) error {
	const op = "resolve_route"
	if err := ctx.Err(); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	err := id.alive()
	if err == nil && id.state != stateAddrResolved {
		err = syscall.EINVAL
	}
	if err == nil {
		id.route = []PathRecord{id.path()}
		id.state = stateRouteResolved
		id.push(&Event{ID: id, Type: EventRouteResolved})
	}
	id.m.mu.Unlock()
	if err != nil {
		return opErr(op, err)
	}
	return opErr(op, id.complete(ctx, EventRouteResolved, EventRouteError))
}

// Values of Linux's rdma_cm.
const (
	hopLimit       = 64
	packetLifetime = 16
	connectRetries = 7
	// mtuOverhead is what Linux takes off the link's MTU: IP, UDP, BTH, the largest extended
	// headers and the ICRC.
	mtuOverhead = 96
)

// path is the route between the ID's addresses. The caller holds mu.
func (id *ID) path() PathRecord {
	p := PathRecord{
		SGID: ib.GIDFromAddr(id.src.Addr().WithZone("")), DGID: ib.GIDFromAddr(id.dst.Addr().WithZone("")),
		HopLimit: hopLimit, TrafficClass: id.tos, Reversible: true, PKey: ib.PKeyDefault, MTU: id.dev.pathMTU(),
		PacketLifeTime: packetLifetime,
	}
	// A peer on another interface of this host must be able to take the packets.
	if d, err := id.m.deviceOf(id.dst.Addr()); err == nil && d != id.dev {
		p.MTU = min(p.MTU, d.pathMTU())
	}
	if id.ackSet && id.ackTimeout > 0 {
		p.PacketLifeTime = id.ackTimeout - 1
	}
	return p
}

// pathMTU is the path MTU that fits the link.
func (d *device) pathMTU() ib.MTU {
	mtu := ib.MTU256
	if a, err := d.ctx.QueryPort(cmPort); err == nil {
		mtu = a.ActiveMTU
	}
	for link := d.agent.LinkMTU(); mtu > ib.MTU256 && mtu.Bytes()+mtuOverhead > link; {
		mtu--
	}
	return mtu
}

// SetIBPath sets the route in place of ResolveRoute (RDMA_OPTION_IB_PATH):
// EventRouteResolved. The first path counts. EINVAL: ResolveAddr has not succeeded, or
// the path is not between the ID's addresses.
func (id *ID) SetIBPath(paths ...PathRecord) error {
	const op = "set_option"
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	if err := id.alive(); err != nil {
		return opErr(op, err)
	}
	switch {
	case id.state != stateAddrResolved:
		return opErr(op, syscall.EINVAL)
	case len(paths) == 0:
		return paramErr(op, "paths", "is empty", syscall.EINVAL)
	case paths[0].SGID.Addr() != id.src.Addr().WithZone("") || paths[0].DGID.Addr() != id.dst.Addr().WithZone(""):
		return paramErr(op, "paths", "is not between the ID's addresses", syscall.EINVAL)
	case paths[0].MTU < ib.MTU256 || paths[0].MTU > ib.MTU4096:
		return paramErr(op, "paths", "has no MTU", syscall.EINVAL)
	}
	id.route = append([]PathRecord(nil), paths...)
	id.state = stateRouteResolved
	id.push(&Event{ID: id, Type: EventRouteResolved})
	return nil
}
