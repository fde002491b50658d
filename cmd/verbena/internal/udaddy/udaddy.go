// Package udaddy looks up datagram services and exchanges datagrams with them. The other
// side may be librdmacm's udaddy, whose options and output it has.
package udaddy

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
}

// Default is the configuration without options. The port is always the same.
func Default() Config {
	return Config{
		Addrs:       cmapp.Addrs{Format: cmapp.FormatName, Port: "7174", Space: rdmacm.PSUDP},
		Messages:    cmapp.Messages{Count: 10, Size: 100, Datagrams: true},
		Connections: 1,
	}
}

// Check checks what can be checked without a device.
func (c *Config) Check() error {
	if err := cmapp.CheckRanges(cmapp.Range{Option: "-c/--connections", Value: c.Connections, Least: 1}); err != nil {
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
		Test: cmapp.Test{Program: "udaddy", Out: out, Msgs: c.Messages, Space: c.Space},
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
	cfg *Config
}

func (t *test) server(ctx context.Context, addr netip.AddrPort) error {
	t.Printf("udaddy: starting server\n")
	if err := t.Listen(addr); err != nil {
		return err
	}
	if err := t.connecting(ctx); err != nil {
		return err
	}
	if t.Msgs.Count == 0 {
		return nil
	}
	return t.Exchange(ctx, t.Refuse, t.serve)
}

// serve answers the datagrams.
func (t *test) serve(ctx context.Context) error {
	t.Printf("receiving data transfers\n")
	if err := t.Each(func(n *cmapp.Node) error { return n.WaitRecvs(ctx, n.Reply) }); err != nil {
		return err
	}
	t.Printf("sending replies\n")
	if err := t.Each((*cmapp.Node).PostSends); err != nil {
		return err
	}
	if err := t.Each(func(n *cmapp.Node) error { return n.WaitSends(ctx) }); err != nil {
		return err
	}
	t.Printf("data transfers complete\n")
	return nil
}

func (t *test) client(ctx context.Context, src, dst netip.AddrPort) error {
	t.Printf("udaddy: starting client\n")
	if err := t.NewIDs(); err != nil {
		return err
	}
	t.Printf("udaddy: connecting\n")
	if err := t.Each(func(n *cmapp.Node) error {
		return n.ID.ResolveAddr(ctx, src, dst, cmapp.ResolveTimeout)
	}); err != nil {
		return err
	}
	if err := t.connecting(ctx); err != nil {
		return err
	}
	if t.Msgs.Count == 0 {
		return nil
	}
	t.Printf("initiating data transfers\n")
	if err := t.Each((*cmapp.Node).PostSends); err != nil {
		return err
	}
	t.Printf("receiving data transfers\n")
	if err := t.Each(func(n *cmapp.Node) error { return n.WaitRecvs(ctx, nil) }); err != nil {
		return err
	}
	t.Printf("data transfers complete\n")
	return nil
}

// connecting handles events until both sides know of all paths.
func (t *test) connecting(ctx context.Context) error {
	return t.Connecting(ctx, func(n *cmapp.Node, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			if t.cfg.TOS != nil {
				if err := n.ID.SetTOS(*t.cfg.TOS); err != nil {
					return err
				}
			}
			return n.ID.ResolveRoute(ctx, cmapp.ResolveTimeout)
		case rdmacm.EventRouteResolved:
			if err := t.prepare(n); err != nil {
				return err
			}
			return n.ID.Connect(ctx, &rdmacm.ConnParam{})
		case rdmacm.EventConnectRequest:
			return t.Accept(ev.ID, func(n *cmapp.Node) error { return t.accept(ctx, n) })
		case rdmacm.EventEstablished:
			if err := n.Reach(&ev.UD); err != nil {
				return err
			}
			n.Connected = true
			t.Left--
		}
		return nil
	})
}

func (t *test) prepare(n *cmapp.Node) error {
	if err := n.CheckMTU("udaddy", &t.Msgs); err != nil {
		return err
	}
	return t.Prepare(n)
}

// accept accepts a lookup. No event follows: where to answer the first datagram tells.
func (t *test) accept(ctx context.Context, n *cmapp.Node) error {
	if err := t.prepare(n); err != nil {
		return err
	}
	if err := n.ID.Accept(ctx, &rdmacm.ConnParam{QPNum: n.ID.QP().Num()}); err != nil {
		return err
	}
	n.Connected = true
	t.Left--
	return nil
}
