package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// room is a device with a domain and a completion queue, for the examples.
type room struct {
	dev *verbs.Context
	pd  *verbs.PD
	cq  *verbs.CQ
	gid ib.GID
}

func enter(ctx context.Context, addr string) (r room) {
	var err error
	r.dev = open(ctx, addr)
	r.pd, err = r.dev.AllocPD()
	check(err)
	r.cq, err = r.dev.CreateCQ(32, nil, nil)
	check(err)
	r.gid, err = r.dev.QueryGID(1, 0)
	check(err)
	return r
}

// pair makes two connected queue pairs.
func (r room) pair(here, there *verbs.CQ) (a, b *verbs.QP) {
	size := ib.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}
	a, err := r.pd.CreateQP(&verbs.QPInitAttr{SendCQ: here, RecvCQ: here, Type: ib.RC, Cap: size})
	check(err)
	b, err = r.pd.CreateQP(&verbs.QPInitAttr{SendCQ: there, RecvCQ: there, Type: ib.RC, Cap: size})
	check(err)
	connect(a, 100, b.Num(), 200, r.gid)
	connect(b, 200, a.Num(), 100, r.gid)
	return a, b
}

// leave destroys what was made in the room, then the room.
func (r room) leave(ends ...func() error) {
	for _, end := range append(ends, r.cq.Destroy, r.pd.Dealloc, r.dev.Close) {
		check(end())
	}
}

// A window of type 2 lends a part of a region to one peer, who gives it back with
// its last message: afterwards the key is good for nothing.
func ExampleMW() {
	ctx := context.Background()
	r := enter(ctx, "127.3.14.19")
	serverCQ, err := r.dev.CreateCQ(32, nil, nil)
	check(err)
	client, server := r.pair(r.cq, serverCQ)

	memory := make([]byte, 4096)
	mr, err := r.pd.RegMR(memory, ib.AccessLocalWrite|ib.AccessMWBind)
	check(err)
	mw, err := r.pd.AllocMW(ib.MWType2)
	check(err)
	// The server binds 16 bytes of the region, under a fresh key, and tells the
	// client address and key.
	key := ib.IncRKey(mw.RKey())
	check(server.PostSendOne(&verbs.SendWR{
		Opcode: ib.WRBindMW, Flags: ib.SendSignaled, RKey: key,
		Bind: &verbs.BindInfo{MW: mw, MR: mr, Addr: mr.Addr() + 64, Length: 16, Access: ib.AccessRemoteWrite},
	}))
	one(ctx, serverCQ)
	check(server.PostRecvOne(&verbs.RecvWR{WRID: 1}))

	// The client writes there, and gives the key back.
	check(client.PostSend([]verbs.SendWR{
		{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, InlineData: []byte("lent"), RemoteAddr: mr.Addr() + 64, RKey: key},
		{Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, InvalidateRKey: key},
	}))
	one(ctx, r.cq)
	wc := one(ctx, serverCQ)
	fmt.Println("given back:", wc.Flags&ib.WCWithInv != 0 && wc.InvalidatedRKey == key)
	fmt.Printf("%s\n", memory[64:68])

	// Once more, with the old key.
	check(client.PostSendOne(&verbs.SendWR{
		Opcode: ib.WRRDMAWrite, Flags: ib.SendInline | ib.SendSignaled, InlineData: []byte("late"), RemoteAddr: mr.Addr() + 64, RKey: key,
	}))
	var failed [1]verbs.WC
	for n := 0; n == 0; {
		check(r.cq.Wait(ctx))
		n, err = r.cq.Poll(failed[:])
		check(err)
	}
	fmt.Println(failed[0].Status)
	r.leave(client.Destroy, server.Destroy, mw.Dealloc, mr.Dereg, serverCQ.Destroy)
	// Output:
	// given back: true
	// lent
	// remote access error
}

