package verbs

import "github.com/verbena-rdma/verbena/verbs/driver"

// PostSendAll posts all of a list of send requests or nothing of it, as a batch of
// a [QPEx] does: where PostSend would post those before the bad one, or those that
// fit, here none is posted. The errnos are those of PostSend; if one request is at
// fault the error holds a *PostError. ENOMEM: there is no room for all of them.
// EOPNOTSUPP: the device cannot post so.
func (q *QP) PostSendAll(wrs []SendWR) error {
	const op = "post_send"
	p, ok := q.qp.(driver.BatchPoster)
	switch {
	case !ok:
		return notOffered(op)
	case !q.alive():
		return opErr(op, errQPClosed)
	}
	n, err := p.PostSendAll(wrs)
	switch {
	case err == nil:
		return nil
	case n < 0 || n >= len(wrs):
		return opErr(op, err)
	}
	return postErr(op, n, wrs[n].WRID, err)
}

// LocalDMAReaches reports whether all of b is in one [Buffer] of the domain: whether
// LocalDMALKey names it. False too where the device has no such key, or does not
// tell.
func (p *PD) LocalDMAReaches(b []byte) bool {
	d, ok := p.pd.(driver.LocalDMAReacher)
	return ok && d.LocalDMAReaches(b)
}
