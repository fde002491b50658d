package rdmarw

import (
	"errors"
	"syscall"
)

// initContig makes one transfer of the context's list by one contiguous mapping.
// EOPNOTSUPP: the device does not make any.
func (c *Ctx) initContig() error {
	if c.qp.noContig.Load() {
		return syscall.EOPNOTSUPP
	}
	pd := c.qp.qp.PD()
	m, err := c.spare, error(nil)
	if m != nil && m.PD() == pd {
		err = m.Map(c.list)
	} else {
		m, err = pd.MapContig(c.list)
	}
	if err != nil {
		if errors.Is(err, syscall.EOPNOTSUPP) {
			c.qp.noContig.Store(true)
		}
		return err
	}
	c.contig = m
	c.sges = append(c.sges, m.SGE())
	c.ops = append(c.ops, transfer{0, 1, c.remoteAddr})
	c.kind = KindIOVA
	return nil
}
