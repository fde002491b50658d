package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/demo"
)

// demoPeerName is the hidden command that is the demo's second process.
const demoPeerName = "demo-peer"

func newDemo() *cobra.Command {
	var (
		c          = demo.Config{PeerArgs: []string{demoPeerName}}
		addr, peer string
		mib        float64
		jsonForm   bool
	)
	cmd := &cobra.Command{
		Use:   "demo [file]",
		Short: "See real data move by RDMA between two processes",
		Long: "Starts a second process, connects to it by rdma_cm, writes a file into its memory by RDMA WRITE, reads it back by READ,\n" +
			"does a SEND, two atomics and a datagram, compares checksums, and shows speed, latency and the\n" +
			"packets on the wire. Without file it makes one of random bytes. The exit code is 0 only if everything arrived as it was sent.",
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if len(args) == 1 {
				if c.File != "" {
					return cli.Usagef("the file is named twice: %s and --file %s", args[0], c.File)
				}
				if c.File = args[0]; c.File == "" {
					return cli.Usagef("the file is empty")
				}
			}
			if peer == "" {
				peer = addr
			}
			for _, a := range []struct {
				flag, text string
				to         *netip.Addr
			}{{"addr", addr, &c.Addr}, {"peer-addr", peer, &c.PeerAddr}} {
				if *a.to, err = netip.ParseAddr(a.text); err != nil {
					return cli.Usagef("--%s %s: not an IP address", a.flag, a.text)
				}
			}
			if c.Damage != "" && !slices.Contains(demo.Damages, c.Damage) {
				return cli.Usagef("--damage %s: want one of %v", c.Damage, demo.Damages)
			}
			if mib < 0 || mib > 1<<20 {
				return cli.Usagef("--size %s: want 0 to 1048576 MiB", strconv.FormatFloat(mib, 'f', -1, 64))
			}
			c.Size = int64(mib * (1 << 20))
			if term.IsTerminal(int(os.Stderr.Fd())) {
				c.Bar = os.Stderr
			}
			return runDemo(cmd, c, jsonForm)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&c.File, "file", "f", "", "send this `file` (default: one of random bytes, made for it)")
	f.Float64Var(&mib, "size", 64, "size of the file that is made, in `MiB`")
	f.IntVar(&c.Pings, "pings", 5000, "`number` of round trips for the latency")
	f.StringVar(&addr, "addr", "127.0.0.1", "IP `address` of both processes")
	f.StringVar(&peer, "peer-addr", "", "another IP `address` for the second process")
	f.BoolVar(&jsonForm, "json", false, "print JSON")
	f.StringVar(&c.Damage, "damage", "", "let the second process spoil something")
	f.MarkHidden("damage")
	return cmd
}

func runDemo(cmd *cobra.Command, c demo.Config, jsonForm bool) error {
	res, err := demo.Run(cmd.Context(), c)
	if res != nil {
		show := res.Print
		if jsonForm {
			show = res.JSON
		}
		if e := show(cmd.OutOrStdout()); err == nil {
			err = e
		}
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return cli.Hint(err, "Somebody has UDP port 4791 of the address and does not share it. Choose another one:\n"+
			"  verbena demo --addr 127.1.1.1")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return cli.Hint(err, "This host does not have the address. Give addresses that it has with --addr and --peer-addr")
	}
	return err
}

func newDemoPeer() *cobra.Command {
	return &cobra.Command{
		Use:    demoPeerName,
		Short:  "The demo's second process",
		Hidden: true,
		Args:   atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A Ctrl-C reaches both processes. This one ends when the first closes the
			// pipe, so that there is one who tells what happened.
			signal.Ignore(os.Interrupt)
			signal.Reset(syscall.SIGTERM)
			return demo.Peer(context.WithoutCancel(cmd.Context()), os.Stdin, os.Stdout)
		},
	}
}
