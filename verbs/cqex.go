package verbs

import (
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// CQInitAttrEx describes an extended completion queue (struct
// ibv_cq_init_attr_ex). A parent domain is not offered: it would change nothing.
type CQInitAttrEx struct {
	CQE         int          // completions that it holds at least
	Channel     *CompChannel // of its notifications, may be nil
	CompVector  int          // 0
	WCFlags     ib.WCExFlags // fields of completions that will be read
	Flags       ib.CQFlags
	UserContext any // what CQ.UserContext returns
}

// ErrNoCompletion tells that the queue has no further completion: ENOENT.
var ErrNoCompletion error = &OpError{Op: "poll_cq_ex", Err: noCompletion{}}

type noCompletion struct{}

func (noCompletion) Error() string { return "no completion" }
func (noCompletion) Unwrap() error { return syscall.ENOENT }

// CQEx is an extended completion queue (struct ibv_cq_ex), read like this:
//
//	for {
//		err := x.StartPoll()
//		switch {
//		case err == nil:
//			for ; err == nil; err = x.NextPoll() {
//				use(x.WRID(), x.Status(), x.ReadCompletionTS())
//			}
//			x.EndPoll()
//		case !errors.Is(err, verbs.ErrNoCompletion):
//			return err // EOVERFLOW: the queue was too small, completions are lost
//		default:
//			if err := x.Wait(ctx); err != nil { // sleeps until there is one
//				return err
//			}
//		}
//	}
//
// From a StartPoll that succeeded to EndPoll nobody else polls the queue, by Poll
// neither: they wait, on a queue with ib.CQSingleThreaded it is the application's
// word. Completions go on coming in, and one is given to one poller only.
//
// A batch that is left without EndPoll keeps the next StartPoll or Poll waiting for
// ever, as in C, that of the same goroutine too: where a return can come between,
// defer EndPoll. The Read calls are for a batch: outside they panic, as an index out
// of range does.
//
// A queue with ib.CQIgnoreOverrun never fails: when it is full, a new completion
// takes the place of the oldest, which is lost without a trace. Resize, ReqNotify,
// Wait and the rest are those of CQ, which CQEx has: QPInitAttr takes x.CQ.
type CQEx struct {
	*CQ
	x driver.CQEx

	// Of who polls.
	single bool // nobody else polls, by the application's word
	open   bool
	wcs    []WC
	ts     []uint64
	at     int

	walled bool  // wall is known, for this batch
	wall   int64 // ns from the device's clock to 1970
}

// CreateCQEx makes an extended completion queue (ibv_create_cq_ex). EINVAL: CQE is
// not in the device's limits, CompVector is not 0, or flags are unknown;
// EOPNOTSUPP: a field or flag is not offered, as ib.WCExCVLAN, ib.WCExFlowTag and
// ib.WCExTMInfo are not by software devices.
func (c *Context) CreateCQEx(attr *CQInitAttrEx) (*CQEx, error) {
	const op = "create_cq_ex"
	d, ok := c.dev.(driver.CQExCreator)
	switch {
	case attr == nil:
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	case !ok:
		return nil, notOffered(op)
	}
	x := &CQEx{single: attr.Flags&ib.CQSingleThreaded != 0}
	var err error
	x.CQ, err = c.createCQ(op, attr.CQE, attr.Channel, attr.UserContext, func(notify func()) (driver.CQ, error) {
		q, err := d.CreateCQEx(&driver.CQInitAttr{CQE: attr.CQE, CompVector: attr.CompVector, WCFlags: attr.WCFlags, Flags: attr.Flags}, notify)
		x.x = q
		return q, err
	})
	if err != nil {
		return nil, err
	}
	return x, nil
}

// StartPoll begins a batch and comes to its first completion (ibv_start_poll). On
// an empty queue it makes the progress of the whole device. With an error no
// batch has begun: ErrNoCompletion, or EOVERFLOW as from Poll. It waits while
// somebody has begun a batch: a goroutine that did so itself waits for ever, but
// gets EBUSY on a queue with ib.CQSingleThreaded.
func (x *CQEx) StartPoll() error {
	if !x.alive() {
		return opErr("start_poll", errCQClosed)
	}
	if x.single && x.open {
		return opErr("start_poll", fmt.Errorf("the batch before has not ended, EndPoll ends it: %w", syscall.EBUSY))
	}
	wcs, ts, err := x.x.Look()
	switch {
	case len(wcs) > 0:
		x.open, x.walled, x.wcs, x.ts, x.at = true, false, wcs, ts, 0
		return nil
	case err != nil:
		return opErr("start_poll", err)
	}
	return ErrNoCompletion
}

// NextPoll comes to the next completion of the batch (ibv_next_poll).
// ErrNoCompletion: there is none any more; EndPoll is still to be called.
func (x *CQEx) NextPoll() error {
	if x.at+1 < len(x.wcs) {
		x.at++
		return nil
	}
	if x.at >= len(x.wcs) {
		return ErrNoCompletion // and has been so before: what comes now is the next batch's
	}
	x.wcs, x.ts = x.x.Next()
	if x.at = 0; len(x.wcs) == 0 {
		return ErrNoCompletion
	}
	return nil
}

// EndPoll ends the batch (ibv_end_poll): the completions that it came to are taken.
// Without a batch it does nothing, so that it may follow a StartPoll that failed as
// long as nobody else polls.
func (x *CQEx) EndPoll() {
	if !x.open {
		return
	}
	x.open = false
	n := min(x.at+1, len(x.wcs))
	x.wcs, x.ts, x.at = nil, nil, 0
	x.x.Done(n)
}

// cur is the current completion.
func (x *CQEx) cur() *WC {
	if x.at >= len(x.wcs) {
		panic("verbs: CQEx read outside StartPoll and EndPoll, or behind the last completion")
	}
	return &x.wcs[x.at]
}

// WRID names the work request of the current completion.
func (x *CQEx) WRID() uint64 { return x.cur().WRID }

// Status is how the current work request ended.
func (x *CQEx) Status() ib.WCStatus { return x.cur().Status }

// WC is the current completion as a whole, valid until NextPoll or EndPoll.
func (x *CQEx) WC() *WC { return x.cur() }

// ReadOpcode tells what was done (ibv_wc_read_opcode).
func (x *CQEx) ReadOpcode() ib.WCOpcode { return x.cur().Opcode }

// ReadVendorErr is the device's own code of an error (ibv_wc_read_vendor_err): of
// software devices an ib.VendorErr.
func (x *CQEx) ReadVendorErr() uint32 { return x.cur().VendorErr }

// ReadByteLen is the length of what was received or read (ibv_wc_read_byte_len).
func (x *CQEx) ReadByteLen() uint32 { return x.cur().ByteLen }

// ReadImmData is the immediate data, valid with ib.WCWithImm
// (ibv_wc_read_imm_data).
func (x *CQEx) ReadImmData() uint32 { return x.cur().ImmData }

// ReadInvalidatedRKey is the key that the peer invalidated, valid with
// ib.WCWithInv (ibv_wc_read_invalidated_rkey).
func (x *CQEx) ReadInvalidatedRKey() ib.RKey { return x.cur().InvalidatedRKey }

// ReadQPNum is the number of the queue pair here (ibv_wc_read_qp_num).
func (x *CQEx) ReadQPNum() ib.QPN { return x.cur().QPNum }

// ReadSrcQP is the number of the sender's queue pair (ibv_wc_read_src_qp).
func (x *CQEx) ReadSrcQP() ib.QPN { return x.cur().SrcQP }

// ReadWCFlags tells what else is valid (ibv_wc_read_wc_flags).
func (x *CQEx) ReadWCFlags() ib.WCFlags { return x.cur().Flags }

// ReadPKeyIndex is the index of the partition key (ibv_wc_read_pkey_index).
func (x *CQEx) ReadPKeyIndex() uint16 { return x.cur().PKeyIndex }

// ReadSLID is the sender's local identifier, 0 on Ethernet (ibv_wc_read_slid).
func (x *CQEx) ReadSLID() uint16 { return x.cur().SLID }

// ReadSL is the service level (ibv_wc_read_sl).
func (x *CQEx) ReadSL() uint8 { return x.cur().SL }

// ReadDLIDPathBits are the path bits of the local identifier, 0 on Ethernet
// (ibv_wc_read_dlid_path_bits).
func (x *CQEx) ReadDLIDPathBits() uint8 { return x.cur().DLIDPathBits }

// ReadCompletionTS is when the completion came, in ticks of the device's clock
// (ibv_wc_read_completion_ts): the clock of QueryRTValues, at the rate of
// DeviceAttr.HCACoreClock. 0 if neither timestamp was asked for.
//
// A software device reads the clock once for each turn, when it begins, and gives
// all that this turn brings the one time: a timestamp may be some microseconds
// earlier than the packet in a capture.
func (x *CQEx) ReadCompletionTS() uint64 {
	if _ = x.cur(); x.ts == nil {
		return 0
	}
	return x.ts[x.at]
}

// ReadCompletionWallclockNS is the same in ns since 1970
// (ibv_wc_read_completion_wallclock_ns). Equal timestamps give equal times, however
// often they are read, and later ones later times, as long as nobody sets the
// system's time; within a batch even then.
func (x *CQEx) ReadCompletionWallclockNS() uint64 {
	c, ok := x.ctx.dev.(driver.Clock)
	if _ = x.cur(); x.ts == nil || !ok {
		return 0
	}
	ts := x.ts[x.at]
	if !x.walled {
		x.walled, x.wall = true, c.WallClock(ts)-int64(ts)
	}
	return uint64(int64(ts) + x.wall)
}

// RTValues are values of a device that change all the time (struct
// ibv_values_ex).
type RTValues struct {
	RawClock uint64 // the device's clock, in ticks
}

// QueryRTValues reads the device's clock (ibv_query_rt_values_ex).
func (c *Context) QueryRTValues() (RTValues, error) {
	const op = "query_rt_values_ex"
	if err := c.check(op); err != nil {
		return RTValues{}, err
	}
	d, ok := c.dev.(driver.Clock)
	if !ok {
		return RTValues{}, notOffered(op)
	}
	return RTValues{RawClock: d.Ticks()}, nil
}

// ModifyCQAttr is what CQ.Modify changes (struct ibv_modify_cq_attr).
type ModifyCQAttr struct {
	AttrMask ib.CQAttrMask
	Moderate ib.ModerateCQ // with ib.CQAttrModerate
}

// Modify changes the queue's moderation (ibv_modify_cq): once it is armed, its
// notification waits for Moderate.CQCount completions that would give one (0: any
// number), but not longer than Moderate.CQPeriod us from the first of them. A
// failed completion and an overrun are told at once; a notification that waits
// when Modify is called is given. With a period of 0 there is no moderation: a
// count alone could withhold the last completions for ever. Wait and Poll are not
// concerned. EINVAL: unknown attributes; EOPNOTSUPP.
func (q *CQ) Modify(attr *ModifyCQAttr) error {
	const op = "modify_cq"
	m, ok := q.cq.(driver.CQModerator)
	switch {
	case attr == nil:
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	case !q.alive():
		return opErr(op, errCQClosed)
	case attr.AttrMask&^ib.CQAttrModerate != 0:
		return paramErr(op, "AttrMask", "has unknown bits", syscall.EINVAL)
	case !ok:
		return notOffered(op)
	case attr.AttrMask == 0:
		return nil
	}
	return opErr(op, m.Moderate(int(attr.Moderate.CQCount), time.Duration(attr.Moderate.CQPeriod)*time.Microsecond))
}
