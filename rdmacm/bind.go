package rdmacm

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/internal/cm"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// Bind gives the ID a local address and port (rdma_bind_addr). Port 0: one that is
// free. With the address of a device the ID is bound to the device; with 0.0.0.0 or ::
// to all of them, for Listen. :: takes IPv4 in too, unless SetAFOnly says otherwise.
// A link-local address needs its zone (interface name or index). Ports below 1024 need
// no privilege.
//
// EINVAL: it is bound already, or the zone is missing; EADDRNOTAVAIL: no device has
// the address, or no port is free; EADDRINUSE: the port is in use, by this process or
// another one of the host that shares the address (with a wildcard it matches EADDRNOTAVAIL too, which is
// what Linux says then); EAFNOSUPPORT: not an IP address; ENODEV: there is no device.
func (id *ID) Bind(addr netip.AddrPort) error {
	const op = "bind_addr"
	if err := id.m.open(context.Background()); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return opErr(op, id.bind(addr))
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// checkZone refuses a link-local address of which nobody knows the interface.
func checkZone(a netip.Addr) error {
	if a.Is6() && (a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast()) && a.Zone() == "" {
		return fmt.Errorf("addr: %s is link-local and needs a zone, %s%%eth0: %w", a, a, syscall.EINVAL)
	}
	return nil
}

// bind is Bind for who holds mu.
func (id *ID) bind(addr netip.AddrPort) error {
	if err := id.alive(); err != nil {
		return err
	}
	a := addr.Addr().Unmap()
	switch {
	case id.state != stateIdle:
		return fmt.Errorf("the ID is bound already: %w", syscall.EINVAL)
	case !a.IsValid():
		return fmt.Errorf("addr: is no IP address: %w", syscall.EAFNOSUPPORT)
	}
	if err := checkZone(a); err != nil {
		return err
	}
	var d *device
	if !a.IsUnspecified() {
		var err error
		if d, err = id.m.deviceOf(a); err != nil {
			return err
		}
		if a.IsLinkLocalUnicast() && a.Is6() {
			a = d.withZone(a.WithZone("")) // by name, however it was written
		}
	}
	if err := id.m.reserve(id, d, netip.AddrPortFrom(a, addr.Port())); err != nil {
		return err
	}
	if d != nil {
		id.attach(d)
	}
	id.state = stateBound
	return nil
}

// attach binds the ID to a device. The caller holds mu.
func (id *ID) attach(d *device) {
	id.dev, id.port = d, cmPort
	if id.pd == nil {
		id.pd = d.pd
	}
}

// minBacklog is the least backlog: a place costs little, the lack of one costs a client
// 4.6 s.
const minBacklog = 128

// serviceID is the service id of a port.
func (id *ID) serviceID(port uint16) uint64 { return mad.ServiceID(uint16(id.ps), port) }

// Listen has the ID get requests to its address and port (rdma_listen), on all devices
// if it is bound to a wildcard, also on addresses that devices get later. An ID that
// is not bound gets 0.0.0.0 and a free port. backlog is the number of requests
// that may wait to be fetched; 0: 1,024, fewer than 128 count as 128. What comes beyond is
// not refused: the peer tries again, but only after some seconds. EINVAL: wrong state; EADDRINUSE: another ID, of
// this process or another one, is bound to the same, which SetReuseAddr has allowed, or somebody who does not share
// it has the address of the device.
func (id *ID) Listen(backlog int) error {
	const op = "listen"
	if err := id.m.open(context.Background()); err != nil {
		return opErr(op, err)
	}
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return opErr(op, id.listen(backlog))
}

func (id *ID) listen(backlog int) error {
	if err := id.alive(); err != nil {
		return err
	}
	if id.state == stateIdle {
		if err := id.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
			return err
		}
	}
	if id.state != stateBound {
		return syscall.EINVAL
	}
	if backlog > 0 {
		backlog = max(backlog, minBacklog)
	}
	// One that listens shares its port with nobody.
	if id.reuse {
		if err := id.m.conflict(id, id.src, false); err != nil {
			return err
		}
	}
	devs := []*device{id.dev}
	if id.dev == nil {
		devs = nil
		for _, d := range id.m.devs {
			if !d.gone {
				devs = append(devs, d)
			}
		}
	}
	if err := id.announce(); err != nil {
		return err
	}
	var first error
	for _, d := range devs {
		if err := id.listenOn(d, backlog); err != nil {
			id.withdraw(d)
			first = cmp.Or(first, err)
		}
	}
	if len(id.listens) == 0 {
		if first == nil {
			first = syscall.ENODEV
		}
		return first
	}
	id.state, id.reuse = stateListen, false
	return nil
}

// listenOn begins to listen on a device. A wildcard does without devices whose
// addresses cannot be had.
func (id *ID) listenOn(d *device, backlog int) error {
	var err error
	if id.dev != nil {
		err = d.agent.Listen(id.src.Addr())
	} else {
		err = d.agent.ListenAll()
	}
	if err != nil {
		return err
	}
	l, err := d.cm.Listen(cm.ListenParams{
		ServiceID: id.serviceID(id.src.Port()), Local: id.src.Addr(), AFOnly: id.afOnly, Backlog: backlog, Context: id,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", id.src, err)
	}
	id.listens = append(id.listens, listening{d, l})
	return nil
}

// GetRequest waits for the next request to a synchronous ID (rdma_get_request) and
// returns its ID, which is synchronous too. It has the queue pair that was described
// to CreateEP. EINVAL: the ID is asynchronous, or does not listen; if the queue pair cannot be
// created the request is rejected.
func (id *ID) GetRequest(ctx context.Context) (*ID, error) {
	const op = "get_request"
	id.m.mu.Lock()
	var err error
	switch {
	case id.state == stateDestroyed || id.state == stateRemoved:
		err = id.alive()
	case !id.sync:
		err = fmt.Errorf("the ID has an event channel: %w", syscall.EINVAL)
	case id.state != stateListen:
		err = fmt.Errorf("the ID does not listen: %w", syscall.EINVAL)
	}
	if err == nil && id.last != nil {
		id.last.ack()
		id.last = nil
	}
	ch, init, pd := id.ch, id.qpInit, id.pd
	id.m.mu.Unlock()
	if err != nil {
		return nil, opErr(op, err)
	}
	e, err := ch.get(ctx)
	if err != nil {
		return nil, opErr(op, err)
	}
	child := e.ID
	if e.Type != EventConnectRequest {
		id.m.mu.Lock()
		id.last = e
		id.m.mu.Unlock()
		if err = e.Err(); err == nil {
			err = fmt.Errorf("%v: %w", e.Type, syscall.EINVAL)
		}
		return nil, opErr(op, err)
	}
	if init != nil {
		attr := *init
		if pd != nil && pd.Context() != child.Verbs() {
			pd = nil // of a listener on all devices
		}
		if err := child.CreateQP(pd, &attr); err != nil {
			e.Ack()
			child.Destroy(context.WithoutCancel(ctx))
			return nil, err
		}
	}
	id.m.mu.Lock()
	child.last = e
	id.m.mu.Unlock()
	return child, nil
}
