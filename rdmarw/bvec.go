package rdmarw

import (
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// BioVec is a part of a page, or of neighbouring pages: Len bytes from Offset on
// (struct bio_vec).
type BioVec struct {
	Page        []byte
	Len, Offset uint32
}

// BvecIter says which part of a list of BioVecs is meant (struct bvec_iter): Size bytes
// from byte BvecDone of element Idx on.
type BvecIter struct {
	Size     uint32
	Idx      uint32
	BvecDone uint32
}

// InitBvec is Init of the part of a list of pages that iter names
// (rdma_rw_ctx_init_bvec). iter is a copy: the caller's stays where it is. Regions
// are used where the device or ForceMR demands it; else one segment makes one request,
// several one contiguous mapping where the device can give it (PD.MapContig), else
// regions for READs of more segments than it likes, else requests of several elements. An
// empty pool is EAGAIN: there is no other way then.
//
// EINVAL: there is no page, iter is of size 0 or names more than the list has, or an
// element more than its page; and what Init refuses.
func (c *Ctx) InitBvec(qp *QP, port uint8, bvec []BioVec, iter BvecIter, remoteAddr uint64, rkey ib.RKey, dir Direction) (wrs int, err error) {
	const op = "ctx_init_bvec"
	if err := c.begin(qp, port, remoteAddr, rkey, dir); err != nil {
		return 0, opErr(op, err)
	}
	if err = c.walk(bvec, iter); err == nil {
		err = c.initBvec()
	}
	return c.initialized(op, wayBvec, err)
}

// walk collects the segments that an iterator names.
func (c *Ctx) walk(bvec []BioVec, iter BvecIter) error {
	switch {
	case len(bvec) == 0:
		return invalid("bvec", "has no entry")
	case iter.Size == 0:
		return invalid("iter", "is of size 0")
	}
	done, left := uint64(iter.BvecDone), uint64(iter.Size)
	for i := uint64(iter.Idx); left > 0; i++ {
		if i >= uint64(len(bvec)) {
			return invalid("iter", "names %d bytes more than the list has", left)
		}
		v := &bvec[i]
		if uint64(v.Offset)+uint64(v.Len) > uint64(len(v.Page)) {
			return invalid("bvec", "entry %d has %d bytes from %d on, its page %d", i, v.Len, v.Offset, len(v.Page))
		}
		if done >= uint64(v.Len) && done > 0 || v.Len == 0 {
			if done > uint64(v.Len) {
				return invalid("iter", "is at byte %d of entry %d, which has %d", done, i, v.Len)
			}
			done = 0
			continue
		}
		n := min(uint64(v.Len)-done, left)
		from := uint64(v.Offset) + done
		c.list = append(c.list, v.Page[from:from+n:from+n])
		left -= n
		done = 0
	}
	return nil
}

func (c *Ctx) initBvec() error {
	switch {
	case c.qp.needsMR(c.dir):
		return c.initMRs(c.list, 0)
	case len(c.list) == 1:
		return c.initPlain(c.list, 0)
	}
	if err := c.initContig(); !errors.Is(err, syscall.EOPNOTSUPP) {
		return err
	}
	if c.qp.wantsMR(c.dir, len(c.list)) {
		return c.initMRs(c.list, 0)
	}
	return c.initPlain(c.list, 0)
}
