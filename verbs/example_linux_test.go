package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// open opens the software device of the loopback interface. Programs call
// rdma.Open, which does this for every device there is.
func open(ctx context.Context, addr string) *verbs.Context {
	devices, err := verbs.Devices(ctx, soft.NewProvider(soft.WithAddrs("lo", netip.MustParseAddr(addr))))
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		if d.NetDev() == "lo" {
			dev, err := d.Open(ctx)
			if err != nil {
				log.Fatal(err)
			}
			return dev
		}
	}
	log.Fatal("no loopback interface")
	return nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// connect takes an RC queue pair to RTS. What it needs to know of the other end
// (number, first PSN, GID) programs exchange over a connection of their own, for
// instance TCP.
func connect(qp *verbs.QP, psn uint32, peer ib.QPN, peerPSN uint32, peerGID ib.GID) {
	check(qp.Modify(&ib.QPAttr{
		QPState: ib.QPStateInit, PortNum: 1,
		QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead,
	}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
	check(qp.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: ib.MTU1024, DestQPN: peer, RQPSN: peerPSN, MaxDestRDAtomic: 4,
		MinRNRTimer: ib.RNRTimerCode(0),
		AHAttr:      ib.AHAttr{IsGlobal: true, DGID: peerGID, HopLimit: 64, PortNum: 1},
	}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer))
	check(qp.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTS, SQPSN: psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 4,
	}, ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRDAtomic))
}

// one waits for one completion and fails if the work did.
func one(ctx context.Context, cq *verbs.CQ) verbs.WC {
	var wcs [1]verbs.WC
	for {
		n, err := cq.Poll(wcs[:])
		check(err)
		if n == 1 {
			check(wcs[0].Err())
			return wcs[0]
		}
		check(cq.Wait(ctx))
	}
}

// Two connected queue pairs: one writes into the memory that belongs to the
// other, whose program does nothing about it.
func Example() {
	ctx := context.Background()
	dev := open(ctx, "127.3.14.15")
	pd, err := dev.AllocPD()
	check(err)
	cq, err := dev.CreateCQ(16, nil, nil)
	check(err)
	attr := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	here, err := pd.CreateQP(&attr)
	check(err)
	there, err := pd.CreateQP(&attr)
	check(err)
	gid, err := dev.QueryGID(1, 0)
	check(err)
	connect(here, 100, there.Num(), 200, gid)
	connect(there, 200, here.Num(), 100, gid)

	source, target := []byte("hello, RDMA"), make([]byte, 64)
	from, err := pd.RegMR(source, 0)
	check(err)
	to, err := pd.RegMR(target, ib.AccessLocalWrite|ib.AccessRemoteWrite)
	check(err)
	check(here.PostSend([]verbs.SendWR{{
		WRID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled,
		SGList:     []verbs.SGE{from.SGE(0, len(source))},
		RemoteAddr: to.Addr(), RKey: to.RKey(),
	}}))
	wc := one(ctx, cq)
	fmt.Printf("request %d: %v: %v\n", wc.WRID, wc.Opcode, wc.Status)

	// Children go before their parents. With the region gone nobody writes the
	// memory any more, and the program may read it.
	for _, end := range []func() error{to.Dereg, from.Dereg, here.Destroy, there.Destroy, cq.Destroy, pd.Dealloc, dev.Close} {
		check(end())
	}
	fmt.Printf("%s\n", target[:len(source)])
	// Output:
	// request 1: RDMA_WRITE: success
	// hello, RDMA
}

