package ib

import (
	"fmt"
	"strings"
	"testing"
)

// spelled is an enum value with what it must print.
type spelled struct {
	v    fmt.Stringer
	text string
	name string // "" if the type has no Name
}

func TestStrings(t *testing.T) {
	for _, c := range []spelled{
		{WCSuccess, "success", "IBV_WC_SUCCESS"},
		{WCLocLenErr, "local length error", "IBV_WC_LOC_LEN_ERR"},
		{WCLocQPOpErr, "local QP operation error", "IBV_WC_LOC_QP_OP_ERR"},
		{WCLocEECOpErr, "local EE context operation error", "IBV_WC_LOC_EEC_OP_ERR"},
		{WCLocProtErr, "local protection error", "IBV_WC_LOC_PROT_ERR"},
		{WCWRFlushErr, "Work Request Flushed Error", "IBV_WC_WR_FLUSH_ERR"},
		{WCMWBindErr, "memory management operation error", "IBV_WC_MW_BIND_ERR"},
		{WCBadRespErr, "bad response error", "IBV_WC_BAD_RESP_ERR"},
		{WCLocAccessErr, "local access error", "IBV_WC_LOC_ACCESS_ERR"},
		{WCRemInvReqErr, "remote invalid request error", "IBV_WC_REM_INV_REQ_ERR"},
		{WCRemAccessErr, "remote access error", "IBV_WC_REM_ACCESS_ERR"},
		{WCRemOpErr, "remote operation error", "IBV_WC_REM_OP_ERR"},
		{WCRetryExcErr, "transport retry counter exceeded", "IBV_WC_RETRY_EXC_ERR"},
		{WCRNRRetryExcErr, "RNR retry counter exceeded", "IBV_WC_RNR_RETRY_EXC_ERR"},
		{WCLocRDDViolErr, "local RDD violation error", "IBV_WC_LOC_RDD_VIOL_ERR"},
		{WCRemInvRDReqErr, "remote invalid RD request", "IBV_WC_REM_INV_RD_REQ_ERR"},
		{WCRemAbortErr, "aborted error", "IBV_WC_REM_ABORT_ERR"},
		{WCInvEECNErr, "invalid EE context number", "IBV_WC_INV_EECN_ERR"},
		{WCInvEECStateErr, "invalid EE context state", "IBV_WC_INV_EEC_STATE_ERR"},
		{WCFatalErr, "fatal error", "IBV_WC_FATAL_ERR"},
		{WCRespTimeoutErr, "response timeout error", "IBV_WC_RESP_TIMEOUT_ERR"},
		{WCGeneralErr, "general error", "IBV_WC_GENERAL_ERR"},
		{WCTMErr, "TM error", "IBV_WC_TM_ERR"},
		{WCTMRndvIncomplete, "TM software rendezvous", "IBV_WC_TM_RNDV_INCOMPLETE"},
		{WCStatus(24), "WCStatus(24)", "WCStatus(24)"},
		{WCStatus(77), "WCStatus(77)", "WCStatus(77)"},

		{EventCQErr, "CQ error", "IBV_EVENT_CQ_ERR"},
		{EventQPFatal, "local work queue catastrophic error", "IBV_EVENT_QP_FATAL"},
		{EventQPReqErr, "invalid request local work queue error", "IBV_EVENT_QP_REQ_ERR"},
		{EventQPAccessErr, "local access violation work queue error", "IBV_EVENT_QP_ACCESS_ERR"},
		{EventCommEst, "communication established", "IBV_EVENT_COMM_EST"},
		{EventSQDrained, "send queue drained", "IBV_EVENT_SQ_DRAINED"},
		{EventPathMig, "path migrated", "IBV_EVENT_PATH_MIG"},
		{EventPathMigErr, "path migration request error", "IBV_EVENT_PATH_MIG_ERR"},
		{EventDeviceFatal, "local catastrophic error", "IBV_EVENT_DEVICE_FATAL"},
		{EventPortActive, "port active", "IBV_EVENT_PORT_ACTIVE"},
		{EventPortErr, "port error", "IBV_EVENT_PORT_ERR"},
		{EventLIDChange, "LID change", "IBV_EVENT_LID_CHANGE"},
		{EventPKeyChange, "P_Key change", "IBV_EVENT_PKEY_CHANGE"},
		{EventSMChange, "SM change", "IBV_EVENT_SM_CHANGE"},
		{EventSRQErr, "SRQ catastrophic error", "IBV_EVENT_SRQ_ERR"},
		{EventSRQLimitReached, "SRQ limit reached", "IBV_EVENT_SRQ_LIMIT_REACHED"},
		{EventQPLastWQEReached, "last WQE reached", "IBV_EVENT_QP_LAST_WQE_REACHED"},
		{EventClientReregister, "client reregistration", "IBV_EVENT_CLIENT_REREGISTER"},
		{EventGIDChange, "GID table change", "IBV_EVENT_GID_CHANGE"},
		{EventWQFatal, "WQ fatal", "IBV_EVENT_WQ_FATAL"},
		{EventType(20), "EventType(20)", "EventType(20)"},

		{NodeUnknown, "unknown", "IBV_NODE_UNKNOWN"},
		{NodeCA, "InfiniBand channel adapter", "IBV_NODE_CA"},
		{NodeSwitch, "InfiniBand switch", "IBV_NODE_SWITCH"},
		{NodeRouter, "InfiniBand router", "IBV_NODE_ROUTER"},
		{NodeRNIC, "iWARP NIC", "IBV_NODE_RNIC"},
		{NodeUSNIC, "usNIC", "IBV_NODE_USNIC"},
		{NodeUSNICUDP, "usNIC UDP", "IBV_NODE_USNIC_UDP"},
		{NodeUnspecified, "unspecified", "IBV_NODE_UNSPECIFIED"},
		{NodeType(0), "NodeType(0)", "NodeType(0)"},
		{NodeType(-2), "NodeType(-2)", "NodeType(-2)"},

		{PortNop, "no state change (NOP)", "IBV_PORT_NOP"},
		{PortDown, "down", "IBV_PORT_DOWN"},
		{PortInit, "init", "IBV_PORT_INIT"},
		{PortArmed, "armed", "IBV_PORT_ARMED"},
		{PortActive, "active", "IBV_PORT_ACTIVE"},
		{PortActiveDefer, "active defer", "IBV_PORT_ACTIVE_DEFER"},
		{PortState(6), "PortState(6)", "PortState(6)"},

		{PhysSleep, "SLEEP", ""},
		{PhysPolling, "POLLING", ""},
		{PhysDisabled, "DISABLED", ""},
		{PhysTraining, "PORT_CONFIGURATION TRAINING", ""},
		{PhysLinkUp, "LINK_UP", ""},
		{PhysLinkErrorRecovery, "LINK_ERROR_RECOVERY", ""},
		{PhysTest, "PHY TEST", ""},
		{PortPhysState(0), "PortPhysState(0)", ""},

		{QPStateReset, "RESET", "IBV_QPS_RESET"},
		{QPStateInit, "INIT", "IBV_QPS_INIT"},
		{QPStateRTR, "RTR", "IBV_QPS_RTR"},
		{QPStateRTS, "RTS", "IBV_QPS_RTS"},
		{QPStateSQD, "SQD", "IBV_QPS_SQD"},
		{QPStateSQE, "SQE", "IBV_QPS_SQE"},
		{QPStateErr, "ERR", "IBV_QPS_ERR"},
		{QPStateUnknown, "UNKNOWN", "IBV_QPS_UNKNOWN"},
		{QPState(8), "QPState(8)", "QPState(8)"},

		{RC, "RC", "IBV_QPT_RC"},
		{UC, "UC", "IBV_QPT_UC"},
		{UD, "UD", "IBV_QPT_UD"},
		{RawPacket, "RAW_PACKET", "IBV_QPT_RAW_PACKET"},
		{XRCSend, "XRC_SEND", "IBV_QPT_XRC_SEND"},
		{XRCRecv, "XRC_RECV", "IBV_QPT_XRC_RECV"},
		{Driver, "DRIVER", "IBV_QPT_DRIVER"},
		{QPType(5), "QPType(5)", "QPType(5)"},

		{MigMigrated, "MIGRATED", "IBV_MIG_MIGRATED"},
		{MigRearm, "REARM", "IBV_MIG_REARM"},
		{MigArmed, "ARMED", "IBV_MIG_ARMED"},
		{MigState(3), "MigState(3)", "MigState(3)"},

		{MTU256, "256", "IBV_MTU_256"},
		{MTU512, "512", "IBV_MTU_512"},
		{MTU1024, "1024", "IBV_MTU_1024"},
		{MTU2048, "2048", "IBV_MTU_2048"},
		{MTU4096, "4096", "IBV_MTU_4096"},
		{MTU(0), "MTU(0)", "MTU(0)"},
		{MTU(6), "MTU(6)", "MTU(6)"},

		{LinkUnspecified, "Unspecified", "IBV_LINK_LAYER_UNSPECIFIED"},
		{LinkInfiniBand, "InfiniBand", "IBV_LINK_LAYER_INFINIBAND"},
		{LinkEthernet, "Ethernet", "IBV_LINK_LAYER_ETHERNET"},
		{LinkLayer(3), "LinkLayer(3)", "LinkLayer(3)"},

		{AtomicNone, "ATOMIC_NONE", "IBV_ATOMIC_NONE"},
		{AtomicHCA, "ATOMIC_HCA", "IBV_ATOMIC_HCA"},
		{AtomicGlob, "ATOMIC_GLOB", "IBV_ATOMIC_GLOB"},
		{AtomicCap(3), "AtomicCap(3)", "AtomicCap(3)"},

		{GIDTypeIB, "IB", "IBV_GID_TYPE_IB"},
		{GIDTypeRoCEv1, "RoCE v1", "IBV_GID_TYPE_ROCE_V1"},
		{GIDTypeRoCEv2, "RoCE v2", "IBV_GID_TYPE_ROCE_V2"},
		{GIDType(3), "GIDType(3)", "GIDType(3)"},

		{WRRDMAWrite, "RDMA_WRITE", "IBV_WR_RDMA_WRITE"},
		{WRRDMAWriteWithImm, "RDMA_WRITE_WITH_IMM", "IBV_WR_RDMA_WRITE_WITH_IMM"},
		{WRSend, "SEND", "IBV_WR_SEND"},
		{WRSendWithImm, "SEND_WITH_IMM", "IBV_WR_SEND_WITH_IMM"},
		{WRRDMARead, "RDMA_READ", "IBV_WR_RDMA_READ"},
		{WRAtomicCmpAndSwp, "ATOMIC_CMP_AND_SWP", "IBV_WR_ATOMIC_CMP_AND_SWP"},
		{WRAtomicFetchAndAdd, "ATOMIC_FETCH_AND_ADD", "IBV_WR_ATOMIC_FETCH_AND_ADD"},
		{WRLocalInv, "LOCAL_INV", "IBV_WR_LOCAL_INV"},
		{WRBindMW, "BIND_MW", "IBV_WR_BIND_MW"},
		{WRSendWithInv, "SEND_WITH_INV", "IBV_WR_SEND_WITH_INV"},
		{WRTSO, "TSO", "IBV_WR_TSO"},
		{WRDriver1, "DRIVER1", "IBV_WR_DRIVER1"},
		{WRFlush, "FLUSH", "IBV_WR_FLUSH"},
		{WRAtomicWrite, "ATOMIC_WRITE", "IBV_WR_ATOMIC_WRITE"},
		{WRRegMR, "REG_MR", "IB_WR_REG_MR"},
		{WRRegMRIntegrity, "REG_MR_INTEGRITY", "IB_WR_REG_MR_INTEGRITY"},
		{SigBadRefTag, "bad reference tag", "IB_SIG_BAD_REFTAG"},
		{SigErrType(7), "SigErrType(7)", "SigErrType(7)"},
		{SigTypeT10DIF, "T10-DIF", "IB_SIG_TYPE_T10_DIF"},
		{T10DIFCSUM, "CSUM", "IB_T10DIF_CSUM"},
		{WRReadWithInv, "RDMA_READ_WITH_INV", "IB_WR_RDMA_READ_WITH_INV"},
		{WROpcode(12), "WROpcode(12)", "WROpcode(12)"},
		{WROpcode(99), "WROpcode(99)", "WROpcode(99)"},

		{WCSend, "SEND", "IBV_WC_SEND"},
		{WCRDMAWrite, "RDMA_WRITE", "IBV_WC_RDMA_WRITE"},
		{WCRDMARead, "RDMA_READ", "IBV_WC_RDMA_READ"},
		{WCCompSwap, "COMP_SWAP", "IBV_WC_COMP_SWAP"},
		{WCFetchAdd, "FETCH_ADD", "IBV_WC_FETCH_ADD"},
		{WCBindMW, "BIND_MW", "IBV_WC_BIND_MW"},
		{WCLocalInv, "LOCAL_INV", "IBV_WC_LOCAL_INV"},
		{WCTSO, "TSO", "IBV_WC_TSO"},
		{WCFlush, "FLUSH", "IBV_WC_FLUSH"},
		{WCAtomicWrite, "ATOMIC_WRITE", "IBV_WC_ATOMIC_WRITE"},
		{WCRegMR, "REG_MR", "IB_WC_REG_MR"},
		{WCRecv, "RECV", "IBV_WC_RECV"},
		{WCRecvRDMAWithImm, "RECV_RDMA_WITH_IMM", "IBV_WC_RECV_RDMA_WITH_IMM"},
		{WCOpcode(130), "WCOpcode(130)", "WCOpcode(130)"},

		{Access(0), "0", ""},
		{AccessLocalWrite | AccessRemoteRead, "LOCAL_WRITE|REMOTE_READ", ""},
		{Access(0x3FF), "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC|MW_BIND|ZERO_BASED|ON_DEMAND|HUGETLB|FLUSH_GLOBAL|FLUSH_PERSISTENT", ""},
		{AccessRelaxedOrdering | 1<<19 | 1<<10, "RELAXED_ORDERING|0x80400", ""},
		{SendFence | SendSignaled | SendSolicited | SendInline | SendIPCSum, "FENCE|SIGNALED|SOLICITED|INLINE|IP_CSUM", ""},
		{SendFlags(0x100), "0x100", ""},
		{WCGRH | WCWithImm | WCIPCSumOK | WCWithInv, "GRH|WITH_IMM|IP_CSUM_OK|WITH_INV", ""},
		{SRQMaxWR | SRQLimit, "MAX_WR|LIMIT", ""},
		{QPAttrMask(0x1FFFFF), "STATE|CUR_STATE|EN_SQD_ASYNC_NOTIFY|ACCESS_FLAGS|PKEY_INDEX|PORT|QKEY|AV|PATH_MTU|TIMEOUT|RETRY_CNT|RNR_RETRY|" +
			"RQ_PSN|MAX_QP_RD_ATOMIC|ALT_PATH|MIN_RNR_TIMER|SQ_PSN|MAX_DEST_RD_ATOMIC|PATH_MIG_STATE|CAP|DEST_QPN", ""},
		{QPAttrRateLimit, "RATE_LIMIT", ""},
	} {
		if got := c.v.String(); got != c.text {
			t.Errorf("%T: String() = %q, want %q", c.v, got, c.text)
		}
		n, ok := c.v.(interface{ Name() string })
		if ok != (c.name != "") {
			t.Errorf("%T: has Name: %v", c.v, ok)
		} else if ok && n.Name() != c.name {
			t.Errorf("%T: Name() = %q, want %q", c.v, n.Name(), c.name)
		}
	}
}

