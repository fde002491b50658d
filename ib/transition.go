package ib

import "syscall"

// Abbreviations for the table below.
const (
	mAcc   = QPAttrAccessFlags
	mPKey  = QPAttrPKeyIndex
	mPort  = QPAttrPort
	mQKey  = QPAttrQKey
	mAV    = QPAttrAV
	mAlt   = QPAttrAltPath
	mMig   = QPAttrPathMigState
	mCur   = QPAttrCurState
	mRNR   = QPAttrMinRNRTimer
	mNotif = QPAttrEnSQDAsyncNotify
	mConn  = QPAttrAV | QPAttrPathMTU | QPAttrDestQPN | QPAttrRQPSN
	mResp  = QPAttrMaxDestRDAtomic | QPAttrMinRNRTimer
	mReq   = QPAttrTimeout | QPAttrRetryCnt | QPAttrRNRRetry | QPAttrMaxRDAtomic
)

// Columns of the table.
const (
	colRC = iota
	colUC
	colUD
	colRaw
	colXRCSend
	colXRCRecv
	columns
)

func column(t QPType) int {
	switch t {
	case RC:
		return colRC
	case UC:
		return colUC
	case UD:
		return colUD
	case RawPacket:
		return colRaw
	case XRCSend:
		return colXRCSend
	case XRCRecv:
		return colXRCRecv
	}
	return -1
}

// transition is a legal change of state with the attributes that it takes and
// may take, for each type (IBA 11.2.5.2, table of modify queue pair
// attributes). What Linux lets pass is what programs rely on, so the rows are
// those of its kernel: there too a queue pair does not go from RESET to ERR.
type transition struct {
	from, to QPState
	req, opt [columns]QPAttrMask
}

var transitions = []transition{
	{from: QPStateReset, to: QPStateReset},
	{
		from: QPStateReset, to: QPStateInit,
		req: [columns]QPAttrMask{
			colRC: mPKey | mPort | mAcc, colUC: mPKey | mPort | mAcc, colUD: mPKey | mPort | mQKey, colRaw: mPort,
			colXRCSend: mPKey | mPort | mAcc, colXRCRecv: mPKey | mPort | mAcc,
		},
	},
	{from: QPStateInit, to: QPStateReset},
	{from: QPStateInit, to: QPStateErr},
	{
		from: QPStateInit, to: QPStateInit,
		opt: [columns]QPAttrMask{
			colRC: mPKey | mPort | mAcc, colUC: mPKey | mPort | mAcc, colUD: mPKey | mPort | mQKey,
			colXRCSend: mPKey | mPort | mAcc, colXRCRecv: mPKey | mPort | mAcc,
		},
	},
	{
		from: QPStateInit, to: QPStateRTR,
		req: [columns]QPAttrMask{
			colRC: mConn | mResp, colUC: mConn, colXRCSend: mConn, colXRCRecv: mConn | mResp,
		},
		opt: [columns]QPAttrMask{
			colRC: mAlt | mAcc | mPKey, colUC: mAlt | mAcc | mPKey, colUD: mPKey | mQKey,
			colXRCSend: mAlt | mAcc | mPKey, colXRCRecv: mAlt | mAcc | mPKey,
		},
	},
	{from: QPStateRTR, to: QPStateReset},
	{from: QPStateRTR, to: QPStateErr},
	{
		from: QPStateRTR, to: QPStateRTS,
		req: [columns]QPAttrMask{
			colRC: mReq | QPAttrSQPSN, colUC: QPAttrSQPSN, colUD: QPAttrSQPSN,
			colXRCSend: mReq | QPAttrSQPSN, colXRCRecv: QPAttrTimeout | QPAttrSQPSN,
		},
		opt: [columns]QPAttrMask{
			colRC: mCur | mAlt | mAcc | mRNR | mMig, colUC: mCur | mAlt | mAcc | mMig, colUD: mCur | mQKey,
			colRaw: QPAttrRateLimit, colXRCSend: mCur | mAlt | mAcc | mMig, colXRCRecv: mCur | mAlt | mAcc | mRNR | mMig,
		},
	},
	{from: QPStateRTS, to: QPStateReset},
	{from: QPStateRTS, to: QPStateErr},
	{
		from: QPStateRTS, to: QPStateRTS,
		opt: [columns]QPAttrMask{
			colRC: mCur | mAlt | mAcc | mRNR | mMig, colUC: mCur | mAlt | mAcc | mMig, colUD: mCur | mQKey,
			colRaw: QPAttrRateLimit, colXRCSend: mCur | mAlt | mAcc | mMig, colXRCRecv: mCur | mAlt | mAcc | mRNR | mMig,
		},
	},
	{
		from: QPStateRTS, to: QPStateSQD,
		opt: [columns]QPAttrMask{
			colRC: mNotif, colUC: mNotif, colUD: mNotif, colXRCSend: mNotif, colXRCRecv: mNotif,
		},
	},
	{from: QPStateSQD, to: QPStateReset},
	{from: QPStateSQD, to: QPStateErr},
	{
		from: QPStateSQD, to: QPStateRTS,
		opt: [columns]QPAttrMask{
			colRC: mCur | mAlt | mAcc | mRNR | mMig, colUC: mCur | mAlt | mAcc | mMig, colUD: mCur | mQKey,
			colXRCSend: mCur | mAlt | mAcc | mMig, colXRCRecv: mCur | mAlt | mAcc | mRNR | mMig,
		},
	},
	{
		from: QPStateSQD, to: QPStateSQD,
		opt: [columns]QPAttrMask{
			colRC: mPort | mAV | mReq | mResp | mAlt | mAcc | mPKey | mMig,
			colUC: mAV | mAlt | mAcc | mPKey | mMig, colUD: mPKey | mQKey,
			colXRCSend: mPort | mAV | mReq | mAlt | mAcc | mPKey | mMig,
			colXRCRecv: mPort | mAV | QPAttrTimeout | mResp | mAlt | mAcc | mPKey | mMig,
		},
	},
	{from: QPStateSQE, to: QPStateReset},
	{from: QPStateSQE, to: QPStateErr},
	{
		from: QPStateSQE, to: QPStateRTS,
		opt: [columns]QPAttrMask{colUC: mCur | mAcc, colUD: mCur | mQKey},
	},
	{from: QPStateErr, to: QPStateReset},
	{from: QPStateErr, to: QPStateErr},
}

