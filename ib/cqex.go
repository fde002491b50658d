package ib

// WCExFlags is the set of completion fields that an extended completion queue
// is asked for (enum ibv_create_cq_wc_flags).
type WCExFlags uint64

// Completion fields.
const (
	WCExByteLen                      WCExFlags = 1 << 0
	WCExImm                          WCExFlags = 1 << 1
	WCExQPNum                        WCExFlags = 1 << 2
	WCExSrcQP                        WCExFlags = 1 << 3
	WCExSLID                         WCExFlags = 1 << 4
	WCExSL                           WCExFlags = 1 << 5
	WCExDLIDPathBits                 WCExFlags = 1 << 6
	WCExCompletionTimestamp          WCExFlags = 1 << 7 // ticks of the device's clock
	WCExCVLAN                        WCExFlags = 1 << 8 // hardware that strips tags
	WCExFlowTag                      WCExFlags = 1 << 9 // flow steering
	WCExTMInfo                       WCExFlags = 1 << 10
	WCExCompletionTimestampWallclock WCExFlags = 1 << 11 // ns since 1970

	// WCExStandard are the fields of every completion (IBV_WC_STANDARD_FLAGS).
	WCExStandard = WCExByteLen | WCExImm | WCExQPNum | WCExSrcQP | WCExSLID | WCExSL | WCExDLIDPathBits
)

var wcExNames = []flagName{
	{uint32(WCExByteLen), "BYTE_LEN"},
	{uint32(WCExImm), "IMM"},
	{uint32(WCExQPNum), "QP_NUM"},
	{uint32(WCExSrcQP), "SRC_QP"},
	{uint32(WCExSLID), "SLID"},
	{uint32(WCExSL), "SL"},
	{uint32(WCExDLIDPathBits), "DLID_PATH_BITS"},
	{uint32(WCExCompletionTimestamp), "COMPLETION_TIMESTAMP"},
	{uint32(WCExCVLAN), "CVLAN"},
	{uint32(WCExFlowTag), "FLOW_TAG"},
	{uint32(WCExTMInfo), "TM_INFO"},
	{uint32(WCExCompletionTimestampWallclock), "COMPLETION_TIMESTAMP_WALLCLOCK"},
}

// String lists the fields, "BYTE_LEN|QP_NUM".
func (f WCExFlags) String() string { return flagString(wcExNames, uint32(f)) }

// CQFlags change how an extended completion queue works (enum
// ibv_create_cq_attr_flags).
type CQFlags uint32

// Flags of an extended completion queue.
const (
	CQSingleThreaded CQFlags = 1 << 0 // one goroutine at a time polls it: no locking
	CQIgnoreOverrun  CQFlags = 1 << 1 // a full queue loses completions and goes on
)

var cqNames = []flagName{
	{uint32(CQSingleThreaded), "SINGLE_THREADED"},
	{uint32(CQIgnoreOverrun), "IGNORE_OVERRUN"},
}

// String lists the flags, "SINGLE_THREADED".
func (f CQFlags) String() string { return flagString(cqNames, uint32(f)) }

// CQAttrMask says which attributes a modify_cq call sets (enum ibv_cq_attr_mask).
type CQAttrMask uint32

// CQAttrModerate sets the moderation of a completion queue.
const CQAttrModerate CQAttrMask = 1 << 0

// ModerateCQ says how many completions make a notification (struct
// ibv_moderate_cq).
type ModerateCQ struct {
	CQCount  uint16 // completions to a notification, 0 = as many as come in the period
	CQPeriod uint16 // us that a notification waits at most, 0 = no moderation
}

// CompCntrOps is the set of operations that a completion counter counts (enum
// ibv_qp_attach_comp_cntr_op).
type CompCntrOps uint32

// Operations that completion counters count. The first of each pair are started
// here, the remote ones by the peer.
const (
	CompCntrSend            CompCntrOps = 1 << 0
	CompCntrRecv            CompCntrOps = 1 << 1
	CompCntrRDMARead        CompCntrOps = 1 << 2
	CompCntrRemoteRDMARead  CompCntrOps = 1 << 3
	CompCntrRDMAWrite       CompCntrOps = 1 << 4
	CompCntrRemoteRDMAWrite CompCntrOps = 1 << 5

	// CompCntrAll is all of them.
	CompCntrAll = CompCntrSend | CompCntrRecv | CompCntrRDMARead | CompCntrRemoteRDMARead | CompCntrRDMAWrite | CompCntrRemoteRDMAWrite
)

var compCntrNames = []flagName{
	{uint32(CompCntrSend), "SEND"},
	{uint32(CompCntrRecv), "RECV"},
	{uint32(CompCntrRDMARead), "RDMA_READ"},
	{uint32(CompCntrRemoteRDMARead), "REMOTE_RDMA_READ"},
	{uint32(CompCntrRDMAWrite), "RDMA_WRITE"},
	{uint32(CompCntrRemoteRDMAWrite), "REMOTE_RDMA_WRITE"},
}

// String lists the operations, "SEND|RECV".
func (o CompCntrOps) String() string { return flagString(compCntrNames, uint32(o)) }

// Capability flags of devices that have RDMA FLUSH and ATOMIC WRITE, in
// DeviceAttr.DeviceCapFlags (enum ib_uverbs_device_cap_flags).
const (
	DeviceCapFlushGlobal     = 1 << 38
	DeviceCapFlushPersistent = 1 << 39
	DeviceCapAtomicWrite     = 1 << 40
)
