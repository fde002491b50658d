package verbs

import (
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// SigMR is a signature region: a key whose address space is what the wire sees of
// data with protection information (T10-PI), whatever memory has of it. Work
// requests of this side and of peers name it as any other. On the way tuples are
// made, checked, converted or left out, block by block (kernel: ib_mr of type
// IB_MR_TYPE_INTEGRITY).
//
// It is used as a region of [PD.AllocMR]: MapSGPI and SetSigAttrs, in any order,
// say what the next ib.WRRegMRIntegrity (SendWR.Bind with MR and Access,
// SendWR.RKey: the key from then on) registers, on a queue pair with
// QPInitAttr.IntegrityEn; ib.WRLocalInv or a peer's SEND with invalidate makes it
// free again. Rights are ib.AccessLocalWrite, remote read and write, and
// ib.AccessZeroBased. Addr and Length are those of the wire's view. Nothing else
// works with it: no atomics, no FLUSH, no memory windows.
//
// A block that is wrong changes neither the status of a completion nor the queue
// pair, and goes where it was to go. Who cares asks CheckStatus before the data is
// used or the transfer is acknowledged.
//
// A block is checked, or its tuple made, when the last byte of it arrives in memory
// or a byte of its end leaves; what has arrived before stands in memory. The
// memory belongs to the device while transfers are under way.
type SigMR struct {
	*MR
	sig driver.SigMR
}

// UnwrapMR gives the provider's region.
func (m *SigMR) UnwrapMR() driver.MR {
	if m == nil {
		return nil
	}
	return m.MR.UnwrapMR()
}

// AllocMRIntegrity makes a signature region for at most maxDataSG slices of data
// and maxMetaSG slices of metadata (kernel: ib_alloc_mr_integrity). EINVAL: a number
// is not between 1 (maxMetaSG: 0) and DeviceAttr.MaxPIFastRegPageListLen; ENOMEM;
// EOPNOTSUPP.
func (p *PD) AllocMRIntegrity(maxDataSG, maxMetaSG int) (*SigMR, error) {
	const op = "alloc_mr_integrity"
	d, ok := p.pd.(driver.IntegrityPD)
	if !ok {
		return nil, notOffered(op)
	}
	var sig driver.SigMR
	m, err := p.register(op, nil, func() (driver.MR, error) {
		var err error
		sig, err = d.AllocMRIntegrity(maxDataSG, maxMetaSG)
		return sig, err
	})
	if err != nil {
		return nil, err
	}
	m.live = sig
	return &SigMR{MR: m, sig: sig}, nil
}

// MapSGPI gives the region the memory that the next WRRegMRIntegrity registers: the
// slices of data one behind the other, from byte dataOffset of the first on, and
// those of meta, from byte metaOffset of its first on (kernel: ib_map_mr_sg_pi).
// meta holds the tuples of the blocks, where memory has some; without meta the
// tuples stand in data, each behind its block. n is how many slices were mapped, of
// both lists together: all. Slices may begin and end anywhere. What is registered
// meanwhile stays as it is. The region keeps the slices from being collected.
//
// EINVAL, and nothing has changed: data is empty, a slice is empty, an offset is
// outside the first slice, a list has more slices than AllocMRIntegrity was told,
// they have more than 2 GiB, pageSize is not a power of two from 4096 on.
func (m *SigMR) MapSGPI(data [][]byte, dataOffset int, meta [][]byte, metaOffset int, pageSize int) (n int, err error) {
	const op = "map_mr_sg_pi"
	if !m.alive() {
		return 0, opErr(op, errMRClosed)
	}
	n, err = m.sig.MapSGPI(data, dataOffset, meta, metaOffset, pageSize)
	return n, opErr(op, err)
}

// SetSigAttrs says what becomes of the data from the next WRRegMRIntegrity on. It
// keeps a copy.
//
// Protection information is inserted where only the side that data goes to has
// some, and checked and left out where only the side that it comes from has. With
// both it is checked and passed on; what differs in the attributes of the two
// sides (kind and seed of the guard; application tag; reference tag) is made anew.
// Both must have blocks of one length then.
//
// EINVAL, and nothing has changed: a is nil; a kind or a guard is unknown;
// PIInterval is not a multiple of 8 from 512 to 65,528, or differs; MetaLength is
// negative.
func (m *SigMR) SetSigAttrs(a *ib.SigAttrs) error {
	const op = "set_sig_attrs"
	switch {
	case a == nil:
		return paramErr(op, "attrs", "is nil", syscall.EINVAL)
	case !m.alive():
		return opErr(op, errMRClosed)
	}
	return opErr(op, m.sig.SetSigAttrs(a))
}

// Ready says whether memory and attributes fit together, without which
// WRRegMRIntegrity cannot be posted. EINVAL: one of them was not given; the data
// is not a number of whole blocks; metadata is shorter than the blocks need, or
// given although memory has no protection information, or has another length than
// SigAttrs.MetaLength says.
func (m *SigMR) Ready() error {
	const op = "reg_mr_integrity"
	if !m.alive() {
		return opErr(op, errMRClosed)
	}
	return opErr(op, m.sig.Ready())
}

// CheckStatus tells of the first block that was found to be wrong since the last
// call or the last WRRegMRIntegrity, and forgets it; false: there was none (kernel:
// ib_check_mr_status with IB_MR_CHECK_SIG_STATUS). Ask when the transfer has
// completed.
func (m *SigMR) CheckStatus() (ib.SigErr, bool) { return m.sig.CheckStatus() }
