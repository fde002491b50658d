package ib

import "net/netip"

// QPN is a queue pair number, 24 bits. 0 and 1 are the management queue
// pairs, 0xFFFFFF addresses a multicast group (IBA 3.9.4).
type QPN uint32

// Well-known queue pair numbers.
const (
	QPNGSI       QPN = 1        // general services interface
	QPNMulticast QPN = 0xFFFFFF // destination of every multicast packet
	QPNMax       QPN = 0xFFFFFF
)

// LKey names a memory region for local access.
type LKey uint32

// RKey names a memory region or window for remote access.
type RKey uint32

// PKey is a partition key: 15 bits of partition, bit 15 tells a full member
// from a limited one (IBA 10.9.1).
type PKey uint16

// PKeyDefault is the default partition with full membership; every RoCE port
// has it at index 0.
const PKeyDefault PKey = 0xFFFF

// Full reports whether the key tells of full membership.
func (k PKey) Full() bool { return k&0x8000 != 0 }

// Valid reports whether the key names a partition at all (its low 15 bits
// are not zero).
func (k PKey) Valid() bool { return k&0x7FFF != 0 }

// Matches reports whether a packet with key k may be received by an owner of
// key o: same partition, both valid, and at least one of them a full member
// (IBA 10.9.3).
func (k PKey) Matches(o PKey) bool {
	return k&0x7FFF == o&0x7FFF && k.Valid() && (k.Full() || o.Full())
}

// QKey guards a datagram queue pair. A key with bit 31 set is privileged.
type QKey uint32

// Well-known Q_Keys.
const (
	QKeyGSI   QKey = 0x80010000 // queue pair 1 (IBA 3.5.3)
	QKeyRDMAU QKey = 0x01234567 // rdma_cm's UDP port space (RDMA_UDP_QKEY)
)

// Privileged reports whether the key has bit 31 set: in a work request it
// asks for the queue pair's own key instead (IBA 10.2.5).
func (k QKey) Privileged() bool { return k&0x80000000 != 0 }

// GID is a global identifier, 16 bytes. On RoCEv2 it is an IP address: an IPv4
// address a.b.c.d is ::ffff:a.b.c.d.
type GID [16]byte

// GIDFromAddr gives the GID of an IP address. The zone is dropped: the port
// of the device stands for it.
func GIDFromAddr(a netip.Addr) GID { return GID(a.As16()) }

// Addr gives the IP address that the GID stands for; IPv4-mapped GIDs give
// IPv4 addresses.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the GID is empty: an unused table entry.
func (g GID) IsZero() bool { return g == GID{} }

// IsMulticast reports whether the GID is that of a multicast group: ff00::/8,
// or an IPv4-mapped address in 224.0.0.0/4.
func (g GID) IsMulticast() bool { return g.Addr().IsMulticast() }

// String prints the GID as libibverbs' tools do: eight groups of hex.
func (g GID) String() string { return gidString(g) }

// GIDType tells how a GID is used on the wire (enum ibv_gid_type).
type GIDType uint8

// GID types.
const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

// GIDEntry is a row of a port's GID table (struct ibv_gid_entry).
type GIDEntry struct {
	GID     GID
	Index   int
	Port    uint8
	Type    GIDType
	NetDev  string // name of the interface that has the address
	IfIndex int
}

// MTU is a path MTU code, 1 to 5 (enum ibv_mtu): payload bytes a packet.
type MTU uint8

// MTU codes.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes gives the payload bytes of the code, 0 for an unknown one.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// QPType is the transport service of a queue pair (enum ibv_qp_type).
type QPType uint8

// Queue pair types.
const (
	RC        QPType = 2
	UC        QPType = 3
	UD        QPType = 4
	RawPacket QPType = 8
	XRCSend   QPType = 9
	XRCRecv   QPType = 10
	Driver    QPType = 0xFF
)

// QPState is the state of a queue pair (enum ibv_qp_state).
type QPState uint8

// Queue pair states (IBA 10.3.1).
const (
	QPStateReset QPState = iota
	QPStateInit
	QPStateRTR
	QPStateRTS
	QPStateSQD
	QPStateSQE
	QPStateErr
	QPStateUnknown
)

