package rdmarw_test

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// faults lets the n-th call of a device fail which a context depends on.
type faults struct {
	at    int // which one fails, from 1; 0: none
	calls int
	open  int // regions and mappings that were made and not ended
}

// step counts a call; an error: it is the one to fail.
func (f *faults) step(what string) error {
	if f.calls++; f.calls == f.at {
		return fmt.Errorf("%s, call %d: %w", what, f.calls, syscall.ENOMEM)
	}
	return nil
}

// faultDevice is a software device that fails so.
type faultDevice struct {
	*soft.Device
	f *faults
}

func (d *faultDevice) AllocPD() (driver.PD, error) {
	p, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &faultPD{p.(softPD), d.f}, nil
}

func (d *faultDevice) CreateQP(pd driver.PD, attr *driver.QPInitAttr, ev driver.EventSink) (driver.QP, error) {
	if err := d.f.step("create_qp"); err != nil {
		return nil, err
	}
	q, err := d.Device.CreateQP(pd.(*faultPD).softPD, attr, ev)
	if err != nil {
		return nil, err
	}
	return &faultQP{q.(softQP), d.f}, nil
}

// softPD and softQP are what this package needs of a software device's.
type (
	softPD interface {
		driver.PD
		driver.FastRegPD
		driver.IntegrityPD
		driver.LocalDMAPD
		driver.LocalDMAReacher
		driver.BufferPD
		driver.ContigMapper
	}
	softQP interface {
		driver.QP
		driver.BatchPoster
	}
)

type faultPD struct {
	softPD
	f *faults
}

func (p *faultPD) LocalDMALKey() (k ib.LKey, err error) {
	if err = p.f.step("local_dma_lkey"); err == nil {
		k, err = p.softPD.LocalDMALKey()
	}
	return k, err
}

func (p *faultPD) AllocMR(n int) (driver.FastMR, error) {
	if err := p.f.step("alloc_mr"); err != nil {
		return nil, err
	}
	m, err := p.softPD.AllocMR(n)
	if err != nil {
		return nil, err
	}
	p.f.open++
	return &faultMR{m, p.f}, nil
}

func (p *faultPD) AllocMRIntegrity(data, meta int) (driver.SigMR, error) {
	if err := p.f.step("alloc_mr_integrity"); err != nil {
		return nil, err
	}
	m, err := p.softPD.AllocMRIntegrity(data, meta)
	if err != nil {
		return nil, err
	}
	p.f.open++
	return &faultSigMR{m, p.f}, nil
}

func (p *faultPD) MapContig(list [][]byte) (driver.Contig, error) {
	if err := p.f.step("map_contig"); err != nil {
		return nil, err
	}
	c, err := p.softPD.MapContig(list)
	if err != nil {
		return nil, err
	}
	p.f.open++
	return &faultContig{c, p.f}, nil
}

type faultContig struct {
	driver.Contig
	f *faults
}

func (c *faultContig) Unmap() error {
	c.f.open--
	return c.Contig.Unmap()
}

type faultMR struct {
	driver.FastMR
	f *faults
}

func (m *faultMR) MapSG(list [][]byte, offset, pageSize int) (n, rest int, err error) {
	if err := m.f.step("map_mr_sg"); err != nil {
		return 0, 0, err
	}
	return m.FastMR.MapSG(list, offset, pageSize)
}

func (m *faultMR) Dereg() error {
	m.f.open--
	return m.FastMR.Dereg()
}

type faultSigMR struct {
	driver.SigMR
	f *faults
}

func (m *faultSigMR) MapSGPI(data [][]byte, dataOffset int, meta [][]byte, metaOffset int, pageSize int) (int, error) {
	if err := m.f.step("map_mr_sg_pi"); err != nil {
		return 0, err
	}
	return m.SigMR.MapSGPI(data, dataOffset, meta, metaOffset, pageSize)
}

func (m *faultSigMR) Dereg() error {
	m.f.open--
	return m.SigMR.Dereg()
}

type faultQP struct {
	softQP
	f *faults
}

func (q *faultQP) PostSendAll(wrs []driver.SendWR) (int, error) {
	if err := q.f.step("post_send"); err != nil {
		return len(wrs), err
	}
	// A provider unwraps what verbs has wrapped, not what this test has.
	list := slices.Clone(wrs)
	for i := range list {
		if b := list[i].Bind; b != nil {
			bind := *b
			switch m := b.MR.(driver.MRUnwrapper).UnwrapMR().(type) {
			case *faultMR:
				bind.MR = m.FastMR
			case *faultSigMR:
				bind.MR = m.SigMR
			}
			list[i].Bind = &bind
		}
	}
	return q.softQP.PostSendAll(list)
}
