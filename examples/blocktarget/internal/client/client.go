// Package client reads and writes the blocks of a target: the other side of package
// proto. It shows the use of signature regions at the end that has memory: what it
// writes gets its protection information on the way to the wire, what it reads is
// checked where it comes from there.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config describes a client.
type Config struct {
	Source netip.Addr // its own address; the zero value: any
	Target netip.AddrPort
	Depth  int // requests under way; 0: as many as the target takes
	Length int // bytes of a request; 0: as many as the target takes
	// NoPI leaves protection information to the target: nothing of it is on the wire.
	NoPI bool
}

// Client is a connection to a target. It belongs to one goroutine.
type Client struct {
	cfg   Config
	id    *rdmacm.ID
	pd    *verbs.PD
	geom  proto.Geometry
	cq    *verbs.CQ
	msgs  *verbs.MR
	recvs []verbs.RecvWR
	slots []*slot
	wcs   []verbs.WC
	lost  error // the connection is over

	ch    *rdmacm.EventChannel // tells that the target ends the connection; nil until there is one
	heard chan struct{}        // closed when nobody listens any more
}

// slot is a request with its memory.
type slot struct {
	i    int
	buf  *verbs.Buffer
	sig  *verbs.SigMR // nil: no protection information
	inv  bool         // sig is registered
	req  proto.Request
	msg  [proto.RequestLen]byte
	resp proto.Response
	bind verbs.BindInfo
	wrs  []verbs.SendWR
	left int  // completions to come: the request's and the response
	told bool // the response has come
	at   int64
	n    int // bytes that count; the rest fills the block
}

const resolveTimeout = 2 * time.Second

// Dial connects to a target. ECONNREFUSED: nobody listens there; EPROTO: it is no target.
func Dial(ctx context.Context, m *rdmacm.Manager, cfg Config) (c *Client, err error) {
	c = &Client{cfg: cfg}
	made := c
	defer func() {
		if err != nil {
			err = errors.Join(err, made.Close())
		}
	}()
	if c.id, err = m.NewID(nil, rdmacm.PSTCP, nil); err != nil {
		return nil, err
	}
	var src netip.AddrPort
	if cfg.Source.IsValid() {
		src = netip.AddrPortFrom(cfg.Source, 0)
	}
	if err = c.id.ResolveAddr(ctx, src, cfg.Target, resolveTimeout); err != nil {
		return nil, err
	}
	if err = c.id.ResolveRoute(ctx, resolveTimeout); err != nil {
		return nil, err
	}
	depth := cfg.Depth
	if depth == 0 {
		depth = defaultDepth
	}
	if c.pd, err = c.id.Verbs().AllocPD(); err != nil {
		return nil, err
	}
	// At most an invalidation, a registration and the request itself.
	sends := uint32(3 * depth)
	if c.cq, err = c.id.Verbs().CreateCQ(int(sends)+depth, nil, nil); err != nil {
		return nil, err
	}
	attr := verbs.QPInitAttr{
		SendCQ: c.cq, RecvCQ: c.cq, Type: ib.RC, IntegrityEn: !cfg.NoPI,
		Cap: ib.QPCap{MaxSendWR: sends, MaxRecvWR: uint32(depth), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: proto.RequestLen},
	}
	if err = c.id.CreateQP(c.pd, &attr); err != nil {
		return nil, err
	}
	if err = c.postReceives(depth); err != nil {
		return nil, err
	}
	hello := proto.Hello{Depth: uint16(depth)}
	if err = c.id.Connect(ctx, &rdmacm.ConnParam{
		PrivateData: hello.Append(nil), ResponderResources: rdmacm.MaxRespRes, InitiatorDepth: rdmacm.MaxInitDepth,
		RetryCount: 7, RNRRetryCount: 7,
	}); err != nil {
		return nil, err
	}
	if err = c.geom.Parse(c.id.Event().Conn.PrivateData); err != nil {
		return nil, err
	}
	if err = c.makeSlots(min(depth, int(c.geom.Depth))); err != nil {
		return nil, err
	}
	return c, c.listen(m)
}

const defaultDepth = 32

