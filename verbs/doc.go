// Package verbs is RDMA verbs for Go: what libibverbs is for C. It finds
// devices, opens them, registers memory, connects queue pairs and moves data
// without the peer's CPU being asked. The devices behind it come from providers
// (package driver); package rdma knows the ones of this module, and is where
// most programs begin.
//
// # Quick start
//
// A connected queue pair takes these steps; the example of the package has them
// in code.
//
//	dev, err := rdma.Open(ctx, "")                   // *verbs.Context, like ibv_context
//	pd, err := dev.AllocPD()
//	mr, err := pd.RegMR(buf, ib.AccessLocalWrite|ib.AccessRemoteWrite)
//	cq, err := dev.CreateCQ(128, nil, nil)
//	qp, err := pd.CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}})
//	// Tell the peer qp.Num(), a start PSN, a GID, mr.Addr() and mr.RKey(), learn
//	// the peer's, then Modify: INIT, RTR, RTS.
//	err = qp.PostSend([]verbs.SendWR{{WRID: 1, Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled,
//		SGList: []verbs.SGE{mr.SGE(0, 4096)}, RemoteAddr: peerAddr, RKey: peerKey}})
//	for n := 0; n == 0; {
//		if err = cq.Wait(ctx); err != nil { ... }    // sleeps, loses no wake-up
//		n, err = cq.Poll(wcs)
//	}
//	err = wcs[0].Err()
//
// A program that must answer within microseconds calls Poll in a loop instead
// of Wait: polling an empty queue makes the progress of the whole device.
//
// # Errors
//
// A call that fails returns an *OpError. It names the verb and, where one is to
// blame, the parameter; errors.Is(err, syscall.EINVAL) asks for the errno that
// the C call would give. A failed post of a list holds a *PostError, which names
// the first work request that was not taken: those before it run. Work that
// fails later does not return an error, it completes with a status: WC.Err makes
// a *WCError of it. What was closed is net.ErrClosed.
//
// # Memory
//
// RegMR pins the slice: until Dereg the device may read or write it at any time,
// as its rights allow, and the garbage collector neither moves nor frees it. The
// slice escapes to the heap. Memory that holds Go pointers is refused, the
// device would hide them from the collector; slices of plain bytes never do.
// Addresses for work requests and for the peer come from MR.Addr (or MR.SGE),
// never from the address of a variable. Memory that Go does not manage (mmap, C)
// is registered by RegMRPointer, and must stay mapped until Dereg.
//
// PD.AllocBuffer gives page-aligned memory outside Go's heap that is registered
// already. Keys for a part of a region, for one peer, and that are taken back
// when the work is done, are those of memory windows (MW). A region of AllocMR
// gets its memory, of several pieces, again and again by work requests that cost
// no system call and no garbage.
//
// A peer that writes the memory does so while the program runs. The completion
// of a receive, or of one's own READ or atomic, tells that the bytes are there;
// a program that watches the memory itself must load with package sync/atomic.
//
// The slices given to PostSend, PostRecv and Poll remain the caller's and are
// not kept; posting and polling allocate nothing when they are used again. The
// memory that a work request names belongs to the device from the post to the
// completion; inline data (ib.SendInline) only until the post returns.
//
// # Events and change
//
// Context.GetAsyncEvent gives what happens beside the completions; each event
// comes once and is acknowledged. A software RoCE device raises:
//
//   - of a completion queue: CQErr when it was too small;
//   - of a queue pair: QPFatal when its completions were lost that way, QPReqErr and
//     QPAccessErr when it refused a request of its peer (each goes with the state
//     ERR), CommEst at the first packet in RTR, SQDrained, and QPLastWQEReached
//     when it ends with a shared receive queue;
//   - of a shared receive queue: SRQLimitReached;
//   - of the port: GIDChange when the interface gets or loses addresses, PortErr and
//     PortActive with its link;
//   - of the device: DeviceFatal when the interface is removed.
//
// The GID table follows the interface (Linux): an address that comes takes the
// first empty entry, one that goes leaves its entry empty, and no other entry
// moves. Queue pairs and address handles on an address that went keep it: their
// packets vanish until it returns. QueryPort tells a new MTU, without an event; the
// packets of a queue pair whose path MTU became too large vanish. All this is as
// with a network card.
//
// When the interface is removed, queue pairs go to ERR and their work is flushed.
// What needs the device fails with EIO from then on, and so do waits for events
// and completions when there are no more. Everything can be destroyed as ever.
//
// # Threads
//
// Everything is safe for use by several goroutines at once. Posts to one queue
// take effect in the order in which the calls got there; each completion is
// given to exactly one Poll.
//
// # Closing
//
// Children go before their parents: queue pairs before their completion queues,
// shared receive queue and protection domain; completion queues before their
// channel; regions and address handles before the domain; all of them before the
// Context. A parent that still has children refuses with EBUSY and keeps
// working. Closing twice does no harm.
//
// Destroy of a queue pair, shared receive queue or completion queue waits, as in
// C, until every event that was got for it is acknowledged (AsyncEvent.Ack,
// CQ.AckEvents); DestroyContext waits no longer than its context.
package verbs
