package ib

var wrOpcodeWords = []word{
	WRRDMAWrite:         {"RDMA_WRITE", "IBV_WR_RDMA_WRITE"},
	WRRDMAWriteWithImm:  {"RDMA_WRITE_WITH_IMM", "IBV_WR_RDMA_WRITE_WITH_IMM"},
	WRSend:              {"SEND", "IBV_WR_SEND"},
	WRSendWithImm:       {"SEND_WITH_IMM", "IBV_WR_SEND_WITH_IMM"},
	WRRDMARead:          {"RDMA_READ", "IBV_WR_RDMA_READ"},
	WRAtomicCmpAndSwp:   {"ATOMIC_CMP_AND_SWP", "IBV_WR_ATOMIC_CMP_AND_SWP"},
	WRAtomicFetchAndAdd: {"ATOMIC_FETCH_AND_ADD", "IBV_WR_ATOMIC_FETCH_AND_ADD"},
	WRLocalInv:          {"LOCAL_INV", "IBV_WR_LOCAL_INV"},
	WRBindMW:            {"BIND_MW", "IBV_WR_BIND_MW"},
	WRSendWithInv:       {"SEND_WITH_INV", "IBV_WR_SEND_WITH_INV"},
	WRTSO:               {"TSO", "IBV_WR_TSO"},
	WRDriver1:           {"DRIVER1", "IBV_WR_DRIVER1"},
	WRFlush:             {"FLUSH", "IBV_WR_FLUSH"},
	WRAtomicWrite:       {"ATOMIC_WRITE", "IBV_WR_ATOMIC_WRITE"},
	WRRegMR:             {"REG_MR", "IB_WR_REG_MR"},
	WRRegMRIntegrity:    {"REG_MR_INTEGRITY", "IB_WR_REG_MR_INTEGRITY"},
	WRReadWithInv:       {"RDMA_READ_WITH_INV", "IB_WR_RDMA_READ_WITH_INV"},
}

// String prints the opcode in the standard's spelling, "RDMA_WRITE".
func (o WROpcode) String() string { return text(wrOpcodeWords, "WROpcode", int(o)) }

// Name prints the constant of the C interface, "IBV_WR_RDMA_WRITE".
func (o WROpcode) Name() string { return name(wrOpcodeWords, "WROpcode", int(o)) }

var wcOpcodeWords = []word{
	WCSend:            {"SEND", "IBV_WC_SEND"},
	WCRDMAWrite:       {"RDMA_WRITE", "IBV_WC_RDMA_WRITE"},
	WCRDMARead:        {"RDMA_READ", "IBV_WC_RDMA_READ"},
	WCCompSwap:        {"COMP_SWAP", "IBV_WC_COMP_SWAP"},
	WCFetchAdd:        {"FETCH_ADD", "IBV_WC_FETCH_ADD"},
	WCBindMW:          {"BIND_MW", "IBV_WC_BIND_MW"},
	WCLocalInv:        {"LOCAL_INV", "IBV_WC_LOCAL_INV"},
	WCTSO:             {"TSO", "IBV_WC_TSO"},
	WCFlush:           {"FLUSH", "IBV_WC_FLUSH"},
	WCAtomicWrite:     {"ATOMIC_WRITE", "IBV_WC_ATOMIC_WRITE"},
	WCRegMR:           {"REG_MR", "IB_WC_REG_MR"},
	WCRecv:            {"RECV", "IBV_WC_RECV"},
	WCRecvRDMAWithImm: {"RECV_RDMA_WITH_IMM", "IBV_WC_RECV_RDMA_WITH_IMM"},
}

// String prints the opcode in the standard's spelling, "RECV".
func (o WCOpcode) String() string { return text(wcOpcodeWords, "WCOpcode", int(o)) }

// Name prints the constant of the C interface, "IBV_WC_RECV".
func (o WCOpcode) Name() string { return name(wcOpcodeWords, "WCOpcode", int(o)) }

// IsRecv reports whether the completion is one of a receive request.
func (o WCOpcode) IsRecv() bool { return o&WCRecv != 0 }
