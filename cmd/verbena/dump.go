package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/dump"
)

func newDump() *cobra.Command {
	var c dump.Config
	cmd := &cobra.Command{
		Use:   "dump FILE",
		Short: "Print the RoCE packets of a capture",
		Long: "dump prints a line for each RoCE packet of a capture, pcapng or pcap; - is the standard input.\n" +
			"Devices write captures when VERBENA_PCAP names a file: VERBENA_PCAP=/tmp/{device}-{pid}.pcapng",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("%s needs a file (see: %s --help)", cmd.CommandPath(), cmd.CommandPath())
			}
			return atMost(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.Count < 0 {
				return cli.Usagef("-c/--count %d: want 0 (all) or more", c.Count)
			}
			var r io.Reader = cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				r = f
			}
			s, err := dump.Print(cmd.OutOrStdout(), r, c)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if s.Dropped > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d packets were not captured: the file was written too slowly\n", s.Dropped)
			}
			if s.Packets == 0 {
				return fmt.Errorf("%s: %w", args[0], errors.New("no RoCE packets (UDP port 4791)"))
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVarP(&c.Count, "count", "c", 0, "print at most this `number` of packets")
	f.BoolVarP(&c.Hex, "hex", "x", false, "print payload too")
	return cmd
}
