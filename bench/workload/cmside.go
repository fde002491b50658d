package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// use is what this process has now.
func use() cmUse {
	u := cmUse{Heap: heap(), Goroutines: runtime.NumGoroutine(), CPU: cpuTime()}
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.Files = len(list)
	}
	return u
}

// cmSide is one process: a manager with one device and a channel.
type cmSide struct {
	cmJob
	ctx context.Context
	m   *rdmacm.Manager
	ch  *rdmacm.EventChannel
}

func newCMSide(args json.RawMessage) (*cmSide, error) {
	s := &cmSide{ctx: context.Background()}
	if err := json.Unmarshal(args, &s.cmJob); err != nil {
		return nil, err
	}
	a, err := netip.ParseAddr(s.Addr)
	if err != nil {
		return nil, err
	}
	s.m = rdmacm.NewManager(rdmacm.WithProviders(soft.NewProvider(soft.WithAddrs("lo", a))))
	s.ch, err = s.m.NewEventChannel()
	return s, err
}

// queuePair makes an ID's queue pair, with completion queues of its own as
// rdma_create_qp does.
func queuePair(id *rdmacm.ID) error {
	return id.CreateQP(nil, &verbs.QPInitAttr{
		Cap: ib.QPCap{MaxSendWR: idleDepth, MaxRecvWR: idleDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
}

// cmServer accepts every connection and gives up those that the peer has ended.
func cmServer(args json.RawMessage, in *json.Decoder, out *json.Encoder) error {
	s, err := newCMSide(args)
	if err != nil {
		return err
	}
	l, err := s.m.NewID(s.ch, rdmacm.PSTCP, nil)
	if err != nil {
		return err
	}
	a, err := netip.ParseAddr(s.Addr)
	if err != nil {
		return err
	}
	if err := errors.Join(l.Bind(netip.AddrPortFrom(a, cmPort)), l.Listen(0)); err != nil {
		return err
	}
	if err := out.Encode(use()); err != nil {
		return err
	}
	words := make(chan error)
	go func() {
		for {
			var word string
			err := in.Decode(&word)
			words <- err
			if err != nil {
				return
			}
		}
	}()
	for {
		select {
		case err := <-words:
			if err != nil { // the parent is done
				return nil
			}
			if err := out.Encode(use()); err != nil {
				return err
			}
		case <-s.ch.Ready():
			for {
				e, err := s.ch.Poll()
				if err != nil {
					break
				}
				if err := s.serve(e); err != nil {
					return err
				}
			}
		}
	}
}

func (s *cmSide) serve(e *rdmacm.Event) error {
	id := e.ID
	if err := e.Ack(); err != nil {
		return err
	}
	switch e.Type {
	case rdmacm.EventConnectRequest:
		return errors.Join(queuePair(id), id.Accept(s.ctx, nil))
	case rdmacm.EventDisconnected, rdmacm.EventUnreachable, rdmacm.EventRejected:
		return id.DestroyEP(s.ctx)
	}
	return nil
}

// cmClient makes connections.
func cmClient(args json.RawMessage, in *json.Decoder, out *json.Encoder) error {
	s, err := newCMSide(args)
	if err != nil {
		return err
	}
	if s.Kind == "phases" {
		return s.phases(in, out)
	}
	warm := &cycler{cmSide: s, count: cmWarmUp}
	switch s.Kind {
	case "hold":
		warm.count = 1
	case "leak": // tables are as large as TIMEWAIT makes them
		warm.count = s.Count / 10
	}
	if err := warm.run(); err != nil {
		return err
	}
	if err := warm.release(); err != nil {
		return err
	}
	if s.Kind == "leak" {
		settle()
	}
	r := cmResult{Before: use()}
	if err := exchange("ready", in, out); err != nil {
		return err
	}
	r.Before.CPU = cpuTime()
	c := &cycler{cmSide: s, count: s.Count, hold: s.Kind == "hold"}
	begin := time.Now()
	if c.count == 0 {
		c.end = begin.Add(s.Duration)
	}
	if err := c.run(); err != nil {
		return err
	}
	r.Cycles, r.Elapsed, r.CPU = c.done, time.Since(begin), cpuTime()-r.Before.CPU
	if s.Kind == "leak" {
		settle()
	}
	r.After = use()
	if err := exchange("done", in, out); err != nil {
		return err
	}
	return errors.Join(out.Encode(r), c.release())
}

// settle waits until the connections that were ended have left TIMEWAIT.
func settle() { time.Sleep(5 * time.Second) }

// cycler has Window connections under way.
type cycler struct {
	*cmSide
	count int       // how many, or
	end   time.Time // until when
	hold  bool      // they are not ended

	begun, done int
	held        []*rdmacm.ID
}

// more begins another connection, if there is to be one.
func (c *cycler) more() error {
	if c.count > 0 && c.begun == c.count || c.count == 0 && !time.Now().Before(c.end) {
		return nil
	}
	to, err := c.target()
	if err != nil {
		return err
	}
	id, err := c.m.NewID(c.ch, rdmacm.PSTCP, nil)
	if err != nil {
		return err
	}
	c.begun++
	return id.ResolveAddr(c.ctx, netip.AddrPort{}, to, time.Second)
}

// run does all.
func (c *cycler) run() error {
	for range max(c.Window, 1) {
		if err := c.more(); err != nil {
			return err
		}
	}
	for c.done < c.begun {
		e, err := c.ch.Get(c.ctx)
		if err != nil {
			return err
		}
		id, typ := e.ID, e.Type
		if err := errors.Join(e.Err(), e.Ack()); err != nil {
			return err
		}
		switch typ {
		case rdmacm.EventAddrResolved:
			err = id.ResolveRoute(c.ctx, time.Second)
		case rdmacm.EventRouteResolved:
			err = errors.Join(queuePair(id), id.Connect(c.ctx, nil))
		case rdmacm.EventEstablished:
			if !c.hold {
				err = id.Disconnect(c.ctx)
				break
			}
			c.held = append(c.held, id)
			c.done++
			err = c.more()
		case rdmacm.EventDisconnected:
			c.done++
			err = errors.Join(id.DestroyEP(c.ctx), c.more())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// release ends what is held.
func (c *cycler) release() (err error) {
	for _, id := range c.held {
		err = errors.Join(err, id.DestroyEP(c.ctx))
	}
	c.held = nil
	return err
}

// phases takes Count connections through each phase together, as cmtime does.
func (s *cmSide) phases(in *json.Decoder, out *json.Encoder) error {
	var r cmResult
	for round := range 2 { // the first one warms up
		if err := exchange("ready", in, out); err != nil {
			return err
		}
		var err error
		if r.Phases, err = s.round(); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	r.Cycles, r.Elapsed = s.Count, 1
	return out.Encode(r)
}

func (s *cmSide) round() (list []cmPhase, err error) {
	to, err := s.target()
	if err != nil {
		return nil, err
	}
	from, err := netip.ParseAddr(s.Addr)
	if err != nil {
		return nil, err
	}
	ids := make([]*rdmacm.ID, s.Count)
	begun := make(map[*rdmacm.ID]time.Time, s.Count)
	// phase does one thing with all connections, and waits for each one's event if
	// there is one.
	phase := func(name string, event rdmacm.EventType, waits bool, do func(i int) error) {
		if err != nil {
			return
		}
		p := cmPhase{Name: name}
		start := time.Now()
		for i := range ids {
			at := time.Now()
			if err = do(i); err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				return
			}
			if begun[ids[i]] = at; !waits {
				p.Max = max(p.Max, time.Since(at))
			}
		}
		for n := 0; waits && n < len(ids); n++ {
			var e *rdmacm.Event
			if e, err = s.ch.Get(s.ctx); err == nil {
				p.Max = max(p.Max, time.Since(begun[e.ID]))
				err = errors.Join(e.Err(), e.Ack())
			}
			if err == nil && e.Type != event {
				err = fmt.Errorf("%v, want %v", e, event)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
				return
			}
		}
		p.Total = time.Since(start)
		list = append(list, p)
	}
	phase("create_id", 0, false, func(i int) (err error) {
		ids[i], err = s.m.NewID(s.ch, rdmacm.PSTCP, nil)
		return err
	})
	phase("bind", 0, false, func(i int) error { return ids[i].Bind(netip.AddrPortFrom(from, 0)) })
	phase("resolve_addr", rdmacm.EventAddrResolved, true, func(i int) error {
		return ids[i].ResolveAddr(s.ctx, netip.AddrPort{}, to, time.Second)
	})
	phase("resolve_route", rdmacm.EventRouteResolved, true, func(i int) error { return ids[i].ResolveRoute(s.ctx, time.Second) })
	phase("create_qp", 0, false, func(i int) error { return queuePair(ids[i]) })
	phase("connect", rdmacm.EventEstablished, true, func(i int) error { return ids[i].Connect(s.ctx, nil) })
	phase("disconnect", rdmacm.EventDisconnected, true, func(i int) error { return ids[i].Disconnect(s.ctx) })
	phase("destroy", 0, false, func(i int) error { return ids[i].DestroyEP(s.ctx) })
	return list, err
}
