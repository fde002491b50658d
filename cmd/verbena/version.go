package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "verbena %s\n", version())
			return err
		},
	}
}

// version tells what was built: the module's version, the commit if the build
// knows it, and with what.
func version() string {
	v, commit, modified := "(devel)", "", ""
	if bi, ok := debug.ReadBuildInfo(); ok {
		if bi.Main.Version != "" {
			v = bi.Main.Version
		}
		for _, s := range bi.Settings {
			switch {
			case s.Key == "vcs.revision" && len(s.Value) >= 12:
				commit = " " + s.Value[:12]
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = "+"
			}
		}
	}
	return fmt.Sprintf("%s%s%s %s %s/%s", v, commit, modified, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
