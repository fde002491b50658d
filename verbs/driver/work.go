package driver

import "github.com/verbena-rdma/verbena/ib"

// SGE is one element of a scatter/gather list (struct ibv_sge): Length bytes
// at Addr of the region that LKey names.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   ib.LKey
}

// SendWR is a send work request (struct ibv_send_wr). Only the fields that the
// opcode needs are read. Nothing of it is kept after the post returns.
type SendWR struct {
	WRID    uint64
	SGList  []SGE
	Opcode  ib.WROpcode
	Flags   ib.SendFlags
	ImmData uint32 // as the number that the peer shall read; big-endian on the wire

	// InvalidateRKey is the peer's key for WRSendWithInv, or the local key for
	// WRLocalInv.
	InvalidateRKey ib.RKey

	// InlineData is what SendInline sends when SGList is empty: a slice that
	// needs no registration. With a SGList, SendInline reads the list's
	// addresses through their keys at the time of the post.
	InlineData []byte

	// RDMA WRITE, READ and atomics.
	RemoteAddr uint64
	RKey       ib.RKey
	CompareAdd uint64 // compare value, or the number to add
	Swap       uint64

	// UD.
	AH         AH
	RemoteQPN  ib.QPN
	RemoteQKey ib.QKey

	// RemoteSRQN is the peer's shared receive queue, on XRC queue pairs.
	RemoteSRQN uint32

	// Bind is what WRBindMW and WRRegMR do; RKey is the key from then on.
	Bind *BindInfo

	// WRFlush makes Length bytes at RemoteAddr under RKey, or with FlushLevel
	// ib.FlushMR the whole region, visible or durable.
	FlushType  ib.FlushType
	FlushLevel ib.FlushLevel
	Length     uint32
}

// BindInfo describes a binding of a memory window (struct ibv_mw_bind_info), or
// the registration of a fast-registration region: MR, which was given its pages
// before, and Access.
type BindInfo struct {
	MW     MW // WRBindMW: a window of type 2
	MR     MR
	Addr   uint64 // WRBindMW: where in MR, by its addresses
	Length uint64 // WRBindMW: 0 unbinds (type 1 only)
	Access ib.Access
}

// MW is a memory window.
type MW interface {
	RKey() ib.RKey
	Dealloc() error
}

// RecvWR is a receive work request (struct ibv_recv_wr).
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// WC is a work completion (struct ibv_wc).
type WC struct {
	WRID            uint64
	Status          ib.WCStatus
	Opcode          ib.WCOpcode
	Flags           ib.WCFlags
	VendorErr       uint32 // of software devices an ib.VendorErr
	ByteLen         uint32
	ImmData         uint32  // valid with WCWithImm
	InvalidatedRKey ib.RKey // valid with WCWithInv
	QPNum           ib.QPN
	SrcQP           ib.QPN // datagrams
	PKeyIndex       uint16
	SLID            uint16
	SL              uint8
	DLIDPathBits    uint8
}
