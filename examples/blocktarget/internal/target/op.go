package target

import (
	"errors"
	"syscall"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmarw"
	"github.com/verbena-rdma/verbena/verbs"
)

// op is a request that is carried out. It belongs to whoever carries out the step at
// hand, then to the next one.
type op struct {
	c    *conn
	req  proto.Request
	resp proto.Response

	need       int // bytes that it waits for in the pool
	chunks     []int
	data, meta [][]byte // the same as scatterlists

	ctx  rdmarw.Ctx
	way  way
	dir  rdmarw.Direction
	bad  ib.SigErr
	xfer rdmarw.CQE // the data has moved
	sent rdmarw.CQE // the response has arrived

	msg   [proto.ResponseLen]byte
	chain []verbs.SendWR // the response
}

// way is how the context was made.
type way uint8

const (
	wayNone way = iota
	wayPlain
	waySignature
)

func newOp(c *conn) *op {
	o := &op{c: c}
	o.xfer.Done, o.sent.Done = o.moved, o.responded
	o.chain = []verbs.SendWR{{Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, WRID: c.cq.WRID(&o.sent)}}
	return o
}

// start checks the request and sees that it gets memory.
func (o *op) start() {
	o.resp = proto.Response{Tag: o.req.Tag}
	t := o.c.t
	if s := o.req.Check(&t.geom); s != proto.StatusOK {
		o.refuse(s)
		return
	}
	if o.req.Op != proto.OpFlush && !o.c.d.pool.take(o, int(o.req.Length), t.cfg.Store.BlockSize()) {
		// Somebody who gives memory back goes on with it. If the connection ended
		// meanwhile nobody looks for it any more.
		if o.c.over() {
			for _, w := range o.c.d.pool.cancel(o.c) {
				w.finish()
			}
		}
		return
	}
	o.proceed()
}

func (c *conn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.down
}

// proceed goes on with memory.
func (o *op) proceed() {
	if o.req.Op == proto.OpWrite {
		o.move(rdmarw.DMAFromDevice)
		return
	}
	o.toStore()
}

// toStore has store called, by another goroutine if it may wait. If those have enough to
// do, the client waits.
func (o *op) toStore() {
	t := o.c.t
	if t.cfg.Store.Slow() {
		select {
		case t.work <- o:
			return
		default:
		}
	}
	o.store()
}

// store is the step at the store: reading before data leaves, writing after it came.
func (o *op) store() {
	s := o.c.t.cfg.Store
	block := int64(o.req.Offset) / int64(s.BlockSize())
	var meta [][]byte
	if s.Protected() {
		meta = o.meta
	}
	var err error
	switch o.req.Op {
	case proto.OpRead:
		err = s.Read(o.data, meta, block)
	case proto.OpWrite:
		err = s.Write(o.data, meta, block)
	case proto.OpFlush:
		err = s.Sync()
	}
	switch {
	case err != nil:
		o.c.t.cfg.Logger.Error("storage", "request", o.req.Op, "offset", o.req.Offset, "err", err)
		o.refuse(proto.StatusIO)
	case o.req.Op == proto.OpRead:
		o.move(rdmarw.DMAToDevice)
	default:
		o.respond()
	}
}

// move moves the data. Behind data that nobody checks the response follows at once: it
// arrives after it (IBA 9.5).
func (o *op) move(dir rdmarw.Direction) {
	c := o.c
	if c.over() {
		o.finish()
		return
	}
	var err error
	o.dir = dir
	c.mu.Lock()
	freed := c.freed
	c.mu.Unlock()
	if c.t.cfg.Protection != 0 {
		attrs := c.t.signature(&o.req)
		_, err = o.ctx.SignatureInit(c.qp, c.id.PortNum(), o.data, o.meta, &attrs, o.req.Addr, o.req.RKey, dir)
		o.way = waySignature
	} else {
		_, err = o.ctx.Init(c.qp, c.id.PortNum(), o.data, 0, o.req.Addr, o.req.RKey, dir)
		o.way = wayPlain
	}
	if err != nil {
		o.way = wayNone
		if errors.Is(err, syscall.EAGAIN) {
			o.starve(freed)
			return
		}
		c.shut("data cannot be moved", err)
		o.finish()
		return
	}
	var chain []verbs.SendWR
	if o.way == wayPlain && dir == rdmarw.DMAToDevice {
		chain = o.response()
	}
	c.out.Add(1)
	if err := o.ctx.Post(c.qp, c.id.PortNum(), &o.xfer, chain); err != nil {
		c.out.Add(-1)
		c.shut("data cannot be moved", err)
		o.finish()
	}
}

// starve waits until another operation gives memory regions back, if none has since freed
// was read.
func (o *op) starve(freed uint64) {
	c := o.c
	c.mu.Lock()
	down, again := c.down, c.freed != freed
	if !down && !again {
		c.starved = append(c.starved, o)
	}
	c.mu.Unlock()
	switch {
	case down:
		o.finish()
	case again:
		o.move(o.dir)
	}
}

