package verbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// Send begins a SEND (ibv_wr_send).
func (x *QPEx) Send() { x.begin(ib.WRSend) }

// SendImm begins a SEND with immediate data, given as the number that the peer
// shall read (ibv_wr_send_imm).
func (x *QPEx) SendImm(imm uint32) { x.begin(ib.WRSendWithImm).ImmData = imm }

// SendInv begins a SEND that invalidates the peer's key (ibv_wr_send_inv).
func (x *QPEx) SendInv(invalidate ib.RKey) { x.begin(ib.WRSendWithInv).InvalidateRKey = invalidate }

// RDMAWrite begins a WRITE to the peer's memory (ibv_wr_rdma_write).
func (x *QPEx) RDMAWrite(rkey ib.RKey, addr uint64) { x.remote(ib.WRRDMAWrite, rkey, addr) }

// RDMAWriteImm begins a WRITE that tells the peer so, with immediate data
// (ibv_wr_rdma_write_imm).
func (x *QPEx) RDMAWriteImm(rkey ib.RKey, addr uint64, imm uint32) {
	x.remote(ib.WRRDMAWriteWithImm, rkey, addr).ImmData = imm
}

// RDMARead begins a READ of the peer's memory into what the setter behind it
// names (ibv_wr_rdma_read).
func (x *QPEx) RDMARead(rkey ib.RKey, addr uint64) { x.remote(ib.WRRDMARead, rkey, addr) }

// RDMAReadInv is RDMARead with the invalidation of a key of this side's, usually that
// which the READ fills, before its completion (IB_WR_RDMA_READ_WITH_INV of the
// kernel's interface). Few devices have it: DeviceAttr.ReadWithInv.
func (x *QPEx) RDMAReadInv(rkey ib.RKey, addr uint64, invalidate ib.RKey) {
	x.remote(ib.WRReadWithInv, rkey, addr).InvalidateRKey = invalidate
}

// AtomicCmpSwp begins a compare and swap of 8 bytes of the peer's; the value from
// before comes into what the setter behind it names (ibv_wr_atomic_cmp_swp).
func (x *QPEx) AtomicCmpSwp(rkey ib.RKey, addr, compare, swap uint64) {
	wr := x.remote(ib.WRAtomicCmpAndSwp, rkey, addr)
	wr.CompareAdd, wr.Swap = compare, swap
}

// AtomicFetchAdd begins a fetch and add; the value from before comes into what the
// setter behind it names (ibv_wr_atomic_fetch_add).
func (x *QPEx) AtomicFetchAdd(rkey ib.RKey, addr, add uint64) {
	x.remote(ib.WRAtomicFetchAndAdd, rkey, addr).CompareAdd = add
}

// AtomicWrite stores 8 bytes, as they are, at an address of the peer's that is a
// multiple of 8; nobody there sees a part of them (ibv_wr_atomic_write). It has no
// payload setter.
func (x *QPEx) AtomicWrite(rkey ib.RKey, addr uint64, word [8]byte) {
	wr := x.remote(ib.WRAtomicWrite, rkey, addr)
	x.inline(wr, word[:])
}

// Flush makes length bytes of the peer's memory that were written before, or all
// that the key stands for, visible to everybody there, or durable
// (ibv_wr_flush). Durable a software device makes shared mappings of files: it
// writes them (msync), and its other queue pairs may have to wait for that; memory
// of other kinds is not durable whatever is flushed. Queue pair and region there
// need ib.AccessFlushGlobal or ib.AccessFlushPersistent. It has no payload setter.
func (x *QPEx) Flush(rkey ib.RKey, addr uint64, length uint32, typ ib.FlushType, level ib.FlushLevel) {
	wr := x.remote(ib.WRFlush, rkey, addr)
	wr.Length, wr.FlushType, wr.FlushLevel = length, typ, level
}

// BindMW binds a window of type 2; rkey is its key from then on (ibv_wr_bind_mw).
// It has no setters.
func (x *QPEx) BindMW(rkey ib.RKey, bind *BindInfo) { x.bind(ib.WRBindMW, rkey, bind) }

// RegMR registers the pages that a fast-registration region was given; rkey is
// its key from then on (IB_WR_REG_MR of the kernel's interface). It has no
// setters.
func (x *QPEx) RegMR(rkey ib.RKey, bind *BindInfo) { x.bind(ib.WRRegMR, rkey, bind) }

// RegMRIntegrity registers what a signature region was given; rkey is its key from
// then on (IB_WR_REG_MR_INTEGRITY of the kernel's interface). It has no setters.
func (x *QPEx) RegMRIntegrity(rkey ib.RKey, bind *BindInfo) {
	x.bind(ib.WRRegMRIntegrity, rkey, bind)
}

func (x *QPEx) bind(op ib.WROpcode, rkey ib.RKey, bind *BindInfo) {
	wr := x.local(op)
	wr.RKey, wr.Bind = rkey, bind
	x.refs = true
}

// LocalInv invalidates a key of this side's (ibv_wr_local_inv). It has no setters.
func (x *QPEx) LocalInv(invalidate ib.RKey) { x.local(ib.WRLocalInv).InvalidateRKey = invalidate }

