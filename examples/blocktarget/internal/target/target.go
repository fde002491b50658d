// Package target serves the blocks of a store to clients on the network: the other side
// of package proto, by the contexts of package rdmarw.
//
// Each client has a connection, a completion queue and a goroutine that handles its
// completions. A request runs through these steps, each the callback of a
// completion:
//
//	WRITE  request received -> memory -> READ from the client -> checked -> stored -> response
//	READ   request received -> memory -> read from the store -> WRITE to the client -> checked -> response
//
// Nothing waits in between; how many requests are under way is the client's choice, up to
// its depth. What may take long, files, is done by goroutines of its own.
package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/store"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// Config describes a target.
type Config struct {
	Store *store.Store
	// Protection is the T10-PI type of the blocks, 1 to 3, for which the store has to have
	// tuples; 0: none.
	Protection int
	Depth      int // requests of one client that may be under way; 0: 32
	MaxLength  int // bytes of data of a request; 0: 1 MiB
	Memory     int // bytes for data under way on a device, of all clients; 0: 64 MiB
	// ForceMR has all data moved by registered memory.
	ForceMR bool
	Logger  *slog.Logger // nil: none
	// Patience is for how long a client may answer nothing of what it has to, until it is
	// given up; 0: 30 s.
	Patience time.Duration

	atFile func() // tests: called before an operation at a file; nil: nothing is
}

// Limits of a Config.
const (
	maxDepth  = 1024
	maxLength = 64 << 20
)

