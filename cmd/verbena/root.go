package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "verbena",
		Short: "RDMA without a NIC: RoCEv2 in user space",
		Long: "verbena shows and tries RDMA on this machine. No NIC, kernel module or root is needed;\n" +
			"the packets are RoCEv2 over UDP port 4791. Try: verbena demo",
		Version: version(),
		Args:    cobra.ArbitraryArgs, // group tells which one is unknown
		RunE:    group,
		// main prints errors, and the help only when it was asked for.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("verbena {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return cli.Usagef("%v (see: %s --help)", err, cmd.CommandPath())
	})
	root.AddCommand(
		newAsyncwatch(), newCmatose(), newCmtime(), newDemo(), newDemoPeer(), newDevices(), newDump(), newMckey(),
		newPing(), newPingpong(), newUdaddy(), newVersion(),
	)
	return root
}

// group is what a command does that only holds others.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2 // letters that differ
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return cli.Usagef("there is no %s %s; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(s, " or "))
	}
	return cli.Usagef("there is no %s %s (see: %s --help)", cmd.CommandPath(), args[0], cmd.CommandPath())
}

// atMost accepts up to n arguments.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return cli.Usagef("%s: too many arguments: %s (see: %s --help)", cmd.CommandPath(), strings.Join(args[n:], " "), cmd.CommandPath())
		}
		return nil
	}
}