// newest is the request that a setter is for; nil: there is none, which is an
// error.
func (x *QPEx) newest(setter string) *SendWR {
	if len(x.wrs) == 0 {
		x.fail(setter, "there is no request to set it of", syscall.EINVAL)
		return nil
	}
	return &x.wrs[len(x.wrs)-1]
}

// payload is newest for a setter of the payload, which the request must not have yet.
func (x *QPEx) payload(setter string) *SendWR {
	if n := len(x.wrs); n > 0 {
		if wr := &x.wrs[n-1]; opsBare>>wr.Opcode&1 == 0 && wr.SGList == nil && wr.InlineData == nil {
			return wr
		}
	}
	x.noPayload(setter)
	return nil
}

// opsBare are the opcodes without payload, or with their own.
const opsBare = 1<<ib.WRFlush | 1<<ib.WRAtomicWrite | 1<<ib.WRBindMW | 1<<ib.WRRegMR | 1<<ib.WRRegMRIntegrity | 1<<ib.WRLocalInv

// noPayload says why the newest request takes none.
func (x *QPEx) noPayload(setter string) {
	if wr := x.newest(setter); wr != nil {
		why := "the request has its payload already"
		if opsBare>>wr.Opcode&1 != 0 {
			why = "the request has no payload to set"
		}
		x.fail(setter, why, syscall.EINVAL)
	}
}

// SetSGE gives the newest request one piece of memory (ibv_wr_set_sge).
func (x *QPEx) SetSGE(lkey ib.LKey, addr uint64, length uint32) {
	if wr := x.payload("SetSGE"); wr != nil {
		n := len(x.sges)
		x.sges = append(x.sges, SGE{Addr: addr, Length: length, LKey: lkey})
		wr.SGList = x.sges[n : n+1 : n+1]
	}
}

// SetSGEList gives it several (ibv_wr_set_sge_list). The list is copied.
func (x *QPEx) SetSGEList(list []SGE) {
	wr := x.payload("SetSGEList")
	switch {
	case wr == nil:
	case len(list) > int(x.qp.init.Cap.MaxSendSGE):
		x.fail("SetSGEList", fmt.Sprintf("%d elements, at most %d", len(list), x.qp.init.Cap.MaxSendSGE), syscall.EINVAL)
	default:
		n := len(x.sges)
		x.sges = append(x.sges, list...)
		wr.SGList = x.sges[n:len(x.sges):len(x.sges)]
	}
}

// SetInlineData gives it bytes that need no registration (ibv_wr_set_inline_data),
// at most MaxInlineData. They are copied.
func (x *QPEx) SetInlineData(b []byte) {
	if wr := x.payload("SetInlineData"); wr != nil && x.fits("SetInlineData", len(b)) {
		x.inline(wr, b)
	}
}

// SetInlineDataList is SetInlineData of the pieces one behind the other
// (ibv_wr_set_inline_data_list).
func (x *QPEx) SetInlineDataList(list [][]byte) {
	const setter = "SetInlineDataList"
	wr := x.payload(setter)
	if wr == nil {
		return
	}
	total := 0
	for _, b := range list {
		if total += len(b); !x.fits(setter, total) {
			return
		}
	}
	n := len(x.data)
	for _, b := range list {
		x.data = append(x.data, b...)
	}
	wr.InlineData = x.data[n:len(x.data):len(x.data)]
	wr.Flags |= ib.SendInline
}

func (x *QPEx) fits(setter string, n int) bool {
	if most := x.qp.init.Cap.MaxInlineData; n > int(most) {
		x.fail(setter, fmt.Sprintf("%d bytes, at most %d", n, most), syscall.EINVAL)
		return false
	}
	return true
}

func (x *QPEx) inline(wr *SendWR, b []byte) {
	n := len(x.data)
	x.data = append(x.data, b...)
	wr.InlineData = x.data[n:len(x.data):len(x.data)]
	wr.Flags |= ib.SendInline
}

// SetUDAddr says where the newest request of a datagram queue pair goes
// (ibv_wr_set_ud_addr).
func (x *QPEx) SetUDAddr(ah *AH, qpn ib.QPN, qkey ib.QKey) {
	wr := x.newest("SetUDAddr")
	switch {
	case wr == nil:
	case x.qp.init.Type != ib.UD:
		x.fail("SetUDAddr", "is for queue pairs of type UD", syscall.EINVAL)
	case ah == nil:
		x.fail("AH", "nil", syscall.EINVAL)
	default:
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, qpn, qkey
		x.refs = true
	}
}

// SetXRCSRQN names the peer's shared receive queue, to whose domain the newest
// request of an XRC queue pair belongs (ibv_wr_set_xrc_srqn).
func (x *QPEx) SetXRCSRQN(n uint32) {
	wr := x.newest("SetXRCSRQN")
	switch {
	case wr == nil:
	case x.qp.init.Type != ib.XRCSend:
		x.fail("SetXRCSRQN", "is for queue pairs of type XRC_SEND", syscall.EINVAL)
	default:
		wr.RemoteSRQN = n
		x.srqn = true
	}
}