// fill puts in what is not set. EINVAL: a value is out of range.
func (c *Config) fill() error {
	if c.Store == nil {
		return fmt.Errorf("target: there is no store: %w", syscall.EINVAL)
	}
	if c.MaxLength == 0 {
		c.MaxLength = 1 << 20
	}
	for _, f := range []struct {
		what                string
		v                   *int
		preset, least, most int
	}{
		{"Depth", &c.Depth, 32, 1, maxDepth},
		{"MaxLength", &c.MaxLength, 0, c.Store.BlockSize(), maxLength},
		{"Memory", &c.Memory, max(64<<20, c.MaxLength), c.MaxLength, 1 << 40},
		{"Protection", &c.Protection, 0, 0, 3},
	} {
		if *f.v == 0 {
			*f.v = f.preset
		}
		if *f.v < f.least || *f.v > f.most {
			return fmt.Errorf("target: %s %d, want %d to %d: %w", f.what, *f.v, f.least, f.most, syscall.EINVAL)
		}
	}
	switch bs := c.Store.BlockSize(); {
	case c.MaxLength%bs != 0:
		return fmt.Errorf("target: MaxLength %d is no multiple of the block size %d: %w", c.MaxLength, bs, syscall.EINVAL)
	case (c.Protection != 0) != c.Store.Protected():
		return fmt.Errorf("target: Protection %d does not fit the store: %w", c.Protection, syscall.EINVAL)
	}
	if c.Patience < 0 {
		return fmt.Errorf("target: Patience %v: %w", c.Patience, syscall.EINVAL)
	}
	if c.Patience == 0 {
		c.Patience = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Target serves a store.
type Target struct {
	cfg  Config
	m    *rdmacm.Manager
	geom proto.Geometry
	work chan *op // for the goroutines that wait for files

	counts counts

	mu      sync.Mutex
	domains map[*verbs.Context]*domain
	conns   map[*conn]struct{}
	ended   sync.WaitGroup // connections that are not given back
}

// counts are the parts of Stats.
type counts struct {
	clients, reads, writes, read, written, refused, bad atomic.Uint64
}

// Stats says what a target has done.
type Stats struct {
	Clients           uint64 // that were accepted
	Reads, Writes     uint64 // requests that were carried out
	BytesRead         uint64
	BytesWritten      uint64
	Refused           uint64 // malformed, beyond the end, or the storage failed
	BadProtection     uint64 // ended by wrong protection information
	Connected, Memory int    // clients now; bytes of data under way now
}

// New makes a target. EINVAL: the configuration.
func New(m *rdmacm.Manager, cfg Config) (*Target, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Target{
		cfg: cfg, m: m, domains: make(map[*verbs.Context]*domain), conns: make(map[*conn]struct{}),
		work: make(chan *op, 1024),
		geom: proto.Geometry{
			Depth: uint16(cfg.Depth), BlockSize: uint32(cfg.Store.BlockSize()), Blocks: uint64(cfg.Store.Blocks()),
			MaxLength: uint32(cfg.MaxLength), Protection: uint8(cfg.Protection),
		},
	}, nil
}

// Stats says what the target has done so far.
func (t *Target) Stats() Stats {
	c := &t.counts
	s := Stats{
		Clients: c.clients.Load(), Reads: c.reads.Load(), Writes: c.writes.Load(), BytesRead: c.read.Load(),
		BytesWritten: c.written.Load(), Refused: c.refused.Load(), BadProtection: c.bad.Load(),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Connected = len(t.conns)
	for _, d := range t.domains {
		d.pool.mu.Lock()
		s.Memory += (d.chunks - len(d.pool.free)) * d.pool.chunk
		d.pool.mu.Unlock()
	}
	return s
}

// fileWorkers is how many files operations go on at a time.
const fileWorkers = 8

// Serve takes clients at addr until ctx is done; then it ends their connections, waits
// until their memory is given back, and returns nil. ready, if not nil, is called once it
// listens. It may be called once.
func (t *Target) Serve(ctx context.Context, addr netip.AddrPort, ready func(netip.AddrPort)) (err error) {
	ch, err := t.m.NewEventChannel()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	l, err := t.m.NewID(ch, rdmacm.PSTCP, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Destroy(context.Background())) }()
	if err := l.Bind(addr); err != nil {
		return err
	}
	if err := l.Listen(0); err != nil {
		return err
	}
	for range fileWorkers {
		go func() {
			for o := range t.work {
				if f := t.cfg.atFile; f != nil {
					f()
				}
				o.store()
			}
		}()
	}
	defer close(t.work)
	watching, enough := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { t.watch(watching) })
	defer watch.Wait()
	defer enough()
	if ready != nil {
		ready(l.LocalAddr())
	}
	for {
		e, err := ch.Get(ctx)
		if err != nil {
			break
		}
		t.event(e)
	}
	t.endAll(ch)
	return t.closeDomains()
}

// event handles what the connection manager tells.
func (t *Target) event(e *rdmacm.Event) {
	defer e.Ack()
	if e.Type == rdmacm.EventConnectRequest {
		t.accept(e)
		return
	}
	c, ok := e.ID.UserContext().(*conn)
	if !ok {
		return
	}
	switch e.Type {
	case rdmacm.EventEstablished:
		c.tune()
		t.cfg.Logger.Info("client connected", "client", c.peer)
	case rdmacm.EventDisconnected:
		c.shut("it disconnected", nil)
	case rdmacm.EventRejected, rdmacm.EventUnreachable, rdmacm.EventConnectError, rdmacm.EventDeviceRemoval:
		c.shut(e.Type.String(), e.Err())
	}
}

// accept takes a client, or rejects it.
func (t *Target) accept(e *rdmacm.Event) {
	id, peer := e.ID, e.ID.PeerAddr()
	var hello proto.Hello
	err := hello.Parse(e.Conn.PrivateData)
	var c *conn
	if err == nil {
		c, err = t.newConn(id, &hello)
	}
	if err != nil {
		t.cfg.Logger.Warn("client rejected", "client", peer, "why", err)
		_ = id.Reject(nil)
		t.ended.Go(func() { _ = id.Destroy(context.Background()) }) // which waits for the event to be acknowledged
		return
	}
	id.SetUserContext(c)
	t.mu.Lock()
	t.conns[c] = struct{}{}
	t.mu.Unlock()
	t.ended.Add(1)
	t.counts.clients.Add(1)
	geom := t.geom
	geom.Depth = uint16(c.depth)
	p := e.Conn
	p.PrivateData, p.RNRRetryCount = geom.Append(nil), 7
	go c.run()
	if err := id.Accept(context.Background(), &p); err != nil {
		c.shut("it could not be accepted", err)
	}
}

// endAll ends all connections and waits for them; what the connection manager still has
// to say is heard meanwhile.
func (t *Target) endAll(ch *rdmacm.EventChannel) {
	t.mu.Lock()
	for c := range t.conns {
		go c.shut("the target ends", nil)
	}
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	var heard sync.WaitGroup
	heard.Go(func() {
		for {
			e, err := ch.Get(ctx)
			if err != nil {
				return
			}
			if id := e.ID; e.Type == rdmacm.EventConnectRequest {
				_ = id.Reject(nil)
				heard.Go(func() { _ = id.Destroy(context.Background()) })
			}
			e.Ack()
		}
	})
	t.ended.Wait()
	cancel()
	heard.Wait()
}

// domain is what the clients on one device share.
type domain struct {
	pd     *verbs.PD
	pool   *pool
	chunks int
}

// chunk is the size of the pieces that memory is given out in: small enough that several
// make a request, and no more of them than a signature region takes.
func (c *Config) chunk(dev *verbs.Context) (int, error) {
	const page, usual = 4096, 16 << 10
	most := 128
	if c.Protection != 0 {
		attr, err := dev.QueryDevice()
		if err != nil {
			return 0, err
		}
		if most = min(most, attr.MaxPIFastRegPageListLen); most == 0 {
			return 0, fmt.Errorf("target: the device %s knows no protection information: %w", dev.Device().Name(), syscall.EOPNOTSUPP)
		}
	}
	n := max(usual, (c.MaxLength+most-1)/most)
	return (n + page - 1) / page * page, nil
}

// domainOf is the device's domain; it is made with its first client.
func (t *Target) domainOf(dev *verbs.Context) (*domain, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.domains[dev]; d != nil {
		return d, nil
	}
	chunk, err := t.cfg.chunk(dev)
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	tuples := 0
	if t.cfg.Protection != 0 {
		tuples = chunk / t.cfg.Store.BlockSize() * proto.TupleLen
	}
	d := &domain{pd: pd, chunks: (t.cfg.Memory + chunk - 1) / chunk}
	if d.pool, err = newPool(pd, chunk, d.chunks, tuples); err != nil {
		return nil, errors.Join(err, pd.Dealloc())
	}
	t.domains[dev] = d
	return d, nil
}

func (t *Target) closeDomains() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for dev, d := range t.domains {
		err = errors.Join(err, d.pool.close(), d.pd.Dealloc())
		delete(t.domains, dev)
	}
	return err
}
