package soft

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// domain is the protection domain of the region now.
func (m *mr) domain() *pd {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pd
}

// Rereg implements driver.MRRereger. When it returns nothing touches the memory
// that the region had before, if it has other memory now.
func (m *mr) Rereg(flags ib.ReregFlags, attr *driver.ReregAttr) error {
	c := mem.Change{Flags: flags, Buf: attr.Bytes, Addr: attr.Addr, Length: attr.Length, Access: attr.Access}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, to := m.dev, m.pd
	if flags&ib.ReregPD != 0 {
		var err error
		if to, err = d.pdOf(attr.PD); err != nil {
			return err
		}
		c.PD = &to.mem
	}
	if m.dm != nil && (flags&ib.ReregTranslation != 0 || flags&ib.ReregAccess != 0 && attr.Access&ib.AccessZeroBased == 0) {
		return invalid("flags", "a region of device memory keeps its memory and is zero-based")
	}
	left, err := d.table.Reregister(m.region, &c)
	if err != nil {
		return err
	}
	m.pd = to
	d.eng.Quiesce()
	left.Release()
	return nil
}

// fastMR is a region for fast registration.
type fastMR struct{ *mr }

// AllocMR implements driver.FastRegPD.
func (p *pd) AllocMR(maxNumSG int) (driver.FastMR, error) {
	if most := p.dev.cfg.Limits.MaxFastRegPages; maxNumSG <= 0 || maxNumSG > most {
		return nil, invalid("maxNumSG", "%d, want 1 to %d", maxNumSG, most)
	}
	m, err := p.register(p.dev.table.RegisterFast(&p.mem, maxNumSG))
	if err != nil {
		return nil, err
	}
	return &fastMR{m.(*mr)}, nil
}

// MapSG implements driver.FastMR.
func (m *fastMR) MapSG(list [][]byte, offset, pageSize int) (n, rest int, err error) {
	return m.dev.table.Map(m.region, list, offset, pageSize)
}

// Rereg refuses: such a region is changed by work requests.
func (m *fastMR) Rereg(ib.ReregFlags, *driver.ReregAttr) error {
	return invalid("mr", "a region for fast registration is registered by work requests")
}

// dmaKey is a domain's key for its buffers.
type dmaKey struct {
	mu     sync.Mutex
	region *mem.Region // nil until somebody asks
}

// LocalDMALKey implements driver.LocalDMAPD.
func (p *pd) LocalDMALKey() (ib.LKey, error) {
	p.dma.mu.Lock()
	defer p.dma.mu.Unlock()
	if p.dma.region == nil {
		r, err := p.dev.table.RegisterDMA(&p.mem)
		if err != nil {
			return 0, err
		}
		p.dma.region = r
	}
	return p.dma.region.LKey(), nil
}

// dropDMA ends the domain's key for its buffers.
func (p *pd) dropDMA() {
	p.dma.mu.Lock()
	defer p.dma.mu.Unlock()
	if r := p.dma.region; r != nil {
		p.dma.region = nil
		_ = p.dev.table.Remove(r)
		p.dev.eng.Quiesce()
		p.dev.table.Release(r)
	}
}

// buffer is memory that the library allocated and registered.
type buffer struct {
	pd   *pd
	mr   driver.MR
	b    []byte
	huge bool
	free func() error // gives the memory back

	mu   sync.Mutex
	dead bool
}

// AllocBuffer implements driver.BufferPD.
func (p *pd) AllocBuffer(size int, access ib.Access) (driver.Buffer, error) {
	if size <= 0 {
		return nil, invalid("size", "%d", size)
	}
	if err := mem.CheckAccess(access); err != nil {
		return nil, err
	}
	pages, huge, free, err := allocPages(size)
	if err != nil {
		return nil, fmt.Errorf("buffer of %d bytes: %w", size, err)
	}
	b := &buffer{pd: p, b: pages[:size:size], huge: huge, free: free}
	if b.mr, err = p.RegMR(b.b, 0, false, access); err != nil {
		_ = free()
		return nil, err
	}
	p.mem.AddBuffer(b.b)
	return b, nil
}

