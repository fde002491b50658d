package cmapp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// Test is one run of a program with a number of connections, which all go through the
// same steps together.
type Test struct {
	Program string // begins lines of the output
	Out     io.Writer
	Msgs    Messages
	Space   rdmacm.PortSpace
	Nodes   []*Node
	Ch      *rdmacm.EventChannel
	Left    int // connections that are still to be made

	mu       sync.Mutex // for writing
	app      *App
	listener *rdmacm.ID
	accepted int
	refused  []*rdmacm.ID
}

// Open opens the devices, for an own address if one is chosen, and makes the nodes.
func (t *Test) Open(ctx context.Context, own netip.Addr, connections int) (err error) {
	t.Left = connections
	t.Nodes = make([]*Node, connections)
	for i := range t.Nodes {
		t.Nodes[i] = &Node{}
	}
	if t.app, err = Open(ctx, own); err != nil {
		return Explain(err, "-b")
	}
	if t.Ch, err = t.app.NewEventChannel(); err != nil {
		return errors.Join(err, t.app.Close())
	}
	return nil
}

// Close tells how the run ended, gives everything back and returns the error that it ended
// with.
func (t *Test) Close(ctx context.Context, err error) error {
	t.Printf("test complete\n")
	ctx, cancel := Cleanup(ctx)
	defer cancel()
	errs := []error{err}
	for _, n := range t.Nodes {
		errs = append(errs, n.Destroy(ctx))
	}
	for _, id := range t.refused {
		errs = append(errs, id.Destroy(ctx))
	}
	if t.listener != nil {
		errs = append(errs, t.listener.Destroy(ctx))
	}
	errs = append(errs, t.Ch.Close(), t.app.Close())
	if err == nil {
		err = errors.Join(errs...)
	} // else what cannot be given back is a consequence
	t.Printf("return status %d\n", Status(err))
	return Explain(err, "-b")
}

// Printf writes to the output.
func (t *Test) Printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.Out, format, args...)
}

// Each calls f with all nodes, until an error.
func (t *Test) Each(f func(*Node) error) error {
	for _, n := range t.Nodes {
		if err := f(n); err != nil {
			return err
		}
	}
	return nil
}

// NewIDs makes the IDs of the active side.
func (t *Test) NewIDs() error {
	return t.Each(func(n *Node) (err error) {
		n.ID, err = t.app.NewID(t.Ch, t.Space, n)
		return err
	})
}

// Listen begins to take requests.
func (t *Test) Listen(addr netip.AddrPort) (err error) {
	if t.listener, err = t.app.NewID(t.Ch, t.Space, nil); err != nil {
		return err
	}
	if err := t.listener.Bind(addr); err != nil {
		return err
	}
	return t.listener.Listen(0)
}

// Prepare makes what a node needs, with receives for all messages.
func (t *Test) Prepare(n *Node) error {
	if err := n.Setup(t.Msgs); err != nil {
		return err
	}
	return n.PostRecvs()
}

// Accept gives a request to the next node, which accept shall accept. There is a node for
// each connection that the options ask for; more are refused.
func (t *Test) Accept(id *rdmacm.ID, accept func(*Node) error) error {
	if t.accepted == len(t.Nodes) {
		t.refused = append(t.refused, id)
		return t.reject(id)
	}
	n := t.Nodes[t.accepted]
	t.accepted++
	n.ID = id
	id.SetUserContext(n)
	err := accept(n)
	if err != nil {
		t.reject(id)
	}
	return err
}

func (t *Test) reject(id *rdmacm.ID) error {
	t.Printf("%s: failing connection request\n", t.Program)
	_ = id.Reject(nil) // fails if the peer has given up
	return nil
}

// Connecting handles events until no connection is left to be made.
func (t *Test) Connecting(ctx context.Context, handle func(*Node, *rdmacm.Event) error) error {
	return t.While(ctx, &t.Left, handle)
}

// While handles events as long as *left is not 0. Those that tell of a failure end it.
func (t *Test) While(ctx context.Context, left *int, handle func(*Node, *rdmacm.Event) error) error {
	return While(ctx, t.Ch, left, func(ev *rdmacm.Event) error { return t.event(ev, handle) })
}

func (t *Test) event(ev *rdmacm.Event, handle func(*Node, *rdmacm.Event) error) error {
	if Failed(ev.Type) {
		t.Printf("%s: event: %v, error: %d\n", t.Program, ev.Type, ev.Status)
		return Failure(ev)
	}
	n, _ := ev.ID.UserContext().(*Node)
	return handle(n, ev)
}

// Exchange calls f, and handles the events that come meanwhile; f's context ends when that
// fails.
func (t *Test) Exchange(ctx context.Context, handle func(*Node, *rdmacm.Event) error, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			ev, err := t.Ch.Get(ctx)
			if err != nil {
				return
			}
			err = t.event(ev, handle)
			_ = ev.Ack()
			if err != nil {
				cancel(err)
				return
			}
		}
	}()
	err := f(ctx)
	cancel(nil)
	<-done
	return err
}

// Refuse is what to do with events where only requests come, and are too late.
func (t *Test) Refuse(_ *Node, ev *rdmacm.Event) error {
	if ev.Type == rdmacm.EventConnectRequest {
		return t.Accept(ev.ID, nil)
	}
	return nil
}

// Migrate moves all IDs to a new event channel.
func (t *Test) Migrate(ctx context.Context) error {
	t.Printf("migrating to new event channel\n")
	old := t.Ch
	ch, err := t.app.NewEventChannel()
	if err != nil {
		return err
	}
	ids := t.refused
	if t.listener != nil {
		ids = append(ids, t.listener)
	}
	for _, n := range t.Nodes {
		ids = append(ids, n.ID)
	}
	for _, id := range ids {
		if err := id.Migrate(ctx, ch); err != nil {
			return errors.Join(err, ch.Close())
		}
	}
	t.Ch = ch
	return old.Close()
}