// MigState is the path migration state (enum ibv_mig_state).
type MigState uint8

// Path migration states. Software devices are always migrated.
const (
	MigMigrated MigState = iota
	MigRearm
	MigArmed
)

// Access is a set of rights of memory or of a queue pair
// (enum ibv_access_flags).
type Access uint32

// Access rights. Bits 20 to 29 are hints that a device may ignore.
const (
	AccessLocalWrite      Access = 1 << 0
	AccessRemoteWrite     Access = 1 << 1
	AccessRemoteRead      Access = 1 << 2
	AccessRemoteAtomic    Access = 1 << 3
	AccessMWBind          Access = 1 << 4
	AccessZeroBased       Access = 1 << 5
	AccessOnDemand        Access = 1 << 6
	AccessHugeTLB         Access = 1 << 7
	AccessFlushGlobal     Access = 1 << 8
	AccessFlushPersistent Access = 1 << 9
	AccessRelaxedOrdering Access = 1 << 20

	// AccessOptional is the range of hints: unknown ones are accepted.
	AccessOptional Access = 0x3FF00000
	// AccessRemote is every right that a peer may use.
	AccessRemote = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
		AccessFlushGlobal | AccessFlushPersistent
)

// WROpcode is the kind of a send work request (enum ibv_wr_opcode).
type WROpcode uint8

// Send work request opcodes.
const (
	WRRDMAWrite WROpcode = iota
	WRRDMAWriteWithImm
	WRSend
	WRSendWithImm
	WRRDMARead
	WRAtomicCmpAndSwp
	WRAtomicFetchAndAdd
	WRLocalInv
	WRBindMW
	WRSendWithInv
	WRTSO
	WRDriver1
	WRRegMR       WROpcode = 0x20 // IB_WR_REG_MR of the kernel's interface
	WRFlush       WROpcode = 14   // IBV_WR_FLUSH
	WRAtomicWrite WROpcode = 15   // IBV_WR_ATOMIC_WRITE
	// WRReadWithInv is a READ that invalidates a key of this side's before it
	// completes. The kernel's number for it, 11, is WRDriver1 here, as in libibverbs.
	WRReadWithInv WROpcode = 0x22
)

// SendFlags modify a send work request (enum ibv_send_flags).
type SendFlags uint32

// Send flags.
const (
	SendFence     SendFlags = 1 << 0
	SendSignaled  SendFlags = 1 << 1
	SendSolicited SendFlags = 1 << 2
	SendInline    SendFlags = 1 << 3
	SendIPCSum    SendFlags = 1 << 4
)

// WCStatus is how a work request ended (enum ibv_wc_status).
type WCStatus uint8

// Completion statuses.
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
	WCTMErr
	WCTMRndvIncomplete
)

// WCOpcode is what a completion is about (enum ibv_wc_opcode).
type WCOpcode uint16

// Completion opcodes. Those of receives have bit 7 set.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCTSO             WCOpcode = 7
	WCFlush           WCOpcode = 8
	WCAtomicWrite     WCOpcode = 9
	WCRecv            WCOpcode = 1 << 7
	WCRecvRDMAWithImm WCOpcode = 1<<7 + 1
	WCRegMR           WCOpcode = 0x20
)

// WCFlags tell what else a completion carries (enum ibv_wc_flags).
type WCFlags uint32

// Completion flags.
const (
	WCGRH      WCFlags = 1 << 0 // the 40-byte GRH area is valid (datagrams)
	WCWithImm  WCFlags = 1 << 1 // ImmData is valid
	WCIPCSumOK WCFlags = 1 << 2
	WCWithInv  WCFlags = 1 << 3 // InvalidatedRKey is valid
)

// EventType is the kind of an asynchronous event (enum ibv_event_type).
type EventType uint8

// Asynchronous events.
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
)

// PortState is the state of a port (enum ibv_port_state).
type PortState uint8

// Port states.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// PortPhysState is the physical state of a port.
type PortPhysState uint8

