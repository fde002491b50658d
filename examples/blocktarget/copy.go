package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/client"
)

// clientConfig is what the client's commands have in common.
type clientConfig struct {
	bind        string
	port, depth int
	length      size
	offset      size
	noPI, quiet bool
	timeout     time.Duration
	progress    io.Writer
}

// flags adds the flags; data tells whether the command moves some.
func (c *clientConfig) flags(cmd *cobra.Command, data bool) {
	c.port = defaultPort
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&c.bind, "bind", "b", "", "use this own `address` (default any)")
	f.IntVarP(&c.port, "port", "p", c.port, "the target's `port`")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "for how `long` to wait for the target to answer")
	if !data {
		return
	}
	f.VarP(&c.offset, "offset", "o", "where on the device, a multiple of its block size (default 0)")
	f.IntVar(&c.depth, "depth", 0, "`requests` under way (default as many as the target takes)")
	f.Var(&c.length, "length", "size of a request (default as long as the target takes)")
	f.BoolVar(&c.noPI, "no-pi", false, "leave protection information to the target: none of it is on the wire")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "no progress bar")
}

// dial connects to the target at host.
func (c *clientConfig) dial(ctx context.Context, host string, f func(*client.Client) error) (err error) {
	to, err := address("the target", host)
	if err != nil {
		return err
	}
	if err := portNumber(c.port); err != nil {
		return err
	}
	cfg := client.Config{Target: netip.AddrPortFrom(to, uint16(c.port)), Depth: c.depth, Length: int(c.length), NoPI: c.noPI}
	if c.depth < 0 || c.depth > 65535 {
		return usagef("--depth %d: want 1 to 65535", c.depth)
	}
	if c.bind != "" {
		if cfg.Source, err = address("--bind", c.bind); err != nil {
			return err
		}
	}
	h, err := openHost(cfg.Source)
	if err != nil {
		return err
	}
	defer closeHost(h, &err)
	soon, cancel := context.WithTimeout(ctx, c.timeout)
	cl, err := client.Dial(soon, h.Manager(), cfg)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %v (--timeout): %w", c.timeout, syscall.ETIMEDOUT)
	}
	if err != nil {
		return fmt.Errorf("connect to the target at %s: %w", cfg.Target, err)
	}
	defer func() {
		if e := cl.Close(); err == nil {
			err = e
		}
	}()
	return f(cl)
}

// bar is a progress bar on a terminal, or nothing.
func (c *clientConfig) bar(what string, total int64) (add func(int), end func()) {
	if f, ok := c.progress.(*os.File); c.quiet || total == 0 || !ok || !terminal(f) {
		return nil, func() {}
	}
	p := progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(c.progress), progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30),
		progressbar.OptionSetDescription(what), progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(true))
	return func(n int) { p.Add(n) }, func() { p.Clear() }
}

func terminal(f *os.File) bool {
	fi, err := f.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}

func exactArgs(n int, want string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s: want %s (see: %s --help)", cmd.Name(), want, cmd.CommandPath())
		}
		return nil
	}
}

func newInfo() *cobra.Command {
	c := clientConfig{}
	cmd := &cobra.Command{
		Use: "info target", Short: "Show what a target serves", Args: exactArgs(1, "the target's address"),
	}
	c.flags(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.dial(cmd.Context(), args[0], func(cl *client.Client) error {
			g := cl.Geometry()
			fmt.Fprintf(cmd.OutOrStdout(), "%d bytes: %d blocks of %d\n", g.Size(), g.Blocks, g.BlockSize)
			if g.Protection == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no protection information")
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "protection information: T10-PI, type %d\n", g.Protection)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "requests: at most %d bytes, %d under way\n", g.MaxLength, g.Depth)
			return nil
		})
	}
	return cmd
}

