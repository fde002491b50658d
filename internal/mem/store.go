package mem

import (
	"encoding/binary"
	"runtime/debug"
	"sync/atomic"

	"github.com/verbena-rdma/verbena/ib"
)

// StoreWord stores the 8 bytes of v, as they are, in the 8 bytes of b under the
// guard: what an ATOMIC WRITE does (IBA A19). With memory that is aligned to 8
// bytes nobody sees a part of it; else (the region's first byte is not aligned as
// its address in work requests is) only the device's own atomics do not. A null
// region swallows it. ErrFault: the memory is not there any more, or not 8 bytes.
func StoreWord(b, v []byte) (err error) {
	if len(b) != 8 || len(v) != 8 {
		return ErrFault
	}
	if isNull(b) {
		return nil
	}
	defer guard(debug.SetPanicOnFault(true), &err)
	if p := word(b); p != nil {
		atomic.StoreUint64(p, binary.NativeEndian.Uint64(v))
		return nil
	}
	copy(b, v)
	return nil
}

// Flushable resolves what an RDMA FLUSH names: length bytes at va under rkey, or
// with whole all that the key stands for, va and length are not looked at then.
// need is the set of flush rights that it takes, all of them. The pieces are
// appended to out. False: remote access error. Unlike that of a WRITE the key
// of an empty range must be good, as rdma_rxe has it.
func (t *Table) Flushable(pd *PD, qpn ib.QPN, rkey ib.RKey, va, length uint64, whole bool, need ib.Access, out [][]byte) ([][]byte, bool) {
	e := t.remote(pd, qpn, rkey, need)
	if e == nil {
		return out, false
	}
	if whole {
		va, length = e.iova, e.length
	}
	if length == 0 {
		return out, true
	}
	return e.pieces(va, length, toRead, out)
}
