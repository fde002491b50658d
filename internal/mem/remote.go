package mem

import "github.com/verbena-rdma/verbena/ib"

// RemoteAgain is Remote for a READ of what the same peer has read before: it asks again
// because a response was lost.
func (t *Table) RemoteAgain(pd *PD, qpn ib.QPN, rkey ib.RKey, va, length uint64, out [][]byte) ([][]byte, bool) {
	return t.remotePieces(pd, qpn, rkey, va, length, ib.AccessRemoteRead, toReadAgain, out)
}

// RemoteWord is Remote for 8 bytes that are stored at once. Signature regions do not
// take that.
func (t *Table) RemoteWord(pd *PD, qpn ib.QPN, rkey ib.RKey, va uint64, need ib.Access, out [][]byte) ([][]byte, bool) {
	e := t.remote(pd, qpn, rkey, need)
	if e == nil || e.kind == kindSignature {
		return out, false
	}
	return e.pieces(va, 8, toWrite, out)
}

// Reachable reports whether Remote would give the memory. It does not touch it.
func (t *Table) Reachable(pd *PD, qpn ib.QPN, rkey ib.RKey, va, length uint64, need ib.Access) bool {
	if length == 0 {
		return true
	}
	e := t.remote(pd, qpn, rkey, need)
	if e == nil {
		return false
	}
	switch e.kind {
	case kindNull:
		return true
	case kindDMA:
		return false // peers do not have such a key
	}
	return length <= e.length && va-e.iova <= e.length-length
}
