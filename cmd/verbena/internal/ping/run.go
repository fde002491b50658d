package ping

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// backlog is how many requests wait to be accepted.
const backlog = 64

// program is one run, of either side.
type program struct {
	cfg       *Config
	out, errs io.Writer
	mu        sync.Mutex // for writing

	app      *cmapp.App
	ch       *rdmacm.EventChannel
	requests chan *rdmacm.ID // for the server
	stop     <-chan struct{} // closed when nobody takes requests any more
}

// Run plays one side: it prints ping data to out and notices to errs. ctx ends it.
func Run(ctx context.Context, out, errs io.Writer, c Config) (err error) {
	if err := c.Check(); err != nil {
		return err
	}
	p := &program{cfg: &c, out: out, errs: errs, requests: make(chan *rdmacm.ID)}
	a, err := cmapp.Lookup(ctx, "-a/--addr", c.Addr)
	if err != nil {
		return err
	}
	addr, option := netip.AddrPortFrom(a, uint16(c.Port)), "-a"
	var own netip.Addr
	if c.Server {
		own = a
	} else if option = "-I"; c.Source != "" {
		if own, err = cmapp.Lookup(ctx, "-I/--source", c.Source); err != nil {
			return err
		}
	}
	p.debugf("%s\ncount %d\nsize %d\nport %d\n", p.role(), c.Count, c.Size, c.Port)
	if p.app, err = cmapp.Open(ctx, own); err != nil {
		return cmapp.Explain(err, option)
	}
	defer func() {
		if e := p.app.Close(); err == nil {
			err = e
		}
		err = cmapp.Explain(err, option)
	}()
	if p.ch, err = p.app.NewEventChannel(); err != nil {
		return err
	}
	stop := make(chan struct{})
	p.stop = stop
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.watch(watching)
	}()
	defer func() {
		cancel()
		<-done
		if e := p.ch.Close(); err == nil {
			err = e
		}
	}()
	if c.Client {
		return p.runClient(ctx, netip.AddrPortFrom(own, 0), addr)
	}
	defer close(stop)
	return p.runServer(ctx, addr)
}

// watch hands events out until ctx is done. IDs have their session as user context, and
// the one that listens has none.
func (p *program) watch(ctx context.Context) {
	for {
		ev, err := p.ch.Get(ctx)
		if err != nil {
			return
		}
		s, _ := ev.ID.UserContext().(*session)
		kind := "child"
		if s != nil && p.cfg.Client || ev.Type != rdmacm.EventConnectRequest && s == nil {
			kind = "parent"
		}
		p.debugf("cma_event type %v cma_id %p (%s)\n", ev.Type, ev.ID, kind)
		id, request := ev.ID, ev.Type == rdmacm.EventConnectRequest
		if s != nil {
			s.event(ev)
		} else if !request {
			p.errorf("unhandled event: %v, ignoring\n", ev.Type)
		}
		_ = ev.Ack() // before its ID is destroyed, which waits for it
		if request {
			select {
			case p.requests <- id:
			case <-p.stop:
				p.refuse(ctx, id)
			}
		}
	}
}

// refuse refuses a request.
func (p *program) refuse(ctx context.Context, id *rdmacm.ID) {
	ctx, cancel := cmapp.Cleanup(ctx)
	defer cancel()
	_ = id.Reject(nil) // fails when the client has given up
	_ = id.Destroy(ctx)
}

func (p *program) runClient(ctx context.Context, source, server netip.AddrPort) (err error) {
	id, err := p.app.NewID(p.ch, rdmacm.PSTCP, nil)
	if err != nil {
		return err
	}
	p.debugf("created cm_id %p\n", id)
	s := p.newSession(ctx, id)
	id.SetUserContext(s)
	defer func() {
		if e := s.close(); err == nil {
			err = e
		}
	}()
	if !source.Addr().IsValid() {
		source = netip.AddrPort{}
	}
	if err := id.ResolveAddr(ctx, source, server, cmapp.ResolveTimeout); err != nil {
		return err
	}
	if err := s.await(rdmacm.EventRouteResolved); err != nil {
		return err
	}
	p.debugf("rdma_resolve_addr - rdma_resolve_route successful\n")
	if err := s.setup(); err != nil {
		return err
	}
	if err := s.connect(); err != nil {
		return err
	}
	p.debugf("rdma_connect successful\n")
	err = s.client()
	if errors.Is(err, errDisconnected) {
		err = cli.Hint(errors.New("the server has disconnected"), "What it says tells why: it was stopped, or another -S than here was given to it")
	}
	if e := s.disconnect(); err == nil {
		err = e
	}
	return err
}

// connect connects, with an own queue pair in steps.
func (s *session) connect() error {
	if err := s.id.Connect(s.ctx, s.connParam()); err != nil {
		return err
	}
	if !s.cfg.OwnQP {
		return s.await(rdmacm.EventEstablished)
	}
	if err := s.await(rdmacm.EventConnectResponse); err != nil {
		return err
	}
	if err := s.modify(); err != nil {
		return err
	}
	return s.id.Establish()
}

func (p *program) runServer(ctx context.Context, addr netip.AddrPort) (err error) {
	listener, err := p.app.NewID(p.ch, rdmacm.PSTCP, nil)
	if err != nil {
		return err
	}
	p.debugf("created cm_id %p\n", listener)
	var clients sync.WaitGroup
	defer func() {
		clients.Wait()
		free, cancel := cmapp.Cleanup(ctx)
		defer cancel()
		if e := listener.Destroy(free); err == nil {
			err = e
		}
	}()
	if err := listener.Bind(addr); err != nil {
		return err
	}
	p.debugf("rdma_bind_addr successful\nrdma_listen\n")
	if err := listener.Listen(backlog); err != nil {
		return err
	}
	for {
		var id *rdmacm.ID
		select {
		case id = <-p.requests:
		case <-ctx.Done():
			if p.cfg.Persistent { // its proper end
				return nil
			}
			return context.Cause(ctx)
		}
		p.debugf("child cma %p\n", id)
		s := p.newSession(ctx, id)
		id.SetUserContext(s)
		if !p.cfg.Persistent {
			return p.answerOnly(s)
		}
		clients.Go(func() {
			if err := s.answer(); err != nil && ctx.Err() == nil {
				p.errorf("verbena: %s\n", cli.Describe(err))
			}
		})
	}
}

// answerOnly is answer for the one client of a server that is not persistent; others are
// refused meanwhile.
func (p *program) answerOnly(s *session) error {
	done := make(chan error, 1)
	go func() { done <- s.answer() }()
	for {
		select {
		case id := <-p.requests:
			p.refuse(s.ctx, id)
		case err := <-done:
			return err
		}
	}
}

// answer accepts a client and plays with it until it goes.
func (s *session) answer() (err error) {
	defer func() {
		if e := s.close(); err == nil {
			err = e
		}
	}()
	if err := s.setup(); err != nil {
		return errors.Join(err, s.id.Reject(nil))
	}
	s.debugf("accepting client connection request\n")
	var param *rdmacm.ConnParam
	if s.cfg.OwnQP {
		if err := s.modify(); err != nil {
			return err
		}
		param = s.connParam()
	}
	if err := s.id.Accept(s.ctx, param); err != nil {
		return err
	}
	// The first message may be here before the event that tells of the connection.
	err = s.server()
	if e := s.disconnect(); err == nil {
		err = e
	}
	return err
}
