package ib

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// The rows of ibv_modify_qp(3) and of the kernel's table, as they are written
// there: attributes that are required, and those that are optional.
var wantTransitions = []struct {
	types    []QPType
	from, to QPState
	req, opt string
}{
	{[]QPType{RC, UC, XRCSend, XRCRecv}, QPStateReset, QPStateInit, "PKEY_INDEX PORT ACCESS_FLAGS", ""},
	{[]QPType{UD}, QPStateReset, QPStateInit, "PKEY_INDEX PORT QKEY", ""},
	{[]QPType{RawPacket}, QPStateReset, QPStateInit, "PORT", ""},

	{[]QPType{RC, UC, XRCSend, XRCRecv}, QPStateInit, QPStateInit, "", "PKEY_INDEX PORT ACCESS_FLAGS"},
	{[]QPType{UD}, QPStateInit, QPStateInit, "", "PKEY_INDEX PORT QKEY"},
	{[]QPType{RawPacket}, QPStateInit, QPStateInit, "", ""},

	{[]QPType{RC, XRCRecv}, QPStateInit, QPStateRTR, "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER", "ALT_PATH ACCESS_FLAGS PKEY_INDEX"},
	{[]QPType{UC, XRCSend}, QPStateInit, QPStateRTR, "AV PATH_MTU DEST_QPN RQ_PSN", "ALT_PATH ACCESS_FLAGS PKEY_INDEX"},
	{[]QPType{UD}, QPStateInit, QPStateRTR, "", "PKEY_INDEX QKEY"},
	{[]QPType{RawPacket}, QPStateInit, QPStateRTR, "", ""},

	{[]QPType{RC}, QPStateRTR, QPStateRTS, "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"},
	{[]QPType{XRCSend}, QPStateRTR, QPStateRTS, "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"},
	{[]QPType{XRCRecv}, QPStateRTR, QPStateRTS, "TIMEOUT SQ_PSN", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"},
	{[]QPType{UC}, QPStateRTR, QPStateRTS, "SQ_PSN", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"},
	{[]QPType{UD}, QPStateRTR, QPStateRTS, "SQ_PSN", "CUR_STATE QKEY"},
	{[]QPType{RawPacket}, QPStateRTR, QPStateRTS, "", "RATE_LIMIT"},

	{[]QPType{RC, XRCRecv}, QPStateRTS, QPStateRTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"},
	{[]QPType{UC, XRCSend}, QPStateRTS, QPStateRTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"},
	{[]QPType{UD}, QPStateRTS, QPStateRTS, "", "CUR_STATE QKEY"},
	{[]QPType{RawPacket}, QPStateRTS, QPStateRTS, "", "RATE_LIMIT"},

	{[]QPType{RC, UC, UD, XRCSend, XRCRecv}, QPStateRTS, QPStateSQD, "", "EN_SQD_ASYNC_NOTIFY"},
	{[]QPType{RawPacket}, QPStateRTS, QPStateSQD, "", ""},

	{[]QPType{RC, XRCRecv}, QPStateSQD, QPStateRTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"},
	{[]QPType{UC, XRCSend}, QPStateSQD, QPStateRTS, "", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"},
	{[]QPType{UD}, QPStateSQD, QPStateRTS, "", "CUR_STATE QKEY"},
	{[]QPType{RawPacket}, QPStateSQD, QPStateRTS, "", ""},

	{[]QPType{RC}, QPStateSQD, QPStateSQD, "", "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE"},
	{[]QPType{XRCSend}, QPStateSQD, QPStateSQD, "", "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE"},
	{[]QPType{XRCRecv}, QPStateSQD, QPStateSQD, "", "PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE"},
	{[]QPType{UC}, QPStateSQD, QPStateSQD, "", "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE"},
	{[]QPType{UD}, QPStateSQD, QPStateSQD, "", "PKEY_INDEX QKEY"},
	{[]QPType{RawPacket}, QPStateSQD, QPStateSQD, "", ""},

	{[]QPType{UC}, QPStateSQE, QPStateRTS, "", "CUR_STATE ACCESS_FLAGS"},
	{[]QPType{UD}, QPStateSQE, QPStateRTS, "", "CUR_STATE QKEY"},
	{[]QPType{RC, RawPacket, XRCSend, XRCRecv}, QPStateSQE, QPStateRTS, "", ""},
}

func parseMask(t *testing.T, s string) (m QPAttrMask) {
	for f := range strings.FieldsSeq(s) {
		found := false
		for _, n := range qpAttrNames {
			if n.name == f {
				m |= QPAttrMask(n.bit)
				found = true
			}
		}
		if !found {
			t.Fatalf("no attribute %q", f)
		}
	}
	return m
}

// Every pair of states, for every type, has exactly the masks written above.
func TestTransitions(t *testing.T) {
	type key struct {
		typ      QPType
		from, to QPState
	}
	type masks struct{ req, opt QPAttrMask }
	want := map[key]masks{}
	for _, r := range wantTransitions {
		for _, typ := range r.types {
			k := key{typ, r.from, r.to}
			if _, dup := want[k]; dup {
				t.Fatalf("row twice: %v", k)
			}
			want[k] = masks{parseMask(t, r.req), parseMask(t, r.opt)}
		}
	}
	all := []QPType{RC, UC, UD, RawPacket, XRCSend, XRCRecv}
	for _, typ := range all {
		for s := QPStateReset; s <= QPStateErr; s++ {
			want[key{typ, s, QPStateReset}] = masks{}
			if s != QPStateReset {
				want[key{typ, s, QPStateErr}] = masks{}
			}
		}
	}
	legal := 0
	for typ := range QPType(16) {
		for from := range QPStateUnknown + 1 {
			for to := range QPStateUnknown + 1 {
				k := key{typ, from, to}
				req, opt, ok := Transition(typ, from, to)
				w, wok := want[k]
				if ok != wok || req != w.req || opt != w.opt {
					t.Errorf("%v %v to %v: %v, %v, %v; want %v, %v, %v", typ, from, to, req, opt, ok, w.req, w.opt, wok)
				}
				if !ok {
					continue
				}
				legal++
				checkMasks(t, typ, from, to, req, opt)
			}
		}
	}
	if legal != len(want) {
		t.Errorf("%d legal transitions, want %d", legal, len(want))
	}
}

// checkMasks tries the mask without each required attribute and with each
// attribute that is neither required nor optional.
func checkMasks(t *testing.T, typ QPType, from, to QPState, req, opt QPAttrMask) {
	for _, m := range []QPAttrMask{req, req | opt, req | opt | QPAttrState} {
		if err := CheckTransition(typ, from, to, m); err != nil {
			t.Errorf("%v: %v", m, err)
		}
	}
	for i := range 32 {
		bit := QPAttrMask(1) << i
		var want TransitionError
		var mask QPAttrMask
		switch {
		case req&bit != 0:
			want, mask = TransitionError{Type: typ, From: from, To: to, Missing: bit}, req&^bit
		case (opt|QPAttrState)&bit == 0:
			want, mask = TransitionError{Type: typ, From: from, To: to, Forbidden: bit}, req|bit
		default:
			continue
		}
		var got *TransitionError
		err := CheckTransition(typ, from, to, mask)
		if !errors.As(err, &got) || *got != want || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v %v to %v with %v: %v, want %v", typ, from, to, mask, err, &want)
		}
	}
}

func TestTransitionErrorText(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			CheckTransition(RC, QPStateReset, QPStateRTR, QPAttrState),
			"RC queue pair, RESET to RTR: no such transition: invalid argument",
		},
		{
			CheckTransition(RC, QPStateReset, QPStateInit, QPAttrState|QPAttrPKeyIndex),
			"RC queue pair, RESET to INIT: mask lacks QPAttrAccessFlags|QPAttrPort: invalid argument",
		},
		{
			CheckTransition(UD, QPStateReset, QPStateInit, QPAttrState|QPAttrPKeyIndex|QPAttrPort|QPAttrAccessFlags),
			"UD queue pair, RESET to INIT: mask lacks QPAttrQKey; mask may not have QPAttrAccessFlags: invalid argument",
		},
		{
			CheckTransition(UC, QPStateRTR, QPStateRTS, QPAttrState|QPAttrSQPSN|QPAttrTimeout|QPAttrRetryCnt),
			"UC queue pair, RTR to RTS: mask may not have QPAttrTimeout|QPAttrRetryCnt: invalid argument",
		},
		{CheckTransition(Driver, QPStateReset, QPStateInit, QPAttrState), "DRIVER queue pair, RESET to INIT: no such transition: invalid argument"},
		{CheckTransition(QPType(77), QPState(99), QPStateErr, 0), "QPType(77) queue pair, QPState(99) to ERR: no such transition: invalid argument"},
	} {
		if c.err == nil || c.err.Error() != c.want || !errors.Is(c.err, syscall.EINVAL) {
			t.Errorf("got %v, want %s", c.err, c.want)
		}
	}
}

// Case 2: retry counters over 7 are refused; so is every value out of range,
// and the error names it. Attributes outside the mask are not looked at.
func TestCase02_CheckAttr(t *testing.T) {
	ok := QPAttr{
		QPState: QPStateErr, CurQPState: QPStateSQE, PathMTU: MTU4096, PathMigState: MigArmed, RQPSN: 0xFFFFFF, SQPSN: 0xFFFFFF,
		DestQPN: 0xFFFFFF, Timeout: 31, AltTimeout: 31, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 31,
	}
	if err := CheckAttr(&ok, ^QPAttrMask(0)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mask  QPAttrMask
		param string
		set   func(*QPAttr)
	}{
		{QPAttrState, "QPState", func(a *QPAttr) { a.QPState = QPStateUnknown }},
		{QPAttrCurState, "CurQPState", func(a *QPAttr) { a.CurQPState = 99 }},
		{QPAttrCurState, "CurQPState", func(a *QPAttr) { a.CurQPState = QPStateInit }},
		{QPAttrPathMTU, "PathMTU", func(a *QPAttr) { a.PathMTU = 0 }},
		{QPAttrPathMTU, "PathMTU", func(a *QPAttr) { a.PathMTU = 6 }},
		{QPAttrPathMigState, "PathMigState", func(a *QPAttr) { a.PathMigState = 3 }},
		{QPAttrRQPSN, "RQPSN", func(a *QPAttr) { a.RQPSN = 1 << 24 }},
		{QPAttrSQPSN, "SQPSN", func(a *QPAttr) { a.SQPSN = 1 << 24 }},
		{QPAttrDestQPN, "DestQPN", func(a *QPAttr) { a.DestQPN = 1 << 24 }},
		{QPAttrTimeout, "Timeout", func(a *QPAttr) { a.Timeout = 32 }},
		{QPAttrAltPath, "AltTimeout", func(a *QPAttr) { a.AltTimeout = 32 }},
		{QPAttrRetryCnt, "RetryCnt", func(a *QPAttr) { a.RetryCnt = 8 }},
		{QPAttrRNRRetry, "RNRRetry", func(a *QPAttr) { a.RNRRetry = 8 }},
		{QPAttrMinRNRTimer, "MinRNRTimer", func(a *QPAttr) { a.MinRNRTimer = 32 }},
	} {
		a := ok
		c.set(&a)
		err := CheckAttr(&a, c.mask)
		var p *ParamError
		if !errors.Is(err, syscall.EINVAL) || !errors.As(err, &p) || p.Param != c.param {
			t.Errorf("%s: %v", c.param, err)
		}
		if err := CheckAttr(&a, ^c.mask); err != nil {
			t.Errorf("%s is not in the mask: %v", c.param, err)
		}
	}
}
