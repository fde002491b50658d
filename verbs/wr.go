package verbs

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// QPEx posts send requests one call at a time and all or none at the end (struct
// ibv_qp_ex with the ibv_wr functions, ibv_wr_post(3)):
//
//	x.Start()
//	x.WRID = 1
//	x.RDMAWrite(rkey, addr)
//	x.SetSGE(lkey, local, length)
//	x.WRID, x.WRFlags = 2, ib.SendSignaled
//	x.SendImm(7)
//	x.SetInlineData(head)
//	err := x.Complete()
//
// A builder begins a request, with WRID and WRFlags as they are then, the setters
// behind it say the rest: the payload (one of SetSGE, SetSGEList, SetInlineData,
// SetInlineDataList; without any it is empty), SetUDAddr on datagram queue pairs,
// SetXRCSRQN on those of type ib.XRCSend. None of them fails: what is wrong is
// told by Complete, and nothing is posted then.
//
// From Start to Complete or Abort everybody else who calls Start on the queue pair
// waits, on this QPEx or another one; WRID and WRFlags are to be set between them
// too. Users of PostSend do not wait: their lists come before or after the whole
// batch. Start and what follows belong to one goroutine.
//
// A batch that is left without Complete or Abort keeps the next Start waiting for
// ever, as in C, that of the same goroutine too. Where a return can come between,
// write
//
//	x.Start()
//	defer x.Abort() // does nothing after Complete
//
// with a QPEx that no other goroutine uses.
//
// Memory: setters copy lists and inline data at once, so that these may be used
// again; a BindInfo must stay as it is until Complete. The memory that SGEs
// name is the device's until the request has completed. Once it has seen its
// largest batch a QPEx allocates nothing.
type QPEx struct {
	WRID    uint64       // of the requests that are begun from now on
	WRFlags ib.SendFlags // of them: FENCE, SIGNALED, SOLICITED; inline setters add INLINE

	qp   *QP
	post driver.BatchPoster
	ops  uint64 // opcodes that may be posted
	xrc  bool   // requests name a receive queue
	most int    // requests in a batch

	open bool // between Start and Complete or Abort
	wrs  []SendWR
	sges []SGE
	data []byte
	refs bool // wrs refers to objects
	srqn bool // the newest request has its XRC receive queue

	failed   error // what was wrong first
	failedAt int
}

// Ex gives the queue pair's post interface for the given opcodes, or for all that
// it has (ibv_qp_to_qp_ex; send_ops_flags of ibv_create_qp_ex). Several are of no use:
// keep one for
// each goroutine that posts. EINVAL: the queue pair's type has no such opcode; EOPNOTSUPP: the
// device does not offer it.
func (q *QP) Ex(ops ...ib.WROpcode) (*QPEx, error) {
	const op = "qp_to_qp_ex"
	p, ok := q.qp.(driver.BatchPoster)
	switch {
	case !ok:
		return nil, notOffered(op)
	case !q.alive():
		return nil, opErr(op, errQPClosed)
	}
	x := &QPEx{qp: q, post: p, most: int(q.init.Cap.MaxSendWR), xrc: q.init.Type == ib.XRCSend}
	for _, o := range ops {
		if err := p.CanSend(o); err != nil {
			return nil, opErr(op, err)
		}
		x.ops |= 1 << o
	}
	if len(ops) == 0 {
		for o := range ib.WROpcode(64) {
			if p.CanSend(o) == nil {
				x.ops |= 1 << o
			}
		}
	}
	if x.ops == 0 {
		return nil, opErr(op, fmt.Errorf("a queue pair of type %v has no send queue: %w", q.init.Type, syscall.EINVAL))
	}
	return x, nil
}

// Start begins a batch (ibv_wr_start). It waits while somebody has begun one on this
// queue pair: a goroutine that did so itself waits for ever.
func (x *QPEx) Start() {
	x.qp.exMu.Lock()
	x.open = true
	x.wrs, x.sges, x.data = x.wrs[:0], x.sges[:0], x.data[:0]
	x.failed, x.srqn = nil, true
}

