package rdmarw_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// A client has told where its memory is. The server writes three pieces of its own there,
// and a message behind them: the client has the data when it has the message.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	// Programs call rdma.Open, which knows every device. Here it is one on the loopback
	// interface.
	devices, err := verbs.Devices(ctx, soft.NewProvider(soft.WithAddrs("lo", netip.MustParseAddr("127.3.14.21"))))
	check(err)
	dev, err := devices[0].Open(ctx)
	check(err)
	pd, err := dev.AllocPD()
	check(err)

	// The server's side.
	vcq, err := dev.CreateCQ(64, nil, nil)
	check(err)
	cq := rdmarw.NewCQ(vcq, nil)
	attr := rdmarw.QPInitAttr{CQ: cq, MaxRDMACtxs: 4}
	attr.QPInitAttr = verbs.QPInitAttr{
		SendCQ: vcq, RecvCQ: vcq, Type: ib.RC,
		Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 4, MaxRecvSGE: 1},
	}
	server, err := rdmarw.CreateQP(pd, &attr)
	check(err)
	buf, err := pd.AllocBuffer(4096, ib.AccessLocalWrite)
	check(err)

	// The client's, which here is in the same program.
	clientCQ, err := dev.CreateCQ(64, nil, nil)
	check(err)
	client, err := pd.CreateQP(&verbs.QPInitAttr{SendCQ: clientCQ, RecvCQ: clientCQ, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	check(err)
	memory := make([]byte, 64)
	mr, err := pd.RegMR(memory, ib.AccessLocalWrite|ib.AccessRemoteWrite)
	check(err)
	gid, err := dev.QueryGID(1, 0)
	check(err)
	connect(server.QP(), client, gid)
	connect(client, server.QP(), gid)
	check(client.PostRecvOne(&verbs.RecvWR{}))

	// A scatterlist, the transfer, and the response as its chain.
	b := buf.Bytes()
	sg := [][]byte{b[100:107], b[2000:2004], b[50:55]}
	for i, text := range []string{"pieces ", "of a", " list"} {
		copy(sg[i], text)
	}
	var (
		transfer rdmarw.Ctx
		response rdmarw.CQE
		done     bool
	)
	response.Done = func(_ *rdmarw.CQ, wc *verbs.WC) {
		fmt.Println("the response:", wc.Status)
		check(transfer.Destroy(server, 1, sg, rdmarw.DMAToDevice))
		done = true
	}
	n, err := transfer.Init(server, 1, sg, 0, mr.Addr(), mr.RKey(), rdmarw.DMAToDevice)
	check(err)
	fmt.Println("requests besides the response:", n)
	check(transfer.Post(server, 1, nil, []verbs.SendWR{{Opcode: ib.WRSend, WRID: cq.WRID(&response), Flags: ib.SendSignaled}}))
	for !done {
		_, err := cq.Process(16)
		check(err)
	}
	check(clientCQ.Wait(ctx))

	for _, end := range []func() error{
		mr.Dereg, client.Destroy, clientCQ.Destroy, server.CleanupMRs, server.QP().Destroy, buf.Close, vcq.Destroy, pd.Dealloc, dev.Close,
	} {
		check(end())
	}
	fmt.Printf("the client has %q\n", memory[:16])
	// Output:
	// requests besides the response: 1
	// the response: success
	// the client has "pieces of a list"
}

// connect takes a queue pair to RTS. Programs do it with package rdmacm.
func connect(qp, peer *verbs.QP, gid ib.GID) {
	a := ib.QPAttr{
		PortNum: 1, QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead, PathMTU: ib.MTU1024, DestQPN: peer.Num(), RQPSN: 1, SQPSN: 1,
		MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 1, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: gid, PortNum: 1, HopLimit: 64},
	}
	for _, s := range []struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{
		{ib.QPStateInit, ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags},
		{ib.QPStateRTR, ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer},
		{ib.QPStateRTS, ib.QPAttrSQPSN | ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic},
	} {
		a.QPState = s.state
		if err := qp.Modify(&a, ib.QPAttrState|s.mask); err != nil {
			log.Fatal(err)
		}
	}
}
