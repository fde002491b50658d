package soft

import (
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/queue"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// What the device does with protection information.
const (
	sigProtCap  = ib.SigProtT10DIFType1 | ib.SigProtT10DIFType2 | ib.SigProtT10DIFType3
	sigGuardCap = ib.SigGuardT10DIFCRC | ib.SigGuardT10DIFCSUM
)

// sigCaps are those of the device, if it has signature regions.
func (l *Limits) sigCaps() (prot, guard uint32) {
	if l.MaxPIFastRegPages > 0 {
		return sigProtCap, sigGuardCap
	}
	return 0, 0
}

// sigMR is a signature region.
type sigMR struct{ *mr }

// AllocMRIntegrity implements driver.IntegrityPD.
func (p *pd) AllocMRIntegrity(maxDataSG, maxMetaSG int) (driver.SigMR, error) {
	most := p.dev.cfg.Limits.MaxPIFastRegPages
	switch {
	case most <= 0:
		return nil, notOffered("maxDataSG", "the device has no signature regions")
	case maxDataSG <= 0 || maxDataSG > most:
		return nil, invalid("maxDataSG", "%d, want 1 to %d", maxDataSG, most)
	case maxMetaSG < 0 || maxMetaSG > most:
		return nil, invalid("maxMetaSG", "%d, want 0 to %d", maxMetaSG, most)
	}
	m, err := p.register(p.dev.table.RegisterSignature(&p.mem, maxDataSG, maxMetaSG))
	if err != nil {
		return nil, err
	}
	return &sigMR{m.(*mr)}, nil
}

// MapSGPI implements driver.SigMR.
func (m *sigMR) MapSGPI(data [][]byte, dataOffset int, meta [][]byte, metaOffset, pageSize int) (int, error) {
	return m.dev.table.MapSignature(m.region, data, dataOffset, meta, metaOffset, pageSize)
}

// SetSigAttrs implements driver.SigMR.
func (m *sigMR) SetSigAttrs(a *ib.SigAttrs) error { return m.dev.table.SetSigAttrs(m.region, a) }

// Ready implements driver.SigMR.
func (m *sigMR) Ready() error { return m.dev.table.SignatureReady(m.region) }

// CheckStatus implements driver.SigMR.
func (m *sigMR) CheckStatus() (ib.SigErr, bool) { return m.region.SigStatus() }

// Rereg refuses: such a region is changed by work requests.
func (m *sigMR) Rereg(ib.ReregFlags, *driver.ReregAttr) error {
	return invalid("mr", "a signature region is registered by work requests")
}

// checkIntegrity says whether a WRRegMRIntegrity may be posted.
func (q *qp) checkIntegrity(reg *mem.Region, access ib.Access) error {
	refuse := func(field, why string) error {
		return &queue.WRError{Field: field, Err: syscall.EINVAL, Detail: why}
	}
	switch {
	case !q.integrity:
		return refuse("Opcode", "the queue pair was created without IntegrityEn")
	case reg == nil || !reg.Integrity():
		return refuse("Bind.MR", "is not a signature region")
	}
	detail := func(err error) string {
		if p := new(mem.ParamError); errors.As(err, &p) {
			return p.Param + ": " + p.Detail
		}
		return err.Error()
	}
	if err := q.dev.table.SignatureReady(reg); err != nil {
		return refuse("Bind.MR", detail(err))
	}
	if err := mem.CheckSigAccess(access); err != nil {
		return refuse("Bind.Access", detail(err))
	}
	return nil
}
