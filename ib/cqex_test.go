package ib

import (
	"fmt"
	"testing"
)

func TestCQFlagNames(t *testing.T) {
	for _, c := range []struct {
		v    fmt.Stringer
		want string
	}{
		{WCExStandard, "BYTE_LEN|IMM|QP_NUM|SRC_QP|SLID|SL|DLID_PATH_BITS"},
		{WCExCompletionTimestampWallclock | WCExTMInfo | 1<<12, "TM_INFO|COMPLETION_TIMESTAMP_WALLCLOCK|0x1000"},
		{CQIgnoreOverrun, "IGNORE_OVERRUN"},
		{CompCntrAll, "SEND|RECV|RDMA_READ|REMOTE_RDMA_READ|RDMA_WRITE|REMOTE_RDMA_WRITE"},
		{CompCntrOps(0), "0"},
	} {
		if got := c.v.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// The numbers of verbs.h.
	if WCExCompletionTimestamp != 0x80 || WCExCompletionTimestampWallclock != 0x800 || CompCntrRemoteRDMAWrite != 32 || CQIgnoreOverrun != 2 {
		t.Error("values differ from the C interface")
	}
}
