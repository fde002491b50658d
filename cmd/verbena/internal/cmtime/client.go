package cmtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// client makes all connections, each step with all of them before the next.
type client struct {
	cfg      *Config
	out      io.Writer
	app      *cmapp.App
	ch       *rdmacm.EventChannel
	src, dst netip.AddrPort

	nodes []*node
	all   times

	mu    sync.Mutex // of what events change: all below, and the nodes
	each  []times
	left  int           // nodes that the step waits for; below 0 while it still begins
	ready chan struct{} // holds a token when left has changed
	fails int
	first error // of the first that failed
}

// node is one connection.
type node struct {
	id      *rdmacm.ID
	times   *times
	failed  bool
	retries int
	gone    bool // its end came already
}

func (c *client) run(ctx context.Context) error {
	c.nodes, c.each = make([]*node, c.cfg.Connections), make([]times, c.cfg.Connections)
	for i := range c.nodes {
		c.nodes[i] = &node{times: &c.each[i]}
	}
	c.ready = make(chan struct{}, 1)
	// Events are handled when they come, so that each connection has its own time.
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.watch(watching)
	}()
	err := c.steps(ctx)
	c.destroy(ctx)
	stop()
	<-done
	if err != nil {
		return err
	}
	if err := table(c.out, &c.all, c.each, func(s step) bool { return s == bindAddr && c.cfg.Bind == "" }); err != nil {
		return err
	}
	if c.fails > 0 {
		return fmt.Errorf("%d of %d connections failed; the first: %w", c.fails, len(c.nodes), c.first)
	}
	return c.first
}

func (c *client) watch(ctx context.Context) {
	for {
		ev, err := c.ch.Get(ctx)
		if err != nil {
			return
		}
		c.mu.Lock()
		c.event(ctx, ev)
		c.mu.Unlock()
		_ = ev.Ack()
		select {
		case c.ready <- struct{}{}:
		default:
		}
	}
}

func (c *client) steps(ctx context.Context) error {
	timeout := c.cfg.resolveTimeout()
	param := &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: uint8(c.cfg.Retries)}
	list := []struct {
		what string
		step step
		do   func(*node) error
		// wait: its end is an event.
		wait bool
		skip bool
	}{
		{"creating id", createID, func(n *node) (err error) {
			n.id, err = c.app.NewID(c.ch, rdmacm.PSTCP, n)
			return err
		}, false, false},
		{"binding source address", bindAddr, func(n *node) error { return n.id.Bind(c.src) }, false, c.cfg.Bind == ""},
		{"resolving address", resolveAddr, func(n *node) error {
			n.retries = c.cfg.Retries
			return n.id.ResolveAddr(ctx, netip.AddrPort{}, c.dst, timeout)
		}, true, false},
		{"resolving route", resolveRoute, func(n *node) error {
			n.retries = c.cfg.Retries
			return n.id.ResolveRoute(ctx, timeout)
		}, true, false},
		{"creating qp", createQP, func(n *node) error { return newQP(n.id) }, false, false},
		{"connecting", connect, func(n *node) error { return n.id.Connect(ctx, param) }, true, false},
		{"disconnecting", disconnect, func(n *node) error {
			if err := n.id.Disconnect(ctx); err != nil {
				return err
			}
			return n.id.DestroyQP(ctx)
		}, true, false},
	}
	for _, s := range list {
		if s.skip {
			continue
		}
		if _, err := fmt.Fprintf(c.out, "%s\n", s.what); err != nil {
			return err
		}
		if err := c.do(ctx, s.step, s.do, s.wait); err != nil {
			return err
		}
	}
	return nil
}

// do takes one step with all connections, and waits for the events of those that began.
func (c *client) do(ctx context.Context, s step, f func(*node) error, wait bool) error {
	c.all[s].begin = time.Now()
	for _, n := range c.nodes {
		if !c.begin(n, s) {
			continue
		}
		err := f(n)
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.begun(n, s, err, wait)
	}
	for {
		c.mu.Lock()
		left := c.left
		c.mu.Unlock()
		if left == 0 {
			break
		}
		select {
		case <-c.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.all[s].end = time.Now()
	return nil
}

// begin begins a step; false if there is nothing to do.
func (c *client) begin(n *node, s step) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.failed {
		return false
	}
	n.times[s].begin = time.Now()
	return true
}

// begun notes what came of it.
func (c *client) begun(n *node, s step, err error, wait bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && n.failed:
	case err != nil:
		c.fail(n, err)
	case !wait || s == disconnect && n.gone:
		n.times[s].end = time.Now()
	default:
		c.left++
	}
}

// event handles an event. The caller holds mu.
func (c *client) event(ctx context.Context, ev *rdmacm.Event) {
	n, ok := ev.ID.UserContext().(*node)
	if !ok {
		return
	}
	var s step
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		s = resolveAddr
	case rdmacm.EventRouteResolved:
		s = resolveRoute
	case rdmacm.EventEstablished:
		s = connect
	case rdmacm.EventDisconnected:
		if s = disconnect; n.times[s].begin.IsZero() {
			n.gone = true // the server was first
			return
		}
	case rdmacm.EventAddrError, rdmacm.EventRouteError:
		if n.retries > 0 {
			n.retries--
			if c.again(ctx, n, ev.Type) == nil {
				return
			}
		}
		fmt.Fprintf(c.out, "%v, error: %d\n", ev.Type, ev.Status)
		c.failed(n, ev)
		return
	case rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		fmt.Fprintf(c.out, "event: %v, error: %d\n", ev.Type, ev.Status)
		c.failed(n, ev)
		return
	default:
		return
	}
	n.times[s].end = time.Now()
	c.left--
}

// again repeats a resolution.
func (c *client) again(ctx context.Context, n *node, t rdmacm.EventType) error {
	if t == rdmacm.EventAddrError {
		return n.id.ResolveAddr(ctx, netip.AddrPort{}, c.dst, c.cfg.resolveTimeout())
	}
	return n.id.ResolveRoute(ctx, c.cfg.resolveTimeout())
}

func (c *client) failed(n *node, ev *rdmacm.Event) {
	c.fail(n, cmapp.Failure(ev))
	c.left--
}

func (c *client) fail(n *node, err error) {
	n.failed = true
	c.fails++
	if c.first == nil {
		c.first = err
	}
}

// destroy is the last step.
func (c *client) destroy(ctx context.Context) {
	ctx, cancel := cmapp.Cleanup(ctx)
	defer cancel()
	fmt.Fprintf(c.out, "destroying id\n")
	c.all[destroy].begin = time.Now()
	var errs []error
	for _, n := range c.nodes {
		if n.id == nil {
			continue
		}
		errs = append(errs, n.id.DestroyQP(ctx)) // where a step has failed
		n.times[destroy].begin = time.Now()
		errs = append(errs, n.id.Destroy(ctx))
		n.times[destroy].end = time.Now()
	}
	c.all[destroy].end = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == nil {
		c.first = errors.Join(errs...)
	}
}
