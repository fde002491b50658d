// Package mckey joins a multicast group and sends datagrams to it or receives them. The
// other side may be librdmacm's mckey, whose options and output it has.
package mckey

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// pause is how long the sender lets switches learn who is in the group.
const pause = 3 * time.Second

// Config is what the command line says.
type Config struct {
	cmapp.Messages
	Group       string // IP address of the group
	GID         string // in place of it: the group's GID
	Sender      bool
	Bind        string // own address; "": as the routing table says
	Connections int    // members of the group
	Space       rdmacm.PortSpace
	SendOnly    bool // receive nothing
}

// Default is the configuration without options.
func Default() Config {
	return Config{
		Messages:    cmapp.Messages{Count: 10, Size: 100, Datagrams: true, Patient: true},
		Connections: 1, Space: rdmacm.PSUDP,
	}
}

// Check checks what can be checked without a device.
func (c *Config) Check() error {
	switch {
	case (c.Group == "") == (c.GID == ""):
		return cli.Usagef("give the group to join: -m with its IP address, or -M with its GID")
	case c.GID != "" && c.Bind == "":
		return cli.Usagef("-M/--unmapped needs -b: a GID does not tell which way it is reached")
	case c.SendOnly && !c.Sender && c.Count > 0:
		return cli.Usagef("-o/--send-only receives nothing: give -s too")
	}
	if err := cmapp.CheckRanges(cmapp.Range{Option: "-c/--connections", Value: c.Connections, Least: 1}); err != nil {
		return err
	}
	return c.Messages.Check()
}

// addrs looks the addresses up.
func (c *Config) addrs(ctx context.Context) (own, group netip.Addr, err error) {
	if c.Bind != "" {
		if own, err = cmapp.Lookup(ctx, "-b/--bind", c.Bind); err != nil {
			return own, group, err
		}
	}
	if c.GID == "" {
		if group, err = cmapp.Lookup(ctx, "-m/--group", c.Group); err != nil {
			return own, group, err
		}
		if !group.IsMulticast() {
			return own, group, cli.Usagef("-m/--group %s: not a multicast address; on RoCE nobody assigns one", c.Group)
		}
		return own, group, nil
	}
	group, err = netip.ParseAddr(c.GID)
	if err != nil || !group.Is6() || !group.Unmap().IsMulticast() {
		return own, group, cli.Usagef("-M/--unmapped %s: not the GID of a group; that of 239.1.2.3 is ::ffff:239.1.2.3", c.GID)
	}
	return own, group.Unmap(), nil
}

// Run joins, sends or receives, and prints to out. ctx ends it.
func Run(ctx context.Context, out io.Writer, c Config) error {
	if err := c.Check(); err != nil {
		return err
	}
	own, group, err := c.addrs(ctx)
	if err != nil {
		return err
	}
	t := test{
		Test: cmapp.Test{Program: "mckey", Out: out, Msgs: c.Messages, Space: c.Space},
		cfg:  &c, own: own, group: group,
	}
	if err := t.Open(ctx, own, c.Connections); err != nil {
		return err
	}
	return t.Close(ctx, t.run(ctx))
}

// test is one run.
type test struct {
	cmapp.Test
	cfg        *Config
	own, group netip.Addr
}

func (t *test) run(ctx context.Context) error {
	side := "server"
	if t.cfg.Sender {
		side = "client"
	}
	t.Printf("mckey: starting %s\n", side)
	if err := t.NewIDs(); err != nil {
		return err
	}
	t.Printf("mckey: joining\n")
	if err := t.Each(func(n *cmapp.Node) error { return t.begin(ctx, n) }); err != nil {
		return err
	}
	if err := t.Connecting(ctx, func(n *cmapp.Node, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			return t.join(ctx, n)
		case rdmacm.EventMulticastJoin:
			return t.joined(n, ev)
		}
		return nil
	}); err != nil {
		return err
	}
	err := t.Exchange(ctx, func(*cmapp.Node, *rdmacm.Event) error { return nil }, t.exchange)
	free, cancel := cmapp.Cleanup(ctx)
	defer cancel()
	if e := t.Each(func(n *cmapp.Node) error { return n.ID.LeaveMulticast(free, t.group) }); err == nil {
		err = e
	}
	return err
}

// begin binds the ID to a device. A GID has no way that could be looked up.
func (t *test) begin(ctx context.Context, n *cmapp.Node) error {
	if t.own.IsValid() {
		if err := n.ID.Bind(netip.AddrPortFrom(t.own, 0)); err != nil {
			return err
		}
	}
	if t.cfg.GID != "" {
		return t.join(ctx, n)
	}
	return n.ID.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(t.group, 0), cmapp.ResolveTimeout)
}

func (t *test) join(ctx context.Context, n *cmapp.Node) error {
	if err := n.CheckMTU("mckey", &t.Msgs); err != nil {
		return err
	}
	if err := n.Setup(t.Msgs); err != nil {
		return err
	}
	if !t.cfg.Sender {
		if err := n.PostRecvs(); err != nil {
			return err
		}
	}
	flags := rdmacm.JoinFullMember
	if t.cfg.SendOnly {
		flags = rdmacm.JoinSendOnlyFullMember
	}
	return n.ID.JoinMulticastEx(ctx, t.group, flags, n)
}

func (t *test) joined(n *cmapp.Node, ev *rdmacm.Event) error {
	a := &ev.UD.AHAttr
	t.Printf("mckey: joined dgid: %s mlid 0x%x sl %d\n", netip.AddrFrom16(a.DGID), a.DLID, a.SL)
	if err := n.Reach(&ev.UD); err != nil {
		return err
	}
	n.Connected = true
	t.Left--
	return nil
}

func (t *test) exchange(ctx context.Context) error {
	if t.Msgs.Count == 0 {
		return nil
	}
	if t.cfg.Sender {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		t.Printf("initiating data transfers\n")
		if err := t.Each((*cmapp.Node).PostSends); err != nil {
			return err
		}
		// They have left when they are complete.
		if err := t.Each(func(n *cmapp.Node) error { return n.WaitSends(ctx) }); err != nil {
			return err
		}
	} else {
		t.Printf("receiving data transfers\n")
		if err := t.Each(func(n *cmapp.Node) error { return n.WaitRecvs(ctx, nil) }); err != nil {
			return fmt.Errorf("group %s: %w", t.group, err)
		}
	}
	t.Printf("data transfers complete\n")
	return nil
}
