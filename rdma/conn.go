package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// closeWait is how long Close waits for the peer to have all that was sent.
const closeWait = 5 * time.Second

// Conn is a reliable connection that keeps the bounds of messages, with access to memory
// of the peer. Its methods may be called by several goroutines at once.
//
// Messages are plain SENDs, so that the peer may be any RDMA program. The connection
// owns the buffers and has the receives posted that arriving messages need; there are
// no credits: a sender that is ahead of the receiver's buffers is told to wait and tries
// again for as long as it takes (RNR retry count 7), after 0.32 ms.
//
// There is no goroutine on the way of data: whoever waits makes the device's progress.
//
// Errors are *net.OpError, except io.EOF. Those of a connection that has failed match
// ETIMEDOUT (the peer does not answer), EMSGSIZE (a message longer than the
// receiver's buffers), EACCES (no right to the remote memory) or ECONNRESET, and hold a
// *verbs.WCError where a completion told.
//
// A peer whose process is killed has closed the connection, as with TCP: on Linux another
// process at its address tells, at once, and Recv gets io.EOF. So a program that must know
// that it has got everything has its peer say so in a message. If nobody is left to tell, as
// when the host has died, it is noticed when something is sent to it.
type Conn struct {
	h       *Host
	id      *rdmacm.ID
	pd      *verbs.PD
	mr      *verbs.MR // all buffers: receives, then sends
	max     int
	depth   int
	private []byte
	local   Addr
	remote  Addr

	sends sendSide
	recvs recvSide

	down chan struct{} // closed when the connection is over, by whichever side

	mu      sync.Mutex
	cause   error // why it has failed
	over    bool  // down is closed
	closing bool
	ops     int           // calls under way
	idle    chan struct{} // closed when ops becomes 0; nil if nobody waits
	regions map[*verbs.MR]struct{}
}

// newConn makes the connection's queue pair, domain and buffers and posts its receives. On an error
// the ID is left as it was.
func newConn(h *Host, id *rdmacm.ID, cfg *connConfig) (c *Conn, err error) {
	c = &Conn{
		h: h, id: id, max: cfg.max, depth: cfg.depth, down: make(chan struct{}), regions: make(map[*verbs.MR]struct{}),
	}
	made := c
	defer func() {
		if err != nil {
			made.dismantle()
		}
	}()
	// A domain of its own: keys that one peer was given are worth nothing to another one.
	if c.pd, err = id.Verbs().AllocPD(); err != nil {
		return nil, err
	}
	if err = id.CreateQP(c.pd, &verbs.QPInitAttr{Cap: ib.QPCap{
		MaxSendWR: uint32(c.depth), MaxRecvWR: uint32(c.depth), MaxSendSGE: 1, MaxRecvSGE: 1,
	}}); err != nil {
		return nil, err
	}
	if c.mr, err = c.pd.RegMR(make([]byte, 2*c.depth*c.max), ib.AccessLocalWrite); err != nil {
		return nil, err
	}
	c.sends.init(c)
	if err = c.recvs.init(c); err != nil {
		return nil, err
	}
	return c, nil
}

// buffer is the nth buffer: receives come first.
func (c *Conn) buffer(n int) []byte { return c.mr.Bytes()[n*c.max : (n+1)*c.max : (n+1)*c.max] }

// dismantle destroys what newConn has made.
func (c *Conn) dismantle() error {
	err := c.id.DestroyQP(context.Background())
	c.mu.Lock()
	regions := c.regions
	c.regions = nil
	c.mu.Unlock()
	for mr := range regions {
		err = errors.Join(err, mr.Dereg())
	}
	if c.mr != nil {
		err = errors.Join(err, c.mr.Dereg())
	}
	if c.pd != nil {
		err = errors.Join(err, c.pd.Dealloc())
	}
	return err
}

// tune sets what rdma_cm has no parameter for. Until it is done the first messages have
// receives enough.
func (c *Conn) tune() error {
	return c.id.QP().Modify(&ib.QPAttr{QPState: ib.QPStateRTS, MinRNRTimer: ib.RNRTimerCode(rnrTimer)}, ib.QPAttrState|ib.QPAttrMinRNRTimer)
}

