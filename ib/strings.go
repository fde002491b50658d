package ib

import "strconv"

// word is how a value of an enum is written: in words, as libibverbs' tools
// print it, and as the constant of the C interface.
type word struct{ text, name string }

// lookup gives the row of a value, or nil when the table has none.
func lookup(table []word, v int) *word {
	if v < 0 || v >= len(table) || table[v].text == "" {
		return nil
	}
	return &table[v]
}

// text prints a value in words. Values that nobody knows print as Type(77):
// they may come from a peer or from a newer device.
func text(table []word, typ string, v int) string {
	if w := lookup(table, v); w != nil {
		return w.text
	}
	return unknown(typ, v)
}

// name prints the constant of a value.
func name(table []word, typ string, v int) string {
	if w := lookup(table, v); w != nil {
		return w.name
	}
	return unknown(typ, v)
}

func unknown(typ string, v int) string { return typ + "(" + strconv.Itoa(v) + ")" }

var wcStatusWords = []word{
	WCSuccess:          {"success", "IBV_WC_SUCCESS"},
	WCLocLenErr:        {"local length error", "IBV_WC_LOC_LEN_ERR"},
	WCLocQPOpErr:       {"local QP operation error", "IBV_WC_LOC_QP_OP_ERR"},
	WCLocEECOpErr:      {"local EE context operation error", "IBV_WC_LOC_EEC_OP_ERR"},
	WCLocProtErr:       {"local protection error", "IBV_WC_LOC_PROT_ERR"},
	WCWRFlushErr:       {"Work Request Flushed Error", "IBV_WC_WR_FLUSH_ERR"},
	WCMWBindErr:        {"memory management operation error", "IBV_WC_MW_BIND_ERR"},
	WCBadRespErr:       {"bad response error", "IBV_WC_BAD_RESP_ERR"},
	WCLocAccessErr:     {"local access error", "IBV_WC_LOC_ACCESS_ERR"},
	WCRemInvReqErr:     {"remote invalid request error", "IBV_WC_REM_INV_REQ_ERR"},
	WCRemAccessErr:     {"remote access error", "IBV_WC_REM_ACCESS_ERR"},
	WCRemOpErr:         {"remote operation error", "IBV_WC_REM_OP_ERR"},
	WCRetryExcErr:      {"transport retry counter exceeded", "IBV_WC_RETRY_EXC_ERR"},
	WCRNRRetryExcErr:   {"RNR retry counter exceeded", "IBV_WC_RNR_RETRY_EXC_ERR"},
	WCLocRDDViolErr:    {"local RDD violation error", "IBV_WC_LOC_RDD_VIOL_ERR"},
	WCRemInvRDReqErr:   {"remote invalid RD request", "IBV_WC_REM_INV_RD_REQ_ERR"},
	WCRemAbortErr:      {"aborted error", "IBV_WC_REM_ABORT_ERR"},
	WCInvEECNErr:       {"invalid EE context number", "IBV_WC_INV_EECN_ERR"},
	WCInvEECStateErr:   {"invalid EE context state", "IBV_WC_INV_EEC_STATE_ERR"},
	WCFatalErr:         {"fatal error", "IBV_WC_FATAL_ERR"},
	WCRespTimeoutErr:   {"response timeout error", "IBV_WC_RESP_TIMEOUT_ERR"},
	WCGeneralErr:       {"general error", "IBV_WC_GENERAL_ERR"},
	WCTMErr:            {"TM error", "IBV_WC_TM_ERR"},
	WCTMRndvIncomplete: {"TM software rendezvous", "IBV_WC_TM_RNDV_INCOMPLETE"},
}

// String prints the status in words, as ibv_wc_status_str does.
func (s WCStatus) String() string { return text(wcStatusWords, "WCStatus", int(s)) }

// Name prints the constant of the C interface, "IBV_WC_RETRY_EXC_ERR".
func (s WCStatus) Name() string { return name(wcStatusWords, "WCStatus", int(s)) }

