package pingpong

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/ib"
)

// dest is what the sides tell each other about one queue pair.
type dest struct {
	LID uint16
	QPN ib.QPN
	PSN uint32
	GID ib.GID
}

// Each dest goes as text of fixed length with a zero byte behind it. Lengths and
// the answer at the end are those of rdma-core's programs, which read them in
// one piece: so each is written in one piece.
const (
	destLen = len("0000:000000:000000:00000000000000000000000000000000") + 1
	done    = "done\x00"
)

func (d *dest) wire() []byte {
	return append(fmt.Appendf(nil, "%04x:%06x:%06x:%x", d.LID, uint32(d.QPN), d.PSN, d.GID[:]), 0)
}

// gidText is the GID as inet_ntop prints it: IPv4 in the notation of IPv6.
func (d *dest) gidText() string { return netip.AddrFrom16(d.GID).String() }

func (d *dest) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s", d.LID, uint32(d.QPN), d.PSN, d.gidText())
}

func parseDest(b []byte) (d dest, err error) {
	bad := func() (dest, error) {
		return dest{}, fmt.Errorf("the peer sent %q, which is no address of a pingpong program", b)
	}
	text, _, ended := bytes.Cut(b, []byte{0})
	parts := strings.Split(string(text), ":")
	if !ended || len(parts) != 4 {
		return bad()
	}
	var n [3]uint64
	for i, bits := range []int{16, 24, 24} {
		if n[i], err = strconv.ParseUint(parts[i], 16, bits); err != nil {
			return bad()
		}
	}
	gid, err := hex.DecodeString(parts[3])
	if err != nil || len(gid) != len(d.GID) {
		return bad()
	}
	d.LID, d.QPN, d.PSN = uint16(n[0]), ib.QPN(n[1]), uint32(n[2])
	copy(d.GID[:], gid)
	return d, nil
}

// Limits of the TCP exchange. A server waits for its client for ever.
const (
	dialTimeout     = 10 * time.Second
	exchangeTimeout = 30 * time.Second
)

// padded is how many dests go over: always all with a shared receive queue.
func (c *Config) padded() int {
	if c.Kind == SRQ {
		return maxQP
	}
	return 1
}

// exchangeClient tells the server our side and learns its.
func exchangeClient(ctx context.Context, c *Config, mine []dest) ([]dest, error) {
	addr := net.JoinHostPort(c.Host, strconv.Itoa(c.TCPPort))
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		err = fmt.Errorf("couldn't connect to %s: %w", addr, err)
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = cli.Hint(err, "Start the server first: verbena pingpong %s (without host), or ibv_%s_pingpong", c.Kind, c.Kind)
		}
		return nil, err
	}
	defer watch(ctx, conn)()
	if err := writeDests(conn, c, mine); err != nil {
		return nil, ctxErr(ctx, err)
	}
	theirs, err := readDests(conn, c)
	if err != nil {
		return nil, ctxErr(ctx, cli.Hint(err, "See the server's output"))
	}
	if _, err := io.WriteString(conn, done); err != nil {
		return nil, ctxErr(ctx, fmt.Errorf("couldn't answer the server: %w", err))
	}
	return theirs, nil
}

// exchangeServer waits for a client, learns its side, lets connect prepare ours,
// and tells it.
func exchangeServer(ctx context.Context, c *Config, mine []dest, connect func([]dest) error) ([]dest, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(c.TCPPort))
	if err != nil {
		return nil, cli.Hint(fmt.Errorf("couldn't listen to TCP port %d: %w", c.TCPPort, err), "Choose another one with -p, on both sides")
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	conn, err := l.Accept()
	stop()
	l.Close()
	if err != nil {
		return nil, ctxErr(ctx, fmt.Errorf("couldn't accept a client: %w", err))
	}
	defer watch(ctx, conn)()
	theirs, err := readDests(conn, c)
	if err != nil {
		return nil, ctxErr(ctx, err)
	}
	if err := connect(theirs); err != nil {
		return nil, err
	}
	if err := writeDests(conn, c, mine); err != nil {
		return nil, ctxErr(ctx, err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len(done))); err != nil {
		return nil, ctxErr(ctx, fmt.Errorf("the client did not confirm our address: %w", err))
	}
	return theirs, nil
}

// watch ends the use of conn with ctx or after a time; the result closes it.
func watch(ctx context.Context, conn net.Conn) func() {
	conn.SetDeadline(time.Now().Add(exchangeTimeout))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	return func() {
		stop()
		conn.Close()
	}
}

// ctxErr is ctx's error if it is done, which then is the reason.
func ctxErr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func writeDests(w io.Writer, c *Config, list []dest) error {
	for i := range c.padded() {
		var d dest
		if i < len(list) {
			d = list[i]
		}
		if _, err := w.Write(d.wire()); err != nil {
			return fmt.Errorf("couldn't send the local address: %w", err)
		}
	}
	return nil
}

func readDests(r io.Reader, c *Config) ([]dest, error) {
	var list []dest
	b := make([]byte, destLen)
	for i := range c.padded() {
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, fmt.Errorf("couldn't read the remote address: %w", err)
		}
		d, err := parseDest(b)
		if err != nil {
			return nil, err
		}
		if i >= c.NumQP {
			continue
		}
		if d.GID.IsZero() {
			if d.QPN == 0 {
				return nil, cli.Hint(fmt.Errorf("the peer has fewer queue pairs than %d", c.NumQP), "Give the same -q on both sides")
			}
			return nil, cli.Hint(errors.New("the peer told no GID, and RoCE needs one"), "Start it with -g, for instance -g 0")
		}
		list = append(list, d)
	}
	return list, nil
}
