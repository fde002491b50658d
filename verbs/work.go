package verbs

import "github.com/verbena-rdma/verbena/verbs/driver"

// Work requests and completions are those of the seam, so that nothing is
// copied on the way. Their fields: go doc
// github.com/verbena-rdma/verbena/verbs/driver.SendWR, and so on.
type (
	// SGE is one element of a scatter/gather list (struct ibv_sge). Fields: go doc
	// github.com/verbena-rdma/verbena/verbs/driver.SGE.
	SGE = driver.SGE
	// SendWR is a send work request (struct ibv_send_wr). Its AH is an *AH. Fields: go doc
	// github.com/verbena-rdma/verbena/verbs/driver.SendWR.
	SendWR = driver.SendWR
	// BindInfo is what a WRBindMW or WRRegMR does (struct ibv_mw_bind_info). Its MW
	// is an *MW, its MR an *MR. Fields: go doc
	// github.com/verbena-rdma/verbena/verbs/driver.BindInfo.
	BindInfo = driver.BindInfo
	// MWBind is a request to bind a window of type 1 (struct ibv_mw_bind). Fields:
	// go doc github.com/verbena-rdma/verbena/verbs/driver.MWBind.
	MWBind = driver.MWBind
	// RecvWR is a receive work request (struct ibv_recv_wr). Fields: go doc
	// github.com/verbena-rdma/verbena/verbs/driver.RecvWR.
	RecvWR = driver.RecvWR
	// WC is a work completion (struct ibv_wc). Fields: go doc
	// github.com/verbena-rdma/verbena/verbs/driver.WC.
	WC = driver.WC
	// WCError is a failed completion as an error.
	WCError = driver.WCError
)
