package main

import (
	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/mckey"
)

func newMckey() *cobra.Command {
	c := mckey.Default()
	var number string
	cmd := &cobra.Command{
		Use:   "mckey",
		Short: "Join a multicast group and send to it or receive, as mckey does",
		Long: "Join a multicast group, and receive datagrams or with -s send them. The other members may be\n" +
			"librdmacm's mckey. Give all sides the same -C and -S, and start those that receive first.",
		Example: "  verbena mckey -m 239.1.2.3 -b 127.0.0.1       # in one terminal\n" +
			"  verbena mckey -m 239.1.2.3 -b 127.0.0.1 -s    # in another one",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if number != "" {
				var err error
				if c.Space, err = cmapp.DatagramSpace("-p/--port-space", number); err != nil {
					return err
				}
			}
			return mckey.Run(cmd.Context(), cmd.OutOrStdout(), c)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&c.Group, "group", "m", "", "join the group with this IP `address`")
	f.StringVarP(&c.GID, "unmapped", "M", "", "join the group with this `GID` (needs -b)")
	f.BoolVarP(&c.Sender, "send", "s", false, "send datagrams (default receive)")
	f.StringVarP(&c.Bind, "bind", "b", "", "use this own `address`")
	f.IntVarP(&c.Connections, "connections", "c", c.Connections, "`number` of queue pairs that join")
	f.IntVarP(&c.Count, "count", "C", c.Count, "`number` of messages of each queue pair")
	f.IntVarP(&c.Size, "size", "S", c.Size, "`bytes` of a message")
	f.StringVarP(&number, "port-space", "p", "", "port space as a `number`: 0x111 for UDP, 0x2 for IPoIB (default 0x111)")
	f.BoolVarP(&c.SendOnly, "send-only", "o", false, "join as a member that only sends")
	f.BoolVarP(&c.NoLoopback, "no-loopback", "l", false, "do not hear what this process sends")
	return cmd
}
