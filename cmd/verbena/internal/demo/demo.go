// Package demo moves a file between two processes by RDMA and shows what
// happened.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// ErrDiffers tells that something did not arrive as it was sent.
var ErrDiffers = errors.New("data differs")

// Config is what the command line says.
type Config struct {
	File     string // "": make one of Size bytes
	Size     int64
	Addr     netip.Addr // of this process
	PeerAddr netip.Addr // of the second one, which may be the same
	Pings    int        // exchanges for the latency
	Damage   string     // for tests: what the second process spoils
	PeerArgs []string   // arguments with which this program is the second process
	Bar      io.Writer  // where the progress bar goes; nil: nowhere
}

// windowMax is the most that lies in memory at a time: longer files go in
// rounds.
const windowMax = 64 << 20

// Damages are the values of Config.Damage. With "die" the second process ends,
// with "hang" it does not answer.
var Damages = []string{"write", "read", "send", "atomic", "datagram", "die", "hang"}

// run is one demo under way.
type run struct {
	Config
	*side
	rec    recorder
	file   *source
	child  *child
	remote contact
	bar    bar
	res    *Result
}

// Run does it all. The result tells what was compared; with ErrDiffers in it,
// too.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := validate(&c); err != nil {
		return nil, err
	}
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &run{Config: c, res: &Result{}}
	err := r.do(ctx, cancel)
	if outer.Err() != nil {
		return nil, outer.Err()
	}
	if err != nil {
		return nil, err
	}
	for _, k := range r.res.Checks {
		if !k.OK {
			return r.res, fmt.Errorf("%s: %w", k.Step, ErrDiffers)
		}
	}
	return r.res, nil
}

func validate(c *Config) error {
	switch {
	case c.Size < 0 || c.Size > 1<<40:
		return cli.Usagef("--size %d: want 0 to 1 TiB", c.Size)
	case c.Pings < 0 || c.Pings > 1_000_000:
		return cli.Usagef("--pings %d: want 0 to 1000000", c.Pings)
	case c.Addr.Is4() != c.PeerAddr.Is4():
		return cli.Usagef("--addr %s and --peer-addr %s: want two of one family", c.Addr, c.PeerAddr)
	}
	return nil
}

func (r *run) do(ctx context.Context, die func(error)) (err error) {
	if r.File != "" {
		r.file, err = openFile(r.File)
	} else {
		r.file, err = makeFile(r.Size)
	}
	if err != nil {
		return err
	}
	defer r.file.close()
	window := int(min(max(r.file.size, 1), windowMax))
	// The first half is sent, into the second one it comes back.
	if r.side, err = open(ctx, r.Addr, 2*window, r.rec.packet); err != nil {
		return err
	}
	defer func() {
		if e := r.side.close(); err == nil {
			err = e
		}
	}()
	if r.child, err = start(ctx, r.PeerArgs, die); err != nil {
		return err
	}
	defer r.child.stop()
	a, err := r.child.ask(ctx, &request{Op: opSetup, Setup: &setup{Addr: r.PeerAddr, Window: window, Damage: r.Damage}})
	if err != nil {
		return err
	}
	r.rec.enter("connect")
	if r.remote, err = r.connect(ctx, netip.AddrPortFrom(r.PeerAddr, a.Port)); err != nil {
		return ctxErr(ctx, err)
	}
	r.describe()
	for _, step := range []func(context.Context) error{r.transfer, r.message, r.atomics, r.datagram, r.latency} {
		if err := step(ctx); err != nil {
			return r.explain(ctxErr(ctx, err))
		}
	}
	r.res.Wire = r.rec.timeline()
	if d, ok := r.dev.Driver().(*soft.Device); ok {
		st := d.Stats()
		r.res.Counters = Counters{Sent: st.SentPackets, Received: st.RcvdPackets, Retransmitted: st.Retransmits}
	}
	_, err = r.child.ask(ctx, &request{Op: opBye})
	return err
}

// explain adds to an error of a step what both devices counted.
func (r *run) explain(err error) error {
	if t := r.trouble(); t != "" {
		err = fmt.Errorf("%w\n  counted here: %s", err, t)
	}
	if errors.As(err, new(*verbs.WCError)) || errors.Is(err, errSilence) {
		r.child.stop()
		err = fmt.Errorf("%w%s", err, r.child.stderr.said())
	}
	return err
}

// describe notes what takes part.
func (r *run) describe() {
	r.res.File, r.res.Size, r.res.Made = r.file.name, r.file.size, r.file.made
	r.res.From, r.res.To = r.Addr.String(), r.PeerAddr.String()
	r.res.PeerPID = r.child.cmd.Process.Pid
	r.res.Device, r.res.PeerDevice = r.me.Device, r.remote.Device
	r.res.PathMTU = r.mtu.Bytes()
}
