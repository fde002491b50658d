package verbs

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// notOffered is the refusal of what the device's provider does not have.
func notOffered(op string) error {
	return opErr(op, fmt.Errorf("the device does not offer it: %w", syscall.EOPNOTSUPP))
}

// errMRClosed tells that the region was deregistered.
var errMRClosed error = &closedError{"memory region", syscall.EINVAL}

// ReregAttr is what a region becomes: the arguments of ibv_rereg_mr. Only what
// the flags name is read.
type ReregAttr struct {
	PD     *PD     // ib.ReregPD
	Bytes  []byte  // ib.ReregTranslation: the new memory ...
	Addr   uintptr // ... or, where Bytes is nil, memory that Go does not manage,
	Length uint64  // and its length
	Access ib.Access
}

// Rereg changes the memory, the domain or the rights of a region, or several of
// them, in one step (ibv_rereg_mr): what is under way finds either the old
// registration or the new one. If it fails the old registration works on,
// whatever the reason; in C it may be lost.
//
// With new memory or another domain the region has new keys: read LKey and RKey
// again, and tell the peer. With other rights alone the keys stay. The address
// of new memory is its own, or 0 with ib.AccessZeroBased in the region's rights.
// When Rereg returns nothing touches the memory that the region has lost.
//
// EINVAL: flags are 0 or unknown, the memory or the rights are as RegMR refuses
// them, or the region is a null region or one for fast registration; EBUSY: a
// memory window is bound to it; EOPNOTSUPP.
func (m *MR) Rereg(flags ib.ReregFlags, attr *ReregAttr) error {
	const op = "rereg_mr"
	d, ok := m.mr.(driver.MRRereger)
	switch {
	case attr == nil:
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	case !ok:
		return notOffered(op)
	}
	m.mu.Lock() // against Dereg
	defer m.mu.Unlock()
	if m.gone || !m.alive() {
		return opErr(op, errMRClosed)
	}
	old := m.cur.Load()
	pd, b := old.pd, old.b
	a := driver.ReregAttr{Bytes: attr.Bytes, Addr: attr.Addr, Length: attr.Length, Access: attr.Access}
	if flags&ib.ReregTranslation != 0 {
		b = attr.Bytes
	}
	if flags&ib.ReregPD != 0 {
		switch pd = attr.PD; {
		case pd == nil:
			return paramErr(op, "PD", "is nil", syscall.EINVAL)
		case pd.ctx != old.pd.ctx:
			return paramErr(op, "PD", "is of another device", syscall.EINVAL)
		case !pd.hold(anMR):
			return opErr(op, errPDClosed)
		}
		a.PD = pd.pd
	}
	if err := d.Rereg(flags, &a); err != nil {
		if pd != old.pd || flags&ib.ReregPD != 0 {
			pd.drop(anMR)
		}
		return opErr(op, err)
	}
	m.set(pd, b)
	if flags&ib.ReregPD != 0 {
		old.pd.drop(anMR)
	}
	return nil
}

// AllocMR makes a region for fast registration, of at most maxNumSG pages
// (kernel: ib_alloc_mr; ibv has no such call). It goes through three states:
//
//   - free: its key is good for nothing. [MR.MapSG] says which memory it shall
//     have.
//   - WRRegMR (SendWR.Bind with MR and Access, SendWR.RKey: the key from then on,
//     which may differ from the present one in the low 8 bits, see ib.IncRKey)
//     makes it valid. In any other state, or with bad rights or another domain
//     than the queue pair's, the request ends with ib.WCMWBindErr, as on NICs
//     (rdma_rxe: WCLocQPOpErr).
//   - WRLocalInv (SendWR.InvalidateRKey), or a SEND with invalidate from a peer,
//     makes it free again. A fence keeps a WRLocalInv behind all earlier work;
//     without, READs into the region that are under way fail. EBUSY of windows
//     holds here too: a region with bound windows is not invalidated.
//
// EINVAL: maxNumSG is not between 1 and DeviceAttr.MaxFastRegPageListLen;
// ENOMEM; EOPNOTSUPP.
func (p *PD) AllocMR(maxNumSG int) (*MR, error) {
	const op = "alloc_mr"
	d, ok := p.pd.(driver.FastRegPD)
	if !ok {
		return nil, notOffered(op)
	}
	var fast driver.FastMR
	m, err := p.register(op, nil, func() (driver.MR, error) {
		var err error
		fast, err = d.AllocMR(maxNumSG)
		return fast, err
	})
	if m != nil {
		m.fast, m.live = fast, fast
	}
	return m, err
}

