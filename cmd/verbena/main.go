// Command verbena shows and tries RDMA on this machine: it lists devices, moves
// a file between two processes, and plays ping-pong with Linux's programs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

func main() { os.Exit(run()) }

// run returns the exit code: 0 ok, 1 failed, 2 wrong usage.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "verbena: "+cli.Describe(err))
	}
	return cli.ExitCode(err)
}
