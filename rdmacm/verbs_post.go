package rdmacm

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs"
)

// The post helpers of rdma_verbs.h: each posts one work request to the ID's queue
// pair. They have the arguments of C in their order:
//
//   - context comes back as WRID of the completion.
//   - buf is the buffer: a part of the memory that mr registers. Where it begins in
//     the region is found from the slice itself, whatever address the region has for the
//     device. It is the device's until the work has completed.
//   - mr names the registration. It may be nil with ib.SendInline, which copies buf
//     at the post, and of an empty buf.
//   - flags are those of verbs.SendWR.
//
// What shows only when the work is done is a completion with an error, not one
// of the call: a slice that is not in the region, a region that was deregistered, or none
// where one is needed end with ib.WCLocProtErr, and nothing was sent or written
// of it. The error of a call holds a *verbs.PostError, and an errno:
//
//   - EINVAL: the ID has no queue pair, or one that is not connected yet (sends); buf is
//     longer than a message may be (2 GiB), or than an inline one; the flags are not for this
//     request; too many elements.
//   - ENOMEM: the queue is full: get completions, then post again.
//
// After Disconnect, and after an error, posts succeed and complete with
// ib.WCWRFlushErr. None of them allocates memory, and several goroutines may call
// them at once.

// helpers is what the helpers of an ID hand to its queues, kept so that nothing is
// allocated. It needs no initialization.
type helpers struct {
	// queues is what the ID has: posting does not take the manager's lock, which other
	// connections are made under.
	queues atomic.Pointer[queues]

	send struct {
		sync.Mutex
		wr  [1]verbs.SendWR
		sgl []verbs.SGE
	}
	recv struct {
		sync.Mutex
		wr  [1]verbs.RecvWR
		sgl []verbs.SGE
	}
	sent, received completion
}

// queues is where an ID posts, and where it completes; nil is what it does not have.
type queues struct {
	qp             *verbs.QP
	srq            *verbs.SRQ
	sendCQ, recvCQ *verbs.CQ
}

// publish tells the helpers that one of them has changed. The caller holds the manager's mu.
func (id *ID) publish() {
	id.helpers.queues.Store(&queues{id.qp, id.srq, id.sendCQ, id.recvCQ})
}

// has is what the ID has now.
func (h *helpers) has() queues {
	if q := h.queues.Load(); q != nil {
		return *q
	}
	return queues{}
}

// PostRecv posts buf to receive a message (rdma_post_recv), to the shared receive queue if
// the ID has one. It may be posted as soon as there is a queue pair. A message longer
// than buf ends with ib.WCLocLenErr; a datagram needs 40 bytes more than its
// payload, which comes behind them.
func (id *ID) PostRecv(context uint64, buf []byte, mr *verbs.MR) error {
	const op = "post_recv"
	e, err := element(op, buf, mr)
	if err != nil {
		return err
	}
	return id.postRecv(op, context, e, nil)
}

// PostRecvV is PostRecv with a list of buffers, which a message fills in order
// (rdma_post_recvv). verbs.MR.SGE makes elements.
func (id *ID) PostRecvV(context uint64, sgl []verbs.SGE) error {
	return id.postRecv("post_recvv", context, verbs.SGE{}, sgl)
}

// PostSend posts buf as a message (rdma_post_send). The peer must have posted a
// receive that is long enough.
func (id *ID) PostSend(context uint64, buf []byte, mr *verbs.MR, flags ib.SendFlags) error {
	return id.postSend("post_send", &verbs.SendWR{Opcode: ib.WRSend, WRID: context, Flags: flags}, buf, mr)
}

// PostSendV is PostSend of a list of buffers (rdma_post_sendv). With ib.SendInline too
// the elements' keys are looked up, at the post.
func (id *ID) PostSendV(context uint64, sgl []verbs.SGE, flags ib.SendFlags) error {
	return id.postSendV("post_sendv", &verbs.SendWR{Opcode: ib.WRSend, WRID: context, Flags: flags}, sgl)
}

// PostRead reads len(buf) bytes from remoteAddr of the peer's region rkey into buf
// (rdma_post_read). ib.SendInline is EINVAL.
func (id *ID) PostRead(context uint64, buf []byte, mr *verbs.MR, flags ib.SendFlags, remoteAddr uint64, rkey ib.RKey) error {
	return id.postSend("post_read", &verbs.SendWR{Opcode: ib.WRRDMARead, WRID: context, Flags: flags, RemoteAddr: remoteAddr, RKey: rkey}, buf, mr)
}

// PostReadV is PostRead into a list of buffers (rdma_post_readv).
func (id *ID) PostReadV(context uint64, sgl []verbs.SGE, flags ib.SendFlags, remoteAddr uint64, rkey ib.RKey) error {
	return id.postSendV("post_readv", &verbs.SendWR{Opcode: ib.WRRDMARead, WRID: context, Flags: flags, RemoteAddr: remoteAddr, RKey: rkey}, sgl)
}

