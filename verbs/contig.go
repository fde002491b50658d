package verbs

import (
	"context"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Contig is scattered memory as one range, for local use.
type Contig struct {
	life
	pd *PD
	c  driver.Contig
}

// MapContig makes one range of the slices of list, one behind the other, where the
// device can, as an IOMMU does: a work request then needs one element for all of
// them. They must not hold Go pointers. Close ends it. EINVAL: the list or a slice
// is empty, or they are longer than a message; ENOMEM; EOPNOTSUPP: the device does
// not, as software devices but with soft.Limits.ContigMapping.
func (p *PD) MapContig(list [][]byte) (*Contig, error) {
	const op = "map_contig"
	d, ok := p.pd.(driver.ContigMapper)
	if !ok {
		return nil, notOffered(op)
	}
	if !p.hold(anMR) {
		return nil, opErr(op, errPDClosed)
	}
	c, err := d.MapContig(list)
	if err != nil {
		p.drop(anMR)
		return nil, opErr(op, err)
	}
	return &Contig{pd: p, c: c}, nil
}

// SGE is the whole range as one element.
func (c *Contig) SGE() SGE { return c.c.SGE() }

// Close ends the mapping. When it returns nobody touches the memory through it.
func (c *Contig) Close() error {
	return opErr("unmap_contig", c.end(context.Background(), c.c.Unmap, nil, func() { c.pd.drop(anMR) }))
}
