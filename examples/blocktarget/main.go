// Command blocktarget serves the blocks of a file or of memory by RDMA, and copies files
// to and from such a target. It is an example of a storage target on packages rdmacm and
// rdmarw; README.md of the module tells how it works.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/rdmacm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 ok, 1 failed, 2 wrong usage.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	root := newRoot(errs)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errs, "blocktarget: "+explain(err))
	if errors.As(err, new(*usageError)) {
		return 2
	}
	return 1
}

func newRoot(progress io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "blocktarget",
		Short: "Serve blocks by RDMA, and copy files to and from such a target",
		Long: "blocktarget serves the blocks of a file, or of memory, by RDMA (RoCEv2, without a NIC), with or without\n" +
			"protection information (T10-PI) on each block, and copies files to and from such a target.",
		Example: "  blocktarget serve --bind 127.0.0.1 --size 64M --t10 1                # in one terminal\n" +
			"  blocktarget copy 127.0.0.1 some.file                                 # in another one",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no command %s (see: blocktarget --help)", args[0])
			}
			return nil
		},
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true, SilenceUsage: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v (see: %s --help)", err, cmd.CommandPath())
	})
	root.AddCommand(newServe(), newInfo(), newCopy(progress), newPut(progress), newGet(progress))
	return root
}

// usageError is a mistake on the command line.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// explain is the text of an error with what to do about its common causes.
func explain(err error) string {
	s := err.Error()
	hint := ""
	switch {
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, proto.ErrProtection):
		hint = "The data is not what it was when its protection information was made. Nothing of it was acknowledged or written.\n" +
			"  If it happens again, look at memory, file system and network of the side that made it"
	case errors.Is(err, syscall.ECONNREFUSED):
		hint = "Is the target running, at this address and with this --port? blocktarget serve --bind ADDRESS starts one"
	case errors.Is(err, syscall.EADDRINUSE):
		hint = "Somebody has UDP port 4791 of the address and does not share it. Stop that, or choose another address\n" +
			"  with --bind, on the loopback interface any of 127.0.0.0/8: --bind 127.0.0.2"
		if op := (*rdmacm.OpError)(nil); errors.As(err, &op) && op.Op == "bind_addr" {
			hint = "Stop the process that has the port, or choose another one with --port"
		}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		hint = "This host does not have the address. Those that it has: ip addr"
	case errors.Is(err, syscall.ETIMEDOUT):
		hint = "Is the target running there (blocktarget serve --bind ADDRESS), and does every firewall on the way let UDP port 4791 through?"
	case errors.Is(err, syscall.ENOSPC):
		hint = "blocktarget info shows how large the device is. blocktarget serve --size makes a larger one"
	case errors.Is(err, syscall.ECONNRESET):
		hint = "Was it stopped? What it says tells why"
	}
	if hint != "" {
		s += "\n  " + hint
	}
	return s
}

// size is a flag's number of bytes: 4096, 64K, 1M, 2G.
type size int64

func (s *size) String() string {
	n, unit := int64(*s), ""
	for _, u := range []string{"K", "M", "G", "T"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return fmt.Sprintf("%d%s", n, unit)
}

func (s *size) Type() string { return "bytes" }

func (s *size) Set(text string) error {
	shift := 0
	digits := text
	if n := len(text); n > 0 {
		switch text[n-1] {
		case 'K', 'k':
			shift = 10
		case 'M', 'm':
			shift = 20
		case 'G', 'g':
			shift = 30
		case 'T', 't':
			shift = 40
		}
		if shift > 0 {
			digits = text[:n-1]
		}
	}
	var n int64
	for _, c := range digits {
		if c < '0' || c > '9' || n > 1<<58 {
			n = -1
			break
		}
		n = n*10 + int64(c-'0')
	}
	if digits == "" || n < 0 || n > (1<<62)>>shift {
		return fmt.Errorf("want a number of bytes, as 4096, 64K, 1M or 2G")
	}
	*s = size(n << shift)
	return nil
}

// address is an IP address of the command line.
func address(option, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, usagef("%s %q: want an IP address", option, text)
	}
	return a.Unmap(), nil
}

func portNumber(n int) error {
	if n < 1 || n > 65535 {
		return usagef("--port %d: want 1 to 65535", n)
	}
	return nil
}
