package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmatose"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/udaddy"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// cmFlags are the options that cmatose and udaddy have in common.
type cmFlags struct{ format, space, tos string }

func (o *cmFlags) add(f *pflag.FlagSet, a *cmapp.Addrs, m *cmapp.Messages, connections *int, space, spaces string) {
	f.SortFlags = false
	f.StringVarP(&a.Server, "server", "s", "", "be the client of the server at `address`")
	f.StringVarP(&a.Bind, "bind", "b", "", "use this own `address` (any with IPv6: ::0)")
	f.StringVarP(&o.format, "format", "f", string(a.Format), "`what` addresses are: name, ip, ipv6 or gid")
	f.StringVarP(&o.space, "port-space", "P", space, "port `space`: "+spaces)
	f.IntVarP(connections, "connections", "c", *connections, "`number` of connections")
	f.IntVarP(&m.Count, "count", "C", m.Count, "`number` of messages over each connection")
	f.IntVarP(&m.Size, "size", "S", m.Size, "`bytes` of a message")
	f.StringVarP(&o.tos, "tos", "t", "", "type of service, a `number` up to 255")
}

// typeOfService is the option -t; nil: not given.
func (o *cmFlags) typeOfService() (*uint8, error) { return optionalByte("-t/--tos", o.tos) }

func optionalByte(option, s string) (*uint8, error) {
	if s == "" {
		return nil, nil
	}
	n, err := cmapp.Byte(option, s)
	return &n, err
}

func newCmatose() *cobra.Command {
	c := cmatose.Default()
	var o cmFlags
	var timeout string
	cmd := &cobra.Command{
		Use:   "cmatose",
		Short: "Make connections and exchange messages, as ucmatose does",
		Long: "Make a number of reliable connections, exchange messages over them and end them. Without -s be\n" +
			"the server. The other side may be librdmacm's ucmatose. Give both sides the same -c, -C and -S.",
		Example: "  verbena cmatose                 # in one terminal\n" +
			"  verbena cmatose -s 127.0.0.1    # in another one",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Format = cmapp.Format(o.format)
			var err error
			spaces := map[string]rdmacm.PortSpace{"tcp": rdmacm.PSTCP, "ib": rdmacm.PSIB}
			if c.Space, err = cmapp.Space("-P/--port-space", o.space, spaces, "tcp or ib"); err != nil {
				return err
			}
			if c.TOS, err = o.typeOfService(); err != nil {
				return err
			}
			if c.ACKTimeout, err = optionalByte("-a/--ack-timeout", timeout); err != nil {
				return err
			}
			return cmatose.Run(cmd.Context(), cmd.OutOrStdout(), c)
		},
	}
	f := cmd.Flags()
	o.add(f, &c.Addrs, &c.Messages, &c.Connections, "tcp", "tcp or ib")
	f.StringVarP(&c.Port, "port", "p", c.Port, "`port` or service of the server")
	f.StringVarP(&timeout, "ack-timeout", "a", "", "ACK timeout, a `number` up to 31: 4.096 us to its power of two")
	f.BoolVarP(&c.Migrate, "migrate", "m", false, "move all IDs to another event channel before they disconnect")
	return cmd
}

func newUdaddy() *cobra.Command {
	c := udaddy.Default()
	var o cmFlags
	var number string
	cmd := &cobra.Command{
		Use:   "udaddy",
		Short: "Look up datagram services and exchange datagrams, as udaddy does",
		Long: "Look up datagram services of a server on port 7174 and exchange datagrams with it. Without -s\n" +
			"be the server. The other side may be librdmacm's udaddy. Give both sides the same -c, -C and -S.",
		Example: "  verbena udaddy                 # in one terminal\n" +
			"  verbena udaddy -s 127.0.0.1    # in another one",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Format = cmapp.Format(o.format)
			var err error
			spaces := map[string]rdmacm.PortSpace{"udp": rdmacm.PSUDP, "ipoib": rdmacm.PSIPoIB}
			if c.Space, err = cmapp.Space("-P/--port-space", o.space, spaces, "udp or ipoib"); err != nil {
				return err
			}
			if number != "" {
				if c.Space, err = cmapp.DatagramSpace("-p", number); err != nil {
					return err
				}
			}
			if c.TOS, err = o.typeOfService(); err != nil {
				return err
			}
			return udaddy.Run(cmd.Context(), cmd.OutOrStdout(), c)
		},
	}
	f := cmd.Flags()
	o.add(f, &c.Addrs, &c.Messages, &c.Connections, "udp", "udp or ipoib")
	f.StringVarP(&number, "port-space-number", "p", "", "port space as a `number`: 0x111 for UDP, 0x2 for IPoIB")
	return cmd
}
