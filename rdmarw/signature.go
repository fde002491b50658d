package rdmarw

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// SignatureInit prepares a transfer of blocks with protection information
// (rdma_rw_ctx_signature_init): of the data in sg and, where this side's memory has
// tuples apart from the data, of those in protSG. attrs, which is copied, says how the
// blocks look in memory and on the wire; the peer's memory is as the wire. The context is
// one registration and one READ or WRITE, of the length that the wire has.
//
// A block that is wrong does not fail the transfer: ask CheckMRStatus after the
// completion, before Destroy and before the data is used or the transfer is acknowledged. So a
// response is never chained behind a transfer that checks.
//
// EINVAL: the queue pair was set up without QPInitAttr.IntegrityEn, there are more
// elements in a list than a region takes (DeviceAttr.MaxPIFastRegPageListLen, at most
// 256), or lists and attributes do not fit together, see [verbs.SigMR]; EAGAIN: the pool
// has no signature region left.
func (c *Ctx) SignatureInit(qp *QP, port uint8, sg, protSG [][]byte, attrs *ib.SigAttrs, remoteAddr uint64, rkey ib.RKey, dir Direction) (wrs int, err error) {
	const op = "ctx_signature_init"
	if err := c.begin(qp, port, remoteAddr, rkey, dir); err != nil {
		return 0, opErr(op, err)
	}
	return c.initialized(op, waySignature, c.initSignature(sg, protSG, attrs))
}

func (c *Ctx) initSignature(sg, protSG [][]byte, attrs *ib.SigAttrs) error {
	q := c.qp
	switch most := q.perMR; {
	case !q.integrity:
		return invalid("qp", "was set up without QPInitAttr.IntegrityEn")
	case len(sg) > most:
		return invalid("sg", "%d elements, a region takes %d", len(sg), most)
	case len(protSG) > most:
		return invalid("protSG", "%d elements, a region takes %d", len(protSG), most)
	}
	r := q.sigMRs.get()
	if r == nil {
		return errNoMR
	}
	c.regs = append(c.regs, registration{region: r, owed: r.inv})
	if err := mapSignature(r.sig, sg, protSG, attrs); err != nil {
		c.putBack()
		c.forget()
		return err
	}
	c.regs[0].bind = verbs.BindInfo{MR: r.mr, Access: q.regAccess()}
	c.sges = append(c.sges, verbs.SGE{Addr: r.mr.Addr(), Length: uint32(r.mr.Length())})
	c.ops = append(c.ops, transfer{0, 1, c.remoteAddr})
	c.kind = KindSigMR
	return nil
}

// mapSignature gives a region its memory and attributes.
func mapSignature(mr *verbs.SigMR, sg, protSG [][]byte, attrs *ib.SigAttrs) error {
	if err := mr.SetSigAttrs(attrs); err != nil {
		return err
	}
	if _, err := mr.MapSGPI(sg, 0, protSG, 0, pageSize); err != nil {
		return err
	}
	return mr.Ready()
}

// CheckMRStatus tells of the first block of a SignatureInit context that was found to be
// wrong, and forgets it; false: there was none, or the context is another one
// (ib_check_mr_status). It is asked between completion and DestroySignature.
func (c *Ctx) CheckMRStatus() (ib.SigErr, bool) {
	if c.kind != KindSigMR {
		return ib.SigErr{}, false
	}
	return c.regs[0].sig.CheckStatus()
}

// DestroySignature ends a context of SignatureInit (rdma_rw_ctx_destroy_signature), as
// Destroy does one of Init.
func (c *Ctx) DestroySignature(qp *QP, port uint8, sg, protSG [][]byte, dir Direction) error {
	_, _ = sg, protSG
	return opErr("ctx_destroy_signature", c.end(qp, port, waySignature, dir))
}
