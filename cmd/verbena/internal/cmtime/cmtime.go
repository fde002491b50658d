// Package cmtime times the steps of making and ending connections. The other side may be
// librdmacm's cmtime, whose options and output it has (that of rdma-core 44).
package cmtime

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config is what the command line says.
type Config struct {
	cmapp.Addrs
	Connections int
	Retries     int // of a resolution that failed, and of the queue pairs
	TimeoutMS   int // of resolutions
}

// Default is the configuration without options.
func Default() Config {
	return Config{
		Addrs:       cmapp.Addrs{Port: "7471", Space: rdmacm.PSTCP},
		Connections: 100, Retries: 2, TimeoutMS: 2000,
	}
}

// maxRetries is what a queue pair's retry count can be.
const maxRetries = 7

// Check checks what can be checked without a device.
func (c *Config) Check() error {
	if err := cmapp.CheckService("-p/--port", c.Port); err != nil {
		return err
	}
	return cmapp.CheckRanges(
		cmapp.Range{Option: "-c/--connections", Value: c.Connections, Least: 1},
		cmapp.Range{Option: "-r/--retries", Value: c.Retries, Beyond: maxRetries + 1},
		cmapp.Range{Option: "-t/--timeout", Value: c.TimeoutMS},
	)
}

// Run runs one side and prints to out: the client until it is done, the server until ctx
// is.
func Run(ctx context.Context, out io.Writer, c Config) (err error) {
	if err := c.Check(); err != nil {
		return err
	}
	src, dst, err := c.Resolve(ctx)
	if err != nil {
		return err
	}
	app, err := cmapp.Open(ctx, src.Addr())
	if err != nil {
		return cmapp.Explain(err, "-b")
	}
	defer func() {
		if e := app.Close(); err == nil {
			err = e
		}
		err = cmapp.Explain(err, "-b")
	}()
	ch, err := app.NewEventChannel()
	if err != nil {
		return err
	}
	defer func() {
		if e := ch.Close(); err == nil {
			err = e
		}
	}()
	if c.Server == "" {
		return serve(ctx, app, ch, src)
	}
	t := &client{cfg: &c, out: out, app: app, ch: ch, src: src, dst: dst}
	return t.run(ctx)
}

// resolveTimeout is the option as a time.
func (c *Config) resolveTimeout() time.Duration { return time.Duration(c.TimeoutMS) * time.Millisecond }

// newQP makes the queue pair of an ID, with all that belongs to it.
func newQP(id *rdmacm.ID) error {
	return id.CreateQP(nil, &verbs.QPInitAttr{
		Type: ib.RC, Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
}

// serve accepts connections and answers their end. Making queue pairs and destroying IDs
// takes time: other goroutines do it, since events must not wait.
func serve(ctx context.Context, app *cmapp.App, ch *rdmacm.EventChannel, addr netip.AddrPort) (err error) {
	listener, err := app.NewID(ch, rdmacm.PSTCP, nil)
	if err != nil {
		return err
	}
	s := newServer()
	defer func() {
		free, cancel := cmapp.Cleanup(ctx)
		defer cancel()
		s.close(free)
		if e := listener.Destroy(free); err == nil {
			err = e
		}
	}()
	if err := listener.Bind(addr); err != nil {
		return err
	}
	if err := listener.Listen(0); err != nil {
		return err
	}
	for {
		ev, err := ch.Get(ctx)
		if errors.Is(err, context.Canceled) { // the proper end
			return nil
		}
		if err != nil {
			return err
		}
		id, t := ev.ID, ev.Type
		if err := ev.Ack(); err != nil {
			return err
		}
		switch t {
		case rdmacm.EventConnectRequest:
			s.requests.put(id)
		case rdmacm.EventDisconnected:
			s.ended.put(id)
		}
		if cmapp.Failed(t) { // the client gave up
			s.ended.put(id)
		}
	}
}
