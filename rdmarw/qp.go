package rdmarw

import (
	"errors"
	"math"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// QPInitAttr describes a queue pair that contexts are posted to.
type QPInitAttr struct {
	verbs.QPInitAttr // of the queue pair itself

	// Port is the port that its connections are bound to; 0 is 1 (kernel: port_num).
	Port uint8
	// MaxRDMACtxs is how many contexts with one memory region each may be under way
	// (kernel: cap.max_rdma_ctxs). One of n regions counts n times.
	MaxRDMACtxs uint32
	// CQ hands out the completions of SendCQ. Without it contexts are posted with a
	// chain only, whose WRIDs are the caller's.
	CQ *CQ
	// Memory is where contexts look for the keys of memory that is not from
	// PD.AllocBuffer; nil: there is none.
	Memory *Memory
	// ForceMR has every transfer use memory regions (kernel: the module's parameter
	// force_mr).
	ForceMR bool
}

// QP is a queue pair with what contexts need: pools of memory regions, keys of this
// side's memory, and who is told of completions. The queue pair itself stays the
// caller's.
type QP struct {
	qp     *verbs.QP
	cq     *CQ
	memory *Memory
	dmaKey ib.LKey // 0: the domain has none

	ports    uint8
	iwarp    bool
	force    bool
	readInv  bool
	maxSGLRd int
	maxWrite int // elements of a WRITE (kernel: qp.max_write_sge)
	maxRead  int // elements of a READ (kernel: qp.max_read_sge)
	perMR    int // elements of a region

	integrity bool
	mrs       pool
	sigMRs    pool
	noContig  atomic.Bool // the device makes no contiguous mappings
}

// device is what of a device decides on work requests.
type device struct {
	attr  ib.DeviceAttr
	iwarp bool
}

func deviceOf(dev *verbs.Context) device {
	return device{dev.Driver().Query(), dev.Device().Transport() == "iWARP"}
}

// canUseMR reports whether there may be transfers that use memory regions.
func (d *device) canUseMR(force bool) bool { return d.iwarp || d.attr.MaxSGLRd > 0 || force }

// maxPerMR bounds the elements of a region, so that pools stay of bearable size.
const maxPerMR = 256

// perMR is the number of elements, and of pages, of a region.
func (d *device) perMR(integrity bool) int {
	n := d.attr.MaxFastRegPageListLen
	if integrity {
		n = d.attr.MaxPIFastRegPageListLen
	}
	return min(n, maxPerMR)
}

// MRFactor gives the number of memory regions that a transfer of maxPages pages needs,
// or the number of READs where the device does without regions
// (rdma_rw_mr_factor). Multiply the number of transfers by it for MaxRDMACtxs. force
// is QPInitAttr.ForceMR.
func MRFactor(dev *verbs.Context, port uint8, maxPages int, force bool) int {
	_ = port // one device is of one kind, whatever the port
	d := deviceOf(dev)
	per := d.attr.MaxSGERd
	if d.canUseMR(force) {
		per = d.perMR(false)
	}
	per = max(per, 1)
	return maxPages/per + min(maxPages%per, 1)
}

// MaxSendWR gives the size of the send queue that attr.MaxRDMACtxs contexts need
// (rdma_rw_max_send_wr): three requests each where they may use memory regions, for
// invalidation, registration and transfer, else one. It saturates.
func MaxSendWR(dev *verbs.Context, attr *QPInitAttr) uint32 {
	d := deviceOf(dev)
	factor := uint64(1)
	if attr.IntegrityEn || d.canUseMR(attr.ForceMR) {
		factor = 3
	}
	return uint32(min(factor*uint64(attr.MaxRDMACtxs), math.MaxUint32))
}

// InitQP makes room for contexts in the send queue that attr describes
// (rdma_rw_init_qp): it adds what MaxSendWR says, up to what the device has at most. Call it
// before the queue pair is made, of attr.QPInitAttr, and InitMRs after that.
func InitQP(dev *verbs.Context, attr *QPInitAttr) {
	d := deviceOf(dev)
	n := uint64(attr.Cap.MaxSendWR) + uint64(MaxSendWR(dev, attr))
	attr.Cap.MaxSendWR = uint32(min(n, uint64(max(d.attr.MaxQPWR, 0))))
}

// InitMRs makes what contexts need on a queue pair (rdma_rw_init_mrs): a pool of
// attr.MaxRDMACtxs memory regions where transfers may use them, and with
// attr.IntegrityEn as many signature regions. The caller ends it with
// CleanupMRs. EINVAL: the queue pair is no RC one, has no elements, is of another
// device than a part of attr, or the port is not there; EOPNOTSUPP: the device cannot
// post a list whole or not at all; and what PD.AllocMR refuses. On failure nothing is
// left.
func InitMRs(qp *verbs.QP, attr *QPInitAttr) (*QP, error) {
	const op = "init_mrs"
	q, err := newQP(qp, attr)
	if err != nil {
		return nil, opErr(op, err)
	}
	d := deviceOf(qp.Context())
	if q.perMR = max(d.perMR(attr.IntegrityEn), 0); q.perMR == 0 && (attr.IntegrityEn || d.canUseMR(attr.ForceMR)) {
		return nil, opErr(op, &refusal{"device", "has no fast registration", syscall.EOPNOTSUPP})
	}
	if attr.IntegrityEn || d.canUseMR(attr.ForceMR) {
		err = q.mrs.fill(int(attr.MaxRDMACtxs), func() (*region, error) {
			mr, err := qp.PD().AllocMR(q.perMR)
			return &region{mr: mr}, err
		})
	}
	if q.integrity = attr.IntegrityEn; err == nil && q.integrity {
		err = q.sigMRs.fill(int(attr.MaxRDMACtxs), func() (*region, error) {
			mr, err := qp.PD().AllocMRIntegrity(q.perMR, q.perMR)
			if err != nil {
				return nil, err
			}
			return &region{mr: mr.MR, sig: mr}, nil
		})
	}
	if err != nil {
		return nil, opErr(op, errors.Join(err, q.mrs.drain()))
	}
	return q, nil
}

// newQP is InitMRs without regions.
func newQP(qp *verbs.QP, attr *QPInitAttr) (*QP, error) {
	switch {
	case qp == nil:
		return nil, invalid("qp", "is nil")
	case attr == nil:
		return nil, invalid("attr", "is nil")
	}
	_, init, err := qp.Query()
	switch {
	case err != nil:
		return nil, err
	case qp.Type() != ib.RC:
		return nil, invalid("qp", "is of type %v, want RC", qp.Type())
	case attr.IntegrityEn && !init.IntegrityEn:
		return nil, invalid("IntegrityEn", "the queue pair was made without it")
	case attr.CQ != nil && attr.CQ.cq != qp.SendCQ():
		return nil, invalid("CQ", "is not of the queue pair's SendCQ")
	}
	d := deviceOf(qp.Context())
	q := &QP{
		qp: qp, cq: attr.CQ, memory: attr.Memory,
		ports: d.attr.PhysPortCnt, iwarp: d.iwarp, force: attr.ForceMR, readInv: d.attr.ReadWithInv, maxSGLRd: d.attr.MaxSGLRd,
		maxWrite: int(init.Cap.MaxSendSGE), maxRead: min(int(init.Cap.MaxSendSGE), d.attr.MaxSGERd),
	}
	if q.maxRead < 1 {
		return nil, invalid("qp", "its requests have no elements (Cap.MaxSendSGE)")
	}
	if err := q.checkPort(max(attr.Port, 1)); err != nil {
		return nil, err
	}
	switch q.dmaKey, err = qp.PD().LocalDMALKey(); {
	case errors.Is(err, syscall.EOPNOTSUPP): // then all memory is in attr.Memory
	case err != nil:
		return nil, err
	}
	return q, nil
}

// CreateQP is InitQP, PD.CreateQP and InitMRs in one. The caller ends it with
// CleanupMRs, then destroys the queue pair.
func CreateQP(pd *verbs.PD, attr *QPInitAttr) (*QP, error) {
	const op = "create_qp"
	switch {
	case pd == nil:
		return nil, opErr(op, invalid("pd", "is nil"))
	case attr == nil:
		return nil, opErr(op, invalid("attr", "is nil"))
	}
	a := *attr
	InitQP(pd.Context(), &a)
	qp, err := pd.CreateQP(&a.QPInitAttr)
	if err != nil {
		return nil, opErr(op, err)
	}
	q, err := InitMRs(qp, &a)
	if err != nil {
		return nil, opErr(op, errors.Join(err, qp.Destroy()))
	}
	attr.Cap = a.Cap
	return q, nil
}

// CleanupMRs ends the pools (rdma_rw_cleanup_mrs). No work that uses them is under
// way. EBUSY: contexts have regions, and nothing has changed. Again does nothing.
func (q *QP) CleanupMRs() error {
	const op = "cleanup_mrs"
	for _, p := range []*pool{&q.mrs, &q.sigMRs} {
		if err := p.idle(); err != nil {
			return opErr(op, err)
		}
	}
	return opErr(op, errors.Join(q.mrs.drain(), q.sigMRs.drain()))
}

// QP is the queue pair itself.
func (q *QP) QP() *verbs.QP { return q.qp }

// SigMRs is MRs of signature regions.
func (q *QP) SigMRs() (free, size int) { return q.sigMRs.left() }

// CQ is who hands out the completions of contexts, or nil.
func (q *QP) CQ() *CQ { return q.cq }

// MRs tells how many memory regions contexts may still take, and how many there are.
func (q *QP) MRs() (free, size int) { return q.mrs.left() }

func (q *QP) checkPort(port uint8) error {
	if port < 1 || port > q.ports {
		return invalid("port", "%d, the device has ports 1 to %d", port, q.ports)
	}
	return nil
}

// needsMR reports whether regions are not a matter of choice: a READ of iWARP names its
// target by a key that peers may write to, which nobody wants for more than the
// transfer.
func (q *QP) needsMR(dir Direction) bool { return q.force || q.iwarp && dir == DMAFromDevice }

// wantsMR reports whether a transfer of n elements uses regions.
func (q *QP) wantsMR(dir Direction, n int) bool {
	return q.needsMR(dir) || dir == DMAFromDevice && q.maxSGLRd > 0 && n > q.maxSGLRd
}