// Physical port states.
const (
	PhysSleep             PortPhysState = 1
	PhysPolling           PortPhysState = 2
	PhysDisabled          PortPhysState = 3
	PhysTraining          PortPhysState = 4
	PhysLinkUp            PortPhysState = 5
	PhysLinkErrorRecovery PortPhysState = 6
	PhysTest              PortPhysState = 7
)

// NodeType is the kind of a node (enum ibv_node_type).
type NodeType int8

// Node types.
const (
	NodeUnknown     NodeType = -1
	NodeCA          NodeType = 1
	NodeSwitch      NodeType = 2
	NodeRouter      NodeType = 3
	NodeRNIC        NodeType = 4
	NodeUSNIC       NodeType = 5
	NodeUSNICUDP    NodeType = 6
	NodeUnspecified NodeType = 7
)

// LinkLayer is the link layer of a port.
type LinkLayer uint8

// Link layers.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

// AtomicCap tells how far atomics are atomic (enum ibv_atomic_cap).
type AtomicCap uint8

// Atomic capabilities.
const (
	AtomicNone AtomicCap = iota
	AtomicHCA
	AtomicGlob
)

// AHAttr is an address vector (struct ibv_ah_attr). On RoCE the GRH is
// mandatory: an address without it is refused.
type AHAttr struct {
	DGID         GID
	FlowLabel    uint32 // 20 bits
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	DLID         uint16
	SL           uint8
	SrcPathBits  uint8
	StaticRate   Rate
	IsGlobal     bool
	PortNum      uint8
}

// QPCap is the size of a queue pair's queues (struct ibv_qp_cap).
type QPCap struct {
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32 // bytes
}

// QPAttrMask says which attributes a modify call sets
// (enum ibv_qp_attr_mask).
type QPAttrMask uint32

// Attribute masks.
const (
	QPAttrState            QPAttrMask = 1 << 0
	QPAttrCurState         QPAttrMask = 1 << 1
	QPAttrEnSQDAsyncNotify QPAttrMask = 1 << 2
	QPAttrAccessFlags      QPAttrMask = 1 << 3
	QPAttrPKeyIndex        QPAttrMask = 1 << 4
	QPAttrPort             QPAttrMask = 1 << 5
	QPAttrQKey             QPAttrMask = 1 << 6
	QPAttrAV               QPAttrMask = 1 << 7
	QPAttrPathMTU          QPAttrMask = 1 << 8
	QPAttrTimeout          QPAttrMask = 1 << 9
	QPAttrRetryCnt         QPAttrMask = 1 << 10
	QPAttrRNRRetry         QPAttrMask = 1 << 11
	QPAttrRQPSN            QPAttrMask = 1 << 12
	QPAttrMaxRDAtomic      QPAttrMask = 1 << 13
	QPAttrAltPath          QPAttrMask = 1 << 14
	QPAttrMinRNRTimer      QPAttrMask = 1 << 15
	QPAttrSQPSN            QPAttrMask = 1 << 16
	QPAttrMaxDestRDAtomic  QPAttrMask = 1 << 17
	QPAttrPathMigState     QPAttrMask = 1 << 18
	QPAttrCap              QPAttrMask = 1 << 19
	QPAttrDestQPN          QPAttrMask = 1 << 20
	QPAttrRateLimit        QPAttrMask = 1 << 25
)

// QPAttr are the attributes of a queue pair (struct ibv_qp_attr).
type QPAttr struct {
	QPState          QPState
	CurQPState       QPState
	PathMTU          MTU
	PathMigState     MigState
	QKey             QKey
	RQPSN            uint32 // 24 bits: PSN expected first
	SQPSN            uint32 // 24 bits: PSN sent first
	DestQPN          QPN
	QPAccessFlags    Access
	Cap              QPCap
	AHAttr           AHAttr
	AltAHAttr        AHAttr
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	EnSQDAsyncNotify bool
	SQDraining       bool
	MaxRDAtomic      uint8 // READs and atomics that may be outstanding as requester
	MaxDestRDAtomic  uint8 // ... and as responder
	MinRNRTimer      uint8 // code, 0 to 31; 0 is 655.36 ms (IBA table 45)
	PortNum          uint8
	Timeout          uint8 // code, 0 to 31: 4.096 us x 2^Timeout, 0 = never
	RetryCnt         uint8 // 0 to 7
	RNRRetry         uint8 // 0 to 6, 7 = for ever
	AltPortNum       uint8
	AltTimeout       uint8
	RateLimit        uint32 // kbit/s
}

