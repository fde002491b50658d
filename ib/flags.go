package ib

import "strconv"

// flagName is the name of one bit.
type flagName struct {
	bit  uint32
	name string
}

// flagString prints a set as names joined by "|", what has no name as a hex
// number at the end, and the empty set as "0".
func flagString(names []flagName, v uint32) string {
	if v == 0 {
		return "0"
	}
	var b []byte
	for i := range names {
		if v&names[i].bit == 0 {
			continue
		}
		v &^= names[i].bit
		if len(b) > 0 {
			b = append(b, '|')
		}
		b = append(b, names[i].name...)
	}
	if v != 0 {
		if len(b) > 0 {
			b = append(b, '|')
		}
		b = append(b, "0x"...)
		b = strconv.AppendUint(b, uint64(v), 16)
	}
	return string(b)
}

var accessNames = []flagName{
	{uint32(AccessLocalWrite), "LOCAL_WRITE"},
	{uint32(AccessRemoteWrite), "REMOTE_WRITE"},
	{uint32(AccessRemoteRead), "REMOTE_READ"},
	{uint32(AccessRemoteAtomic), "REMOTE_ATOMIC"},
	{uint32(AccessMWBind), "MW_BIND"},
	{uint32(AccessZeroBased), "ZERO_BASED"},
	{uint32(AccessOnDemand), "ON_DEMAND"},
	{uint32(AccessHugeTLB), "HUGETLB"},
	{uint32(AccessFlushGlobal), "FLUSH_GLOBAL"},
	{uint32(AccessFlushPersistent), "FLUSH_PERSISTENT"},
	{uint32(AccessRelaxedOrdering), "RELAXED_ORDERING"},
}

// String lists the rights, "LOCAL_WRITE|REMOTE_READ".
func (a Access) String() string { return flagString(accessNames, uint32(a)) }

var sendNames = []flagName{
	{uint32(SendFence), "FENCE"},
	{uint32(SendSignaled), "SIGNALED"},
	{uint32(SendSolicited), "SOLICITED"},
	{uint32(SendInline), "INLINE"},
	{uint32(SendIPCSum), "IP_CSUM"},
}

// String lists the flags, "SIGNALED|INLINE".
func (f SendFlags) String() string { return flagString(sendNames, uint32(f)) }

var wcFlagNames = []flagName{
	{uint32(WCGRH), "GRH"},
	{uint32(WCWithImm), "WITH_IMM"},
	{uint32(WCIPCSumOK), "IP_CSUM_OK"},
	{uint32(WCWithInv), "WITH_INV"},
}

// String lists the flags, "GRH|WITH_IMM".
func (f WCFlags) String() string { return flagString(wcFlagNames, uint32(f)) }

var qpAttrNames = []flagName{
	{uint32(QPAttrState), "STATE"},
	{uint32(QPAttrCurState), "CUR_STATE"},
	{uint32(QPAttrEnSQDAsyncNotify), "EN_SQD_ASYNC_NOTIFY"},
	{uint32(QPAttrAccessFlags), "ACCESS_FLAGS"},
	{uint32(QPAttrPKeyIndex), "PKEY_INDEX"},
	{uint32(QPAttrPort), "PORT"},
	{uint32(QPAttrQKey), "QKEY"},
	{uint32(QPAttrAV), "AV"},
	{uint32(QPAttrPathMTU), "PATH_MTU"},
	{uint32(QPAttrTimeout), "TIMEOUT"},
	{uint32(QPAttrRetryCnt), "RETRY_CNT"},
	{uint32(QPAttrRNRRetry), "RNR_RETRY"},
	{uint32(QPAttrRQPSN), "RQ_PSN"},
	{uint32(QPAttrMaxRDAtomic), "MAX_QP_RD_ATOMIC"},
	{uint32(QPAttrAltPath), "ALT_PATH"},
	{uint32(QPAttrMinRNRTimer), "MIN_RNR_TIMER"},
	{uint32(QPAttrSQPSN), "SQ_PSN"},
	{uint32(QPAttrMaxDestRDAtomic), "MAX_DEST_RD_ATOMIC"},
	{uint32(QPAttrPathMigState), "PATH_MIG_STATE"},
	{uint32(QPAttrCap), "CAP"},
	{uint32(QPAttrDestQPN), "DEST_QPN"},
	{uint32(QPAttrRateLimit), "RATE_LIMIT"},
}

// String lists the attributes as the C constants spell them after IBV_QP_:
// "STATE|PKEY_INDEX".
func (m QPAttrMask) String() string { return flagString(qpAttrNames, uint32(m)) }

var qpAttrGoNames = []flagName{
	{uint32(QPAttrState), "QPAttrState"},
	{uint32(QPAttrCurState), "QPAttrCurState"},
	{uint32(QPAttrEnSQDAsyncNotify), "QPAttrEnSQDAsyncNotify"},
	{uint32(QPAttrAccessFlags), "QPAttrAccessFlags"},
	{uint32(QPAttrPKeyIndex), "QPAttrPKeyIndex"},
	{uint32(QPAttrPort), "QPAttrPort"},
	{uint32(QPAttrQKey), "QPAttrQKey"},
	{uint32(QPAttrAV), "QPAttrAV"},
	{uint32(QPAttrPathMTU), "QPAttrPathMTU"},
	{uint32(QPAttrTimeout), "QPAttrTimeout"},
	{uint32(QPAttrRetryCnt), "QPAttrRetryCnt"},
	{uint32(QPAttrRNRRetry), "QPAttrRNRRetry"},
	{uint32(QPAttrRQPSN), "QPAttrRQPSN"},
	{uint32(QPAttrMaxRDAtomic), "QPAttrMaxRDAtomic"},
	{uint32(QPAttrAltPath), "QPAttrAltPath"},
	{uint32(QPAttrMinRNRTimer), "QPAttrMinRNRTimer"},
	{uint32(QPAttrSQPSN), "QPAttrSQPSN"},
	{uint32(QPAttrMaxDestRDAtomic), "QPAttrMaxDestRDAtomic"},
	{uint32(QPAttrPathMigState), "QPAttrPathMigState"},
	{uint32(QPAttrCap), "QPAttrCap"},
	{uint32(QPAttrDestQPN), "QPAttrDestQPN"},
	{uint32(QPAttrRateLimit), "QPAttrRateLimit"},
}

// goString lists the attributes as this package names them, "QPAttrState|QPAttrPort".
func (m QPAttrMask) goString() string { return flagString(qpAttrGoNames, uint32(m)) }

var srqAttrNames = []flagName{
	{uint32(SRQMaxWR), "MAX_WR"},
	{uint32(SRQLimit), "LIMIT"},
}

// String lists the attributes, "MAX_WR|LIMIT".
func (m SRQAttrMask) String() string { return flagString(srqAttrNames, uint32(m)) }
