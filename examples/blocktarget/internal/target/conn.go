package target

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// conn is a client.
type conn struct {
	t     *Target
	d     *domain
	id    *rdmacm.ID
	peer  netip.AddrPort
	depth int

	vcq  *verbs.CQ
	cq   *rdmarw.CQ
	qp   *rdmarw.QP
	mr   *verbs.MR // requests as they come
	recv []receive

	out   atomic.Int32  // posts that the client has to answer
	beats atomic.Uint64 // ... and that it has answered
	was   uint64        // beats when it was looked at last; with out then
	due   bool

	done context.Context // ends when nothing of the client's is left
	end  context.CancelFunc

	mu      sync.Mutex
	refs    int  // receives that are posted and operations that are not over
	down    bool // the connection is over: no more requests
	free    []*op
	held    []*receive // hold requests for which there is no operation
	starved []*op      // wait for a memory region
	freed   uint64     // operations that gave theirs back
}

// receive is the place of one request.
type receive struct {
	c   *conn
	buf []byte
	wr  verbs.RecvWR
	cqe rdmarw.CQE
	req proto.Request
}

// opsPerRequest: a request is over for the client when it has the response, for the
// target when that is acknowledged. The next one may come in between.
const opsPerRequest = 2

// newConn makes what a client needs, with its receives posted.
func (t *Target) newConn(id *rdmacm.ID, hello *proto.Hello) (c *conn, err error) {
	c = &conn{t: t, id: id, peer: id.PeerAddr(), depth: t.cfg.Depth}
	if h := int(hello.Depth); h > 0 {
		c.depth = min(c.depth, h)
	}
	c.done, c.end = context.WithCancel(context.Background())
	made := c
	defer func() {
		if err != nil {
			err = errors.Join(err, made.dismantle())
		}
	}()
	dev := id.Verbs()
	if c.d, err = t.domainOf(dev); err != nil {
		return nil, err
	}
	ops := opsPerRequest * c.depth
	factor := rdmarw.MRFactor(dev, id.PortNum(), (t.cfg.MaxLength+c.d.pool.chunk-1)/c.d.pool.chunk*(c.d.pool.chunk/4096), t.cfg.ForceMR)
	attr := rdmarw.QPInitAttr{
		QPInitAttr: verbs.QPInitAttr{
			Type: ib.RC, IntegrityEn: t.cfg.Protection != 0,
			Cap: ib.QPCap{
				MaxSendWR: uint32(ops), MaxRecvWR: uint32(c.depth), MaxSendSGE: maxSendSGE, MaxRecvSGE: 1, MaxInlineData: proto.ResponseLen,
			},
		},
		Port: id.PortNum(), MaxRDMACtxs: uint32(ops * factor), ForceMR: t.cfg.ForceMR,
	}
	rdmarw.InitQP(dev, &attr)
	if c.vcq, err = dev.CreateCQ(int(attr.Cap.MaxSendWR+attr.Cap.MaxRecvWR), nil, nil); err != nil {
		return nil, err
	}
	c.cq = rdmarw.NewCQ(c.vcq, c.stray)
	attr.CQ, attr.SendCQ, attr.RecvCQ = c.cq, c.vcq, c.vcq
	if err = id.CreateQP(c.d.pd, &attr.QPInitAttr); err != nil {
		return nil, err
	}
	if c.qp, err = rdmarw.InitMRs(id.QP(), &attr); err != nil {
		return nil, err
	}
	if c.mr, err = c.d.pd.RegMR(make([]byte, c.depth*proto.RequestLen), ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	for range ops {
		c.free = append(c.free, newOp(c))
	}
	c.recv = make([]receive, c.depth)
	for i := range c.recv {
		r, at := &c.recv[i], i*proto.RequestLen
		r.c, r.buf = c, c.mr.Bytes()[at:at+proto.RequestLen]
		r.cqe.Done = r.received
		r.wr = verbs.RecvWR{WRID: c.cq.WRID(&r.cqe), SGList: []verbs.SGE{c.mr.SGE(at, proto.RequestLen)}}
		if err = id.QP().PostRecvOne(&r.wr); err != nil {
			return nil, err
		}
		c.refs++
	}
	return c, nil
}

// maxSendSGE is how many chunks one request of the target's may have.
const maxSendSGE = 32

// rnrWait is for how long a client waits that has sent a request for which there is no
// room, until it sends it again: rdma_cm has no parameter for it, and 0.66 s by default.
const rnrWait = 320 * time.Microsecond

func (c *conn) tune() {
	attr := ib.QPAttr{QPState: ib.QPStateRTS, MinRNRTimer: ib.RNRTimerCode(rnrWait)}
	_ = c.qp.QP().Modify(&attr, ib.QPAttrState|ib.QPAttrMinRNRTimer) // it may be over already
}

// goneWait is how often completions of a device that is gone are looked for.
const goneWait = 10 * time.Millisecond

// run handles the client's completions until the last, then gives everything back.
func (c *conn) run() {
	defer c.t.ended.Done()
	for c.done.Err() == nil {
		err := c.cq.Run(c.done)
		if c.done.Err() != nil {
			break
		}
		if !errors.Is(err, syscall.EIO) {
			c.shut("its completions are lost", err)
			break
		}
		// Nobody can wait for completions of a device that is gone, but what is at the
		// file then still has memory and may post.
		select {
		case <-c.done.Done():
		case <-time.After(goneWait):
		}
	}
	if err := c.dismantle(); err != nil {
		c.t.cfg.Logger.Error("ending a connection", "client", c.peer, "err", err)
	}
	if err := c.id.Destroy(context.Background()); err != nil {
		c.t.cfg.Logger.Error("ending a connection", "client", c.peer, "err", err)
	}
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
}

// dismantle gives back what newConn has made.
func (c *conn) dismantle() (err error) {
	if c.qp != nil {
		err = c.qp.CleanupMRs()
	}
	err = errors.Join(err, c.id.DestroyQP(context.Background()))
	if c.vcq != nil {
		err = errors.Join(err, c.vcq.Destroy())
	}
	if c.mr != nil {
		err = errors.Join(err, c.mr.Dereg())
	}
	c.end()
	return err
}

// shut ends the connection. What is under way completes as flushed; with the last of it
// run ends.
func (c *conn) shut(why string, cause error) {
	c.mu.Lock()
	first := !c.down
	c.down = true
	c.mu.Unlock()
	if !first {
		return
	}
	if cause != nil {
		c.t.cfg.Logger.Warn("client lost", "client", c.peer, "why", why, "err", cause)
	} else {
		c.t.cfg.Logger.Info("client gone", "client", c.peer, "why", why)
	}
	// The queue pair goes to ERR whether or not there is a connection to end.
	if err := c.id.Disconnect(context.Background()); err != nil {
		_ = c.qp.QP().Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState)
	}
	for _, o := range c.d.pool.cancel(c) {
		o.finish()
	}
	c.mu.Lock()
	starved := c.starved
	c.starved = nil
	held := len(c.held)
	c.held = nil
	c.mu.Unlock()
	for _, o := range starved {
		o.finish()
	}
	for range held {
		c.drop()
	}
}