func newCopy(progress io.Writer) *cobra.Command {
	c := clientConfig{progress: progress}
	cmd := &cobra.Command{
		Use:   "copy target file",
		Short: "Copy a file to a target, read it back, and compare",
		Args:  exactArgs(2, "the target's address and a file"),
	}
	c.flags(cmd, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, n, err := openFile(args[1])
		if err != nil {
			return err
		}
		defer f.Close()
		return c.dial(cmd.Context(), args[0], func(cl *client.Client) error {
			in, err := c.put(cmd, cl, f, n)
			if err != nil {
				return err
			}
			want := sha256.New()
			if _, err := io.Copy(want, io.NewSectionReader(f, 0, n)); err != nil {
				return err
			}
			got := &inOrder{h: sha256.New(), wait: make(map[int64][]byte)}
			add, end := c.bar("out", n)
			begin := time.Now()
			err = cl.Read(cmd.Context(), got, n, int64(c.offset), add)
			end()
			if err != nil {
				return err
			}
			out := time.Since(begin)
			if a, b := want.Sum(nil), got.h.Sum(nil); string(a) != string(b) {
				return fmt.Errorf("what came back is not what was sent: SHA-256 %x, sent %x", b, a)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d bytes in (%s) and out (%s): the same, SHA-256 %x%s\n",
				n, rate(n, in), rate(n, out), want.Sum(nil), protection(cl))
			return nil
		})
	}
	return cmd
}

// protection says how blocks were protected on the way.
func protection(cl *client.Client) string {
	if !cl.PI() {
		return ""
	}
	return fmt.Sprintf("; each block checked on both sides (T10-PI type %d)", cl.Geometry().Protection)
}

func rate(n int64, d time.Duration) string {
	return fmt.Sprintf("%.0f MB/s", float64(n)/max(d.Seconds(), 1e-9)/1e6)
}

func openFile(path string) (*os.File, int64, error) {
	fi, err := os.Stat(path) // before it is opened: opening a pipe would wait for its writer
	if err != nil {
		return nil, 0, err
	}
	if !fi.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	return f, fi.Size(), err
}

// put copies a file to the device, and returns how long that took.
func (c *clientConfig) put(cmd *cobra.Command, cl *client.Client, f io.ReaderAt, n int64) (time.Duration, error) {
	add, end := c.bar("in", n)
	defer end()
	begin := time.Now()
	if err := cl.Write(cmd.Context(), f, n, int64(c.offset), add); err != nil {
		return 0, err
	}
	return time.Since(begin), cl.Flush(cmd.Context())
}

func newPut(progress io.Writer) *cobra.Command {
	c := clientConfig{progress: progress}
	cmd := &cobra.Command{
		Use: "put target file", Short: "Copy a file to a target", Args: exactArgs(2, "the target's address and a file"),
	}
	c.flags(cmd, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, n, err := openFile(args[1])
		if err != nil {
			return err
		}
		defer f.Close()
		return c.dial(cmd.Context(), args[0], func(cl *client.Client) error {
			d, err := c.put(cmd, cl, f, n)
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%d bytes at offset %d (%s)%s\n", n, int64(c.offset), rate(n, d), protection(cl))
			}
			return err
		})
	}
	return cmd
}

func newGet(progress io.Writer) *cobra.Command {
	c := clientConfig{progress: progress}
	var n size
	cmd := &cobra.Command{
		Use: "get target file", Short: "Copy from a target to a file", Args: exactArgs(2, "the target's address and a file"),
	}
	c.flags(cmd, true)
	cmd.Flags().VarP(&n, "size", "s", "how much (default up to the end of the device)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.dial(cmd.Context(), args[0], func(cl *client.Client) (err error) {
			n := int64(n)
			if n == 0 {
				g := cl.Geometry()
				n = max(g.Size()-int64(c.offset), 0)
			}
			f, err := os.Create(args[1])
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			add, end := c.bar("out", n)
			defer end()
			begin := time.Now()
			if err := cl.Read(cmd.Context(), f, n, int64(c.offset), add); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d bytes from offset %d (%s)%s\n", n, int64(c.offset), rate(n, time.Since(begin)), protection(cl))
			return nil
		})
	}
	return cmd
}
