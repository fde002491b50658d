package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/store"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/target"
)

// defaultPort is the port of targets, which is nobody else's.
const defaultPort = 7474

type serveConfig struct {
	bind, file             string
	port, bs, t10, depth   int
	size, maxLength, total size
	forceMR, quiet         bool
}

func newServe() *cobra.Command {
	c := serveConfig{bind: "0.0.0.0", port: defaultPort, bs: 512, depth: 32, maxLength: 1 << 20, total: 64 << 20}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the blocks of a file or of memory, until interrupted",
		Long: "Serve the blocks of a file (--file), or of memory (only --size), to any number of clients, until interrupted.\n" +
			"With --t10 each block has protection information: its guard (CRC-16/T10-DIF) and its number are checked before\n" +
			"a block is stored and before one that was read is acknowledged. That of a file is kept in FILE.pi.",
		Example: "  blocktarget serve --size 64M                                         # memory\n" +
			"  blocktarget serve --bind 192.0.2.1 --file disk.img --size 1G --t10 1 # a file, T10-PI type 1",
		Args: noArgs,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&c.bind, "bind", "b", c.bind, "listen on this own `address`")
	f.IntVarP(&c.port, "port", "p", c.port, "listen on this `port`")
	f.StringVarP(&c.file, "file", "f", "", "serve this `file` (default memory)")
	f.VarP(&c.size, "size", "s", "size of the device; a file is made, or made longer (default its size)")
	f.IntVar(&c.bs, "block-size", c.bs, "`bytes` of a block: 512, 1024, 2048 or 4096")
	f.IntVar(&c.t10, "t10", 0, "protection information of this `type`: 1, 2 or 3 (default none)")
	f.IntVar(&c.depth, "depth", c.depth, "`requests` of one client that may be under way")
	f.Var(&c.maxLength, "max-length", "longest request")
	f.Var(&c.total, "memory", "memory for data under way, of all clients")
	f.BoolVar(&c.forceMR, "force-mr", false, "move all data by registered memory, as iWARP devices do")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "say nothing about clients")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return c.run(cmd) }
	return cmd
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s: too many arguments: %s (see: %s --help)", cmd.Name(), args[0], cmd.CommandPath())
	}
	return nil
}

func (c *serveConfig) run(cmd *cobra.Command) (err error) {
	addr, err := address("--bind", c.bind)
	if err != nil {
		return err
	}
	if err := portNumber(c.port); err != nil {
		return err
	}
	if c.file == "" && c.size == 0 {
		return usagef("what shall be served? --size 64M serves memory, --file disk.img a file (see: %s --help)", cmd.CommandPath())
	}
	if c.t10 < 0 || c.t10 > 3 {
		return usagef("--t10 %d: want 1, 2 or 3", c.t10)
	}
	if c.total < c.maxLength {
		return usagef("--memory %s: want at least the longest request, --max-length %s", c.total.String(), c.maxLength.String())
	}
	var s *store.Store
	if c.file == "" {
		s, err = store.NewMemory(int64(c.size), c.bs, c.t10 != 0)
	} else {
		s, err = store.Open(c.file, int64(c.size), c.bs, c.t10 != 0)
	}
	if err != nil {
		return err
	}
	defer func() {
		if e := s.Close(); err == nil {
			err = e
		}
	}()
	out := cmd.OutOrStdout()
	cfg := target.Config{
		Store: s, Protection: c.t10, Depth: c.depth, MaxLength: int(c.maxLength), Memory: int(c.total), ForceMR: c.forceMR,
	}
	if !c.quiet {
		cfg.Logger = slog.New(slog.NewTextHandler(out, nil))
	}
	h, err := openHost(addr)
	if err != nil {
		return err
	}
	defer closeHost(h, &err)
	t, err := target.New(h.Manager(), cfg)
	if err != nil {
		return err
	}
	err = t.Serve(cmd.Context(), netip.AddrPortFrom(addr, uint16(c.port)), func(at netip.AddrPort) {
		to := at.Addr().String()
		if at.Addr().IsUnspecified() {
			to = "127.0.0.1" // or any other one of this host
		}
		fmt.Fprintf(out, "serving %s on %s; blocktarget copy %s FILE copies a file in and out; Ctrl-C ends\n", c.what(s), at, to)
	})
	if err == nil {
		tell(out, t.Stats())
	}
	return err
}

// what describes the device.
func (c *serveConfig) what(s *store.Store) string {
	n := size(s.Blocks() * int64(s.BlockSize()))
	what := fmt.Sprintf("%s bytes of memory", n.String())
	if c.file != "" {
		what = fmt.Sprintf("%s, %s bytes,", c.file, n.String())
	}
	what += fmt.Sprintf(" in blocks of %d", s.BlockSize())
	if c.t10 != 0 {
		what += fmt.Sprintf(" with T10-PI of type %d", c.t10)
	}
	return what
}

func tell(out io.Writer, s target.Stats) {
	fmt.Fprintf(out, "%d clients; %d requests to read %d bytes, %d to write %d bytes; %d refused, %d ended by wrong protection information\n",
		s.Clients, s.Reads, s.BytesRead, s.Writes, s.BytesWritten, s.Refused, s.BadProtection)
}