// drop lets go of one receive or operation. With the last one of a connection that is
// over run ends.
func (c *conn) drop() {
	c.mu.Lock()
	c.refs--
	last := c.refs == 0 && c.down
	c.mu.Unlock()
	if last {
		c.end()
	}
}

// received is the completion of a receive.
func (r *receive) received(_ *rdmarw.CQ, wc *verbs.WC) {
	c := r.c
	err := wc.Err()
	if err == nil {
		err = r.req.Parse(r.buf[:min(int(wc.ByteLen), len(r.buf))])
	}
	if err != nil {
		if wc.Status == ib.WCWRFlushErr {
			err = nil // why is known already, or comes with another completion
		}
		c.shut("a request did not arrive well", err)
		c.drop()
		return
	}
	c.mu.Lock()
	n := len(c.free)
	switch {
	case c.down:
		c.mu.Unlock()
		c.drop()
		return
	case n == 0: // the client has more under way than it may: let it wait
		c.held = append(c.held, r)
		c.mu.Unlock()
		return
	}
	o := c.free[n-1]
	c.free = c.free[:n-1]
	c.refs++
	c.mu.Unlock()
	c.begin(r, o)
}

// begin starts the operation of a request and makes room for the next request.
func (c *conn) begin(r *receive, o *op) {
	o.req = r.req
	if err := c.qp.QP().PostRecvOne(&r.wr); err != nil {
		c.shut("no room for requests", err)
		c.drop()
	}
	o.start()
}

// release takes an operation back that is over.
func (c *conn) release(o *op) {
	c.mu.Lock()
	c.free = append(c.free, o)
	var r *receive
	if n := len(c.held); n > 0 && !c.down {
		r, c.held = c.held[0], c.held[1:]
		c.free = c.free[:len(c.free)-1]
		c.refs++
	}
	c.mu.Unlock()
	if r != nil {
		c.begin(r, o)
	}
	c.drop()
}

// stray gets the completions of requests inside a chain, which complete only if they
// fail; the last one of the chain then is flushed.
func (c *conn) stray(_ *rdmarw.CQ, wc *verbs.WC) {
	if wc.Status != ib.WCWRFlushErr {
		c.shut("moving data has failed", wc.Err())
	}
}
