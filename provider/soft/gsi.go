package soft

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// gsiFlows bounds the prepared flows that are kept for repetitions and answers.
const gsiFlows = 4096

// gsi is who serves queue pair 1.
type gsi struct {
	dev *Device
	g   *shard.GSI

	mu    sync.Mutex
	flows map[gsiKey]*pkt.Flow
}

type gsiKey struct {
	local, remote netip.Addr
	class, hop    uint8
}

var _ driver.MADDevice = (*Device)(nil)

// OpenMAD implements driver.MADDevice.
func (d *Device) OpenMAD(notify func()) (driver.MADAgent, error) {
	if d.closed.Load() {
		return nil, fmt.Errorf("queue pair 1: %w", shard.ErrClosed)
	}
	if err := d.alive(); err != nil {
		return nil, err
	}
	g, err := d.eng.OpenGSI(notify)
	if err != nil {
		return nil, fmt.Errorf("queue pair 1 is served already: %w", err)
	}
	if d.cfg.sharing != nil {
		d.cfg.sharing.group.ServeMADs(true)
	}
	return &gsi{dev: d, g: g, flows: make(map[gsiKey]*pkt.Flow)}, nil
}

// lookup finds the row of the GID table with an address.
func (d *Device) lookup(a netip.Addr) (int, bool) {
	t := &d.gids
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range t.entries {
		if !t.entries[i].GID.IsZero() && same(t.addrs[i], a) {
			return i, true
		}
	}
	return 0, false
}

// index is lookup with an error.
func (d *Device) index(a netip.Addr) (int, error) {
	if i, ok := d.lookup(a); ok {
		return i, nil
	}
	return 0, fmt.Errorf("device %s has no address %s: %w", d.cfg.Name, a, syscall.EADDRNOTAVAIL)
}

// Index implements driver.MADAgent.
func (a *gsi) Index(addr netip.Addr) (int, bool) { return a.dev.lookup(addr) }

// Addrs implements driver.MADAgent.
func (a *gsi) Addrs() []netip.Addr { return a.dev.gids.all() }

// LinkMTU implements driver.MADAgent.
func (a *gsi) LinkMTU() int { return a.dev.linkMTU() }

// Listen implements driver.MADAgent.
func (a *gsi) Listen(addr netip.Addr) error {
	i, err := a.dev.index(addr)
	if err != nil {
		return err
	}
	src, err := a.dev.gids.addr(i)
	if err != nil {
		return err
	}
	_, err = a.dev.localIndex(src)
	return err
}

// ListenAll implements driver.MADAgent.
func (a *gsi) ListenAll() error { return a.dev.listenAll() }

// Send implements driver.MADAgent.
func (a *gsi) Send(m *driver.MAD) error {
	if a.dev.closed.Load() {
		return fmt.Errorf("queue pair 1: %w", shard.ErrClosed)
	}
	if err := a.dev.alive(); err != nil {
		return err
	}
	f, err := a.flow(m)
	if err != nil {
		return err
	}
	return a.g.Send(f, &m.Data)
}

func (a *gsi) flow(m *driver.MAD) (*pkt.Flow, error) {
	k := gsiKey{m.Local, m.Remote, m.TrafficClass, m.HopLimit}
	i, err := a.dev.index(m.Local)
	if err != nil && a.dev.cfg.sharing != nil {
		// Of another process: what is nobody's has come here to be refused.
		return a.dev.farewellFlow(&driver.ConnRecord{Local: m.Local, Remote: m.Remote, TrafficClass: m.TrafficClass, HopLimit: m.HopLimit})
	}
	if err != nil {
		return nil, err
	}
	src, err := a.dev.gids.addr(i)
	if err != nil {
		return nil, err
	}
	// An address that was gone for a while has another socket.
	local, err := a.dev.localIndex(src)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	f := a.flows[k]
	a.mu.Unlock()
	if f != nil && f.Local == local {
		return f, nil
	}
	attr := ib.AHAttr{
		IsGlobal: true, PortNum: portNum, SGIDIndex: uint8(i), DGID: ib.GIDFromAddr(m.Remote.WithZone("")),
		TrafficClass: m.TrafficClass, HopLimit: m.HopLimit,
	}
	if f, err = a.dev.flow(&attr, addressKey(&attr)); err != nil {
		return nil, err
	}
	f.MaxSegs = 1
	a.mu.Lock()
	if len(a.flows) >= gsiFlows {
		clear(a.flows)
	}
	a.flows[k] = f
	a.mu.Unlock()
	return f, nil
}

// Recv implements driver.MADAgent.
func (a *gsi) Recv(m *driver.MAD) bool { return a.g.Recv(m) }

// Close implements driver.MADAgent.
func (a *gsi) Close() error {
	if s := a.dev.cfg.sharing; s != nil {
		s.group.ServeMADs(false)
	}
	a.g.Close()
	return nil
}