func (b *buffer) Bytes() []byte { return b.b }
func (b *buffer) MR() driver.MR { return b.mr }
func (b *buffer) Huge() bool    { return b.huge }

// Free implements driver.Buffer.
func (b *buffer) Free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return nil
	}
	if err := b.mr.Dereg(); err != nil {
		return err
	}
	b.dead = true
	b.pd.mem.DropBuffer(b.b)
	b.pd.dev.eng.Quiesce()
	return b.free()
}

// dm is device memory: memory of the device's process, which costs nothing to
// reach. It is there for programs that are written for it.
type dm struct {
	dev   *Device
	b     []byte
	users users

	mu   sync.Mutex
	dead bool
}

// AllocDM implements driver.DMDevice.
func (d *Device) AllocDM(attr *driver.DMAttr) (driver.DM, error) {
	switch {
	case attr.Length == 0:
		return nil, invalid("Length", "is 0")
	case attr.LogAlign > maxDMLogAlign:
		return nil, invalid("LogAlign", "%d, want at most %d", attr.LogAlign, maxDMLogAlign)
	case attr.Length > maxDMSize || d.dmBytes.Add(int64(attr.Length)) > maxDMSize:
		if attr.Length <= maxDMSize {
			d.dmBytes.Add(-int64(attr.Length))
		}
		return nil, fmt.Errorf("device memory: the device has %d bytes: %w", maxDMSize, syscall.ENOMEM)
	}
	align := uint64(1) << max(attr.LogAlign, 3)
	b := make([]byte, attr.Length+align-1)
	off := -mem.Address(b) & (align - 1)
	return &dm{dev: d, b: b[off : off+attr.Length : off+attr.Length]}, nil
}

// CopyTo implements driver.DM.
func (m *dm) CopyTo(offset uint64, from []byte) error {
	return m.copy(offset, uint64(len(from)), func(at []byte) { copy(at, from) })
}

// CopyFrom implements driver.DM.
func (m *dm) CopyFrom(into []byte, offset uint64) error {
	return m.copy(offset, uint64(len(into)), func(at []byte) { copy(into, at) })
}

func (m *dm) copy(offset, n uint64, f func(at []byte)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch size := uint64(len(m.b)); {
	case m.dead:
		return invalid("dm", "was freed")
	case n > size || offset > size-n:
		return invalid("offset", "%d with %d bytes, the memory has %d", offset, n, size)
	}
	f(m.b[offset : offset+n])
	return nil
}

// Free implements driver.DM.
func (m *dm) Free() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, err := m.users.endFor("device memory", "memory regions")
	if first {
		m.dead = true
		m.dev.dmBytes.Add(-int64(len(m.b)))
		m.b = nil
	}
	return err
}

// RegDMMR implements driver.DMPD. Such a region is zero-based (ibv_reg_dm_mr).
func (p *pd) RegDMMR(h driver.DM, offset, length uint64, access ib.Access) (driver.MR, error) {
	m, ok := h.(*dm)
	if !ok || m == nil || m.dev != p.dev {
		return nil, invalid("dm", "not device memory of this device")
	}
	if access&ib.AccessZeroBased == 0 {
		return nil, invalid("access", "a region of device memory needs ib.AccessZeroBased")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	size := uint64(len(m.b))
	if length > size || offset > size-length {
		return nil, invalid("offset", "%d with %d bytes, the memory has %d", offset, length, size)
	}
	if !m.users.hold() {
		return nil, invalid("dm", "was freed")
	}
	r, err := p.register(p.dev.table.Register(&p.mem, m.b[offset:offset+length:offset+length], 0, access))
	if err != nil {
		m.users.drop()
		return nil, err
	}
	r.(*mr).dm = m
	return r, nil
}