var eventWords = []word{
	EventCQErr:            {"CQ error", "IBV_EVENT_CQ_ERR"},
	EventQPFatal:          {"local work queue catastrophic error", "IBV_EVENT_QP_FATAL"},
	EventQPReqErr:         {"invalid request local work queue error", "IBV_EVENT_QP_REQ_ERR"},
	EventQPAccessErr:      {"local access violation work queue error", "IBV_EVENT_QP_ACCESS_ERR"},
	EventCommEst:          {"communication established", "IBV_EVENT_COMM_EST"},
	EventSQDrained:        {"send queue drained", "IBV_EVENT_SQ_DRAINED"},
	EventPathMig:          {"path migrated", "IBV_EVENT_PATH_MIG"},
	EventPathMigErr:       {"path migration request error", "IBV_EVENT_PATH_MIG_ERR"},
	EventDeviceFatal:      {"local catastrophic error", "IBV_EVENT_DEVICE_FATAL"},
	EventPortActive:       {"port active", "IBV_EVENT_PORT_ACTIVE"},
	EventPortErr:          {"port error", "IBV_EVENT_PORT_ERR"},
	EventLIDChange:        {"LID change", "IBV_EVENT_LID_CHANGE"},
	EventPKeyChange:       {"P_Key change", "IBV_EVENT_PKEY_CHANGE"},
	EventSMChange:         {"SM change", "IBV_EVENT_SM_CHANGE"},
	EventSRQErr:           {"SRQ catastrophic error", "IBV_EVENT_SRQ_ERR"},
	EventSRQLimitReached:  {"SRQ limit reached", "IBV_EVENT_SRQ_LIMIT_REACHED"},
	EventQPLastWQEReached: {"last WQE reached", "IBV_EVENT_QP_LAST_WQE_REACHED"},
	EventClientReregister: {"client reregistration", "IBV_EVENT_CLIENT_REREGISTER"},
	EventGIDChange:        {"GID table change", "IBV_EVENT_GID_CHANGE"},
	EventWQFatal:          {"WQ fatal", "IBV_EVENT_WQ_FATAL"},
}

// String prints the event in words, as ibv_event_type_str does.
func (t EventType) String() string { return text(eventWords, "EventType", int(t)) }

// Name prints the constant of the C interface, "IBV_EVENT_QP_FATAL".
func (t EventType) Name() string { return name(eventWords, "EventType", int(t)) }

var nodeWords = []word{
	NodeCA:          {"InfiniBand channel adapter", "IBV_NODE_CA"},
	NodeSwitch:      {"InfiniBand switch", "IBV_NODE_SWITCH"},
	NodeRouter:      {"InfiniBand router", "IBV_NODE_ROUTER"},
	NodeRNIC:        {"iWARP NIC", "IBV_NODE_RNIC"},
	NodeUSNIC:       {"usNIC", "IBV_NODE_USNIC"},
	NodeUSNICUDP:    {"usNIC UDP", "IBV_NODE_USNIC_UDP"},
	NodeUnspecified: {"unspecified", "IBV_NODE_UNSPECIFIED"},
}

// String prints the type in words, as ibv_node_type_str does.
func (t NodeType) String() string {
	if t == NodeUnknown {
		return "unknown"
	}
	return text(nodeWords, "NodeType", int(t))
}

// Name prints the constant of the C interface, "IBV_NODE_CA".
func (t NodeType) Name() string {
	if t == NodeUnknown {
		return "IBV_NODE_UNKNOWN"
	}
	return name(nodeWords, "NodeType", int(t))
}

var portStateWords = []word{
	PortNop:         {"no state change (NOP)", "IBV_PORT_NOP"},
	PortDown:        {"down", "IBV_PORT_DOWN"},
	PortInit:        {"init", "IBV_PORT_INIT"},
	PortArmed:       {"armed", "IBV_PORT_ARMED"},
	PortActive:      {"active", "IBV_PORT_ACTIVE"},
	PortActiveDefer: {"active defer", "IBV_PORT_ACTIVE_DEFER"},
}

// String prints the state in words, as ibv_port_state_str does.
func (s PortState) String() string { return text(portStateWords, "PortState", int(s)) }

// Name prints the constant of the C interface, "IBV_PORT_ACTIVE". Without its
// first four letters it is what ibv_devinfo shows.
func (s PortState) Name() string { return name(portStateWords, "PortState", int(s)) }

var physWords = []word{
	PhysSleep:             {"SLEEP", ""},
	PhysPolling:           {"POLLING", ""},
	PhysDisabled:          {"DISABLED", ""},
	PhysTraining:          {"PORT_CONFIGURATION TRAINING", ""},
	PhysLinkUp:            {"LINK_UP", ""},
	PhysLinkErrorRecovery: {"LINK_ERROR_RECOVERY", ""},
	PhysTest:              {"PHY TEST", ""},
}

// String prints the state as ibv_devinfo does.
func (s PortPhysState) String() string { return text(physWords, "PortPhysState", int(s)) }

var qpStateWords = []word{
	QPStateReset:   {"RESET", "IBV_QPS_RESET"},
	QPStateInit:    {"INIT", "IBV_QPS_INIT"},
	QPStateRTR:     {"RTR", "IBV_QPS_RTR"},
	QPStateRTS:     {"RTS", "IBV_QPS_RTS"},
	QPStateSQD:     {"SQD", "IBV_QPS_SQD"},
	QPStateSQE:     {"SQE", "IBV_QPS_SQE"},
	QPStateErr:     {"ERR", "IBV_QPS_ERR"},
	QPStateUnknown: {"UNKNOWN", "IBV_QPS_UNKNOWN"},
}