// SRQAttr are the attributes of a shared receive queue.
type SRQAttr struct {
	MaxWR    uint32
	MaxSGE   uint32
	SRQLimit uint32 // an event is raised once when fewer WRs are left; 0 = off
}

// SRQAttrMask says which attributes a modify_srq call sets.
type SRQAttrMask uint8

// SRQ attribute masks.
const (
	SRQMaxWR SRQAttrMask = 1 << 0
	SRQLimit SRQAttrMask = 1 << 1
)

// DeviceAttr is what query_device tells (struct ibv_device_attr).
type DeviceAttr struct {
	FWVer           string
	NodeGUID        uint64
	SysImageGUID    uint64
	MaxMRSize       uint64
	PageSizeCap     uint64
	VendorID        uint32
	VendorPartID    uint32
	HWVer           uint32
	MaxQP           int
	MaxQPWR         int
	MaxSGE          int
	MaxSGERd        int
	MaxCQ           int
	MaxCQE          int
	MaxMR           int
	MaxPD           int
	MaxQPRDAtom     int
	MaxQPInitRDAtom int
	MaxResRDAtom    int // READs and atomics of all queue pairs, as responder
	AtomicCap       AtomicCap
	MaxMW           int
	// MaxFastRegPageListLen is the most pages of a fast registration (kernel:
	// max_fast_reg_page_list_len).
	MaxFastRegPageListLen int
	// MaxPIFastRegPageListLen is that of a registration with protection information
	// (kernel: max_pi_fast_reg_page_list_len); 0: the device knows none.
	MaxPIFastRegPageListLen int
	// SigProtCap and SigGuardCap are what signature regions can do (ib.SigProtT10DIFType1
	// and so on; kernel: sig_prot_cap, sig_guard_cap).
	SigProtCap, SigGuardCap uint32
	// MaxSGLRd is the number of elements up to which a READ is better left without a
	// registration (kernel: max_sgl_rd); 0: it always is.
	MaxSGLRd int
	// ReadWithInv: the device has WRReadWithInv.
	ReadWithInv      bool
	MaxDMSize        uint64 // device memory in bytes
	MaxMcastGrp      int
	MaxMcastQPAttach int // queue pairs of a group
	// MaxTotalMcastQPAttach is the number of queue pairs in groups, summed over the groups.
	MaxTotalMcastQPAttach int
	MaxAH                 int
	MaxSRQ                int
	MaxSRQWR              int
	MaxSRQSGE             int
	MaxPKeys              int
	MaxInlineData         int
	LocalCAAckDelay       uint8
	PhysPortCnt           uint8
	DeviceCapFlags        uint64
	ODP                   bool // on-demand paging: never offered by a software device

	// The device's clock: its rate in kHz, 0 = there is none, and which bits of a
	// completion's timestamp count.
	HCACoreClock            uint64
	CompletionTimestampMask uint64
	MaxCQModeration         ModerateCQ // 0: completion queues are not moderated
	MaxCompCntr             int        // completion counters
}

// PortAttr is what query_port tells (struct ibv_port_attr).
type PortAttr struct {
	State        PortState
	PhysState    PortPhysState
	MaxMTU       MTU
	ActiveMTU    MTU
	GIDTblLen    int
	PKeyTblLen   int
	MaxMsgSz     uint32
	LinkLayer    LinkLayer
	ActiveWidth  uint8
	ActiveSpeed  uint32
	CapFlags     uint32
	LID          uint16
	SMLID        uint16
	LMC          uint8
	BadPKeyCntr  uint32
	QKeyViolCntr uint32
}

// MaxMsgSize is the longest message, in bytes (IBA 9.7.6.1.2). Query and
// checks share this one constant.
const MaxMsgSize = 1 << 31