// Complete posts the batch (ibv_wr_complete) and usually sends it before it
// returns. With an error nothing of it was posted; if one request is at fault the
// error holds a *PostError. The errnos are those of PostSend; EINVAL also for what a
// builder or setter was given, for a setter that does not fit its request, and
// without Start.
func (x *QPEx) Complete() error {
	const op = "wr_complete"
	if !x.open {
		return opErr(op, fmt.Errorf("without Start: %w", syscall.EINVAL))
	}
	defer x.end()
	x.finish()
	switch {
	case x.failed != nil && len(x.wrs) == 0:
		return opErr(op, x.failed)
	case x.failed != nil:
		return postErr(op, x.failedAt, x.wrs[min(x.failedAt, len(x.wrs)-1)].WRID, x.failed)
	case !x.qp.alive():
		return opErr(op, errQPClosed)
	}
	n, err := x.post.PostSendAll(x.wrs)
	switch {
	case err == nil:
		return nil
	case n < 0 || n >= len(x.wrs):
		return opErr(op, err)
	}
	return postErr(op, n, x.wrs[n].WRID, err)
}

// Abort forgets the batch (ibv_wr_abort): nothing of it is posted. Without Start,
// and after Complete, it does nothing.
func (x *QPEx) Abort() {
	if x.open {
		x.end()
	}
}

// end lets the next one start.
func (x *QPEx) end() {
	if x.refs {
		clear(x.wrs)
		x.refs = false
	}
	x.open = false
	x.qp.exMu.Unlock()
}

// fail notes what is wrong with the newest request, unless an earlier one was
// wrong already.
func (x *QPEx) fail(param, why string, errno syscall.Errno) {
	if x.failed == nil {
		x.failed, x.failedAt = &wrError{param, why, errno}, max(len(x.wrs)-1, 0)
	}
}

// wrError is the refusal of a request before the provider has seen it.
type wrError struct {
	param, why string
	errno      syscall.Errno
}

func (e *wrError) Error() string     { return e.param + ": " + e.why + ": " + e.errno.Error() }
func (e *wrError) Parameter() string { return e.param }
func (e *wrError) Unwrap() error     { return e.errno }

// finish looks at the newest request, to which nothing is added any more.
func (x *QPEx) finish() {
	if x.xrc && !x.srqn {
		x.fail("RemoteSRQN", "SetXRCSRQN is missing", syscall.EINVAL)
	}
}

// begin begins a request.
func (x *QPEx) begin(op ib.WROpcode) *SendWR {
	x.finish()
	n := len(x.wrs)
	switch {
	case n == x.most && n > 0:
		// One more than the queue can ever hold: the last one is built over again.
		if x.failed == nil {
			x.failed, x.failedAt = &wrError{"MaxSendWR", fmt.Sprintf("the batch has more than the queue's %d requests", x.most), syscall.ENOMEM}, n
		}
		n--
	case n == cap(x.wrs):
		x.wrs = append(x.wrs, SendWR{})
	default:
		x.wrs = x.wrs[:n+1]
	}
	wr := &x.wrs[n]
	*wr = SendWR{WRID: x.WRID, Opcode: op, Flags: x.WRFlags}
	x.srqn = false
	if x.ops>>op&1 == 0 {
		if err := x.post.CanSend(op); err != nil && x.failed == nil {
			x.failed, x.failedAt = err, n
		}
		x.fail("Opcode", op.String()+" was not asked for", syscall.EINVAL)
	}
	return wr
}

// remote begins a request about the peer's memory.
func (x *QPEx) remote(op ib.WROpcode, rkey ib.RKey, addr uint64) *SendWR {
	wr := x.begin(op)
	wr.RKey, wr.RemoteAddr = rkey, addr
	return wr
}

// local begins a request that needs no setter.
func (x *QPEx) local(op ib.WROpcode) *SendWR {
	wr := x.begin(op)
	x.srqn = true
	return wr
}
