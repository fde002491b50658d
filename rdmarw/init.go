package rdmarw

import (
	"errors"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs"
)

// Init prepares a transfer between sg, the slices one behind the other from byte
// sgOffset on, and the peer's memory from remoteAddr under rkey (rdma_rw_ctx_init). It
// returns how many entries of the send queue the context needs.
//
// The elements that lie before the offset are skipped. One element that is left makes
// one request, several make as many as their number takes by max_send_sge and, for
// READs, max_sge_rd. They are named by the keys of the regions they are in, see
// [QPInitAttr].Memory. Memory regions are used instead where the device or ForceMR
// demands it, and for READs of more elements than it likes (DeviceAttr.MaxSGLRd), if the
// pool has some. Then the memory needs no registration, but it has to have the structure
// of pages, as [verbs.MR.MapSG] says; a region takes up to 256 elements and pages.
//
// EIO: the offset is at or behind the end; EINVAL: memory that is not registered, or a
// gap where regions are used, or another argument that cannot be; EAGAIN: the pool has
// no region left, and one is needed; EBUSY: the context is initialized already. The
// context is as before then, and the pool whole.
func (c *Ctx) Init(qp *QP, port uint8, sg [][]byte, sgOffset uint32, remoteAddr uint64, rkey ib.RKey, dir Direction) (wrs int, err error) {
	const op = "ctx_init"
	if err := c.begin(qp, port, remoteAddr, rkey, dir); err != nil {
		return 0, opErr(op, err)
	}
	off := uint64(sgOffset)
	for len(sg) > 0 && off >= uint64(len(sg[0])) {
		off -= uint64(len(sg[0]))
		sg = sg[1:]
	}
	if len(sg) == 0 {
		c.reset()
		return 0, opErr(op, errBeyondEnd)
	}
	err = errNoMR
	if qp.wantsMR(dir, len(sg)) {
		err = c.initMRs(sg, int(off))
	}
	if errors.Is(err, errNoMR) && !qp.needsMR(dir) {
		err = c.initPlain(sg, int(off))
	}
	return c.initialized(op, wayPlain, err)
}

// initialized ends what began with begin.
func (c *Ctx) initialized(op string, way way, err error) (int, error) {
	if err != nil {
		c.reset()
		return 0, opErr(op, err)
	}
	c.way = way
	return c.chainLen(), nil
}

// initPlain makes the transfers of elements by their own keys.
func (c *Ctx) initPlain(sg [][]byte, off int) error {
	most := c.qp.maxRead
	if c.dir == DMAToDevice {
		most = c.qp.maxWrite
	}
	remote, length := c.remoteAddr, uint64(0)
	for i, b := range sg {
		if i == 0 {
			b = b[off:]
		}
		e, err := c.qp.element(i, b)
		if err != nil {
			return err
		}
		if i%most == 0 {
			remote, length = remote+length, 0
			c.ops = append(c.ops, transfer{len(c.sges), len(c.sges), remote})
		}
		c.sges = append(c.sges, e)
		c.ops[len(c.ops)-1].to++
		if length += uint64(e.Length); length > ib.MaxMsgSize {
			return tooLong()
		}
	}
	c.kind = KindMultiWR
	if len(sg) == 1 {
		c.kind = KindSingleWR
	}
	return nil
}

func tooLong() error {
	return invalid("sg", "a request has more than the %d bytes of a message", ib.MaxMsgSize)
}

// pageSize is how memory is counted in regions.
const pageSize = 4096

// initMRs makes the transfers of elements that are registered. errNoMR: the pool has
// too few regions. On failure it has them back.
func (c *Ctx) initMRs(sg [][]byte, off int) error {
	remote := c.remoteAddr
	for len(sg) > 0 {
		r := c.qp.mrs.get()
		if r == nil {
			c.putBack()
			c.forget()
			return errNoMR
		}
		c.regs = append(c.regs, registration{region: r, owed: r.inv})
		n, rest, err := c.mapOne(r.mr, sg, off)
		if err != nil {
			c.putBack()
			c.forget()
			return err
		}
		// The region begins at the real address of its first byte. Its key is not known
		// before the chain is built.
		c.sges = append(c.sges, verbs.SGE{Addr: mem.Address(sg[0]) + uint64(off), Length: uint32(size(sg, off, n, rest))})
		c.ops = append(c.ops, transfer{len(c.sges) - 1, len(c.sges), remote})
		remote += uint64(c.sges[len(c.sges)-1].Length)
		sg, off = sg[n:], rest
	}
	for i := range c.regs {
		c.regs[i].bind = verbs.BindInfo{MR: c.regs[i].mr, Access: c.qp.regAccess()}
	}
	c.kind = KindMR
	return nil
}

// forget drops what a way that failed has made, so that another can be tried.
func (c *Ctx) forget() {
	clear(c.regs)
	c.regs, c.ops, c.sges = c.regs[:0], c.ops[:0], c.sges[:0]
}

// regAccess are the rights of a registration.
func (q *QP) regAccess() ib.Access {
	if q.iwarp {
		return ib.AccessLocalWrite | ib.AccessRemoteWrite
	}
	return ib.AccessLocalWrite
}

// mapOne gives a region as many elements as it takes: up to perMR of them, and fewer when
// its pages are used up; rest is how many bytes of the next one it took besides. A gap
// is an error, as in the kernel; an element that does not fit, which is one there, is
// not, because Go's slices are as long as they are.
func (c *Ctx) mapOne(mr *verbs.MR, sg [][]byte, off int) (n, rest int, err error) {
	list := sg[:min(len(sg), c.qp.perMR)]
	n, rest, err = mr.MapSG(list, off, pageSize)
	if err == nil && n > 0 && n < len(list) && rest == 0 && gap(list[n-1], list[n]) {
		err = invalid("sg", "a gap between elements that a memory region has to hold: the one before ends, or this one begins, inside a page, and they are no neighbours")
	}
	return n, rest, err
}

// gap reports whether two elements cannot follow each other in a region.
func gap(a, b []byte) bool {
	end, at := mem.Address(a)+uint64(len(a)), mem.Address(b)
	return end != at && (end|at)&(pageSize-1) != 0
}

// size is the number of bytes of sg from off on that MapSG took.
func size(sg [][]byte, off, n, rest int) int {
	total := rest - off
	for _, b := range sg[:n] {
		total += len(b)
	}
	return total
}
