package soft

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// contig is a mapping of scattered memory to one range.
type contig struct{ mr *mr }

// MapContig implements driver.ContigMapper.
func (p *pd) MapContig(list [][]byte) (driver.Contig, error) {
	if !p.dev.cfg.Limits.ContigMapping {
		return nil, notOffered("list", "the device does not make one range of scattered memory")
	}
	total := 0
	for _, b := range list {
		if total += len(b); total > ib.MaxMsgSize {
			return nil, invalid("list", "has more than the %d bytes of a message", ib.MaxMsgSize)
		}
	}
	m, err := p.register(p.dev.table.RegisterList(&p.mem, list))
	if err != nil {
		return nil, err
	}
	return &contig{m.(*mr)}, nil
}

// SGE implements driver.Contig.
func (c *contig) SGE() driver.SGE {
	return driver.SGE{Addr: c.mr.Addr(), Length: uint32(c.mr.Length()), LKey: c.mr.LKey()}
}

// Unmap implements driver.Contig.
func (c *contig) Unmap() error { return c.mr.Dereg() }
