package verbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// QPInitAttrEx describes a queue pair to create with what QPInitAttr does not have
// (struct ibv_qp_init_attr_ex). Fields that are 0 are not used, as comp_mask says in
// C. There is no indirection table and no hash: receive side scaling is for Ethernet
// frames.
type QPInitAttrEx struct {
	QPInitAttr

	PD           *PD   // of all queue pairs but ib.XRCRecv
	XRCD         *XRCD // of those of type ib.XRCRecv, which have nothing else
	CreateFlags  ib.QPCreateFlags
	MaxTSOHeader uint16 // bytes; not offered
	SourceQPN    ib.QPN // with ib.QPCreateSourceQPN; not offered
}

// CreateQPEx makes a queue pair in state RESET (ibv_create_qp_ex), as PD.CreateQP
// does, and those of type ib.XRCRecv besides. EINVAL: a creation flag is unknown, or
// PD and XRCD are not what the type needs; EOPNOTSUPP: the flag or the segmentation
// of TCP is not offered. attr has not changed then.
func (c *Context) CreateQPEx(attr *QPInitAttrEx) (*QP, error) {
	const op = "create_qp_ex"
	if attr == nil {
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	if err := checkQPEx(op, c, attr); err != nil {
		return nil, err
	}
	if attr.Type == ib.XRCRecv {
		q, err := attr.XRCD.target(op, attr.UserContext, func(_ driver.XRCDevice, ev driver.EventSink) (driver.QP, error) {
			return c.dev.CreateQP(nil, &driver.QPInitAttr{Type: ib.XRCRecv, XRCD: attr.XRCD.xrcd}, ev)
		})
		if err == nil {
			attr.Cap = ib.QPCap{}
		}
		return q, err
	}
	own := attr.QPInitAttr
	own.IntegrityEn = own.IntegrityEn || attr.CreateFlags&ib.QPCreateIntegrityEn != 0
	own.BlockSelfMcastLB = own.BlockSelfMcastLB || attr.CreateFlags&ib.QPCreateBlockSelfMcastLB != 0
	q, err := attr.PD.CreateQP(&own)
	if err != nil {
		return nil, err
	}
	attr.Cap = own.Cap
	return q, nil
}

func checkQPEx(op string, c *Context, attr *QPInitAttrEx) error {
	const ethernet = ib.QPCreateScatterFCS | ib.QPCreateCVLANStripping | ib.QPCreatePCIWriteEndPadding
	const known = ib.QPCreateBlockSelfMcastLB | ib.QPCreateIntegrityEn | ethernet | ib.QPCreateSourceQPN
	no := func(param, why string) error { return paramErr(op, param, why, syscall.EOPNOTSUPP) }
	bad := func(param, why string) error { return paramErr(op, param, why, syscall.EINVAL) }
	f := attr.CreateFlags
	switch {
	case f&^known != 0:
		return bad("CreateFlags", fmt.Sprintf("unknown flags %v", f&^known))
	case f&ib.QPCreateSourceQPN != 0:
		return no("CreateFlags", "SOURCE_QPN: packets carry the queue pair's own number")
	case attr.SourceQPN != 0:
		return bad("SourceQPN", "is set, but CreateFlags lacks ib.QPCreateSourceQPN")
	case f&ethernet != 0:
		return no("CreateFlags", fmt.Sprintf("%v is not offered", f&ethernet))
	case attr.MaxTSOHeader != 0:
		return no("MaxTSOHeader", "there is no TCP segmentation")
	case attr.Type == ib.XRCRecv:
		switch {
		case attr.XRCD == nil || attr.XRCD.ctx != c:
			return bad("XRCD", "is nil or of another device")
		case attr.PD != nil || attr.SendCQ != nil || attr.RecvCQ != nil || attr.SRQ != nil:
			return bad("PD", "XRC_RECV has neither PD nor queues of its own")
		}
	case attr.XRCD != nil:
		return bad("XRCD", "is for queue pairs of type XRC_RECV")
	case attr.PD == nil || attr.PD.ctx != c:
		return bad("PD", "is nil or of another device")
	}
	return nil
}

// SetECE asks for enhanced connection establishment options (ibv_set_ece) and
// writes back what is accepted. They are set before the queue pair goes to RTR, and
// forgotten in RESET. EOPNOTSUPP: the device has none, or ece.VendorID is 0: there
// are none to set. EINVAL: the state is not RESET or INIT, or a field is bad.
func (q *QP) SetECE(ece *ib.ECE) error {
	const op = "set_ece"
	switch {
	case ece == nil:
		return paramErr(op, "ece", "is nil", syscall.EINVAL)
	case !q.alive():
		return opErr(op, errQPClosed)
	case ece.VendorID == 0:
		return paramErr(op, "VendorID", "is 0: no vendor's options", syscall.EOPNOTSUPP)
	}
	d, ok := q.qp.(driver.ECEQP)
	if !ok {
		return paramErr(op, "device", "has no ECE options", syscall.EOPNOTSUPP)
	}
	return opErr(op, d.SetECE(ece))
}

// QueryECE tells the enhanced connection establishment options (ibv_query_ece); all
// 0 when none were set. EOPNOTSUPP: the device has none.
func (q *QP) QueryECE() (ib.ECE, error) {
	const op = "query_ece"
	if !q.alive() {
		return ib.ECE{}, opErr(op, errQPClosed)
	}
	d, ok := q.qp.(driver.ECEQP)
	if !ok {
		return ib.ECE{}, paramErr(op, "device", "has no ECE options", syscall.EOPNOTSUPP)
	}
	e, err := d.QueryECE()
	return e, opErr(op, err)
}

// ModifyRateLimit limits what the queue pair sends (ibv_modify_qp_rate_limit).
// EOPNOTSUPP: the device does not pace, as no software device does.
func (q *QP) ModifyRateLimit(attr *ib.QPRateLimitAttr) error {
	const op = "modify_qp_rate_limit"
	switch {
	case attr == nil:
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	case !q.alive():
		return opErr(op, errQPClosed)
	}
	d, ok := q.qp.(driver.RateLimiter)
	if !ok {
		return paramErr(op, "device", "does not pace", syscall.EOPNOTSUPP)
	}
	return opErr(op, d.ModifyRateLimit(attr))
}

// QueryDataInOrder tells whether the data of one operation of this kind, done on
// this queue pair's side, are written in the order of their addresses, so that a
// program may watch the last byte instead of waiting for a completion
// (ibv_query_qp_data_in_order). Software devices say no: packets are worked off in
// order, but within a packet the copy may begin anywhere. flags is 0. EINVAL: it is
// not.
func (q *QP) QueryDataInOrder(op ib.WROpcode, flags uint32) (bool, error) {
	const name = "query_qp_data_in_order"
	switch {
	case flags != 0:
		return false, paramErr(name, "flags", "is not 0", syscall.EINVAL)
	case !q.alive():
		return false, opErr(name, errQPClosed)
	}
	d, ok := q.qp.(driver.DataInOrder)
	return ok && d.DataInOrder(op), nil
}
