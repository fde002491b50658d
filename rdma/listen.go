package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// maxHandshakes is how many requests a listener answers at a time. What comes beyond is
// refused.
const maxHandshakes = 1024

// Listener waits for connections. Its methods may be called by several goroutines at
// once.
type Listener struct {
	h   *Host
	id  *rdmacm.ID
	ch  *rdmacm.EventChannel
	cfg connConfig

	life context.Context // done with Close
	end  context.CancelFunc
	busy sync.WaitGroup // calls of Accept under way

	mu      sync.Mutex
	closed  bool
	pending map[*Conn]struct{} // accepted, not confirmed or not fetched yet
}

// Listen waits for connections to host:port, where no host is every address of this
// machine, IPv4 and IPv6, and port 0 is one that is free. It makes a Host of its own, which
// the listener and its connections share; programs that dial as well make a Host. The context
// limits the call, not the listener.
//
// EADDRINUSE: the port is in use, by this process or another one of the host, or somebody who
// does not share it, see Open, has the address; EADDRNOTAVAIL: no device has it.
func Listen(ctx context.Context, addr string, opts ...ConnOption) (*Listener, error) {
	h, err := autoHost()
	if err != nil {
		return nil, netError("listen", Addr{}, Addr{}, err)
	}
	l, err := h.Listen(ctx, addr, opts...)
	if err != nil {
		return nil, also(err, h.Close())
	}
	return l, nil
}

// Listen is Listen of the package with this Host.
func (h *Host) Listen(ctx context.Context, addr string, opts ...ConnOption) (*Listener, error) {
	cfg, err := connOptions(opts, rdmacm.MaxPrivateAccept)
	if err != nil {
		return nil, netError("listen", Addr{}, Addr{}, err)
	}
	node, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, netError("listen", Addr{}, Addr{}, &badAddr{err})
	}
	if node == "" {
		node = "::" // takes in IPv4 too
	}
	ai, err := rdmacm.GetAddrInfo(ctx, node, service, &rdmacm.AddrInfo{Flags: rdmacm.RAIPassive})
	if err != nil {
		return nil, netError("listen", Addr{}, Addr{}, err)
	}
	l, err := h.listen(ctx, ai.Src, cfg)
	if err != nil {
		return nil, netError("listen", Addr{}, Addr{ai.Src}, err)
	}
	return l, nil
}

func (h *Host) listen(ctx context.Context, at netip.AddrPort, cfg connConfig) (l *Listener, err error) {
	if err := h.hold(); err != nil {
		return nil, err
	}
	l = &Listener{h: h, cfg: cfg, pending: make(map[*Conn]struct{})}
	defer func() {
		if err != nil {
			err = also(err, l.dismantle())
		}
	}()
	if _, err := h.m.Devices(ctx); err != nil { // which Bind opens without a context
		return l, err
	}
	if l.ch, err = h.m.NewEventChannel(); err != nil {
		return l, err
	}
	if l.id, err = h.m.NewID(l.ch, rdmacm.PSTCP, nil); err != nil {
		return l, err
	}
	if err := l.id.Bind(at); err != nil {
		return l, err
	}
	if err := l.id.Listen(0); err != nil {
		return l, err
	}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	return l, nil
}

// dismantle destroys what listen has made.
func (l *Listener) dismantle() (err error) {
	if l.id != nil {
		err = l.id.Destroy(context.Background())
	}
	if l.ch != nil {
		err = errors.Join(err, l.ch.Close())
	}
	return errors.Join(err, l.h.release())
}

// Addr is the address at which it listens, an Addr.
func (l *Listener) Addr() net.Addr { return l.at() }

func (l *Listener) at() Addr { return Addr{l.id.LocalAddr()} }

// ID is the listener's ID, for options.
func (l *Listener) ID() *rdmacm.ID { return l.id }

// Accept waits for the next connection. It is established when Accept returns it; one
// whose peer gives up meanwhile is passed over. Requests are answered only during
// Accept. It fails with ctx's error, or with net.ErrClosed after Close; ENODEV: the device has gone
// away.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	c, err := l.accept(ctx)
	if err != nil {
		return nil, netError("accept", Addr{}, l.at(), err)
	}
	return c, nil
}

func (l *Listener) accept(ctx context.Context) (*Conn, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, net.ErrClosed
	}
	l.busy.Add(1)
	l.mu.Unlock()
	defer l.busy.Done()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(net.ErrClosed) })()
	for {
		e, err := l.ch.Get(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		if c, err := l.event(e); c != nil || err != nil {
			return c, err
		}
	}
}

// event deals with an event, and returns the connection that it completes.
func (l *Listener) event(e *rdmacm.Event) (*Conn, error) {
	if e.Type == rdmacm.EventConnectRequest {
		l.request(e)
		return nil, nil
	}
	c, _ := e.ID.UserContext().(*Conn)
	typ := e.Type
	e.Ack()
	switch {
	case c == nil && typ == rdmacm.EventDeviceRemoval:
		return nil, fmt.Errorf("the device was removed: %w", syscall.ENODEV)
	case c == nil:
		return nil, nil
	}
	l.mu.Lock()
	_, ours := l.pending[c]
	delete(l.pending, c)
	l.mu.Unlock()
	if !ours {
		c.event(e) // another Accept has it, and has not moved it to the Host's channel yet
		return nil, nil
	}
	if typ == rdmacm.EventEstablished {
		if err := c.established(c.private); err == nil {
			return c, nil
		}
	}
	c.destroy() // the peer has given up, or the device is gone
	return nil, nil
}

// request answers a request.
func (l *Listener) request(e *rdmacm.Event) {
	id := e.ID
	private := slices.Clone(e.Conn.PrivateData)
	e.Ack()
	answer, ok := l.cfg.private, true
	l.mu.Lock()
	full := len(l.pending) >= maxHandshakes
	l.mu.Unlock()
	switch {
	case full:
		answer, ok = nil, false
	case l.cfg.admit != nil:
		answer, ok = l.cfg.admit(id.PeerAddr(), private)
	}
	var c *Conn
	if ok {
		var err error
		if c, err = newConn(l.h, id, &l.cfg); err != nil {
			answer, ok = nil, false
		}
	}
	if !ok {
		// The peer may have given up: then there is nothing to reject.
		_ = id.Reject(answer)
		id.Destroy(context.Background())
		return
	}
	l.h.share()
	c.private = private
	id.SetUserContext(c)
	l.mu.Lock()
	l.pending[c] = struct{}{}
	l.mu.Unlock()
	err := l.cfg.prepare(id)
	if err == nil {
		err = id.Accept(context.Background(), param(answer))
	}
	if err == nil {
		err = c.tune()
	}
	if err != nil {
		l.mu.Lock()
		delete(l.pending, c)
		l.mu.Unlock()
		c.destroy()
	}
}

// Close ends the listener. Requests and connections that nobody has accepted are ended too; those
// that were stay.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return netError("close", Addr{}, l.at(), net.ErrClosed)
	}
	l.closed = true
	l.mu.Unlock()
	l.end()
	l.busy.Wait()
	var err error
	for c := range l.pending {
		err = errors.Join(err, c.destroy())
	}
	clear(l.pending)
	return netError("close", Addr{}, l.at(), errors.Join(err, l.dismantle()))
}