// A datagram to a multicast group reaches every queue pair that is attached to it,
// on all hosts.
func ExampleQP_AttachMcast() {
	ctx := context.Background()
	r := enter(ctx, "127.3.14.20")
	const qkey = 0x1234
	group := ib.GIDFromAddr(netip.MustParseAddr("239.47.91.1"))

	buf := make([]byte, 2*128)
	mr, err := r.pd.RegMR(buf, ib.AccessLocalWrite)
	check(err)
	newQP := func() *verbs.QP {
		qp, err := r.pd.CreateQP(&verbs.QPInitAttr{
			SendCQ: r.cq, RecvCQ: r.cq, Type: ib.UD,
			Cap: ib.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64},
		})
		check(err)
		check(qp.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: qkey}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey))
		check(qp.Modify(&ib.QPAttr{QPState: ib.QPStateRTR}, ib.QPAttrState))
		check(qp.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState|ib.QPAttrSQPSN))
		return qp
	}
	sender := newQP()
	members := []*verbs.QP{newQP(), newQP()}
	for i, qp := range members {
		check(qp.AttachMcast(group, 0))
		check(qp.PostRecvOne(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{mr.SGE(i*128, 128)}}))
	}

	ah, err := r.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: group, HopLimit: 1, PortNum: 1})
	check(err)
	check(sender.PostSendOne(&verbs.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: []byte("to all"),
		AH: ah, RemoteQPN: ib.QPNMulticast, RemoteQKey: qkey,
	}))
	for range members {
		wc := one(ctx, r.cq)
		got := buf[wc.WRID*128:][:wc.ByteLen]
		from, to, err := verbs.GRHAddrs(got) // the first 40 bytes show who sent it, and to whom
		check(err)
		fmt.Printf("%v to %v: %s\n", from, to, got[40:])
	}

	for _, qp := range members {
		check(qp.DetachMcast(group, 0)) // before it can be destroyed
	}
	r.leave(ah.Destroy, sender.Destroy, members[0].Destroy, members[1].Destroy, mr.Dereg)
	// Output:
	// 127.3.14.20 to 239.47.91.1: to all
	// 127.3.14.20 to 239.47.91.1: to all
}

// Through one connection an XRC sender reaches every shared receive queue in the
// domain at the other end: each message names the one that it is for.
func ExampleXRCD() {
	ctx := context.Background()
	r := enter(ctx, "127.3.14.21")

	// The receiver: a domain, a target, which is the other end of the connection, and
	// shared receive queues, for instance one for each worker.
	xrcd, err := r.dev.OpenXRCD(&verbs.XRCDInitAttr{})
	check(err)
	target, err := r.dev.CreateQPEx(&verbs.QPInitAttrEx{XRCD: xrcd, QPInitAttr: verbs.QPInitAttr{Type: ib.XRCRecv}})
	check(err)
	buf := make([]byte, 2*64)
	mr, err := r.pd.RegMR(buf, ib.AccessLocalWrite)
	check(err)
	var srqs [2]*verbs.SRQ
	var cqs [2]*verbs.CQ
	for i := range srqs {
		cqs[i], err = r.dev.CreateCQ(8, nil, nil)
		check(err)
		srqs[i], err = r.pd.CreateSRQEx(&verbs.SRQInitAttr{Type: ib.SRQXRC, XRCD: xrcd, CQ: cqs[i], Attr: ib.SRQAttr{MaxWR: 8, MaxSGE: 1}})
		check(err)
		check(srqs[i].PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(i*64, 64)}}))
	}

	// The sender has no receive side. Each end goes through the states as an RC queue
	// pair does; srqs[i].Num() are told it with the rest.
	sender, err := r.pd.CreateQP(&verbs.QPInitAttr{SendCQ: r.cq, Type: ib.XRCSend, Cap: ib.QPCap{MaxSendWR: 8, MaxInlineData: 64}})
	check(err)
	reset := func(qp *verbs.QP) {
		check(qp.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags))
	}
	rtr := func(qp *verbs.QP, peer ib.QPN, more ib.QPAttrMask) {
		check(qp.Modify(&ib.QPAttr{
			QPState: ib.QPStateRTR, PathMTU: ib.MTU1024, DestQPN: peer, RQPSN: 100, MaxDestRDAtomic: 4, MinRNRTimer: ib.RNRTimerCode(0),
			AHAttr: ib.AHAttr{IsGlobal: true, DGID: r.gid, HopLimit: 64, PortNum: 1},
		}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|more))
	}
	reset(sender)
	reset(target)
	rtr(target, sender.Num(), ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer)
	rtr(sender, target.Num(), 0)
	check(sender.Modify(&ib.QPAttr{QPState: ib.QPStateRTS, SQPSN: 100, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 4},
		ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRDAtomic))

	for i, srq := range srqs {
		check(sender.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRSend, Flags: ib.SendInline | ib.SendSignaled, InlineData: fmt.Appendf(nil, "for worker %d", i), RemoteSRQN: srq.Num(),
		}))
		one(ctx, r.cq)
		wc := one(ctx, cqs[i])
		fmt.Printf("%s\n", buf[i*64:][:wc.ByteLen])
	}
	r.leave(sender.Destroy, target.Destroy, srqs[0].Destroy, srqs[1].Destroy, cqs[0].Destroy, cqs[1].Destroy, mr.Dereg, xrcd.Close)
	// Output:
	// for worker 0
	// for worker 1
}

