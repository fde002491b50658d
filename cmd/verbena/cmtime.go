package main

import (
	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmtime"
)

func newCmtime() *cobra.Command {
	c := cmtime.Default()
	cmd := &cobra.Command{
		Use:   "cmtime",
		Short: "Time the steps of making and ending connections, as cmtime does",
		Long: "Time the steps of making and ending a number of connections. Without -s be the server, until\n" +
			"interrupted. The other side may be librdmacm's cmtime (rdma-core 44).",
		Example: "  verbena cmtime                 # in one terminal\n" +
			"  verbena cmtime -s 127.0.0.1    # in another one",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmtime.Run(cmd.Context(), cmd.OutOrStdout(), c)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&c.Server, "server", "s", "", "be the client of the server at `address`")
	f.StringVarP(&c.Bind, "bind", "b", "", "use this own `address`")
	f.IntVarP(&c.Connections, "connections", "c", c.Connections, "`number` of connections")
	f.StringVarP(&c.Port, "port", "p", c.Port, "`port` or service of the server")
	f.IntVarP(&c.Retries, "retries", "r", c.Retries, "`number` of times that a resolution is repeated")
	f.IntVarP(&c.TimeoutMS, "timeout", "t", c.TimeoutMS, "`ms` that a resolution may take")
	return cmd
}
