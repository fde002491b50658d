package ib

// SRQType is the kind of a shared receive queue (enum ibv_srq_type).
type SRQType uint8

// Shared receive queue types.
const (
	SRQBasic SRQType = 0 // for queue pairs that are created with it
	SRQXRC   SRQType = 1 // for XRC: peers name it in each request
	SRQTM    SRQType = 2 // tag matching: never offered by a software device
)

var srqTypeWords = []word{
	SRQBasic: {"BASIC", "IBV_SRQT_BASIC"},
	SRQXRC:   {"XRC", "IBV_SRQT_XRC"},
	SRQTM:    {"TM", "IBV_SRQT_TM"},
}

// String prints the type, "XRC".
func (t SRQType) String() string { return text(srqTypeWords, "SRQType", int(t)) }

// Name prints the constant of the C interface, "IBV_SRQT_XRC".
func (t SRQType) Name() string { return name(srqTypeWords, "SRQType", int(t)) }

// QPCreateFlags change what a queue pair does (enum ibv_qp_create_flags).
type QPCreateFlags uint32

// Creation flags. Those behind the first two are about Ethernet frames, which only
// RawPacket queue pairs of hardware see.
const (
	QPCreateBlockSelfMcastLB   QPCreateFlags = 1 << 1 // no own datagrams to a multicast group
	QPCreateIntegrityEn        QPCreateFlags = 1 << 4 // signature regions (the kernel's IB_QP_CREATE_INTEGRITY_EN)
	QPCreateScatterFCS         QPCreateFlags = 1 << 8
	QPCreateCVLANStripping     QPCreateFlags = 1 << 9
	QPCreateSourceQPN          QPCreateFlags = 1 << 10
	QPCreatePCIWriteEndPadding QPCreateFlags = 1 << 11
)

var qpCreateNames = []flagName{
	{uint32(QPCreateBlockSelfMcastLB), "BLOCK_SELF_MCAST_LB"},
	{uint32(QPCreateIntegrityEn), "INTEGRITY_EN"},
	{uint32(QPCreateScatterFCS), "SCATTER_FCS"},
	{uint32(QPCreateCVLANStripping), "CVLAN_STRIPPING"},
	{uint32(QPCreateSourceQPN), "SOURCE_QPN"},
	{uint32(QPCreatePCIWriteEndPadding), "PCI_WRITE_END_PADDING"},
}

// String lists the flags, "BLOCK_SELF_MCAST_LB".
func (f QPCreateFlags) String() string { return flagString(qpCreateNames, uint32(f)) }

// ECE are the enhanced connection establishment options of a queue pair (struct
// ibv_ece): what two devices of one vendor agree on while their connection is
// made. Applications carry them from QueryECE to the peer and the answer to
// SetECE; the connection manager does so in its messages.
type ECE struct {
	VendorID uint32 // IEEE OUI of the vendor, 24 bits; 0: none
	Options  uint32 // the vendor's
	CompMask uint32 // 0: nothing is defined
}

// QPRateLimitAttr is what a queue pair may send (struct ibv_qp_rate_limit_attr).
type QPRateLimitAttr struct {
	RateLimit      uint32 // kbit/s
	MaxBurstSize   uint32 // bytes, 0 = the device's default
	TypicalPktSize uint16 // bytes, 0 = the port's MTU
}

// DeviceCapXRC is the capability flag of devices that have XRC
// (IBV_DEVICE_XRC, in DeviceAttr.DeviceCapFlags).
const DeviceCapXRC = 1 << 20