// Requests are built one call at a time, and posted all at once or not at all.
func ExampleQPEx() {
	ctx := context.Background()
	r := enter(ctx, "127.3.14.22")
	here, there := r.pair(r.cq, r.cq)
	target := make([]byte, 64)
	mr, err := r.pd.RegMR(target, ib.AccessLocalWrite|ib.AccessRemoteWrite)
	check(err)

	x, err := here.Ex(ib.WRRDMAWrite, ib.WRAtomicWrite) // once, and kept
	check(err)
	post := func() error {
		x.Start()
		defer x.Abort() // does nothing after Complete
		x.WRID, x.WRFlags = 1, 0
		x.RDMAWrite(mr.RKey(), mr.Addr()+8)
		x.SetInlineDataList([][]byte{[]byte("head "), []byte("and body")})
		x.WRID, x.WRFlags = 2, ib.SendSignaled
		x.AtomicWrite(mr.RKey(), mr.Addr(), [8]byte{1})
		return x.Complete()
	}
	check(post())
	wc := one(ctx, r.cq)
	fmt.Println("request", wc.WRID, wc.Opcode)
	r.leave(here.Destroy, there.Destroy, mr.Dereg)
	fmt.Println(target[0], string(target[8:21]))
	// Output:
	// request 2 ATOMIC_WRITE
	// 1 head and body
}

// Completions with the time at which they came, read one after the other where they
// lie.
func ExampleCQEx() {
	ctx := context.Background()
	r := enter(ctx, "127.3.14.23")
	cq, err := r.dev.CreateCQEx(&verbs.CQInitAttrEx{CQE: 16, WCFlags: ib.WCExStandard | ib.WCExCompletionTimestampWallclock})
	check(err)
	here, there := r.pair(cq.CQ, r.cq)
	for i := range 3 {
		check(here.PostSendOne(&verbs.SendWR{WRID: uint64(i), Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled}))
	}

	seen, ordered, last := 0, true, uint64(0)
	for seen < 3 {
		err := cq.StartPoll()
		switch {
		case err == nil:
			for ; err == nil; err = cq.NextPoll() {
				at := cq.ReadCompletionWallclockNS() // in ns since 1970
				ordered = ordered && at >= last
				fmt.Println("request", cq.WRID(), cq.Status())
				seen, last = seen+1, at
			}
			cq.EndPoll()
		case errors.Is(err, verbs.ErrNoCompletion):
			check(cq.Wait(ctx)) // sleeps until there is one
		default:
			check(err) // EOVERFLOW: the queue was too small
		}
	}
	fmt.Println("in the order of time:", ordered)
	r.leave(here.Destroy, there.Destroy, cq.Destroy)
	// Output:
	// request 0 success
	// request 1 success
	// request 2 success
	// in the order of time: true
}

// What happens beside the completions comes as events: here a peer uses a key that
// does not exist, and the queue pair that protects the memory goes to ERR.
func ExampleContext_GetAsyncEvent() {
	ctx := context.Background()
	r := enter(ctx, "127.3.14.24")
	peer, here := r.pair(r.cq, r.cq)
	check(peer.PostSendOne(&verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, InlineData: []byte("x"), RemoteAddr: 0x1000, RKey: 0xBAD00}))

	for open := true; open; {
		e, err := r.dev.GetAsyncEvent(ctx)
		check(err)
		if e.Type == ib.EventQPAccessErr {
			fmt.Println(e.QP == here, e.Type, e.QP.State())
			open = false
		}
		e.Ack() // Destroy waits for it
	}
	r.leave(peer.Destroy, here.Destroy)
	// Output:
	// true local access violation work queue error ERR
}