// Datagrams need no connection. The receive buffer begins with 40 bytes that
// show where the datagram came from: enough to answer it.
func ExamplePD_CreateAHFromWC() {
	ctx := context.Background()
	dev := open(ctx, "127.3.14.16")
	pd, err := dev.AllocPD()
	check(err)
	gid, err := dev.QueryGID(1, 0)
	check(err)
	const qkey = 0x1234

	type end struct {
		qp  *verbs.QP
		cq  *verbs.CQ
		mr  *verbs.MR
		buf []byte
	}
	newEnd := func() (e end) {
		e.cq, err = dev.CreateCQ(16, nil, nil)
		check(err)
		e.qp, err = pd.CreateQP(&verbs.QPInitAttr{
			SendCQ: e.cq, RecvCQ: e.cq, Type: ib.UD, SQSigAll: true,
			Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64},
		})
		check(err)
		check(e.qp.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: qkey},
			ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey))
		check(e.qp.Modify(&ib.QPAttr{QPState: ib.QPStateRTR}, ib.QPAttrState))
		check(e.qp.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState|ib.QPAttrSQPSN))
		e.buf = make([]byte, 256)
		e.mr, err = pd.RegMR(e.buf, ib.AccessLocalWrite)
		check(err)
		check(e.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{e.mr.SGE(0, len(e.buf))}}}))
		return e
	}
	client, server := newEnd(), newEnd()

	send := func(e end, ah *verbs.AH, to ib.QPN, text string) {
		check(e.qp.PostSend([]verbs.SendWR{{
			Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: []byte(text),
			AH: ah, RemoteQPN: to, RemoteQKey: qkey,
		}}))
	}
	receive := func(e end) verbs.WC {
		for {
			if wc := one(ctx, e.cq); wc.Opcode.IsRecv() {
				fmt.Printf("%d bytes: %s\n", wc.ByteLen, e.buf[40:wc.ByteLen])
				return wc
			}
		}
	}

	ah, err := pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: gid, HopLimit: 64, PortNum: 1})
	check(err)
	send(client, ah, server.qp.Num(), "ping")
	wc := receive(server)
	back, err := pd.CreateAHFromWC(&wc, server.buf[:40], 1)
	check(err)
	send(server, back, wc.SrcQP, "pong")
	receive(client)

	for _, end := range []func() error{
		ah.Destroy, back.Destroy, client.qp.Destroy, server.qp.Destroy, client.cq.Destroy, server.cq.Destroy,
		client.mr.Dereg, server.mr.Dereg, pd.Dealloc, dev.Close,
	} {
		check(end())
	}
	// Output:
	// 44 bytes: ping
	// 44 bytes: pong
}

// A call that fails names the verb and the parameter, and matches the errno of
// the C call.
func ExampleOpError() {
	ctx := context.Background()
	dev := open(ctx, "127.3.14.17")
	defer dev.Close()
	pd, err := dev.AllocPD()
	check(err)
	defer pd.Dealloc()
	_, err = pd.CreateAH(&ib.AHAttr{PortNum: 1})
	var failed *verbs.OpError
	if errors.As(err, &failed) {
		fmt.Println(failed.Op, failed.Param, errors.Is(err, syscall.EINVAL))
	}
	// Output:
	// create_ah AHAttr.IsGlobal true
}

// One goroutine waits for the completions of several queues.
func ExampleCompChannel() {
	ctx := context.Background()
	dev := open(ctx, "127.3.14.18")
	pd, err := dev.AllocPD()
	check(err)
	ch, err := dev.CreateCompChannel()
	check(err)
	cq, err := dev.CreateCQ(16, ch, "requests")
	check(err)
	attr := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxInlineData: 16}}
	here, err := pd.CreateQP(&attr)
	check(err)
	there, err := pd.CreateQP(&attr)
	check(err)
	gid, err := dev.QueryGID(1, 0)
	check(err)
	connect(here, 100, there.Num(), 200, gid)
	connect(there, 200, here.Num(), 100, gid)

	completed := 0
	handle := func(wcs []verbs.WC) {
		for i := range wcs {
			fmt.Printf("%v: request %d: %v\n", cq.UserContext(), wcs[i].WRID, wcs[i].Status)
		}
		completed += len(wcs)
	}
	// Ask for a notification, then look at the queue: what came before that does
	// not notify.
	serve := func(cq *verbs.CQ) {
		var wcs [16]verbs.WC
		for cq.ReqNotify(false) {
			n, err := cq.Poll(wcs[:])
			check(err)
			handle(wcs[:n])
		}
	}
	serve(cq)
	check(here.PostSendOne(&verbs.SendWR{WRID: 7, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled}))
	for completed < 1 {
		cq, err := ch.GetCQEvent(ctx)
		check(err)
		check(cq.AckEvents(1))
		serve(cq)
	}
	for _, end := range []func() error{here.Destroy, there.Destroy, cq.Destroy, ch.Destroy, pd.Dealloc, dev.Close} {
		check(end())
	}
	// Output:
	// requests: request 7: success
}
