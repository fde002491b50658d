package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Cursor is a position in a scatter/gather list. The zero value is its start.
type Cursor struct {
	sge int
	off uint32
}

// Seek sets the cursor to byte off of the list.
func (c *Cursor) Seek(sgl []driver.SGE, off uint64) {
	*c = Cursor{}
	for c.sge < len(sgl) && off >= uint64(sgl[c.sge].Length) {
		off -= uint64(sgl[c.sge].Length)
		c.sge++
	}
	c.off = uint32(off)
}

// Pieces resolves the next n bytes of the list, appends the pieces of memory to
// out, and moves the cursor. A list that is too short, a bad key or bad bounds
// give LOC_LEN_ERR or LOC_PROT_ERR; success is WCSuccess.
func (c *Cursor) Pieces(t *mem.Table, pd *mem.PD, sgl []driver.SGE, n uint64, write bool, out [][]byte) ([][]byte, ib.WCStatus) {
	for n > 0 {
		if c.sge >= len(sgl) {
			return out, ib.WCLocLenErr
		}
		s := &sgl[c.sge]
		take := min(n, uint64(s.Length-c.off))
		if take > 0 {
			var ok bool
			out, ok = t.Local(pd, s.LKey, s.Addr+uint64(c.off), take, write, out)
			if !ok {
				return out, ib.WCLocProtErr
			}
		}
		c.off += uint32(take)
		n -= take
		if c.off == s.Length {
			c.sge++
			c.off = 0
		}
	}
	return out, ib.WCSuccess
}

// Arrived tells the table that the next n bytes of the list, which Pieces gave to be
// written, have been written. False: memory that is not there any more.
func (c Cursor) Arrived(t *mem.Table, sgl []driver.SGE, n uint64) bool {
	if !t.HasSignatures() {
		return true
	}
	for n > 0 && c.sge < len(sgl) {
		s := &sgl[c.sge]
		take := min(n, uint64(s.Length-c.off))
		if !t.Arrived(uint32(s.LKey), s.Addr+uint64(c.off), take) {
			return false
		}
		n -= take
		c.sge, c.off = c.sge+1, 0
	}
	return true
}

// ListLen is the number of bytes in a list.
func ListLen(sgl []driver.SGE) (n uint64) {
	for i := range sgl {
		n += uint64(sgl[i].Length)
	}
	return n
}

// SendPieces gives n bytes at offset off of a send WQE's payload: its inline
// bytes, or pieces of registered memory.
func (c *Cursor) SendPieces(t *mem.Table, pd *mem.PD, w *queue.WQE, off, n uint64, out [][]byte) ([][]byte, ib.WCStatus) {
	if n == 0 {
		return out, ib.WCSuccess
	}
	if w.Flags&ib.SendInline != 0 {
		return append(out, w.Inline[off:off+n]), ib.WCSuccess
	}
	return c.Pieces(t, pd, w.SGL, n, false, out)
}

// Scatter copies b into the pieces.
func Scatter(pieces [][]byte, b []byte) error {
	for _, p := range pieces {
		n := min(len(p), len(b))
		if err := mem.Copy(p[:n], b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