// listen has what the connection manager says of the connection heard: what waits for the
// target completes as flushed when that goes.
func (c *Client) listen(m *rdmacm.Manager) (err error) {
	if c.ch, err = m.NewEventChannel(); err != nil {
		return err
	}
	c.heard = make(chan struct{})
	go func() {
		defer close(c.heard)
		for {
			e, err := c.ch.Get(context.Background())
			if err != nil {
				return
			}
			if e.Type == rdmacm.EventDisconnected || e.Type == rdmacm.EventDeviceRemoval {
				_ = e.ID.Disconnect(context.Background()) // moves the queue pair to ERR
			}
			e.Ack()
		}
	}()
	return c.id.Migrate(context.Background(), c.ch)
}

func (c *Client) postReceives(n int) (err error) {
	if c.msgs, err = c.pd.RegMR(make([]byte, n*proto.ResponseLen), ib.AccessLocalWrite); err != nil {
		return err
	}
	c.recvs = make([]verbs.RecvWR, n)
	c.wcs = make([]verbs.WC, 4*n)
	for i := range c.recvs {
		c.recvs[i] = verbs.RecvWR{WRID: isRecv | uint64(i), SGList: []verbs.SGE{c.msgs.SGE(i*proto.ResponseLen, proto.ResponseLen)}}
	}
	return c.id.QP().PostRecv(c.recvs)
}

// isRecv tells WRIDs of receives from those of sends.
const isRecv = 1 << 32

