package rdma

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// slot is a place in the send queue.
type slot struct {
	index  uint64
	buf    []byte     // for messages
	waited bool       // somebody waits for done; else the slot is free when the work is done
	done   chan *slot // of capacity 1
	err    error      // how the work ended
}

// sendSide is what Send, RemoteWrite and RemoteRead share. Who waits for a slot or for
// the end of its work either holds lead, then it polls for all, or has whoever holds it
// bring what it waits for.
type sendSide struct {
	c     *Conn
	slots []slot
	free  chan *slot    // slots that nobody has
	lead  chan struct{} // of capacity 1, as a lock
	all   chan struct{} // of capacity 1, held by who collects all slots
	wcs   [16]verbs.WC  // of who leads
}

func (s *sendSide) init(c *Conn) {
	s.c, s.slots, s.free = c, make([]slot, c.depth), make(chan *slot, c.depth)
	s.lead, s.all = make(chan struct{}, 1), make(chan struct{}, 1)
	for i := range s.slots {
		s.slots[i] = slot{index: uint64(i), buf: c.buffer(c.depth + i), done: make(chan *slot, 1)}
		s.free <- &s.slots[i]
	}
}

// wait waits for a slot to come by a channel.
func (s *sendSide) wait(ctx context.Context, ready <-chan *slot) (*slot, error) {
	select {
	case x := <-ready:
		return x, nil
	default:
	}
	select {
	case x := <-ready:
		return x, nil
	case s.lead <- struct{}{}:
		defer func() { <-s.lead }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		n, err := s.poll()
		select {
		case x := <-ready:
			return x, nil
		default:
		}
		if err != nil {
			return nil, err
		}
		if n > 0 {
			continue
		}
		if err := s.c.id.SendCQ().Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// poll deals with completions that are there. The caller holds lead.
func (s *sendSide) poll() (int, error) {
	n, err := s.c.id.SendCQ().Poll(s.wcs[:])
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		if wc.WRID >= uint64(len(s.slots)) {
			continue // not ours
		}
		x := &s.slots[wc.WRID]
		if x.err = nil; wc.Status != ib.WCSuccess {
			x.err = failed(wc)
			if wc.Status != ib.WCWRFlushErr { // flushed work tells no reason
				s.c.fail(x.err)
			}
		}
		if x.waited {
			x.done <- x
		} else {
			s.free <- x
		}
	}
	return n, err
}

// settle takes in what has completed: after a receive was flushed, to find out why.
func (s *sendSide) settle() {
	s.lead <- struct{}{} // soon: all work of the queue pair is flushed
	s.poll()
	<-s.lead
}

// take gets a slot of a connection that works.
func (s *sendSide) take(ctx context.Context) (*slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	x, err := s.wait(ctx, s.free)
	if err == nil {
		if err = s.c.failure(syscall.EPIPE); err == nil {
			return x, nil
		}
		s.free <- x
	}
	if why := s.c.failure(syscall.EPIPE); why != nil {
		err = why
	}
	return nil, err
}

// drain waits until all that was sent has been acknowledged.
func (s *sendSide) drain(ctx context.Context) (err error) {
	select {
	case s.all <- struct{}{}: // two who collect would wait for each other
		defer func() { <-s.all }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var got []*slot
	for range s.slots {
		x, e := s.wait(ctx, s.free)
		if e != nil {
			err = e
			break
		}
		got = append(got, x)
	}
	for _, x := range got {
		if x.err != nil && err == nil {
			err = x.err
		}
		s.free <- x
	}
	if err != nil && ctx.Err() == nil {
		if why := s.c.why(syscall.EPIPE); why != nil {
			err = why
		}
	}
	return err
}

// Send sends p as a message, of which the empty one is one too. It has a copy of p when it
// returns, and waits only while all buffers are full of messages that the peer has not taken
// in; with ctx's error nothing was sent. Messages arrive in the order of the calls.
// That one could not be delivered shows in a later call. EMSGSIZE: p is longer than
// WithMaxMessage says, and nothing was sent; EPIPE: the peer has disconnected.
func (c *Conn) Send(ctx context.Context, p []byte) error {
	if err := c.enter(); err != nil {
		return c.opError("send", err)
	}
	defer c.leave()
	return c.opError("send", c.send(ctx, p))
}

func (c *Conn) send(ctx context.Context, p []byte) error {
	if len(p) > c.max {
		return fmt.Errorf("a message of %d bytes, at most %d are allowed: %w", len(p), c.max, syscall.EMSGSIZE)
	}
	x, err := c.sends.take(ctx)
	if err != nil {
		return err
	}
	x.waited, x.err = false, nil
	n := copy(x.buf, p)
	if err := c.id.PostSend(x.index, x.buf[:n], c.mr, ib.SendSignaled); err != nil {
		c.sends.free <- x
		return err
	}
	return nil
}

// Flush waits until everything that was sent has arrived at the peer: in its buffers if not
// in its program.
func (c *Conn) Flush(ctx context.Context) error {
	if err := c.enter(); err != nil {
		return c.opError("flush", err)
	}
	defer c.leave()
	return c.opError("flush", c.sends.drain(ctx))
}