// established completes a connection that the connection manager has made.
func (c *Conn) established(private []byte) error {
	ch, err := c.h.channel()
	if err != nil {
		return err
	}
	c.private = private
	c.local, c.remote = Addr{c.id.LocalAddr()}, Addr{c.id.PeerAddr()}
	c.id.SetUserContext(c)
	return c.id.Migrate(context.Background(), ch)
}

// event is called with what happens to the connection, by the Host's goroutine.
func (c *Conn) event(e *rdmacm.Event) {
	switch e.Type {
	case rdmacm.EventDisconnected:
		c.end()
		// The queue pair goes to ERR: after what has arrived, which completes before, receives
		// complete as flushed, and who waits for them wakes up.
		c.id.Disconnect(context.Background())
	case rdmacm.EventRejected, rdmacm.EventUnreachable: // the peer knows of no such connection, or did not answer
		c.fail(syscall.ECONNRESET)
		c.end()
	case rdmacm.EventDeviceRemoval:
		c.fail(fmt.Errorf("the device was removed: %w", syscall.ENODEV))
		c.end()
	}
}

// end notes that the connection is over.
func (c *Conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.over = true
		close(c.down)
	}
}

// fail notes why the connection has failed; the first reason counts.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil && !c.over {
		c.cause = err
	}
}

// failure is the error of calls on a connection that is of no use any more; over is that of
// one that the peer has ended. nil: it works.
func (c *Conn) failure(over error) error {
	c.mu.Lock()
	closing := c.closing
	c.mu.Unlock()
	if closing {
		return net.ErrClosed
	}
	return c.why(over)
}

// why is failure without regard to our own Close.
func (c *Conn) why(over error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cause != nil:
		return c.cause
	case c.over:
		return over
	}
	return nil
}

// enter begins a call.
func (c *Conn) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return net.ErrClosed
	}
	c.ops++
	return nil
}

func (c *Conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ops--; c.ops == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// opError makes the error of a call.
func (c *Conn) opError(op string, err error) error { return netError(op, c.local, c.remote, err) }

// LocalAddr is the own address, an Addr.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address, an Addr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// PrivateData is what the peer's request or answer carried, filled up with zeros to 56 or 196
// bytes.
func (c *Conn) PrivateData() []byte { return c.private }

// ID is the connection's ID, for all that Conn has no method for: attributes of the queue
// pair, routes, regions. The connection polls its completion queues: work that the
// application posts there itself completes unseen.
func (c *Conn) ID() *rdmacm.ID { return c.id }

// Close is CloseContext with 5 seconds.
func (c *Conn) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	return c.CloseContext(ctx)
}

// CloseContext waits until the peer has all that was sent, in its buffers if not in its
// program, then ends the connection, and gives back its memory and what was registered
// with it. Calls that wait end with net.ErrClosed. It fails with the reason if
// messages may be lost: the connection has failed, the peer has disconnected or ctx is
// done; the connection is closed all the same. Again it fails with net.ErrClosed.
func (c *Conn) CloseContext(ctx context.Context) error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closing = true
	c.mu.Unlock()
	lost := c.sends.drain(ctx)
	c.id.Disconnect(context.Background()) // does nothing where the peer was first
	if !errors.Is(lost, syscall.ETIMEDOUT) {
		select {
		case <-c.down:
		case <-ctx.Done(): // the peer does not answer
		}
	}
	return c.opError("close", also(lost, c.destroy()))
}

// destroy ends a connection whose queue pair is in ERR or unused.
func (c *Conn) destroy() error {
	c.mu.Lock()
	c.closing = true
	var idle chan struct{}
	if c.ops > 0 {
		idle = make(chan struct{})
		c.idle = idle
	}
	c.mu.Unlock()
	if idle != nil {
		<-idle // soon: everything is flushed
	}
	// First the ID, so that no event comes any more.
	err := c.dismantle()
	return errors.Join(err, c.id.Destroy(context.Background()), c.h.release())
}
