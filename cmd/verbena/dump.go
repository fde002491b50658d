package main

import (
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
		Use:   "dump FILE...",
		Short: "Print the RoCE packets of captures",
		Long: "dump prints a line for each RoCE packet of captures, pcapng or pcap; - is the standard input.\n" +
			"Devices write captures when VERBENA_PCAP names a file: VERBENA_PCAP=/tmp/{device}-{pid}.pcapng",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("%s needs a file (see: %s --help)", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.Count < 0 {
				return cli.Usagef("-c/--count %d: want 0 (all) or more", c.Count)
			}
			for _, name := range args {
				if len(args) > 1 {
					fmt.Fprintf(cmd.OutOrStdout(), "%s:\n", name)
				}
				if err := dumpFile(cmd, name, c); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVarP(&c.Count, "count", "c", 0, "print at most this `number` of packets of each file")
	f.BoolVarP(&c.Hex, "hex", "x", false, "print payload too")
	return cmd
}

// dumpFile prints one capture.
func dumpFile(cmd *cobra.Command, name string, c dump.Config) error {
	var r io.Reader = cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		r = f
	}
	s, err := dump.Print(cmd.OutOrStdout(), r, c)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if s.Dropped > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d packets were not captured: the file was written too slowly\n", s.Dropped)
	}
	if s.Packets == 0 {
		return fmt.Errorf("%s: no RoCE packets (UDP port 4791)", name)
	}
	return nil
}
