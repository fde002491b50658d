package ib

import (
	"strconv"
	"syscall"
)

// A ParamError names a parameter whose value is refused. It matches EINVAL.
type ParamError struct {
	Param string // name of the parameter
	Value string // what it was
	Want  string // what it may be
}

// Error names the parameter, its value and what it may be.
func (e *ParamError) Error() string {
	return e.Param + ": " + e.Value + ", want " + e.Want + ": " + syscall.EINVAL.Error()
}

// Parameter is what is at fault.
func (e *ParamError) Parameter() string { return e.Param }

// Unwrap returns EINVAL.
func (e *ParamError) Unwrap() error { return syscall.EINVAL }

// CheckAttr checks the values of the attributes named by mask as far as they
// do not depend on a device: ranges of codes, counters and 24-bit numbers. The
// error is a *ParamError for the first bad one.
func CheckAttr(a *QPAttr, mask QPAttrMask) error {
	for _, c := range [...]struct {
		bit   QPAttrMask
		param string
		value uint32
		least uint32
		limit uint32
	}{
		{QPAttrState, "QPState", uint32(a.QPState), 0, uint32(QPStateErr)},
		{QPAttrCurState, "CurQPState", uint32(a.CurQPState), 0, uint32(QPStateErr)},
		{QPAttrPathMTU, "PathMTU", uint32(a.PathMTU), uint32(MTU256), uint32(MTU4096)},
		{QPAttrPathMigState, "PathMigState", uint32(a.PathMigState), 0, uint32(MigArmed)},
		{QPAttrRQPSN, "RQPSN", a.RQPSN, 0, 0xFFFFFF},
		{QPAttrSQPSN, "SQPSN", a.SQPSN, 0, 0xFFFFFF},
		{QPAttrDestQPN, "DestQPN", uint32(a.DestQPN), 0, uint32(QPNMax)},
		{QPAttrTimeout, "Timeout", uint32(a.Timeout), 0, MaxTimeout},
		{QPAttrAltPath, "AltTimeout", uint32(a.AltTimeout), 0, MaxTimeout},
		{QPAttrRetryCnt, "RetryCnt", uint32(a.RetryCnt), 0, 7},
		{QPAttrRNRRetry, "RNRRetry", uint32(a.RNRRetry), 0, 7},
		{QPAttrMinRNRTimer, "MinRNRTimer", uint32(a.MinRNRTimer), 0, 31},
	} {
		if mask&c.bit != 0 && (c.value < c.least || c.value > c.limit) {
			if c.bit == QPAttrPathMTU {
				return &ParamError{Param: c.param, Value: strconv.FormatUint(uint64(c.value), 10), Want: "a code, ib.MTU256 to ib.MTU4096"}
			}
			return &ParamError{
				Param: c.param, Value: strconv.FormatUint(uint64(c.value), 10),
				Want: strconv.FormatUint(uint64(c.least), 10) + " to " + strconv.FormatUint(uint64(c.limit), 10),
			}
		}
	}
	// CurQPState is what the caller takes the state to be. Only states that a
	// queue pair can enter by itself, or behind which it may be, can be named.
	if mask&QPAttrCurState != 0 {
		switch a.CurQPState {
		case QPStateRTR, QPStateRTS, QPStateSQD, QPStateSQE:
		default:
			return &ParamError{Param: "CurQPState", Value: a.CurQPState.String(), Want: "RTR, RTS, SQD or SQE"}
		}
	}
	return nil
}
