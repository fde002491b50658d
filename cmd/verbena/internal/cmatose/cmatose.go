// Package cmatose makes connections, exchanges messages over them and ends them. The
// other side may be librdmacm's ucmatose, whose options and output it has.
package cmatose

import (
	"context"
	"io"
	"net/netip"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// Config is what the command line says.
type Config struct {
	cmapp.Addrs
	cmapp.Messages
	Connections int
	TOS         *uint8 // nil: not set
	ACKTimeout  *uint8 // nil: not set
	Migrate     bool   // move the IDs to another event channel before they disconnect
}

// Default is the configuration without options.
func Default() Config {
	return Config{
		Addrs:       cmapp.Addrs{Format: cmapp.FormatName, Port: "7471", Space: rdmacm.PSTCP},
		Messages:    cmapp.Messages{Count: 10, Size: 100},
		Connections: 1,
	}
}

// Check checks what can be checked without a device.
func (c *Config) Check() error {
	if err := cmapp.CheckService("-p/--port", c.Port); err != nil {
		return err
	}
	ranges := []cmapp.Range{{Option: "-c/--connections", Value: c.Connections, Least: 1}}
	if c.ACKTimeout != nil {
		ranges = append(ranges, cmapp.Range{Option: "-a/--ack-timeout", Value: int(*c.ACKTimeout), Beyond: 32})
	}
	if err := cmapp.CheckRanges(ranges...); err != nil {
		return err
	}
	if err := c.Messages.Check(); err != nil {
		return err
	}
	return c.Format.Check()
}

// Run runs one side and prints to out. ctx ends it.
func Run(ctx context.Context, out io.Writer, c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	src, dst, err := c.Resolve(ctx)
	if err != nil {
		return err
	}
	t := test{
		Test: cmapp.Test{Program: "cmatose", Out: out, Msgs: c.Messages, Space: c.Space},
		cfg:  &c,
	}
	if err := t.Open(ctx, src.Addr(), c.Connections); err != nil {
		return err
	}
	if c.Server != "" {
		err = t.client(ctx, src, dst)
	} else {
		err = t.server(ctx, src)
	}
	return t.Close(ctx, err)
}

// test is one run.
type test struct {
	cmapp.Test
	cfg          *Config
	toDisconnect int // connections that are to end
}

func (t *test) server(ctx context.Context, addr netip.AddrPort) error {
	t.Printf("cmatose: starting server\n")
	if err := t.Listen(addr); err != nil {
		return err
	}
	if err := t.connecting(ctx); err != nil {
		return err
	}
	if t.Msgs.Count > 0 {
		if err := t.Exchange(ctx, t.early, t.serve); err != nil {
			return err
		}
	}
	if t.cfg.Migrate {
		if err := t.Migrate(ctx); err != nil {
			return err
		}
	}
	t.Printf("cmatose: disconnecting\n")
	if err := t.Each(func(n *cmapp.Node) error { return n.ID.Disconnect(ctx) }); err != nil {
		return err
	}
	err := t.disconnecting(ctx)
	t.Printf("disconnected\n")
	return err
}

// serve exchanges the messages: the server's go first.
func (t *test) serve(ctx context.Context) error {
	t.Printf("initiating data transfers\n")
	if err := t.Each((*cmapp.Node).PostSends); err != nil {
		return err
	}
	t.Printf("completing sends\n")
	if err := t.Each(func(n *cmapp.Node) error { return n.WaitSends(ctx) }); err != nil {
		return err
	}
	t.Printf("receiving data transfers\n")
	if err := t.Each(func(n *cmapp.Node) error { return n.WaitRecvs(ctx, nil) }); err != nil {
		return err
	}
	t.Printf("data transfers complete\n")
	return nil
}

func (t *test) client(ctx context.Context, src, dst netip.AddrPort) error {
	t.Printf("cmatose: starting client\n")
	if err := t.NewIDs(); err != nil {
		return err
	}
	t.Printf("cmatose: connecting\n")
	if err := t.Each(func(n *cmapp.Node) error {
		return n.ID.ResolveAddr(ctx, src, dst, cmapp.ResolveTimeout)
	}); err != nil {
		return err
	}
	if err := t.connecting(ctx); err != nil {
		return err
	}
	if t.Msgs.Count > 0 {
		if err := t.Exchange(ctx, t.early, t.reply); err != nil {
			return err
		}
	}
	if t.cfg.Migrate {
		if err := t.Migrate(ctx); err != nil {
			return err
		}
	}
	return t.disconnecting(ctx)
}

// reply exchanges the messages on the client.
func (t *test) reply(ctx context.Context) error {
	t.Printf("receiving data transfers\n")
	if err := t.Each(func(n *cmapp.Node) error { return n.WaitRecvs(ctx, nil) }); err != nil {
		return err
	}
	t.Printf("sending replies\n")
	if err := t.Each((*cmapp.Node).PostSends); err != nil {
		return err
	}
	t.Printf("data transfers complete\n")
	return nil
}

// early handles events while messages are exchanged.
func (t *test) early(_ *cmapp.Node, ev *rdmacm.Event) error {
	if ev.Type != rdmacm.EventDisconnected {
		return t.Refuse(nil, ev)
	}
	if err := t.disconnected(ev.ID); err != nil {
		return err
	}
	return cmapp.ErrEnded // nothing, if all messages are there
}

// connecting handles events until all connections are made.
func (t *test) connecting(ctx context.Context) error {
	return t.Connecting(ctx, func(n *cmapp.Node, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			return t.resolved(ctx, n)
		case rdmacm.EventRouteResolved:
			return t.connect(ctx, n)
		case rdmacm.EventConnectRequest:
			return t.Accept(ev.ID, func(n *cmapp.Node) error { return t.accept(ctx, n) })
		case rdmacm.EventEstablished:
			n.Connected = true
			t.Left--
			t.toDisconnect++
		case rdmacm.EventDisconnected:
			return t.disconnected(ev.ID)
		}
		return nil
	})
}

