package soft

import (
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/shard"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// contig is a mapping of scattered memory to one range.
type contig struct{ mr *mr }

// MapContig implements driver.ContigMapper.
func (p *pd) MapContig(list [][]byte) (driver.Contig, error) {
	if !p.dev.cfg.Limits.ContigMapping {
		return nil, notOffered("list", "the device does not make one range of scattered memory")
	}
	if err := checkContig(list); err != nil {
		return nil, err
	}
	m, err := p.register(p.dev.table.RegisterList(&p.mem, list, nil))
	if err != nil {
		return nil, err
	}
	return &contig{m.(*mr)}, nil
}

func checkContig(list [][]byte) error {
	total := 0
	for _, b := range list {
		if total += len(b); total > ib.MaxMsgSize {
			return invalid("list", "has more than the %d bytes of a message", ib.MaxMsgSize)
		}
	}
	return nil
}

// Remap implements driver.ContigRemapper.
func (c *contig) Remap(list [][]byte) error {
	m := c.mr
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dead {
		return invalid("contig", "is mapped")
	}
	if err := checkContig(list); err != nil {
		return err
	}
	p := m.pd
	switch {
	case p.dev.closed.Load():
		return fmt.Errorf("mapping: %w", shard.ErrClosed)
	case p.dev.gone.Load():
		return fmt.Errorf("mapping: %w", errGone)
	}
	r, err := p.dev.table.RegisterList(&p.mem, list, m.region)
	if err != nil {
		return err
	}
	m.region, m.dead = r, false
	return nil
}

// SGE implements driver.Contig.
func (c *contig) SGE() driver.SGE {
	return driver.SGE{Addr: c.mr.Addr(), Length: uint32(c.mr.Length()), LKey: c.mr.LKey()}
}

// Unmap implements driver.Contig.
func (c *contig) Unmap() error {
	if err := c.mr.Dereg(); err != nil {
		return err
	}
	c.mr.region.ForgetList()
	return nil
}