// Transition gives the attributes that a change of state takes and those that
// it may take besides, without QPAttrState itself. ok is false if the change
// is illegal or the type has no states.
func Transition(t QPType, from, to QPState) (required, optional QPAttrMask, ok bool) {
	col := column(t)
	if col < 0 {
		return 0, 0, false
	}
	for i := range transitions {
		if tr := &transitions[i]; tr.from == from && tr.to == to {
			return tr.req[col], tr.opt[col], true
		}
	}
	return 0, 0, false
}

// A TransitionError tells why a modify call is refused. It matches EINVAL.
type TransitionError struct {
	Type     QPType
	From, To QPState
	// Illegal: there is no such transition. Otherwise Missing are required
	// attributes that the mask lacks, Forbidden those that it may not have.
	Illegal            bool
	Missing, Forbidden QPAttrMask
}

// Error says which transition failed for which attributes.
func (e *TransitionError) Error() string {
	s := e.Type.String() + " queue pair, " + e.From.String() + " to " + e.To.String() + ": "
	if e.Illegal {
		return s + "no such transition: " + syscall.EINVAL.Error()
	}
	sep := ""
	if e.Missing != 0 {
		s += "mask lacks " + e.Missing.goString()
		sep = "; "
	}
	if e.Forbidden != 0 {
		s += sep + "mask may not have " + e.Forbidden.goString()
	}
	return s + ": " + syscall.EINVAL.Error()
}

// Parameter is what is at fault: "QPState" or "mask".
func (e *TransitionError) Parameter() string {
	if e.Illegal {
		return "QPState"
	}
	return "mask"
}

// Unwrap returns EINVAL.
func (e *TransitionError) Unwrap() error { return syscall.EINVAL }

// CheckTransition checks a modify call of a queue pair of type t that goes from
// one state to another (possibly the same, when the mask has no QPAttrState)
// and sets the attributes in mask. The error is a *TransitionError.
func CheckTransition(t QPType, from, to QPState, mask QPAttrMask) error {
	req, opt, ok := Transition(t, from, to)
	if !ok {
		return &TransitionError{Type: t, From: from, To: to, Illegal: true}
	}
	missing, forbidden := req&^mask, mask&^(req|opt|QPAttrState)
	if missing|forbidden != 0 {
		return &TransitionError{Type: t, From: from, To: to, Missing: missing, Forbidden: forbidden}
	}
	return nil
}
