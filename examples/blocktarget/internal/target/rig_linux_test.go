package target

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/client"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/store"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// host is a device on the loopback interface with its connection manager.
type host struct {
	t    testing.TB
	addr netip.Addr
	dev  *soft.Device
	ctx  *verbs.Context
	m    *rdmacm.Manager
	free func()
}

// addrs are the last bytes of the addresses that are in use.
var addrs sync.Map

func freeAddr() (a netip.Addr, free func()) {
	for n := byte(1); ; n++ {
		if _, taken := addrs.LoadOrStore(n, true); !taken {
			return netip.AddrFrom4([4]byte{127, 74, 1, n}), func() { addrs.Delete(n) }
		}
	}
}

func newHost(t testing.TB, limits soft.Limits) *host {
	t.Helper()
	h := &host{t: t}
	h.addr, h.free = freeAddr()
	d, err := soft.NewProvider(soft.WithAddrs("lo", h.addr), soft.WithLimits(limits)).Open(t.Context(), "soft_lo")
	if err != nil {
		t.Fatal(err)
	}
	return h.open(d.(*soft.Device))
}

// newMortalHost is a host whose interface can be removed. It shares its address with
// nobody, so that it has one of this process.
func newMortalHost(t testing.TB) (h *host, remove func()) {
	t.Helper()
	pid := os.Getpid()
	h = &host{t: t, addr: netip.AddrFrom4([4]byte{127, 75, byte(pid >> 8), byte(pid) | 1}), free: func() {}}
	p, err := udp.Open(udp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var report func(soft.Netdev)
	d, err := soft.NewDevice(soft.Config{
		Name: "soft_mortal", NetDev: "lo", Port: p, Addrs: []netip.Addr{h.addr},
		Watch: func(r func(soft.Netdev)) (func(), error) { report = r; return func() {}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return h.open(d), func() { report(soft.Netdev{Gone: true}) }
}

func (h *host) open(d *soft.Device) *host {
	h.dev = d
	h.ctx = verbs.NewContext(d)
	h.m = rdmacm.NewManager(rdmacm.WithContexts(h.ctx))
	h.t.Cleanup(h.close)
	return h
}

// close looks for what is left.
func (h *host) close() {
	if err := h.m.Close(); err != nil {
		h.t.Error(err)
	}
	// What other parts of the device owe is done by its own goroutine.
	err := h.dev.Leaks()
	for range 200 {
		if err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
		err = h.dev.Leaks()
	}
	if err = errors.Join(err, h.ctx.Close()); err != nil {
		h.t.Error(err)
	}
	h.free()
}

// rig is a target that serves, and a host for clients.
type rig struct {
	t       testing.TB
	store   *store.Store
	target  *Target
	tgtHost *host
	cliHost *host
	addr    netip.AddrPort
	stop    context.CancelFunc
	done    chan error
}

func newRig(t testing.TB, s *store.Store, cfg Config, limits soft.Limits) *rig {
	t.Helper()
	return newRigOn(t, s, cfg, newHost(t, limits))
}

func newRigOn(t testing.TB, s *store.Store, cfg Config, h *host) *rig {
	t.Helper()
	r := &rig{t: t, store: s, tgtHost: h, done: make(chan error, 1)}
	r.cliHost = newHost(t, soft.Limits{})
	cfg.Store = s
	var err error
	if r.target, err = New(r.tgtHost.m, cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	ready := make(chan netip.AddrPort, 1)
	go func() {
		r.done <- r.target.Serve(ctx, netip.AddrPortFrom(r.tgtHost.addr, 0), func(a netip.AddrPort) { ready <- a })
	}()
	select {
	case r.addr = <-ready:
	case err := <-r.done:
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the hosts are closed
		cancel()
		if err := <-r.done; err != nil {
			t.Error(err)
		}
		if s := r.target.Stats(); s.Connected != 0 || s.Memory != 0 {
			t.Errorf("left at the end: %+v", s)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func memoryStore(t testing.TB, size int64, bs int, protect bool) *store.Store {
	t.Helper()
	s, err := store.NewMemory(size, bs, protect)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (r *rig) dial(cfg client.Config) *client.Client {
	r.t.Helper()
	cfg.Target = r.addr
	cfg.Source = r.cliHost.addr
	c, err := client.Dial(r.t.Context(), r.cliHost.m, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// settled waits until no client and no memory is in use.
func (r *rig) settled() {
	r.t.Helper()
	for range 3000 {
		if s := r.target.Stats(); s.Connected == 0 && s.Memory == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("something is left: %+v", r.target.Stats())
}

// raw is a client that sends what the test wants.
type raw struct {
	t    testing.TB
	id   *rdmacm.ID
	pd   *verbs.PD
	geom proto.Geometry
	mem  *verbs.MR
	msgs *verbs.MR
	next uint32
	gone bool
}

const rawReceives = 256

func (r *rig) raw(n int) *raw { return r.rawOn(r.cliHost, n) }

func (r *rig) rawOn(h *host, n int) *raw { return r.rawWith(h, n, rawReceives) }

// rawWith is a raw client with room for some responses.
func (r *rig) rawWith(h *host, n, receives int) *raw {
	r.t.Helper()
	must := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	ctx := r.t.Context()
	id, err := h.m.NewID(nil, rdmacm.PSTCP, nil)
	must(err)
	c := &raw{t: r.t, id: id}
	must(id.ResolveAddr(ctx, netip.AddrPortFrom(h.addr, 0), r.addr, time.Second))
	must(id.ResolveRoute(ctx, time.Second))
	c.pd, err = id.Verbs().AllocPD()
	must(err)
	must(id.CreateQP(c.pd, &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: rawReceives, MaxRecvWR: rawReceives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}))
	c.mem, err = c.pd.RegMR(make([]byte, n), ib.AccessLocalWrite|ib.AccessRemoteRead|ib.AccessRemoteWrite)
	must(err)
	c.msgs, err = c.pd.RegMR(make([]byte, rawReceives*proto.ResponseLen), ib.AccessLocalWrite)
	must(err)
	for i := range receives {
		must(id.PostRecv(uint64(i), c.msgs.Bytes()[i*proto.ResponseLen:(i+1)*proto.ResponseLen], c.msgs))
	}
	must(id.Connect(ctx, &rdmacm.ConnParam{PrivateData: (&proto.Hello{}).Append(nil), ResponderResources: rdmacm.MaxRespRes, InitiatorDepth: rdmacm.MaxInitDepth, RetryCount: 7, RNRRetryCount: 7}))
	must(c.geom.Parse(id.Event().Conn.PrivateData))
	r.t.Cleanup(c.close)
	return c
}

// close ends the connection, and waits for nothing that the target does.
func (c *raw) close() {
	if c.gone {
		return
	}
	c.gone = true
	ctx := context.Background()
	soon, cancel := context.WithTimeout(ctx, time.Second)
	_ = c.id.Disconnect(soon) // which waits for the target's answer
	cancel()
	if err := errors.Join(c.id.DestroyQP(ctx), c.mem.Dereg(), c.msgs.Dereg(), c.pd.Dealloc(), c.id.Destroy(ctx)); err != nil {
		c.t.Error(err)
	}
}

// send sends bytes as a request.
func (c *raw) send(b []byte) {
	c.t.Helper()
	if err := c.id.PostSend(0, b, nil, ib.SendInline); err != nil {
		c.t.Fatal(err)
	}
}

// request sends a request about the raw client's memory.
func (c *raw) request(r proto.Request) uint32 {
	c.t.Helper()
	c.next++
	r.Tag = c.next
	if r.RKey == 0 {
		r.RKey, r.Addr = c.mem.RKey(), c.mem.Addr()+r.Addr
	}
	var b [proto.RequestLen]byte
	r.Put(b[:])
	c.send(b[:])
	return r.Tag
}

// response waits for the next response.
func (c *raw) response() proto.Response {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 20*time.Second)
	defer cancel()
	wc, err := c.id.GetRecvComp(ctx)
	if err = errors.Join(err, wc.Err()); err != nil {
		c.t.Fatal(err)
	}
	i := int(wc.WRID)
	b := c.msgs.Bytes()[i*proto.ResponseLen : (i+1)*proto.ResponseLen]
	var resp proto.Response
	if err := resp.Parse(b[:wc.ByteLen]); err != nil {
		c.t.Fatal(err)
	}
	if err := c.id.PostRecv(wc.WRID, b, c.msgs); err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// do sends a request and waits for its response.
func (c *raw) do(r proto.Request) proto.Response {
	c.t.Helper()
	tag := c.request(r)
	resp := c.response()
	if resp.Tag != tag {
		c.t.Fatalf("response to %d, want %d", resp.Tag, tag)
	}
	return resp
}