// String prints the state in the standard's spelling, "RTS".
func (s QPState) String() string { return text(qpStateWords, "QPState", int(s)) }

// Name prints the constant of the C interface, "IBV_QPS_RTS".
func (s QPState) Name() string { return name(qpStateWords, "QPState", int(s)) }

var qpTypeWords = []word{
	RC:        {"RC", "IBV_QPT_RC"},
	UC:        {"UC", "IBV_QPT_UC"},
	UD:        {"UD", "IBV_QPT_UD"},
	RawPacket: {"RAW_PACKET", "IBV_QPT_RAW_PACKET"},
	XRCSend:   {"XRC_SEND", "IBV_QPT_XRC_SEND"},
	XRCRecv:   {"XRC_RECV", "IBV_QPT_XRC_RECV"},
	Driver:    {"DRIVER", "IBV_QPT_DRIVER"},
}

// String prints the type in the standard's spelling, "RC".
func (t QPType) String() string { return text(qpTypeWords, "QPType", int(t)) }

// Name prints the constant of the C interface, "IBV_QPT_RC".
func (t QPType) Name() string { return name(qpTypeWords, "QPType", int(t)) }

var migWords = []word{
	MigMigrated: {"MIGRATED", "IBV_MIG_MIGRATED"},
	MigRearm:    {"REARM", "IBV_MIG_REARM"},
	MigArmed:    {"ARMED", "IBV_MIG_ARMED"},
}

// String prints the state in the standard's spelling, "MIGRATED".
func (s MigState) String() string { return text(migWords, "MigState", int(s)) }

// Name prints the constant of the C interface, "IBV_MIG_MIGRATED".
func (s MigState) Name() string { return name(migWords, "MigState", int(s)) }

var mtuWords = []word{
	MTU256:  {"256", "IBV_MTU_256"},
	MTU512:  {"512", "IBV_MTU_512"},
	MTU1024: {"1024", "IBV_MTU_1024"},
	MTU2048: {"2048", "IBV_MTU_2048"},
	MTU4096: {"4096", "IBV_MTU_4096"},
}

// String prints the payload bytes of the code, "1024".
func (m MTU) String() string { return text(mtuWords, "MTU", int(m)) }

// Name prints the constant of the C interface, "IBV_MTU_1024".
func (m MTU) Name() string { return name(mtuWords, "MTU", int(m)) }

var linkWords = []word{
	LinkUnspecified: {"Unspecified", "IBV_LINK_LAYER_UNSPECIFIED"},
	LinkInfiniBand:  {"InfiniBand", "IBV_LINK_LAYER_INFINIBAND"},
	LinkEthernet:    {"Ethernet", "IBV_LINK_LAYER_ETHERNET"},
}

// String prints the link layer as ibv_devinfo does.
func (l LinkLayer) String() string { return text(linkWords, "LinkLayer", int(l)) }

// Name prints the constant of the C interface, "IBV_LINK_LAYER_ETHERNET".
func (l LinkLayer) Name() string { return name(linkWords, "LinkLayer", int(l)) }

var atomicWords = []word{
	AtomicNone: {"ATOMIC_NONE", "IBV_ATOMIC_NONE"},
	AtomicHCA:  {"ATOMIC_HCA", "IBV_ATOMIC_HCA"},
	AtomicGlob: {"ATOMIC_GLOB", "IBV_ATOMIC_GLOB"},
}

// String prints the capability as ibv_devinfo does, "ATOMIC_HCA".
func (c AtomicCap) String() string { return text(atomicWords, "AtomicCap", int(c)) }

// Name prints the constant of the C interface, "IBV_ATOMIC_HCA".
func (c AtomicCap) Name() string { return name(atomicWords, "AtomicCap", int(c)) }

var gidTypeWords = []word{
	GIDTypeIB:     {"IB", "IBV_GID_TYPE_IB"},
	GIDTypeRoCEv1: {"RoCE v1", "IBV_GID_TYPE_ROCE_V1"},
	GIDTypeRoCEv2: {"RoCE v2", "IBV_GID_TYPE_ROCE_V2"},
}

// String prints the type as ibv_devinfo does, "RoCE v2".
func (t GIDType) String() string { return text(gidTypeWords, "GIDType", int(t)) }

// Name prints the constant of the C interface, "IBV_GID_TYPE_ROCE_V2".
func (t GIDType) Name() string { return name(gidTypeWords, "GIDType", int(t)) }