func (c *Client) makeSlots(n int) error {
	bs := int(c.geom.BlockSize)
	length := c.cfg.Length
	if length == 0 {
		length = int(c.geom.MaxLength)
	}
	length = min(length, int(c.geom.MaxLength)) / bs * bs
	if length == 0 {
		return fmt.Errorf("requests of %d bytes are shorter than the target's blocks of %d: %w", c.cfg.Length, bs, syscall.EINVAL)
	}
	c.cfg.Length = length
	for i := range n {
		s := &slot{i: i}
		c.slots = append(c.slots, s)
		var err error
		if s.buf, err = c.pd.AllocBuffer(length, ib.AccessLocalWrite|ib.AccessRemoteRead|ib.AccessRemoteWrite); err != nil {
			return err
		}
		if c.PI() {
			if s.sig, err = c.pd.AllocMRIntegrity(1, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// Geometry is what the target is.
func (c *Client) Geometry() proto.Geometry { return c.geom }

// Depth is how many requests are under way at most, Length how many bytes each has.
func (c *Client) Depth() int { return len(c.slots) }

// Length is the number of bytes of a request.
func (c *Client) Length() int { return c.cfg.Length }

// PI reports whether protection information is on the wire.
func (c *Client) PI() bool { return c.geom.Protection != 0 && !c.cfg.NoPI }

// Close ends the connection and gives everything back.
func (c *Client) Close() error {
	var err error
	if c.id != nil {
		ctx := context.Background()
		_ = c.id.Disconnect(ctx) // which refuses if there never was a connection
		err = c.id.DestroyQP(ctx)
	}
	for _, s := range c.slots {
		if s.sig != nil {
			err = errors.Join(err, s.sig.Dereg())
		}
		if s.buf != nil {
			err = errors.Join(err, s.buf.Close())
		}
	}
	if c.cq != nil {
		err = errors.Join(err, c.cq.Destroy())
	}
	if c.msgs != nil {
		err = errors.Join(err, c.msgs.Dereg())
	}
	if c.pd != nil {
		err = errors.Join(err, c.pd.Dealloc())
	}
	if c.id != nil {
		err = errors.Join(err, c.id.Destroy(context.Background()))
	}
	if c.ch != nil {
		if e := c.ch.Close(); e != nil {
			return errors.Join(err, e)
		}
		<-c.heard
	}
	return err
}

// Write writes size bytes of r to the device from offset on, a multiple of the block
// size; what is missing of the last block is zero. done, if not nil, is called with the
// number of bytes that have arrived. The errors are those of r; *proto.StatusError of the
// target, which match proto.ErrProtection if a block was wrong; and those of the
// connection and of ctx, after which the client can only be closed.
func (c *Client) Write(ctx context.Context, r io.ReaderAt, size, offset int64, done func(int)) error {
	return c.copy(ctx, proto.OpWrite, size, offset, done, func(s *slot) error {
		b := s.buf.Bytes()[:s.req.Length]
		if n, err := r.ReadAt(b[:s.n], s.at); n < s.n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		clear(b[s.n:])
		return nil
	}, nil)
}

// Read reads size bytes from offset on into w. Nothing is written that was found to be
// wrong. Otherwise it is as Write.
func (c *Client) Read(ctx context.Context, w io.WriterAt, size, offset int64, done func(int)) error {
	return c.copy(ctx, proto.OpRead, size, offset, done, nil, func(s *slot) error {
		_, err := w.WriteAt(s.buf.Bytes()[:s.n], s.at)
		return err
	})
}

// Flush returns when all that was written is on the target's storage.
func (c *Client) Flush(ctx context.Context) error {
	s := c.slots[0]
	s.req = proto.Request{Op: proto.OpFlush}
	if err := c.post(s); err != nil {
		return err
	}
	for s.left > 0 {
		if _, err := c.poll(ctx); err != nil {
			return err
		}
	}
	return c.result(s)
}

// copy has requests for size bytes carried out, as many at a time as there are slots.
func (c *Client) copy(ctx context.Context, op proto.Op, size, offset int64, done func(int), fill, use func(*slot) error) error {
	switch bs := int64(c.geom.BlockSize); {
	case size < 0 || offset < 0 || offset%bs != 0:
		return fmt.Errorf("offset %d is no multiple of the block size %d: %w", offset, bs, syscall.EINVAL)
	case offset > c.geom.Size() || size > c.geom.Size()-offset:
		return fmt.Errorf("%d bytes from %d on, the device has %d: %w", size, offset, c.geom.Size(), syscall.ENOSPC)
	}
	idle := make([]*slot, len(c.slots))
	copy(idle, c.slots)
	var at int64
	var failed error // what was posted is waited for all the same
	for at < size && failed == nil || len(idle) < len(c.slots) {
		for len(idle) > 0 && at < size && failed == nil {
			s := idle[len(idle)-1]
			c.describe(s, op, at, size, offset)
			if fill != nil {
				if failed = fill(s); failed != nil {
					break
				}
			}
			if failed = c.post(s); failed != nil {
				break
			}
			idle, at = idle[:len(idle)-1], at+int64(s.n)
		}
		if len(idle) == len(c.slots) {
			break
		}
		ended, err := c.poll(ctx)
		if err != nil {
			return errors.Join(err, failed)
		}
		for _, s := range ended {
			idle = append(idle, s)
			err := c.result(s)
			if err == nil && use != nil {
				err = use(s)
			}
			if err == nil && done != nil {
				done(s.n)
			}
			if failed == nil {
				failed = err
			}
		}
	}
	return failed
}

// describe makes the request for what comes next.
func (c *Client) describe(s *slot, op proto.Op, at, size, offset int64) {
	bs := int64(c.geom.BlockSize)
	s.at, s.n = at, int(min(size-at, int64(c.cfg.Length)))
	s.req = proto.Request{
		Op: op, Tag: uint32(s.i), Offset: uint64(offset + at), Length: uint32((int64(s.n) + bs - 1) / bs * bs),
		RKey: s.buf.MR().RKey(), Addr: s.buf.Addr(),
	}
	if c.geom.Protection == 1 || c.geom.Protection == 2 {
		s.req.RefTag = uint32((offset + at) / bs)
	}
}

// attrs: the client's memory is without protection information, the wire has it.
func (c *Client) attrs(r *proto.Request) *ib.SigAttrs {
	a := &ib.SigAttrs{CheckMask: ib.SigCheckGuard, Wire: ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{
		BGType: ib.T10DIFCRC, PIInterval: int(c.geom.BlockSize), RefTag: r.RefTag,
		RefRemap: c.geom.Protection != 3, AppEscape: true, RefEscape: c.geom.Protection == 3,
	}}}
	if c.geom.Protection != 3 {
		a.CheckMask |= ib.SigCheckRefTag
	}
	return a
}

// post sends the slot's request, with the registration of its memory if it has one.
func (c *Client) post(s *slot) error {
	if c.lost != nil {
		return c.lost
	}
	s.wrs = s.wrs[:0]
	inv := s.inv
	if s.sig != nil && s.req.Op != proto.OpFlush {
		if err := s.sig.SetSigAttrs(c.attrs(&s.req)); err != nil {
			return err
		}
		if _, err := s.sig.MapSGPI([][]byte{s.buf.Bytes()[:s.req.Length]}, 0, nil, 0, 4096); err != nil {
			return err
		}
		old, key := s.sig.RKey(), ib.IncRKey(s.sig.RKey())
		if s.inv {
			s.wrs = append(s.wrs, verbs.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: old, WRID: uint64(s.i)})
		}
		rights := ib.AccessLocalWrite | ib.AccessRemoteWrite
		if s.req.Op == proto.OpWrite {
			rights = ib.AccessLocalWrite | ib.AccessRemoteRead
		}
		s.bind = verbs.BindInfo{MR: s.sig.MR, Access: rights}
		s.wrs = append(s.wrs, verbs.SendWR{Opcode: ib.WRRegMRIntegrity, RKey: key, Bind: &s.bind, WRID: uint64(s.i)})
		s.req.Flags, s.req.RKey, s.req.Addr, s.inv = proto.FlagPI, key, s.sig.Addr(), true
	}
	s.req.Put(s.msg[:])
	s.wrs = append(s.wrs, verbs.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendSignaled | ib.SendInline, InlineData: s.msg[:], WRID: uint64(s.i),
	})
	s.left, s.told = 2, false
	if err := c.id.QP().PostSendAll(s.wrs); err != nil {
		s.left, s.inv = 0, inv
		return err
	}
	return nil
}

// poll waits for completions and tells which requests have ended. A failure is for good:
// what is under way then has memory and would be taken for what comes later.
func (c *Client) poll(ctx context.Context) (ended []*slot, err error) {
	if c.lost != nil {
		return nil, c.lost
	}
	defer func() { c.lost = err }()
	for len(ended) == 0 {
		n, err := c.cq.Poll(c.wcs)
		if err != nil {
			return nil, err
		}
		for i := range c.wcs[:n] {
			s, err := c.completed(&c.wcs[i])
			if err != nil {
				return nil, err
			}
			if s.left--; s.left == 0 {
				ended = append(ended, s)
			}
		}
		if n == 0 {
			if err := c.cq.Wait(ctx); err != nil {
				return nil, err
			}
		}
	}
	return ended, nil
}

// completed is the slot that a completion is about.
func (c *Client) completed(wc *verbs.WC) (*slot, error) {
	if err := wc.Err(); err != nil {
		if wc.Status == ib.WCWRFlushErr {
			err = fmt.Errorf("the target has ended the connection: %w", syscall.ECONNRESET)
		}
		return nil, err
	}
	if wc.WRID&isRecv == 0 {
		return c.slots[wc.WRID], nil
	}
	i := int(uint32(wc.WRID))
	b := c.msgs.Bytes()[i*proto.ResponseLen:][:proto.ResponseLen]
	var resp proto.Response
	if err := resp.Parse(b[:min(int(wc.ByteLen), len(b))]); err != nil {
		return nil, err
	}
	if uint64(resp.Tag) >= uint64(len(c.slots)) || c.slots[resp.Tag].left == 0 || c.slots[resp.Tag].told {
		return nil, fmt.Errorf("the target answers a request that there is not, %d: %w", resp.Tag, syscall.EPROTO)
	}
	s := c.slots[resp.Tag]
	if resp.Status == proto.StatusOK && resp.Length != s.req.Length {
		return nil, fmt.Errorf("the target has moved %d bytes of %d: %w", resp.Length, s.req.Length, syscall.EPROTO)
	}
	s.resp, s.told = resp, true
	return s, c.id.QP().PostRecvOne(&c.recvs[i])
}

// result is how a request ended: what the target says, and what this side has found.
func (c *Client) result(s *slot) error {
	if s.resp.Status != proto.StatusOK {
		if s.sig != nil {
			s.sig.CheckStatus() // the target has told what is wrong
		}
		return &proto.StatusError{Op: s.req.Op, Request: s.req, Response: s.resp}
	}
	if s.sig == nil || s.req.Op == proto.OpFlush {
		return nil
	}
	if e, bad := s.sig.CheckStatus(); bad {
		n := e.SigErrOffset / uint64(c.geom.BlockSize+proto.TupleLen)
		resp := proto.Response{
			Status: proto.StatusOf(e.Type), Tag: s.req.Tag, Offset: s.req.Offset + n*uint64(c.geom.BlockSize),
			Expected: e.Expected, Actual: e.Actual,
		}
		return &proto.StatusError{Op: s.req.Op, Request: s.req, Response: resp}
	}
	return nil
}