// disconnecting handles events until all connections have ended.
func (t *test) disconnecting(ctx context.Context) error {
	return t.While(ctx, &t.toDisconnect, func(_ *cmapp.Node, ev *rdmacm.Event) error {
		if ev.Type == rdmacm.EventDisconnected {
			return t.disconnected(ev.ID)
		}
		return t.Refuse(nil, ev)
	})
}

// disconnected answers the peer, or does nothing if this side has begun.
func (t *test) disconnected(id *rdmacm.ID) error {
	t.toDisconnect--
	ctx, cancel := cmapp.Cleanup(context.Background()) // nothing waits
	defer cancel()
	return id.Disconnect(ctx)
}

func (t *test) resolved(ctx context.Context, n *cmapp.Node) error {
	if t.cfg.TOS != nil {
		if err := n.ID.SetTOS(*t.cfg.TOS); err != nil {
			return err
		}
	}
	if err := t.setTimeout(n); err != nil {
		return err
	}
	return n.ID.ResolveRoute(ctx, cmapp.ResolveTimeout)
}

func (t *test) setTimeout(n *cmapp.Node) error {
	if t.cfg.ACKTimeout == nil {
		return nil
	}
	return n.ID.SetAckTimeout(*t.cfg.ACKTimeout)
}

func (t *test) connect(ctx context.Context, n *cmapp.Node) error {
	if err := t.Prepare(n); err != nil {
		return err
	}
	return n.ID.Connect(ctx, &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5})
}

func (t *test) accept(ctx context.Context, n *cmapp.Node) error {
	if err := t.setTimeout(n); err != nil {
		return err
	}
	if err := t.Prepare(n); err != nil {
		return err
	}
	return n.ID.Accept(ctx, nil)
}
