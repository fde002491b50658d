package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// pd is a protection domain.
type pd struct {
	dev  *Device
	mem  mem.PD
	dma  dmaKey
	dead atomic.Bool
}

// AllocPD implements driver.Device.
func (d *Device) AllocPD() (driver.PD, error) {
	if err := d.pds.add(d, "protection domain"); err != nil {
		return nil, err
	}
	return &pd{dev: d}, nil
}

// Dealloc implements driver.PD.
func (p *pd) Dealloc() error {
	if err := p.mem.Deallocate(); err != nil {
		return err
	}
	if !p.dead.Swap(true) {
		p.dropDMA()
		p.dev.pds.drop()
	}
	return nil
}

// pdOf checks that p is a live domain of this device.
func (d *Device) pdOf(p driver.PD) (*pd, error) {
	q, ok := p.(*pd)
	switch {
	case !ok || q == nil || q.dev != d:
		return nil, fmt.Errorf("protection domain is not one of this device: %w", syscall.EINVAL)
	case q.dead.Load():
		return nil, fmt.Errorf("protection domain was deallocated: %w", syscall.EINVAL)
	}
	return q, nil
}

// mr is a memory region.
type mr struct {
	dev    *Device
	region *mem.Region
	dm     *dm // device memory that it is on, or nil

	mu   sync.Mutex // whoever deregisters, also as the second, returns when it is done
	pd   *pd        // under mu
	dead bool
}

// RegMR implements driver.PD.
func (p *pd) RegMR(b []byte, iova uint64, useIOVA bool, access ib.Access) (driver.MR, error) {
	if !useIOVA {
		iova = mem.Address(b)
	}
	return p.register(p.dev.table.Register(&p.mem, b, iova, access))
}

// RegMRPointer implements driver.PD.
func (p *pd) RegMRPointer(addr uintptr, length, iova uint64, useIOVA bool, access ib.Access) (driver.MR, error) {
	if !useIOVA {
		iova = uint64(addr)
	}
	return p.register(p.dev.table.RegisterPointer(&p.mem, addr, length, iova, access))
}

// NullMR implements driver.PD.
func (p *pd) NullMR() (driver.MR, error) { return p.register(p.dev.table.RegisterNull(&p.mem)) }

func (p *pd) register(r *mem.Region, err error) (driver.MR, error) {
	if err != nil {
		return nil, err
	}
	if p.dev.closed.Load() {
		p.dev.table.Release(r)
		return nil, fmt.Errorf("memory region: %w", shard.ErrClosed)
	}
	if err := p.dev.alive(); err != nil {
		p.dev.table.Release(r)
		return nil, err
	}
	return &mr{dev: p.dev, pd: p, region: r}, nil
}

func (m *mr) LKey() ib.LKey  { return m.region.LKey() }
func (m *mr) RKey() ib.RKey  { return m.region.RKey() }
func (m *mr) Addr() uint64   { return m.region.Addr() }
func (m *mr) Length() uint64 { return m.region.Length() }

// Dereg implements driver.MR. When it returns the key is dead and nothing
// touches the memory any more.
func (m *mr) Dereg() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nil
	}
	t := m.dev.table
	if err := t.Remove(m.region); err != nil {
		return err
	}
	m.dead = true
	m.dev.eng.Quiesce()
	t.Release(m.region)
	if m.dm != nil {
		m.dm.users.drop()
	}
	return nil
}