// signature says how the blocks of a request look in the target's memory, which is as the
// store, and on the wire.
func (t *Target) signature(r *proto.Request) ib.SigAttrs {
	dif := ib.T10DIFDomain{
		BGType: ib.T10DIFCRC, PIInterval: int(t.geom.BlockSize), RefTag: r.RefTag, AppTag: r.AppTag,
		AppTagCheckMask: r.AppMask, AppEscape: true, RefRemap: t.geom.Protection != 3, RefEscape: t.geom.Protection == 3,
	}
	if t.geom.Protection == 1 {
		dif.RefTag = uint32(r.Offset / uint64(t.geom.BlockSize))
	}
	a := ib.SigAttrs{CheckMask: ib.SigCheckGuard | ib.SigCheckRefTag, Mem: ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: dif}}
	if t.geom.Protection == 3 {
		a.CheckMask = ib.SigCheckGuard
	}
	if r.AppMask != 0 {
		a.CheckMask |= ib.SigCheckAppTag
	}
	if r.Flags&proto.FlagPI != 0 {
		a.Wire = a.Mem
	}
	return a
}

// moved is the completion of the transfer. A block that is wrong goes nowhere from here:
// not to the store, and no response says that all is well.
func (o *op) moved(_ *rdmarw.CQ, wc *verbs.WC) {
	o.c.beat()
	if err := wc.Err(); err != nil {
		if wc.Status == ib.WCWRFlushErr {
			err = nil
		}
		o.c.shut("moving data has failed", err)
		o.finish()
		return
	}
	if o.way == waySignature {
		if e, bad := o.ctx.CheckMRStatus(); bad {
			o.bad = e
			o.refuseBlock()
			return
		}
	}
	o.destroy()
	if o.req.Op == proto.OpWrite {
		o.toStore()
		return
	}
	o.respond()
}

// refuseBlock ends the request because of a block that is wrong.
func (o *op) refuseBlock() {
	t := o.c.t
	t.counts.bad.Add(1)
	n := o.bad.SigErrOffset / uint64(t.geom.BlockSize+proto.TupleLen)
	o.resp.Offset = o.req.Offset + n*uint64(t.geom.BlockSize)
	o.resp.Expected, o.resp.Actual = o.bad.Expected, o.bad.Actual
	t.cfg.Logger.Warn("a block is wrong", "client", o.c.peer, "request", o.req.Op, "what", o.bad.Type, "block at", o.resp.Offset,
		"expected", o.bad.Expected, "actual", o.bad.Actual)
	o.destroy()
	o.fail(proto.StatusOf(o.bad.Type))
}

// refuse ends the request with a status.
func (o *op) refuse(s proto.Status) {
	o.c.t.counts.refused.Add(1)
	o.fail(s)
}

func (o *op) fail(s proto.Status) {
	o.resp.Status = s
	o.post()
}

// respond ends a request that was carried out.
func (o *op) respond() { o.send(o.response()) }

func (o *op) send(wrs []verbs.SendWR) {
	o.c.out.Add(1)
	if err := o.c.qp.QP().PostSendAll(wrs); err != nil {
		o.c.out.Add(-1)
		o.c.shut("no response can be sent", err)
		o.finish()
	}
}

// post sends the response of a request that failed.
func (o *op) post() {
	o.resp.Put(o.msg[:])
	o.chain[0].InlineData = o.msg[:]
	o.send(o.chain)
}

// response is the one of a request that was carried out.
func (o *op) response() []verbs.SendWR {
	n := &o.c.t.counts
	switch o.req.Op {
	case proto.OpRead:
		n.reads.Add(1)
		n.read.Add(uint64(o.req.Length))
	case proto.OpWrite:
		n.writes.Add(1)
		n.written.Add(uint64(o.req.Length))
	}
	o.resp.Length = o.req.Length
	o.resp.Put(o.msg[:])
	o.chain[0].InlineData = o.msg[:]
	return o.chain
}

// responded is the completion of the response, or of data with the response behind it.
func (o *op) responded(_ *rdmarw.CQ, wc *verbs.WC) {
	o.c.beat()
	if err := wc.Err(); err != nil {
		if wc.Status == ib.WCWRFlushErr {
			err = nil
		}
		o.c.shut("a response did not arrive", err)
	}
	o.finish()
}

// destroy ends the context, if there is one.
func (o *op) destroy() {
	var err error
	switch c := o.c; o.way {
	case wayPlain:
		err = o.ctx.Destroy(c.qp, c.id.PortNum(), o.data, o.dir)
	case waySignature:
		err = o.ctx.DestroySignature(c.qp, c.id.PortNum(), o.data, o.meta, o.dir)
	}
	if err != nil {
		o.c.t.cfg.Logger.Error("ending a transfer", "client", o.c.peer, "err", err)
	}
	o.way = wayNone
}

// finish is the end of the operation, well or not: its memory goes to those that wait for
// it, of this client or of others.
func (o *op) finish() {
	c := o.c
	o.destroy()
	ready := c.d.pool.put(o, c.t.cfg.Store.BlockSize())
	c.mu.Lock()
	c.freed++
	var hungry *op
	if n := len(c.starved); n > 0 {
		hungry, c.starved = c.starved[0], c.starved[1:]
	}
	c.mu.Unlock()
	c.release(o) // o is another request's from here
	for _, w := range ready {
		w.proceed()
	}
	if hungry != nil {
		hungry.move(hungry.dir)
	}
}
