package soft

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"time"

	hosts "github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// WithoutSharing keeps the addresses of devices to themselves: another process, or
// another open device, that wants one of them gets EADDRINUSE. Without it the
// processes of a user share addresses, on Linux.
func WithoutSharing() Option { return func(p *Provider) { p.alone = true } }

// WithoutSteering does without the kernel's help in finding the process that a
// datagram is for, as on systems that have none: one process receives for all what
// comes from elsewhere, and what they send to each other goes through memory that they
// share, not over the network. The one that is the first to use an address decides for the others.
func WithoutSteering() Option { return func(p *Provider) { p.unsteered = true } }

// joinPatience is how long a device that is opened waits for the others.
const joinPatience = 5 * time.Second

// sharing is a device's part in the group of those that share its addresses.
type sharing struct {
	group *hosts.Group
	ready chan struct{} // closed when what follows is there, or never will be
	port  *udp.Port     // nil: the device could not be opened
	dev   *Device

	once sync.Once
}

// join makes a device that is about to be opened a member.
func (p *Provider) join(ctx context.Context, ifindex int) (*sharing, error) {
	ctx, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	s := &sharing{ready: make(chan struct{})}
	var err error
	s.group, err = hosts.Join(ctx, hosts.Config{IfIndex: ifindex, Private: p.private, OnDeath: s.mourn, OnSteward: s.look})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// look has the port see what it has to read. One that is not there yet does by itself.
func (s *sharing) look(bool) {
	select {
	case <-s.ready:
		if s.port != nil {
			s.port.Look()
		}
	default:
	}
}

// opened tells those who wait what became of opening the device.
func (s *sharing) opened(port *udp.Port, d *Device) {
	s.once.Do(func() {
		s.port, s.dev = port, d
		close(s.ready)
	})
}

// close leaves the group. The port is closed.
func (s *sharing) close() error {
	s.opened(nil, nil)
	return s.group.Close()
}

// openPort opens the port of a device, shared if that can be had. Who cannot share
// works on what nobody else has, and is told why where somebody has it.
func (p *Provider) openPort(ctx context.Context, cfg *Config) error {
	c := udp.Config{IfIndex: cfg.IfIndex, Unsteered: p.unsteered, NoHanding: p.noHanding, Alone: "it was told to keep its addresses to itself"}
	if !p.alone {
		var err error
		switch cfg.sharing, err = p.join(ctx, cfg.IfIndex); {
		case err == nil:
			c.Share = cfg.sharing.group
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			c.Alone = err.Error()
			if cfg.Logger != nil && !errors.Is(err, hosts.ErrUnsupported) {
				cfg.Logger.Warn("addresses are not shared with other processes", "device", cfg.Name, "err", err)
			}
		}
	}
	port, err := udp.Open(c)
	if err != nil {
		if cfg.sharing != nil {
			err = errors.Join(err, cfg.sharing.close())
		}
		return err
	}
	cfg.Port = port
	return nil
}

// farewellAgain is after how long the goodbyes for a dead process are said once more:
// nobody sends them again when they are lost.
const farewellAgain = 100 * time.Millisecond

// mourn says goodbye for a process that has died: to each peer of it a DREQ, as that process
// would have sent it (IBA 12.6.13).
func (s *sharing) mourn(death hosts.Death) {
	if len(death.Conns) == 0 {
		return
	}
	var d *Device
	select {
	case <-s.ready:
		d = s.dev
	case <-time.After(joinPatience): // it could not be opened, or takes its time
	}
	switch {
	case d == nil:
		death.Fail()
		return
	case d.gone.Load():
		return // so are the others' devices: nobody can say it
	}
	d.log.Info("a process that shares the addresses has died", "device", d.cfg.Name, "slot", death.Slot, "connections", len(death.Conns))
	tid := rand.Uint64()
	if !d.farewell(death.Conns, tid) {
		death.Fail() // the next steward does it
		return
	}
	time.AfterFunc(farewellAgain, func() { d.farewell(death.Conns, tid) })
}

// farewell sends the DREQs of connections. The transaction IDs begin with tid, so that sent
// again they are the same. false: the device was closed, or has gone.
func (d *Device) farewell(conns []driver.ConnRecord, tid uint64) bool {
	for i := range conns {
		if d.closed.Load() || d.gone.Load() {
			return false
		}
		r := &conns[i]
		var m [driver.MADLen]byte
		q := mad.DREQ(mad.Put(m[:], mad.AttrDREQ, tid+uint64(i)))
		q.SetLocalCommID(r.LocalID)
		q.SetRemoteCommID(r.RemoteID)
		q.SetRemoteQPN(uint32(r.RemoteQPN))
		f, err := d.farewellFlow(r)
		if err == nil {
			err = d.eng.SendMAD(f, &m)
		}
		if err != nil {
			d.log.Warn("no goodbye for a dead process", "device", d.cfg.Name, "local", r.Local, "remote", r.Remote, "err", err)
		}
	}
	return !d.closed.Load() // else the last may not have left
}

// farewellFlow is the way to the peer of a connection, from an address of the interface
// that need not be in this device's table.
func (d *Device) farewellFlow(r *driver.ConnRecord) (*pkt.Flow, error) {
	src, dst := r.Local.Unmap().WithZone(""), r.Remote.Unmap().WithZone("")
	if !src.IsValid() || !dst.IsValid() || src.Is4() != dst.Is4() {
		return nil, fmt.Errorf("addresses %v and %v: %w", r.Local, r.Remote, syscall.EINVAL)
	}
	zoned := func(a netip.Addr) netip.Addr {
		if a.Is6() && a.IsLinkLocalUnicast() {
			return a.WithZone(d.cfg.NetDev)
		}
		return a
	}
	local, err := d.localIndex(zoned(src))
	if err != nil {
		return nil, err
	}
	return &pkt.Flow{
		Path: roce.NewPath(src, dst, roce.Port), Local: local, To: netip.AddrPortFrom(zoned(dst), roce.Port),
		TClass: r.TrafficClass, HopLimit: r.HopLimit, MaxSegs: 1,
	}, nil
}

var _ driver.NameSharer = (*gsi)(nil)

// CommIDs implements driver.NameSharer.
func (a *gsi) CommIDs() (bits, mask uint32) {
	if s := a.dev.cfg.sharing; s != nil {
		return s.group.CommIDs()
	}
	return 0, 0
}

// ClaimPort implements driver.NameSharer.
func (a *gsi) ClaimPort(space uint16, at netip.AddrPort, flags driver.ClaimFlags) (driver.PortClaim, error) {
	s := a.dev.cfg.sharing
	switch {
	case s == nil:
		return lone{}, nil
	case a.dev.cfg.FixedAddrs && at.Addr().IsUnspecified():
		return claimEach(s.group, space, at, flags, a.dev.cfg.Addrs)
	}
	return s.group.ClaimPort(space, at, flags)
}

// RecordConn implements driver.NameSharer.
func (a *gsi) RecordConn(r *driver.ConnRecord) (driver.ConnHandle, error) {
	if s := a.dev.cfg.sharing; s != nil {
		return s.group.RecordConn(r)
	}
	return lone{}, nil
}

// lone is a claim, or a record, where there is nobody else.
type lone struct{}

func (lone) Listen(bool) error         { return nil }
func (lone) Update(*driver.ConnRecord) {}
func (lone) Release()                  {}
