package main

import (
	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/ping"
)

func newPing() *cobra.Command {
	c := ping.Default()
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Ping a server over the connection manager, as rping does",
		Long: "Ping a server, as rdma-core's rping does: the server READs the data from the client and WRITEs\n" +
			"it back. The other side may be rping, on another host.",
		Example: "  verbena ping -s -v                      # in one terminal\n" +
			"  verbena ping -c -a 127.0.0.1 -vV -C 10  # in another one",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ping.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), c)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVarP(&c.Server, "server", "s", false, "be the server")
	f.BoolVarP(&c.Client, "client", "c", false, "be the client")
	f.StringVarP(&c.Addr, "addr", "a", "", "server: bind to `address` (default any; any with IPv6: ::0); client: that of the server")
	f.StringVarP(&c.Source, "source", "I", "", "client: use this own `address`")
	f.IntVarP(&c.Port, "port", "p", c.Port, "`port` of the server")
	f.IntVarP(&c.Count, "count", "C", c.Count, "`number` of pings; 0: for ever")
	f.IntVarP(&c.Size, "size", "S", c.Size, "`bytes` of the ping data")
	f.BoolVarP(&c.Verbose, "verbose", "v", false, "show the ping data")
	f.BoolVarP(&c.Validate, "validate", "V", false, "client: compare what comes back with what was sent")
	f.BoolVarP(&c.Debug, "debug", "d", false, "show what happens")
	f.BoolVarP(&c.Persistent, "persistent", "P", false, "server: serve any number of clients at the same time, until interrupted")
	f.BoolVarP(&c.OwnQP, "own-qp", "q", false, "make and move the queue pairs here, not by the connection manager")
	return cmd
}
