package verbs

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Contig is scattered memory as one range, for local use.
type Contig struct {
	pd *PD

	mu     sync.Mutex
	c      driver.Contig
	mapped bool
}

// MapContig makes one range of the slices of list, one behind the other, where the
// device can, as an IOMMU does: a work request then needs one element for all of
// them. They must not hold Go pointers. Close ends it. EINVAL: the list or a slice
// is empty, or they are longer than a message; ENOMEM; EOPNOTSUPP: the device does
// not, as software devices but with soft.Limits.ContigMapping.
func (p *PD) MapContig(list [][]byte) (*Contig, error) {
	c := &Contig{pd: p}
	if err := c.Map(list); err != nil {
		return nil, err
	}
	return c, nil
}

// Map makes a range that was closed one of other slices, in the same domain, as
// PD.MapContig, which costs more. EBUSY: it is not closed.
func (c *Contig) Map(list [][]byte) error {
	const op = "map_contig"
	d, ok := c.pd.pd.(driver.ContigMapper)
	if !ok {
		return notOffered(op)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mapped {
		return opErr(op, fmt.Errorf("it is mapped, close it first: %w", syscall.EBUSY))
	}
	if !c.pd.hold(anMR) {
		return opErr(op, errPDClosed)
	}
	var err error
	if again, ok := c.c.(driver.ContigRemapper); ok {
		err = again.Remap(list)
	} else if fresh, e := d.MapContig(list); e == nil {
		c.c = fresh
	} else {
		err = e
	}
	if err != nil {
		c.pd.drop(anMR)
		return opErr(op, err)
	}
	c.mapped = true
	return nil
}

// PD is the domain of the range.
func (c *Contig) PD() *PD { return c.pd }

// SGE is the whole range as one element.
func (c *Contig) SGE() SGE { return c.c.SGE() }

// Close ends the mapping. When it returns nobody touches the memory through it. Again does
// nothing.
func (c *Contig) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mapped {
		return nil
	}
	if err := c.c.Unmap(); err != nil {
		return opErr("unmap_contig", err)
	}
	c.mapped = false
	c.pd.drop(anMR)
	return nil
}
