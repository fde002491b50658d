package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/pingpong"
)

func newPingpong() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pingpong",
		Short: "Play ping-pong with another verbena or with Linux's ibv_*_pingpong",
		Long: "Play ping-pong with another verbena or with rdma-core's ibv_rc_pingpong, ibv_uc_pingpong,\n" +
			"ibv_ud_pingpong and ibv_srq_pingpong: same options, same output. Give those -g, without\n" +
			"which they do not work on RoCE.",
		RunE: group,
	}
	cmd.AddCommand(
		newPingpongKind(pingpong.RC, "Reliable connection"),
		newPingpongKind(pingpong.UC, "Unreliable connection"),
		newPingpongKind(pingpong.UD, "Unreliable datagram"),
		newPingpongKind(pingpong.SRQ, "Reliable connections with one shared receive queue"),
	)
	return cmd
}

func newPingpongKind(kind pingpong.Kind, short string) *cobra.Command {
	c := pingpong.Default(kind)
	cmd := &cobra.Command{
		Use:   string(kind) + " [host]",
		Short: short,
		Long: fmt.Sprintf("%s. Without host be the server and wait for a client; with host connect to the\n"+
			"server there. The other side may be ibv_%s_pingpong.", short, kind),
		Example: fmt.Sprintf("  verbena pingpong %s --addr 127.0.0.1                 # in one terminal\n"+
			"  verbena pingpong %s --addr 127.0.0.1 127.0.0.1       # in another one", kind, kind),
		Args: atMost(1),
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVarP(&c.TCPPort, "port", "p", c.TCPPort, "listen on/connect to TCP `port`")
	f.StringVarP(&c.Dev, "ib-dev", "d", "", "use this `device`, interface or address (default first device)")
	f.StringVar(&c.Addr, "addr", "", "use this IP `address`, as the device's only GID")
	f.IntVarP(&c.IBPort, "ib-port", "i", c.IBPort, "use `port` of the device")
	f.IntVarP(&c.Size, "size", "s", c.Size, "`bytes` of a message")
	if kind != pingpong.UD {
		f.IntVarP(&c.MTU, "mtu", "m", c.MTU, "path MTU in `bytes`")
	}
	iters := "`number` of exchanges"
	if kind == pingpong.SRQ {
		f.IntVarP(&c.NumQP, "num-qp", "q", c.NumQP, "`number` of queue pairs")
		iters += ", of all queue pairs together"
	}
	f.IntVarP(&c.RxDepth, "rx-depth", "r", c.RxDepth, "`number` of receives to post at a time")
	f.IntVarP(&c.Iters, "iters", "n", c.Iters, iters)
	f.IntVarP(&c.SL, "sl", "l", c.SL, "service `level`")
	f.BoolVarP(&c.Events, "events", "e", false, "sleep on completion events (default poll)")
	f.IntVarP(&c.GIDIndex, "gid-idx", "g", c.GIDIndex, "local GID `index`")
	f.BoolVarP(&c.Check, "chk", "c", false, "validate the received content (give it on both sides)")
	refuse := refusals(cmd, kind)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := refuse(); err != nil {
			return err
		}
		if len(args) == 1 {
			if c.Host = args[0]; c.Host == "" {
				return cli.Usagef("the host is empty")
			}
		}
		return pingpong.Run(cmd.Context(), cmd.OutOrStdout(), c)
	}
	return cmd
}

// refusals adds the options of rdma-core's programs for what a software device
// does not have, and returns the check that none of them is set.
func refusals(cmd *cobra.Command, kind pingpong.Kind) func() error {
	options := []struct{ name, short, usage, why string }{
		{"odp", "o", "use on-demand paging (not supported)", "the device isn't ODP capable"},
		{"iodp", "O", "use implicit on-demand paging (not supported)", "the device isn't ODP capable"},
		{"prefetch", "P", "prefetch an ODP region (not supported)", "prefetch is valid only with on-demand paging"},
		{"ts", "t", "get completions with timestamps (not in this command)", "is not in this command (verbs.CQEx gives timestamps)"},
		{"dm", "j", "use device memory (not in this command)", "is not in this command (verbs.Context.AllocDM gives device memory)"},
	}
	switch kind {
	case pingpong.RC:
		cmd.Flags().BoolP("new_send", "N", false, "use the new post send API (no difference here)")
	case pingpong.SRQ:
		options = options[:1]
	default:
		return func() error { return nil }
	}
	for _, o := range options {
		cmd.Flags().BoolP(o.name, o.short, false, o.usage)
	}
	return func() error {
		var errs []error
		for _, o := range options {
			if on, _ := cmd.Flags().GetBool(o.name); on {
				errs = append(errs, fmt.Errorf("-%s/--%s: %s: %w", o.short, o.name, o.why, syscall.EOPNOTSUPP))
			}
		}
		return errors.Join(errs...)
	}
}