// Every value of every enum prints something and none panics: statuses and
// opcodes may come from a newer device.
func TestStringsNeverPanic(t *testing.T) {
	for v := range 1 << 8 {
		for _, s := range []fmt.Stringer{
			WCStatus(v), EventType(v), NodeType(v), PortState(v), PortPhysState(v), QPState(v), QPType(v), MigState(v),
			MTU(v), LinkLayer(v), AtomicCap(v), GIDType(v), WROpcode(v), WCOpcode(v), WCOpcode(v << 8), Rate(v),
			Access(1) << (v & 31), SendFlags(1) << (v & 31), WCFlags(1) << (v & 31), QPAttrMask(1) << (v & 31), SRQAttrMask(v),
		} {
			if s.String() == "" {
				t.Fatalf("%T of %d prints nothing", s, v)
			}
			if n, ok := s.(interface{ Name() string }); ok {
				if name := n.Name(); name == "" || !strings.HasPrefix(name, "IB") && !strings.Contains(name, "(") {
					t.Fatalf("%T of %d has the name %q", s, v, name)
				}
			}
		}
	}
}

func TestIsRecv(t *testing.T) {
	for op, want := range map[WCOpcode]bool{WCSend: false, WCRDMARead: false, WCRegMR: false, WCRecv: true, WCRecvRDMAWithImm: true} {
		if op.IsRecv() != want {
			t.Errorf("%v.IsRecv() = %v", op, !want)
		}
	}
}