// PostWrite writes buf to remoteAddr of the peer's region rkey (rdma_post_write). The
// peer's program is not told. If it has not registered that memory for remote
// writing nothing is written, the work ends with ib.WCRemAccessErr and both queue
// pairs are in state ERR.
func (id *ID) PostWrite(context uint64, buf []byte, mr *verbs.MR, flags ib.SendFlags, remoteAddr uint64, rkey ib.RKey) error {
	return id.postSend("post_write", &verbs.SendWR{Opcode: ib.WRRDMAWrite, WRID: context, Flags: flags, RemoteAddr: remoteAddr, RKey: rkey}, buf, mr)
}

// PostWriteV is PostWrite of a list of buffers, which are written one behind the
// other (rdma_post_writev). With ib.SendInline too the elements' keys are looked up, at the post.
func (id *ID) PostWriteV(context uint64, sgl []verbs.SGE, flags ib.SendFlags, remoteAddr uint64, rkey ib.RKey) error {
	return id.postSendV("post_writev", &verbs.SendWR{Opcode: ib.WRRDMAWrite, WRID: context, Flags: flags, RemoteAddr: remoteAddr, RKey: rkey}, sgl)
}

// PostUDSend sends buf as one datagram to queue pair remoteQPN at the address that ah
// describes (rdma_post_ud_send), with the Q_Key UDPQKey. It needs no connection.
// Nobody answers: the work completes when the datagram has left, whether or not
// somebody has posted a receive for it. A datagram longer than the port's active MTU ends with
// ib.WCLocLenErr and the queue pair is in state SQE.
func (id *ID) PostUDSend(context uint64, buf []byte, mr *verbs.MR, flags ib.SendFlags, ah *verbs.AH, remoteQPN ib.QPN) error {
	wr := verbs.SendWR{Opcode: ib.WRSend, WRID: context, Flags: flags, RemoteQPN: remoteQPN, RemoteQKey: UDPQKey}
	if ah != nil { // a nil *AH in the interface would not be nil
		wr.AH = ah
	}
	return id.postSend("post_ud_send", &wr, buf, mr)
}

// element describes buf. An empty one is not described: it names no memory.
func element(op string, buf []byte, mr *verbs.MR) (e verbs.SGE, err error) {
	if uint64(len(buf)) > math.MaxUint32 {
		// C casts the length to 32 bits, and posts what is left of it.
		return e, paramErr(op, "buf", fmt.Sprintf("%d bytes, an element has at most %d", len(buf), uint32(math.MaxUint32)), syscall.EINVAL)
	}
	e.Addr, e.Length = mem.Address(buf), uint32(len(buf))
	if mr != nil {
		e.LKey = mr.LKey()
		if b := mr.Bytes(); b != nil {
			// How far buf is behind the region's first byte, modulo 2^64: inside the region
			// exactly if the device will find it there.
			e.Addr += mr.Addr() - mem.Address(b)
		}
	}
	return e, nil
}

func (id *ID) postSend(op string, wr *verbs.SendWR, buf []byte, mr *verbs.MR) error {
	e, err := element(op, buf, mr)
	if err != nil {
		return err
	}
	qp := id.helpers.has().qp
	if qp == nil {
		return opErr(op, errNoQP)
	}
	s := &id.helpers.send
	s.Lock()
	defer s.Unlock()
	s.wr[0] = *wr
	switch {
	case wr.Flags&ib.SendInline != 0 && wr.Opcode != ib.WRRDMARead:
		s.wr[0].InlineData = buf
	case e.Length > 0:
		s.sgl = append(s.sgl[:0], e)
		s.wr[0].SGList = s.sgl
	}
	err = qp.PostSend(s.wr[:])
	s.wr[0] = verbs.SendWR{} // lets go of buffer and address handle
	return opErr(op, err)
}

func (id *ID) postSendV(op string, wr *verbs.SendWR, sgl []verbs.SGE) error {
	qp := id.helpers.has().qp
	if qp == nil {
		return opErr(op, errNoQP)
	}
	s := &id.helpers.send
	s.Lock()
	defer s.Unlock()
	s.sgl = append(s.sgl[:0], sgl...) // so that callers may make the list on their stack
	s.wr[0] = *wr
	s.wr[0].SGList = s.sgl
	err := qp.PostSend(s.wr[:])
	s.wr[0] = verbs.SendWR{}
	return opErr(op, err)
}

// postRecv posts the element, or the list if the element is empty.
func (id *ID) postRecv(op string, context uint64, e verbs.SGE, sgl []verbs.SGE) error {
	has := id.helpers.has()
	if has.srq == nil && has.qp == nil {
		return opErr(op, errNoQP)
	}
	r := &id.helpers.recv
	r.Lock()
	defer r.Unlock()
	if r.sgl = append(r.sgl[:0], sgl...); e.Length > 0 {
		r.sgl = append(r.sgl, e)
	}
	r.wr[0] = verbs.RecvWR{WRID: context, SGList: r.sgl}
	if has.srq != nil {
		return opErr(op, has.srq.PostRecv(r.wr[:]))
	}
	return opErr(op, has.qp.PostRecv(r.wr[:]))
}
