// Package rdmarw moves scatterlists to or from a peer's memory, as a storage target
// does: the kernel's rdma_rw (rdma_rw_ctx_post(9)) in user space. A context decides by
// itself how many READs or WRITEs that takes, of how many elements, with or without the
// registration of memory, and it invalidates what it has registered; its user sees a
// scatterlist, one post and one completion.
//
// # How to use it
//
// A queue pair is set up once. InitQP makes room in the send queue, InitMRs makes the pool
// of memory regions; between them the queue pair is made, by PD.CreateQP or by
// rdmacm.ID.CreateQP. CreateQP is all three in one.
//
//	cq := rdmarw.NewCQ(vcq, nil)                     // of a *verbs.CQ, for callbacks
//	attr := rdmarw.QPInitAttr{CQ: cq, MaxRDMACtxs: 64}
//	attr.QPInitAttr = verbs.QPInitAttr{SendCQ: vcq, RecvCQ: vcq, Type: ib.RC, Cap: ...}
//	qp, err := rdmarw.CreateQP(pd, &attr)
//	go cq.Run(ctx)                                   // or cq.Process(budget) in a loop
//
// A request of a client, which has told address and key of its memory, is then served so:
//
//	n, err := c.Init(qp, 1, sg, 0, addr, rkey, rdmarw.DMAToDevice) // or DMAFromDevice
//	err = c.Post(qp, 1, &c.cqe, nil)                 // cqe.Done is told, or
//	err = c.Post(qp, 1, nil, response)               // a SEND behind the data, in one post
//	...
//	err = c.Destroy(qp, 1, sg, rdmarw.DMAToDevice)   // after the completion
//
// EAGAIN of Init (the pool is empty) and ENOMEM of Post (the send queue is full) are to be
// tried again when a context was destroyed, or has completed: queue the request, and go
// on with it from there. Nothing has changed then. Other errors are final.
//
// # Memory
//
// Data lies in memory that the device can reach: buffers of PD.AllocBuffer, or regions
// that QPInitAttr.Memory knows. Where a context uses memory regions of its own, or one
// contiguous mapping, any slice will do; whether it does depends on the device, so that
// portable programs register their memory. Between post and completion the memory is the
// device's.
//
// # Completions
//
// A [CQE] is told of completions by its function Done, on the goroutine that processes the
// queue, and without any lock: it may post, destroy the context, and process the queue
// itself. Requests of one's own, receives too, get there with the WRID of CQ.WRID. A failed
// post tells nobody; work that fails is told once, with its status.
//
// The requests of a chain before the last are unsignaled, but complete when they fail:
// those completions go to the function that NewCQ was given. They say why, the CQE's may
// say only that it was flushed. The completion queue needs room for them: as many entries
// as the send queues that feed it.
//
// # End
//
// Move the queue pair to ERR, or drain it with QP.Drain and CQ.Dispatch, destroy the contexts
// when their completions have come, then CleanupMRs, then the queue pair and the rest. A
// queue pair that shall be used again is reset after its contexts were destroyed, not
// before: Destroy looks at its state to know which keys are still registered.
//
// # Concurrency
//
// A [Ctx] belongs to one goroutine at a time. [QP], [CQ] and [Memory] may be used by any
// number of them at once.
package rdmarw