// MapSG gives a region of AllocMR the memory that the next WRRegMR registers:
// the slices of list one behind the other, from byte offset of the first on
// (kernel: ib_map_mr_sg). What is registered meanwhile stays as it is. The
// region then begins at the real address of its first byte, and keeps the slices
// from being collected.
//
// Memory is mapped in pages: only the first slice may begin, and only the last
// may end, inside one, unless two slices are neighbours in memory. n is how many
// slices fit. It is smaller than len(list) at such a gap, or when the region has
// no more pages; then rest is how many bytes of slice n fit besides: go on with
// MapSG(list[n:], rest, pageSize) on another region.
//
// EINVAL: the region is not of AllocMR, the list or a slice is empty, offset is
// outside the first slice, pageSize is not a power of two from 4096 on.
func (m *MR) MapSG(list [][]byte, offset, pageSize int) (n, rest int, err error) {
	const op = "map_mr_sg"
	if m.fast == nil {
		return 0, 0, paramErr(op, "mr", "is not one for fast registration", syscall.EINVAL)
	}
	if !m.alive() {
		return 0, 0, opErr(op, errMRClosed)
	}
	n, rest, err = m.fast.MapSG(list, offset, pageSize)
	return n, rest, opErr(op, err)
}

// AdviseMR gives advice about regions with on-demand paging (ibv_advise_mr).
// EOPNOTSUPP where the device has none, as software devices.
func (p *PD) AdviseMR(advice ib.Advice, flags uint32, list []SGE) error {
	const op = "advise_mr"
	d, ok := p.pd.(driver.MRAdviser)
	switch {
	case !p.alive():
		return opErr(op, errPDClosed)
	case !ok:
		return notOffered(op)
	}
	return opErr(op, d.AdviseMR(advice, flags, list))
}

// LocalDMALKey is a key for local use with which scatter/gather elements name
// the memory of every [Buffer] of the domain, by its real address (kernel:
// ib_pd.local_dma_lkey). It allows local reading and writing; peers cannot use
// it. Other memory it does not reach: an address alone does not keep Go from
// moving or reusing what is there. EOPNOTSUPP, ENOMEM.
func (p *PD) LocalDMALKey() (ib.LKey, error) {
	const op = "local_dma_lkey"
	d, ok := p.pd.(driver.LocalDMAPD)
	if !ok {
		return 0, notOffered(op)
	}
	// Held, so that the domain is not deallocated meanwhile.
	if !p.hold(anMR) {
		return 0, opErr(op, errPDClosed)
	}
	defer p.drop(anMR)
	k, err := d.LocalDMALKey()
	return k, opErr(op, err)
}

// Buffer is registered memory that the library has allocated.
type Buffer struct {
	life
	buf driver.Buffer
	mr  *MR
}

// AllocBuffer allocates size bytes of zeroed memory from a page boundary on and
// registers them. The memory is outside Go's heap where the system has a way,
// in huge pages if it is long and the host has reserved some. Close frees it:
// after that the slice must not be touched any more, by a region for fast
// registration neither. EINVAL, ENOMEM, EOPNOTSUPP.
func (p *PD) AllocBuffer(size int, access ib.Access) (*Buffer, error) {
	const op = "alloc_buffer"
	d, ok := p.pd.(driver.BufferPD)
	if !ok {
		return nil, notOffered(op)
	}
	b := new(Buffer)
	m, err := p.register(op, nil, func() (driver.MR, error) {
		var err error
		if b.buf, err = d.AllocBuffer(size, access); err != nil {
			return nil, err
		}
		return b.buf.MR(), nil
	})
	if err != nil {
		return nil, err
	}
	m.set(p, b.buf.Bytes())
	b.mr = m
	return b, nil
}

// MR is the buffer's region.
func (b *Buffer) MR() *MR { return b.mr }

// Bytes is the buffer's memory, until Close.
func (b *Buffer) Bytes() []byte { return b.buf.Bytes() }

// Addr is the real address of the buffer, which LocalDMALKey needs.
func (b *Buffer) Addr() uint64 { return b.mr.Addr() }

// SGE describes length bytes from offset on, as [MR.SGE].
func (b *Buffer) SGE(offset, length int) SGE { return b.mr.SGE(offset, length) }

// Huge reports whether the buffer lies in huge pages. If not, the kernel may
// still have made some of it.
func (b *Buffer) Huge() bool { return b.buf.Huge() }

// Close deregisters and frees the buffer. EBUSY: a memory window is bound to it,
// and nothing has changed.
func (b *Buffer) Close() error {
	return opErr("free_buffer", b.end(context.Background(), func() error {
		if err := b.mr.Dereg(); err != nil {
			return err
		}
		return b.buf.Free()
	}, nil, nil))
}
