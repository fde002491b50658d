package rdma

import (
	"context"
	"io"
	"slices"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// recvSide is what receiving calls share, one after the other.
type recvSide struct {
	c    *Conn
	turn chan struct{} // of capacity 1, as a lock that a context can be waited with

	// Under turn.
	held bool     // the message of wc was not taken yet
	wc   verbs.WC // the last completion
	err  error    // there are no messages any more
}

func (r *recvSide) init(c *Conn) error {
	r.c, r.turn = c, make(chan struct{}, 1)
	for i := range c.depth {
		if err := r.post(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (r *recvSide) post(i uint64) error {
	return r.c.id.PostRecv(i, r.c.buffer(int(i)), r.c.mr)
}

// next waits for a message, which is valid until done. The caller has the turn.
func (r *recvSide) next(ctx context.Context) ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	if !r.held {
		wc, err := r.c.id.GetRecvComp(ctx)
		if err != nil {
			if ctx.Err() == nil {
				if why := r.c.failure(io.EOF); why != nil {
					err = why
				}
			}
			return nil, err
		}
		if wc.Status != ib.WCSuccess {
			r.err = r.reason(&wc)
			return nil, r.err
		}
		r.wc, r.held = wc, true
	}
	n := int(r.wc.ByteLen)
	if r.wc.Opcode != ib.WCRecv {
		n = 0 // a WRITE with immediate: its data are elsewhere
	}
	return r.c.buffer(int(r.wc.WRID))[:n], nil
}

// done gives the buffer of the message back to the device.
func (r *recvSide) done() error {
	r.held = false
	return r.post(r.wc.WRID)
}

// reason finds out why a receive has failed.
func (r *recvSide) reason(wc *verbs.WC) error {
	if wc.Status != ib.WCWRFlushErr {
		r.c.fail(failed(wc))
	} else if r.c.failure(io.EOF) == nil {
		r.c.sends.settle()
	}
	if err := r.c.failure(io.EOF); err != nil {
		return err
	}
	return failed(wc)
}

// Recv waits for the next message. The slice is the caller's. What had arrived before
// the peer disconnected is still received, then comes io.EOF.
func (c *Conn) Recv(ctx context.Context) ([]byte, error) {
	var p []byte
	_, err := c.recv(ctx, func(m []byte) error {
		p = slices.Clone(m)
		if p == nil {
			p = []byte{}
		}
		return nil
	})
	return p, err
}

// RecvInto is Recv into a buffer of the caller's, without allocation. It returns the
// length of the message. io.ErrShortBuffer: it is longer than buf, and stays to be
// received.
func (c *Conn) RecvInto(ctx context.Context, buf []byte) (int, error) {
	return c.recv(ctx, func(m []byte) error {
		if len(m) > len(buf) {
			return io.ErrShortBuffer
		}
		copy(buf, m)
		return nil
	})
}

// recv gives the next message to take; with its error the message stays.
func (c *Conn) recv(ctx context.Context, take func([]byte) error) (int, error) {
	if err := c.enter(); err != nil {
		return 0, c.opError("recv", err)
	}
	defer c.leave()
	r := &c.recvs
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return 0, c.opError("recv", ctx.Err())
	}
	m, err := r.next(ctx)
	if err != nil {
		return 0, c.opError("recv", err)
	}
	if err := take(m); err != nil {
		return len(m), c.opError("recv", err)
	}
	return len(m), c.opError("recv", r.done())
}
