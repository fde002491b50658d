package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

func newAsyncwatch() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "asyncwatch [device]",
		Short: "Show a device's asynchronous events as they come",
		Long: "Show a device's asynchronous events as they come, as ibv_asyncwatch does: addresses that the\n" +
			"interface gets or loses (GID_CHANGE), its link (PORT_ACTIVE, PORT_ERR), its removal (DEVICE_FATAL).",
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if name != "" {
					return cli.Usagef("the device is given twice: %s and -d %s", args[0], name)
				}
				name = args[0]
			}
			dev, err := rdma.Open(cmd.Context(), name)
			if err != nil {
				return err
			}
			return errors.Join(asyncwatch(cmd.Context(), cmd.OutOrStdout(), dev), dev.Close())
		},
	}
	cmd.Flags().StringVarP(&name, "ib-dev", "d", "", "use this `device`, interface or address (default first device)")
	return cmd
}

// asyncwatch prints events until ctx is done, which is its proper end, or the
// device gives no more.
func asyncwatch(ctx context.Context, w io.Writer, dev *verbs.Context) error {
	// ibv_asyncwatch tells a file descriptor here; there is none.
	if _, err := fmt.Fprintf(w, "%s: async events\n", dev.Device()); err != nil {
		return err
	}
	for {
		e, err := dev.GetAsyncEvent(ctx)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "  event_type %s (%d), port %d\n", e.Type.Name(), int(e.Type), e.Port)
		e.Ack()
		if err != nil {
			return err
		}
	}
}
